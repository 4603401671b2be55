"""The search: a first look at as many systems as there is time for, then a closer look at the best of them.

The first look takes one seed, one attack, and arrays for what these can simulate; it begins with the fewest changes to
the first choices. The closer looks are exact and take all attacks, first one seed and then three. A trial is a job of a
sweep, and its report stays in the plan's folder, so that a plan that was stopped goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean

from p2pfl.engine.rounds import FRAGMENTS
from p2pfl.errors import P2PFLError, UserError
from p2pfl.learn.metrics import LOSS, Measure
from p2pfl.reporting.measures import merit, value_of
from p2pfl.reporting.report import Report
from p2pfl.system import signals_held
from sim.plans.systems import DAY_S, PlannedSystem, PlanWishes, Tell, check_wishes, find_graphs, systems
from sim.sweeps.job import NONE, Job, RunOutcome, build, make_job, run_seldom
from sim.sweeps.run import ENDING, Folder, run_here
from topologies.errors import TopologyError
from topologies.plots import counted

HONEST = NONE
"""The name of the condition in which nobody lies."""
ATTACKS = ("foreign", "spectral", "mirror", "alie", "sign-flip")
"""The first look at a system tries the first of them alone; a task that cannot be climbed has `dissensus` for it."""
GRAPHS_SHARE, FIRST_SHARE, LAST_SHARE = 0.2, 0.5, 0.97
"""The parts of the time after which no further graph is searched, the first look ends, and all ends."""
CLOSER, FINALISTS = 8, 2
"""The most systems that get a closer look, and the fewest that must have had a look before its figures count."""
CLOSER_SEEDS = (1, 3)
IN_STEP_BYTES = 2.0
"""Nodes apart exchange up to 1.99 times an edge and round where arrays in step do so once (8 systems of 12 nodes)."""
DIGITS = 2
"""Measures that agree in so many significant digits are a tie, in which the system that sends less is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a system: `attack` is a name, or `HONEST`."""

    system: PlannedSystem
    attack: str
    seed: int
    arrays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """A report's figures: the honest nodes' worst and mean main measure, and the bytes that the busiest one sends."""

    worst: float
    mean: float
    bytes_per_day: float
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLook:
    """The conditions and seeds that a look tries of a system. A `rough` look runs as arrays what these can simulate."""

    attacks: Sequence[str]
    seeds: Sequence[int]
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
    interrupted: bool
    hurried: bool
    failures: tuple[str, ...] = ()

    @property
    def winner(self) -> SystemStanding:
        return self.ranking[0]


def make_plan(wishes: PlanWishes, out: Path, *, within_s: float, jobs: int, tell: Tell) -> SystemPlan:
    """Search and simulate for `within_s` seconds, in `jobs` processes; `out` keeps graphs and reports.

    Raises UserError for wishes that contradict each other, if the folder cannot be used, and if there was no time for a
    single run; TopologyError if there is no such graph; KeyboardInterrupt if Ctrl-C came before any result.
    """
    begun = time.monotonic()
    check_wishes(wishes)
    out = out.absolute()  # a federation's graph would be looked for in its own folder
    folder = Folder(out)
    with folder.lock():
        (out / "graphs").mkdir(exist_ok=True)
        graphs, refusal = find_graphs(wishes, out / "graphs", tell, begun + GRAPHS_SHARE * within_s)
        search, interrupted = PlanSearch(wishes=wishes, folder=folder, count=jobs, tell=tell), False
        trials = [Trial(system=system, attack=HONEST, seed=wishes.seed) for system in systems(wishes, graphs)]
        search.systems = [trial.system for trial in trials if search.objection(trial) is None]
        if not search.systems:
            raise UserError(next(filter(None, search.impossible.values())))
        try:
            search.go(begun + FIRST_SHARE * within_s, begun + LAST_SHARE * within_s)
        except KeyboardInterrupt:
            interrupted = True
    ranking = search.ranking()
    if not ranking:
        if interrupted:
            raise KeyboardInterrupt
        if search.failed:
            raise UserError(f"no run succeeded: {next(iter(search.failed.values()))}")
        text = "not even the first system could be simulated in this time"
        raise UserError(text, key="--within", value=f"{within_s:g}s", allowed="more time, or fewer --rounds")
    return SystemPlan(
        wishes=wishes,
        ranking=ranking,
        measure=search.measure,
        refused=tuple(_refused(wishes, ranking[0], refusal)),
        tried=max(len(search.complete(look)) for look in search.looks),
        of=len(search.systems),
        runs=len(search.results),
        by_arrays=sum(trial.arrays for trial in search.results),
        interrupted=interrupted,
        hurried=search.hurried,
        failures=tuple(search.failed.values()),
    )


def attacks_on(wishes: PlanWishes) -> tuple[str, ...]:
    """Return the attacks to try, if there are liars."""
    if not wishes.liars:
        return ()
    from p2pfl.learn.load import load_task  # noqa: PLC0415 - imports torch
    from p2pfl.learn.task import Task  # noqa: PLC0415 - as above

    base = wishes.base
    climbed = base is None or isinstance(load_task(base.task, base.path.parent, file=base.path), Task)
    return ATTACKS if climbed else ("dissensus", *ATTACKS[1:])


def closing_of(wishes: PlanWishes, system: PlannedSystem) -> str | None:
    """Return what closing rounds do under a robust rule, as `p2pfl new` writes it; None for what is usual."""
    return "train" if wishes.base is None and system.rule != "mean" else None


def clock_of(wishes: PlanWishes) -> str:
    """Return the clock of arrays: in step is the cheaper one, and says nothing of a world's speeds and latencies."""
    hides = wishes.base is not None and wishes.base.hides is not None
    return "in-step" if wishes.world is None and not hides else "apart"


