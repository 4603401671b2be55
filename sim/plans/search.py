"""The search: a first look at as many systems as there is time for, then a closer look at the best of them.

The first look takes one seed, few attacks, as many rounds as there is time for, and arrays for what these can simulate.
It begins with the first choices, what arrays run, and all systems that differ from the first in one choice; the others
follow in the order that these foretell. The closer look is exact and takes all attacks, and all rounds and three seeds
if there is time. A trial is a job of a sweep, and its report stays in the plan's folder, so that a plan that was
stopped goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from p2pfl.errors import P2PFLError, UserError
from p2pfl.learn.metrics import LOSS, Measure
from p2pfl.reporting.measures import merit, value_of
from p2pfl.reporting.report import Report
from sim.plans.systems import (
    DAY_S,
    PlannedSystem,
    PlanWishes,
    Tell,
    check_wishes,
    find_graphs,
    gains,
    systems,
    write_world,
)
from sim.sweeps.job import NONE, Job, RunOutcome, build, make_job, run
from sim.sweeps.run import Folder, Worker, run_here, undisturbed
from topologies.errors import TopologyError

HONEST = NONE
"""The name of the condition in which nobody lies."""
ATTACKS = ("dissensus", "spectral", "mirror", "alie", "sign-flip")
FIRST_ATTACKS = 1
"""The first look at a system tries so many of the attacks."""
GRAPHS_SHARE, FIRST_SHARE, LAST_SHARE = 0.2, 0.5, 0.97
"""The parts of the time after which no further graph is searched, the first look ends, and all ends."""
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
class Trial:
    """One run of a system: `attack` is a name, or `HONEST`; `rounds` None for as many as the federation does."""

    system: PlannedSystem
    attack: str
    seed: int
    rounds: int | None = None
    arrays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What a plan reads from a report. `worst`, `mean`: the main measure of the honest nodes; `busiest`: bytes sent by
    the honest node that sent most.
    """

    worst: float
    mean: float
    busiest: int
    time_s: float
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLook:
    """What a look tries of each system: conditions, seeds, and rounds, None for as many as the federation does. A
    `rough` look runs as arrays what these can simulate.
    """

    attacks: Sequence[str]
    seeds: Sequence[int]
    rounds: int | None
    rough: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStanding:
    """A system with its figures over the same `seeds` and `attacks` as all with which it is compared.

    `lied_to` is the worst attack with the worst node's measure under it, mean over seeds; None without liars.
    """

    system: PlannedSystem
    honest_worst: float
    honest_mean: float
    lied_to: tuple[str, float] | None
    bytes_per_day: int
    time_s: float
    seeds: int
    attacks: int
    rounds: int | None
    arrays: bool

    @property
    def worst(self) -> float:
        """The measure by which systems are compared: of the worst node in the worst condition."""
        return self.honest_worst if self.lied_to is None else self.lied_to[1]


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
        search, interrupted = _Search(bench, everything, begun, within_s), False
        with closing(bench):
            try:
                search.go()
            except KeyboardInterrupt:
                interrupted = True
    ranking = ranked(wishes, search.standings(), bench.measure)
    if not ranking:
        if interrupted:
            raise KeyboardInterrupt
        if bench.failed:
            raise UserError(f"no run succeeded: {next(iter(bench.failed.values()))}")
        text = "not even the first system could be simulated in this time"
        raise UserError(text, key="--within", value=f"{within_s:g}s", allowed="more time")
    return SystemPlan(
        wishes=wishes,
        ranking=ranking,
        measure=bench.measure,
        refused=tuple(_refused(wishes, ranking[0], refusal)),
        tried=max(len(bench.complete(everything, look)) for look in search.looks),
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
        self.bench, self.everything, self.wishes = bench, everything, bench.wishes
        self.first_until, self.last_until = begun + FIRST_SHARE * within_s, begun + LAST_SHARE * within_s
        self.looks: list[TrialLook] = []
        self.broad: TrialLook | None = None
        self.close: TrialLook | None = None
        """The first look and the closer one, which stay the same however often they are gone on with."""
        self.hurried = True
        self.attacks: Sequence[str] = ATTACKS if bench.wishes.liars else ()

    def go(self) -> None:
        """Search until time is up or nothing is left: after the first look a closer one, if there are some to compare,
        then each in turn, the first with half of the time left, or with all where there is none to look closer.
        """
        if not self._pilot():
            return
        self._first_look(self.first_until)
        known = 0
        while known < len(self.bench.results) and time.monotonic() < self.last_until:
            known = len(self.bench.results)
            looked = len(self.bench.complete(self.everything, self.looks[-1]))
            closer = self._closer_look() if not self.hurried or looked >= FINALISTS else True
            if self.hurried:
                self._first_look((time.monotonic() + self.last_until) / 2 if closer else self.last_until)

    def standings(self) -> list[SystemStanding]:
        """Return the systems with all results of the latest look in which there are some to compare."""
        done = {look: self.bench.complete(self.everything, look) for look in self.looks}
        look = max(reversed(self.looks), key=lambda one: min(FINALISTS, len(done[one])), default=None)
        return [] if look is None else [self.bench.standing(one, look) for one in done[look]]

    def _pilot(self) -> bool:
        """Run the first system exactly and, if it may be, as arrays, to know how long a round takes."""
        rounds = self.wishes.full
        if rounds is not None and self.wishes.can_be_shortened:
            rounds = max(LEAST_ROUNDS, rounds // 10)
        exact = TrialLook(attacks=(HONEST,), seeds=(self.wishes.seed,), rounds=rounds)
        looks = (exact, replace(exact, rough=not self.wishes.liars))
        return all(self._perform(one, self.everything[:1], self.last_until) for one in looks)

    def _first_look(self, until: float) -> None:
        if self.broad is None:
            attacks = (HONEST, *self.attacks[:FIRST_ATTACKS])
            look = TrialLook(attacks=attacks, seeds=(self.wishes.seed,), rounds=None, rough=not self.wishes.liars)
            rounds = self._affordable(self.first_until, self.bench.trials(look, self.everything[:WANTED]))
            self.broad = look if rounds is None else replace(look, rounds=_step(self.wishes, rounds))
        look = self.broad
        # the first system has the time of the closer look, too: a result that is late is better than none
        if not self._perform(look, self.everything[:1], self.last_until):
            return
        cheap = [one for one in self.everything if self.bench.trials(look, [one])[0].arrays]
        near = cheap + [one for one in self.everything if one.changes <= 1 and one not in cheap]
        others = [one for one in self.everything if one not in near]
        if self._perform(look, near, until):
            scores = {one.system: merit(one.worst, self.bench.measure)[1] for one in self.standings()}
            if self.everything[0] in scores:
                others.sort(key=gains(scores, self.everything[0]), reverse=True)
            self.hurried = not self._perform(look, others, until)

    def _closer_look(self) -> bool:
        """Look closer at the best; returns False if there is no time for that."""
        bench, first = self.bench, self.broad
        done = [] if first is None else [bench.standing(one, first) for one in bench.complete(self.everything, first)]
        if first is None or not done:
            return False
        look = self.close = self.close or self._make_close(first)
        if look is None:
            return False
        best = [one.system for one in ranked(self.wishes, done, bench.measure)]
        self._perform(look, best[:CLOSER], self.last_until)
        return True

    def _make_close(self, first: TrialLook) -> TrialLook | None:
        """Return the closer look that begins now; None if there is no time for one that shows more."""
        wishes = self.wishes
        for seeds in range(CLOSER_SEEDS, 0, -1):
            every = tuple(range(wishes.seed, wishes.seed + seeds))
            look = TrialLook(attacks=(HONEST, *self.attacks), seeds=every, rounds=None)
            rounds = self._affordable(self.last_until, self.bench.trials(look, self.everything[:FINALISTS]))
            if rounds is None or (wishes.full and rounds >= wishes.full):
                break
        if wishes.full and first.rounds is not None:
            if (rounds or 0) < first.rounds:
                return None
            rounds = _step(wishes, rounds or 0)
        look = replace(look, rounds=rounds)
        rough = any(trial.arrays for trial in self.bench.trials(first, self.everything))
        return None if replace(look, rough=not rough) == first else look

    def _affordable(self, until: float, trials: Sequence[Trial]) -> int | None:
        """Return for how many rounds there is time in these runs; None if runs do not end by rounds."""
        took: dict[bool, list[float]] = {}
        for trial, one in self.bench.results.items():
            if trial.rounds:
                took.setdefault(trial.arrays, []).append(one.took_s / trial.rounds)
        if not took:
            return None
        mean = {arrays: max(1e-6, sum(found) / len(found)) for arrays, found in took.items()}
        round_s = sum(mean.get(one.arrays, max(mean.values())) for one in trials)
        return int((until - time.monotonic() - SETUP_S) * self.bench.count / round_s)

    def _perform(self, look: TrialLook, chosen: Sequence[PlannedSystem], until: float) -> bool:
        if look not in self.looks:
            self.looks.append(look)
        return self.bench.perform(self.bench.trials(look, chosen), until)


@dataclass(slots=True)
class Bench:
    """Runs trials in `count` processes, and knows the results of all that have ended."""

    wishes: PlanWishes
    folder: Folder
    world: Path
    count: int
    tell: Tell
    results: dict[Trial, TrialResult] = field(default_factory=dict)
    impossible: dict[tuple[PlannedSystem, str, bool], str | None] = field(default_factory=dict)
    """Why such a run cannot be built, as arrays or not; None if it can."""
    failed: dict[Trial, str] = field(default_factory=dict)
    measure: Measure = LOSS
    scale: tuple[float, float] | None = None
    """Bytes of an exact run for each byte of arrays, and its time for each round, from the first system run as both."""
    idle: list[Worker] = field(default_factory=list)

    def trials(self, look: TrialLook, systems: Iterable[PlannedSystem]) -> list[Trial]:
        return [
            Trial(system=one, attack=attack, seed=seed, rounds=look.rounds, arrays=look.rough and not why)
            for one in systems
            for seed in look.seeds
            for attack in look.attacks
            for why in [look.rough and self.objection(one, attack, arrays=True)]
        ]

    def job(self, trial: Trial) -> Job:
        """Return the job of a trial, with the names of options that `p2pfl sim run` has, too."""
        wishes, system = self.wishes, trial.system
        options = {
            "base": NONE if wishes.base is None else str(wishes.base.path),
            "topology": str(system.graph.file),
            "rule": system.rule,
            "compressor": system.compressor,
            "method": system.method,
            "world": str(self.world),
            "byzantine": 0 if trial.attack == HONEST else wishes.liars,
            "attack": trial.attack,
            "rounds": trial.rounds,
            "partition": wishes.partition,
            "arrays": trial.arrays or None,
            "clock": wishes.clock if trial.arrays else None,
            "nodes": wishes.count if wishes.base is None else None,
        }
        return make_job({key: value for key, value in options.items() if value is not None}, trial.seed)

    def objection(self, system: PlannedSystem, attack: str = HONEST, *, arrays: bool = False) -> str | None:
        """Build one run of the system, to find out why its choices do not fit together, or not with arrays."""
        case = (system, attack, arrays)
        if case not in self.impossible:
            self.impossible[case] = None
            try:
                build(self.job(Trial(system=system, attack=attack, seed=self.wishes.seed, arrays=arrays)))
            except (P2PFLError, TopologyError) as error:
                self.impossible[case] = str(error)
        return self.impossible[case]

    def perform(self, trials: Iterable[Trial], until: float) -> bool:
        """Run the trials that have no result yet, in order, until the time is up on the monotonic clock. Returns True
        if all have ended.
        """
        jobs: dict[str, tuple[Job, list[Trial]]] = {}
        for trial in dict.fromkeys(trials):
            if trial not in self.results and trial not in self.failed and not self.objection(trial.system):
                job = self.job(trial)
                report = self.folder.report(job.key)
                if report is None or not self._read(trial, report):
                    jobs.setdefault(job.key, (job, []))[1].append(trial)
        missing, ended = [job for job, _ in jobs.values()], 0
        with closing(run_here(missing, run, self.count, until=until, idle=self.idle)) as outcomes:
            for job, outcome in outcomes:
                ended += 1
                with undisturbed():
                    self._take(jobs[job.key][1], job, outcome)
                self.tell(f"{len(self.results)} runs, in this look {ended} of {len(missing)}")
        return ended == len(missing)

    def complete(self, systems: Iterable[PlannedSystem], look: TrialLook) -> list[PlannedSystem]:
        """Return the systems for which every trial of the look has a result."""
        return [one for one in systems if all(trial in self.results for trial in self.trials(look, [one]))]

    def standing(self, system: PlannedSystem, look: TrialLook) -> SystemStanding:
        """Sum up a system for which every trial of the look has ended. Bytes and time are those of all rounds: where
        fewer were simulated, in proportion.
        """
        trials = self.trials(look, [system])

        def mean(attack: str, figure: Callable[[TrialResult], float]) -> float:
            found = [self.results[one] for one in trials if one.attack == attack]
            return math.fsum(map(figure, found)) / len(found)

        full, mixing = self.wishes.full, self.wishes.closing
        more = (full + mixing) / (look.rounds + mixing) if full and look.rounds else 1.0
        # what counts is the worst of all conditions: under some attacks nodes learn better than without
        lies = {attack: mean(attack, lambda one: one.worst) for attack in look.attacks} if len(look.attacks) > 1 else {}
        return SystemStanding(
            system=system,
            honest_worst=mean(HONEST, lambda one: one.worst),
            honest_mean=mean(HONEST, lambda one: one.mean),
            lied_to=min(lies.items(), key=lambda pair: merit(pair[1], self.measure)) if lies else None,
            bytes_per_day=round(mean(HONEST, lambda one: more * one.busiest / max(1.0, more * one.time_s / DAY_S))),
            time_s=more * mean(HONEST, lambda one: one.time_s),
            seeds=len(look.seeds),
            attacks=max(0, len(lies) - 1),
            rounds=look.rounds,
            arrays=trials[0].arrays,
        )

    def close(self) -> None:
        """End the processes."""
        while self.idle:
            self.idle.pop().stop()

    def _take(self, trials: Sequence[Trial], job: Job, outcome: RunOutcome) -> None:
        if outcome.report is not None and all([self._read(one, outcome.report) for one in trials]):  # noqa: C419 - each
            self.folder.keep_report(job, outcome.report)
            return
        reason = outcome.reason or "what came back has no figures"
        self.folder.keep_failure(job, reason, outcome.trace)
        self.failed.update(dict.fromkeys(trials, reason))

    def _read(self, trial: Trial, text: bytes) -> bool:
        try:
            report = Report.from_json(text)
        except ValueError:
            return False
        result = result_of(report)
        if result is None:
            return False
        self.measure = report.main_measure
        self.results[trial] = result
        exact, rough = (self.results.get(replace(trial, arrays=arrays)) for arrays in (False, True))
        if self.scale is None and exact is not None and rough is not None:
            self.scale = (exact.busiest / max(1, rough.busiest), exact.time_s / self._rounds(trial))
            self._scale([one for one in self.results if one.arrays])
        elif self.scale is not None and trial.arrays:
            self._scale([trial])
        return True

    def _rounds(self, trial: Trial) -> int:
        return trial.rounds or self.wishes.full or 1

    def _scale(self, trials: Iterable[Trial]) -> None:
        """Make bytes and time of arrays those of exact runs; until one has ended they are arrays' own."""
        more, round_s = self.scale or (1.0, 0.0)
        for one in trials:
            result = self.results[one]
            time_s = round_s * self._rounds(one)
            self.results[one] = replace(result, busiest=round(more * result.busiest), time_s=time_s)


def result_of(report: Report) -> TrialResult | None:
    """Read the figures of the honest nodes; None if they were not tested."""
    main = report.main_measure
    honest = [node for node in report.nodes if not node.byzantine]
    values = [value_of(node, main) for node in honest]
    if not values or any(value is None for value in values):
        return None
    # a model that is no longer finite has learned nothing: the worst that there is
    hopeless = 0.0 if main.higher_is_better else 1e30
    finite = [value if math.isfinite(value) else hopeless for value in values]
    return TrialResult(
        worst=min(finite) if main.higher_is_better else max(finite),
        mean=math.fsum(finite) / len(finite),
        busiest=max(node.bytes_sent or 0 for node in honest),
        time_s=report.virtual_time_s or 0.0,
        took_s=report.wall_time_s or 0.0,
    )


def ranked(wishes: PlanWishes, found: Sequence[SystemStanding], measure: Measure) -> tuple[SystemStanding, ...]:
    """Sort: what breaks no wish first, then by the worst node in the worst condition; ties by bytes."""

    def key(one: SystemStanding) -> tuple[float, ...]:
        over = max(0, one.bytes_per_day - wishes.bytes_per_day) if wishes.bytes_per_day else 0
        score = merit(float(f"{one.worst:.{DIGITS}g}"), measure)[1]
        return (over, one.system.guaranteed[1] < wishes.liars, -score, one.bytes_per_day, -merit(one.worst, measure)[1])

    return tuple(sorted(found, key=key))


def _step(wishes: PlanWishes, affordable: int) -> int | None:
    """Return the largest step of the rounds that is affordable, or else the smallest."""
    full = wishes.full
    if full is None or not wishes.can_be_shortened:
        return full
    steps = [max(min(full, LEAST_ROUNDS), full // share) for share in SHARES]
    return next((step for step in steps if step <= affordable), steps[-1])


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
