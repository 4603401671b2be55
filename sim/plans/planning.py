"""The plan: a first look at as many systems as there is time for, then a closer look at the best of them.

The first look takes one seed, few attacks, as many rounds as there is time for, and arrays for what these can simulate.
It begins with the first choices, what arrays run, and all systems that differ from the first in one choice; the others
follow in the order that these foretell. The closer look is exact and takes all attacks, and all rounds and three seeds
if there is time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from p2pfl.errors import UserError
from p2pfl.learn.metrics import LOSS, Measure
from p2pfl.reporting.measures import merit
from sim.plans.shortlist import PlannedSystem, Tell, find_graphs, gains, systems
from sim.plans.trials import ATTACKS, FIRST_ATTACKS, HONEST, Bench, SystemStanding, Trial, TrialLook, standing
from sim.plans.wishes import PlanWishes, check_wishes
from sim.plans.world_file import write_world
from sim.sweeps.run import Folder

GRAPHS_SHARE = 0.2
"""The part of the time after which no further graph is searched."""
FIRST_SHARE = 0.5
"""The part of the time after which the first look ends."""
LAST_SHARE = 0.97
WANTED = 24
"""The first look simulates so few rounds that there is time for so many systems."""
LEAST_ROUNDS = 3
CLOSER = 8
"""The most systems that get a closer look."""
FINALISTS = 2
"""The fewest systems for which there should be time in a closer look."""
SHARES = (1, 2, 4, 8)
"""A look simulates all rounds, or half of them, and so on, so that a plan that is started again finds its runs."""
CLOSER_SEEDS = 3
SETUP_S = 3.0
"""The time until the processes of a look have begun."""
DIGITS = 2
"""Measures that agree in so many significant digits are a tie, in which the system that sends less is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPlan:
    """The ranking, best first; `refused` has a sentence for each wish that cannot be had. `interrupted` by Ctrl-C,
    `hurried` if time was up before every system had its first look. `failures`: why runs failed, one reason each.
    """

    wishes: PlanWishes
    ranking: tuple[SystemStanding, ...]
    measure: Measure
    refused: tuple[str, ...]
    tried: int
    of: int
    runs: int
    by_arrays: int
    world: Path
    interrupted: bool
    hurried: bool
    failures: tuple[str, ...] = ()

    @property
    def winner(self) -> SystemStanding:
        return self.ranking[0]


def make_plan(wishes: PlanWishes, out: Path, *, within_s: float, jobs: int, tell: Tell) -> SystemPlan:
    """Search and simulate for `within_s` seconds, in `jobs` processes; `out` keeps graphs, world and reports.

    Raises UserError for wishes that contradict each other, if the folder cannot be used, and if there was no time for a
    single run; TopologyError if there is no such graph; KeyboardInterrupt if Ctrl-C came before any result.
    """
    begun = time.monotonic()
    check_wishes(wishes)
    out = out.absolute()  # a federation's graph would be looked for in its own folder
    folder = Folder(out)
    with folder.lock():
        world = write_world(wishes, out)
        (out / "graphs").mkdir(exist_ok=True)
        graphs, refusal = find_graphs(wishes, out / "graphs", tell, begun + GRAPHS_SHARE * within_s)
        bench = Bench(wishes=wishes, folder=folder, world=world, count=jobs, tell=tell)
        everything = [system for system in systems(wishes, graphs) if bench.objection(system) is None]
        if not everything:
            raise UserError(next(filter(None, bench.impossible.values())))
        search = _Search(bench, everything, begun, within_s)
        with closing(bench):
            interrupted = search.go()
    measure = bench.measure
    found = search.standings()
    if measure is None or not found:
        if interrupted:
            raise KeyboardInterrupt
        raise search.nothing()
    ranking = ranked(wishes, found, measure)
    return SystemPlan(
        wishes=wishes,
        ranking=ranking,
        measure=measure,
        refused=tuple(_refused(wishes, ranking[0], refusal)),
        tried=search.looked,
        of=len(everything),
        runs=len(bench.results),
        by_arrays=sum(trial.arrays for trial in bench.results),
        world=world,
        interrupted=interrupted,
        hurried=search.hurried,
        failures=tuple(bench.failed.values()),
    )