@dataclass(slots=True)
class PlanSearch:
    """The looks: many `systems` roughly, then the best of them. Runs trials in `count` processes; knows all results."""

    wishes: PlanWishes
    folder: Folder
    count: int
    tell: Tell
    systems: Sequence[PlannedSystem] = ()
    looks: list[TrialLook] = field(default_factory=list)
    hurried: bool = True
    results: dict[Trial, TrialResult] = field(default_factory=dict)
    impossible: dict[Trial, str | None] = field(default_factory=dict)
    """Why such a run cannot be built; None if it can."""
    failed: dict[Trial, str] = field(default_factory=dict)
    measure: Measure = LOSS

    def go(self, first_until: float, until: float) -> None:
        """Search until the times on the monotonic clock: of the first look, and of all."""
        attacks, seed = attacks_on(self.wishes), self.wishes.seed
        first = TrialLook(attacks=(HONEST, *attacks[:1]), seeds=(seed,), rough=True)
        # without any result it goes on in the time of the closer look: one that is late is better than none
        self.hurried = not self.perform(first, self.systems, lambda: first_until if self.complete(first) else until)
        best = [standing.system for standing in self.ranking()[:CLOSER]]
        if len(best) < min(FINALISTS, len(self.systems)):
            self.hurried = not self.perform(first, self.systems, lambda: until)
            return
        for seeds in CLOSER_SEEDS:
            self.perform(TrialLook(attacks=(HONEST, *attacks), seeds=range(seed, seed + seeds)), best, lambda: until)

    def ranking(self) -> tuple[SystemStanding, ...]:
        """Rank the systems with all results of the latest look in which there are some to compare: what breaks no wish
        first, then by the worst node in the worst condition; ties by memory, where models are large, then by bytes.
        """
        done = {look: self.complete(look) for look in reversed(self.looks)}
        look = max(done, key=lambda look: min(FINALISTS, len(done[look])), default=None)

        def key(standing: SystemStanding) -> tuple[float, ...]:
            over = max(0, standing.bytes_per_day - (self.wishes.bytes_per_day or standing.bytes_per_day))
            rounded = float(f"{standing.worst:.{DIGITS}g}")
            score, exactly = (merit(value, self.measure)[1] for value in (rounded, standing.worst))
            bears = standing.system.guaranteed[1] >= self.wishes.liars
            whole = standing.system.compressor != FRAGMENTS  # which there are only for models that memory is short for
            return (over, not bears, -score, whole, standing.bytes_per_day, -exactly)

        return () if look is None else tuple(sorted((self.standing(system, look) for system in done[look]), key=key))

    def trials(self, look: TrialLook, systems: Iterable[PlannedSystem]) -> list[Trial]:
        chosen = [
            Trial(system=system, attack=attack, seed=seed, arrays=look.rough)
            for system, seed, attack in product(systems, look.seeds, look.attacks)
        ]
        return [replace(trial, arrays=trial.arrays and self.objection(trial) is None) for trial in chosen]

    def job(self, trial: Trial) -> Job:
        """Return the job of a trial, with the names of options that `p2pfl sim run` has, too."""
        wishes, system = self.wishes, trial.system
        options = {
            "base": NONE if wishes.base is None else str(wishes.base.path),
            "topology": str(system.graph.file),
            "rule": system.rule,
            "compressor": system.compressor,
            "method": system.method,
            "privacy": system.privacy,
            "world": NONE if wishes.world is None else str(wishes.world.absolute()),
            "byzantine": 0 if trial.attack == HONEST else wishes.liars,
            "attack": trial.attack,
            "rounds": wishes.full,
            "partition": wishes.partition,
            "closing": closing_of(wishes, system),
            "arrays": trial.arrays or None,
            "clock": clock_of(wishes) if trial.arrays else None,
            "nodes": wishes.count if wishes.base is None else None,
        }
        return make_job({key: value for key, value in options.items() if value is not None}, trial.seed)

    def objection(self, trial: Trial) -> str | None:
        """Build the run, to find out why its choices do not fit together, or not with arrays."""
        if trial not in self.impossible:
            try:
                build(self.job(trial))
                self.impossible[trial] = None
            except (P2PFLError, TopologyError) as error:
                self.impossible[trial] = str(error)
        return self.impossible[trial]

    def perform(self, look: TrialLook, systems: Iterable[PlannedSystem], until: Callable[[], float]) -> bool:
        """Run the trials without a result, in order, until that monotonic time. Returns True if all ended."""
        self.looks += [] if look in self.looks else [look]
        jobs: dict[str, tuple[Job, Trial]] = {}
        for trial in sorted(self.trials(look, systems), key=lambda trial: not trial.arrays):  # first what is cheap
            if trial not in self.results and trial not in self.failed:
                job = self.job(trial)
                if not self._read(trial, self.folder.report(job.key)):
                    jobs[job.key] = job, trial
        missing, ended = [job for job, _ in jobs.values()], 0
        with closing(run_here(missing, run_seldom, self.count, until=until)) as outcomes:
            for ended, (job, outcome) in enumerate(outcomes, 1):
                with signals_held(*ENDING):
                    self._take(jobs[job.key][1], job, outcome)
                self.tell(f"{len(self.results)} runs, in this look {ended} of {len(missing)}")
        return ended == len(missing)

    def complete(self, look: TrialLook) -> list[PlannedSystem]:
        """Return the systems for which every trial of the look has a result."""
        return [each for each in self.systems if all(trial in self.results for trial in self.trials(look, [each]))]

    def standing(self, system: PlannedSystem, look: TrialLook) -> SystemStanding:
        """Sum up a system for which every trial of the look has ended."""
        trials = self.trials(look, [system])
        in_step = trials[0].arrays and clock_of(self.wishes) == "in-step"

        def mean(attack: str, figure: str) -> float:
            return fmean(getattr(self.results[trial], figure) for trial in trials if trial.attack == attack)

        # what counts is the worst of all conditions: under some attacks nodes learn better than without
        lies = {attack: mean(attack, "worst") for attack in look.attacks} if len(look.attacks) > 1 else {}
        return SystemStanding(
            system=system,
            honest_worst=mean(HONEST, "worst"),
            honest_mean=mean(HONEST, "mean"),
            lied_to=min(lies.items(), key=lambda pair: merit(pair[1], self.measure)) if lies else None,
            bytes_per_day=round(mean(HONEST, "bytes_per_day") * (IN_STEP_BYTES if in_step else 1.0)),
            time_s=mean(HONEST, "time_s"),
            seeds=len(look.seeds),
            attacks=max(0, len(lies) - 1),
            arrays=trials[0].arrays,
        )

    def _take(self, trial: Trial, job: Job, outcome: RunOutcome) -> None:
        if outcome.report is not None and self._read(trial, outcome.report):
            self.folder.keep_report(job, outcome.report)
            return
        reason = outcome.reason or "what came back has no figures"
        self.folder.keep_failure(job, reason, outcome.trace)
        self.failed[trial] = reason

    def _read(self, trial: Trial, text: bytes | None) -> bool:
        try:
            report = Report.from_json(text or b"")
        except ValueError:
            return False
        result = result_of(report)
        if result is not None:
            self.measure, self.results[trial] = report.main_measure, result
        return result is not None


