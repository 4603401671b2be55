"""Simulated trials of systems: each system without liars and under several attacks, over several seeds.

A trial is a job of a sweep, and its report stays in the plan's folder, so a plan that was stopped goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from p2pfl.errors import P2PFLError
from p2pfl.learn.metrics import Measure
from p2pfl.reporting.measures import merit, value_of
from p2pfl.reporting.report import Report
from sim.plans.shortlist import PlannedSystem, Tell
from sim.plans.wishes import DAY_S, PlanWishes
from sim.sweeps.fingerprint import make_job
from sim.sweeps.model import NONE, Job, RunOutcome
from sim.sweeps.run import Folder, undisturbed
from sim.sweeps.runners import Worker, run_here
from sim.sweeps.work import build, run
from topologies.errors import TopologyError

HONEST = NONE
"""The name of the condition in which nobody lies."""
ATTACKS = ("dissensus", "spectral", "mirror", "alie", "sign-flip")
FIRST_ATTACKS = 1
"""The first look at a system tries so many of the attacks."""


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
    measure: Measure | None = None
    scale: tuple[float, float] | None = None
    """Bytes of an exact run for each byte of arrays, and its time for each round, from the first system run as both."""
    pool: list[Worker] = field(default_factory=list)

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
        }
        given = {"rounds": trial.rounds, "partition": wishes.partition, "arrays": trial.arrays or None}
        given["clock"] = wishes.clock if trial.arrays else None
        given["nodes"] = wishes.count if wishes.base is None else None
        return make_job(options | {key: value for key, value in given.items() if value is not None}, trial.seed)

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
        jobs: dict[str, list[Trial]] = {}
        missing: list[Job] = []
        for trial in dict.fromkeys(trials):
            if trial in self.results or trial in self.failed or self.objection(trial.system):
                continue
            job = self.job(trial)
            if not self._known(trial, job):
                if job.key not in jobs:
                    missing.append(job)
                jobs.setdefault(job.key, []).append(trial)
        ended = 0
        with closing(run_here(missing, run, self.count, until=until, pool=self.pool)) as outcomes:
            for job, outcome in outcomes:
                ended += 1
                with undisturbed():
                    self._take(jobs[job.key], job, outcome)
                self.tell(f"{len(self.results)} runs, in this look {ended} of {len(missing)}")
        return ended == len(missing)

    def complete(self, systems: Iterable[PlannedSystem], look: TrialLook) -> list[PlannedSystem]:
        """Return the systems for which every trial of the look has a result."""
        return [one for one in systems if all(trial in self.results for trial in self.trials(look, [one]))]

    def close(self) -> None:
        """End the processes."""
        while self.pool:
            self.pool.pop().stop()

    def _known(self, trial: Trial, job: Job) -> bool:
        report = self.folder.report(job.key)
        return report is not None and self._read(trial, report)

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
        self.measure = report.main_measure
        result = result_of(report)
        if result is None:
            return False
        if trial.arrays:
            exact, rounds = self.results.get(replace(trial, arrays=False)), trial.rounds or self.wishes.full or 1
            if self.scale is None and exact is not None:
                self.scale = (exact.busiest / max(1, result.busiest), exact.time_s / rounds)
            more, round_s = self.scale or (1.0, 0.0)
            result = replace(result, busiest=round(more * result.busiest), time_s=round_s * rounds)
        self.results[trial] = result
        return True


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


def standing(bench: Bench, system: PlannedSystem, look: TrialLook, measure: Measure) -> SystemStanding:
    """Sum up a system for which every trial of the look has ended. Bytes and time are those of all rounds: where fewer
    were simulated, in proportion.
    """

    def mean(attack: str, figure: Callable[[TrialResult], float]) -> float:
        found = [bench.results[one] for one in bench.trials(look, [system]) if one.attack == attack]
        return math.fsum(map(figure, found)) / len(found)

    full, mixing = bench.wishes.full, bench.wishes.closing
    more = (full + mixing) / (look.rounds + mixing) if full and look.rounds else 1.0
    # what counts is the worst of all conditions: under some attacks nodes learn better than without
    lies = {attack: mean(attack, lambda one: one.worst) for attack in look.attacks} if len(look.attacks) > 1 else {}
    return SystemStanding(
        system=system,
        honest_worst=mean(HONEST, lambda one: one.worst),
        honest_mean=mean(HONEST, lambda one: one.mean),
        lied_to=min(lies.items(), key=lambda pair: merit(pair[1], measure)) if lies else None,
        bytes_per_day=round(mean(HONEST, lambda one: more * one.busiest / max(1.0, more * one.time_s / DAY_S))),
        time_s=more * mean(HONEST, lambda one: one.time_s),
        seeds=len(look.seeds),
        attacks=max(0, len(lies) - 1),
        rounds=look.rounds,
        arrays=bench.trials(look, [system])[0].arrays,
    )