class _Search:
    """The looks, under one time limit: how long a round takes, then many systems roughly, then the best of them."""

    def __init__(self, bench: Bench, everything: Sequence[PlannedSystem], begun: float, within_s: float) -> None:
        self.bench, self.everything = bench, everything
        self.first_until = begun + FIRST_SHARE * within_s
        self.last_until = begun + LAST_SHARE * within_s
        self.within_s = within_s
        self.looks: list[TrialLook] = []
        self.broad: TrialLook | None = None
        self.close: TrialLook | None = None
        """The first look and the closer one, which stay the same however often they are gone on with."""
        self.hurried = True
        self.attacks: Sequence[str] = ATTACKS if bench.wishes.liars else ()

    def go(self) -> bool:
        """Search; returns True if Ctrl-C ended it early."""
        try:
            if self._pilot():
                self._first_look(self.first_until)
                while self._go_on():
                    pass
        except KeyboardInterrupt:
            return True
        return False

    def _go_on(self) -> bool:
        """Look closer at the best, if there are some to compare, then with half of the time left at more; with all of
        it, where there is no time to look closer. Returns False when nothing is left to do.
        """
        known = len(self.bench.results)
        compares = not self.hurried or self.looked >= FINALISTS
        closer = self._closer_look() if compares else True
        now = time.monotonic()
        if self.hurried:
            self._first_look((now + self.last_until) / 2 if closer else self.last_until)
        return len(self.bench.results) > known and time.monotonic() < self.last_until

    def standings(self) -> list[SystemStanding]:
        """Return the systems with all results of the latest look in which there are some to compare."""
        bench, measure = self.bench, self.bench.measure
        done = {look: bench.complete(self.everything, look) for look in self.looks}
        if measure is None or not any(done.values()):
            return []
        return self._standings_in(max(reversed(self.looks), key=lambda one: min(FINALISTS, len(done[one]))))

    def _standings_in(self, look: TrialLook) -> list[SystemStanding]:
        bench = self.bench
        return [standing(bench, one, look, self._measure) for one in bench.complete(self.everything, look)]

    @property
    def looked(self) -> int:
        """How many systems had a look."""
        return max((len(self.bench.complete(self.everything, look)) for look in self.looks), default=0)

    def nothing(self) -> UserError:
        failed = next(iter(self.bench.failed.values()), None)
        if failed is not None:
            return UserError(f"no run succeeded: {failed}")
        text = "not even the first system could be simulated in this time"
        return UserError(text, key="--within", value=f"{self.within_s:g}s", allowed="more time")

    def _pilot(self) -> bool:
        wishes = self.bench.wishes
        rounds = wishes.full
        if rounds is not None and wishes.can_be_shortened:
            rounds = max(LEAST_ROUNDS, rounds // 10)
        exact = TrialLook(attacks=(HONEST,), seeds=(wishes.seed,), rounds=rounds)
        looks = (exact, replace(exact, rough=not wishes.liars))
        return all(self._perform(one, self.everything[:1], self.last_until) for one in looks)

    def _make_broad(self) -> TrialLook:
        wishes, attacks = self.bench.wishes, (HONEST, *self.attacks[:FIRST_ATTACKS])
        look = TrialLook(attacks=attacks, seeds=(wishes.seed,), rounds=None, rough=not wishes.liars)
        rounds = self._affordable(self.first_until, self.bench.trials(look, self.everything[:WANTED]))
        return look if rounds is None else replace(look, rounds=_step(wishes, rounds))

    def _first_look(self, until: float) -> None:
        look = self.broad = self.broad or self._make_broad()
        # the first system has the time of the closer look, too: a result that is late is better than none
        if not self._perform(look, self.everything[:1], self.last_until):
            return
        if self.close is None and self._make_close(look, after=until) is None:
            until = self.last_until  # runs that are cut off to look closer would be lost
        cheap = [one for one in self.everything if self.bench.trials(look, [one])[0].arrays]
        near = cheap + [one for one in self.everything if one.changes <= 1 and one not in cheap]
        others = [one for one in self.everything if one not in near]
        if self._perform(look, near, until):
            scores = {one.system: merit(one.worst, self._measure)[1] for one in self.standings()}
            if self.everything[0] in scores:
                others.sort(key=gains(scores, self.everything[0]), reverse=True)
            self.hurried = not self._perform(look, others, until)

    def _closer_look(self) -> bool:
        """Look closer at the best; returns False if there is no time for that."""
        wishes, first = self.bench.wishes, self.broad
        if first is None or not self.bench.complete(self.everything, first):
            return False
        look = self.close = self.close or self._make_close(first)
        if look is None:
            return False
        best = [one.system for one in ranked(wishes, self._standings_in(first), self._measure)]
        self._perform(look, best[:CLOSER], self.last_until)
        return True

    def _make_close(self, first: TrialLook, *, after: float = 0.0) -> TrialLook | None:
        """Return the closer look that begins at `after` or now; None if there is no time for one that shows more."""
        wishes = self.bench.wishes
        attacks = (HONEST, *self.attacks)
        for seeds in range(CLOSER_SEEDS, 0, -1):
            look = TrialLook(attacks=attacks, seeds=tuple(range(wishes.seed, wishes.seed + seeds)), rounds=None)
            finalists = self.bench.trials(look, self.everything[:FINALISTS])
            rounds = self._affordable(self.last_until, finalists, after=after)
            if rounds is None or (wishes.full and rounds >= wishes.full):
                break
        if wishes.full and first.rounds is not None:
            if (rounds or 0) < first.rounds:
                return None
            rounds = _step(wishes, rounds or 0)
        rough = any(trial.arrays for trial in self.bench.trials(first, self.everything))
        return None if replace(look, rounds=rounds, rough=not rough) == first else replace(look, rounds=rounds)

    @property
    def _measure(self) -> Measure:
        return self.bench.measure or LOSS

    def _affordable(self, until: float, trials: Sequence[Trial], *, after: float = 0.0) -> int | None:
        """Return for how many rounds there is time in these runs, from `after` or now on; None if runs do not end by
        rounds.
        """
        took: dict[bool, list[float]] = {}
        for trial, one in self.bench.results.items():
            if trial.rounds:
                took.setdefault(trial.arrays, []).append(one.took_s / trial.rounds)
        if not took:
            return None
        mean = {arrays: max(1e-6, sum(found) / len(found)) for arrays, found in took.items()}
        round_s = sum(mean.get(one.arrays, max(mean.values())) for one in trials)
        return int((until - max(after, time.monotonic()) - SETUP_S) * self.bench.count / round_s)

    def _perform(self, look: TrialLook, chosen: Sequence[PlannedSystem], until: float) -> bool:
        if look not in self.looks:
            self.looks.append(look)
        return self.bench.perform(self.bench.trials(look, chosen), until)


def _step(wishes: PlanWishes, affordable: int) -> int | None:
    """Return the largest step of the rounds that is affordable, or else the smallest."""
    full = wishes.full
    if full is None or not wishes.can_be_shortened:
        return full
    steps = [max(min(full, LEAST_ROUNDS), full // share) for share in SHARES]
    return next((step for step in steps if step <= affordable), steps[-1])


def ranked(wishes: PlanWishes, found: Sequence[SystemStanding], measure: Measure) -> tuple[SystemStanding, ...]:
    """Sort: what breaks no wish first, then by the worst node in the worst condition; ties by bytes."""

    def key(one: SystemStanding) -> tuple[float, ...]:
        over = max(0, one.bytes_per_day - wishes.bytes_per_day) if wishes.bytes_per_day else 0
        score = merit(float(f"{one.worst:.{DIGITS}g}"), measure)[1]
        return (over, one.system.guaranteed[1] < wishes.liars, -score, one.bytes_per_day, -merit(one.worst, measure)[1])

    return tuple(sorted(found, key=key))


def _refused(wishes: PlanWishes, winner: SystemStanding, refusal: str | None) -> list[str]:
    found = []
    liars = "1 liar" if wishes.liars == 1 else f"{wishes.liars} liars"
    if refusal is not None:
        found.append(f"no guarantee against {liars}: {refusal}")
    elif wishes.liars and winner.system.guaranteed[0] < wishes.liars:
        low, high = winner.system.guaranteed
        unknown = high >= wishes.liars
        why = "a graph of this size is too large to prove more" if unknown else "no better one had a look in this time"
        found.append(f"no guarantee against {liars}: the first system is known to bear {low}; {why}")
    if wishes.bytes_per_day is not None and winner.bytes_per_day > wishes.bytes_per_day:
        found.append(
            f"no system that was tried sends so little: {wishes.bytes_per_day:,} bytes a day were wished, and the "
            f"nearest sends {winner.bytes_per_day:,}; fewer rounds send less"
        )
    return found