def result_of(report: Report) -> TrialResult | None:
    """Read the figures of the honest nodes; None if they were not tested."""
    main = report.main_measure
    honest = [node for node in report.nodes if not node.byzantine]
    values = [value_of(node, main) for node in honest]
    if not values or any(value is None for value in values):
        return None
    # a model that is no longer finite has learned nothing: the worst that there is
    hopeless = 0.0 if main.higher_is_better else 1e30
    finite, time_s = [value if math.isfinite(value) else hopeless for value in values], report.virtual_time_s or 0.0
    return TrialResult(
        worst=min(finite) if main.higher_is_better else max(finite),
        mean=fmean(finite),
        bytes_per_day=max(node.bytes_sent or 0 for node in honest) / max(1.0, time_s / DAY_S),
        time_s=time_s,
    )


def _refused(wishes: PlanWishes, winner: SystemStanding, refusal: str | None) -> Iterator[str]:
    liars, (low, high) = counted(wishes.liars, "liar"), winner.system.guaranteed
    if refusal is not None:
        yield f"no guarantee against {liars}: {refusal}"
    elif low < wishes.liars:
        unknown = "a graph of this size is too large to prove more"
        why = unknown if high >= wishes.liars else "no better one had a look in this time"
        yield f"no guarantee against {liars}: the first system is known to bear {low}; {why}"
    if wishes.bytes_per_day is not None and winner.bytes_per_day > wishes.bytes_per_day:
        yield (
            f"no system that was tried sends so little: {wishes.bytes_per_day:,} bytes a day were wished, and the "
            f"nearest sends {winner.bytes_per_day:,}; fewer rounds send less"
        )
