"""The CPU time that the study has used, and runs that stop where it is spent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sim.sweeps.model import Endings, Job, RunJob
from sim.sweeps.run import Runner

START_CPU_S = 6.0
"""The start of a process that runs jobs: mostly the import of torch."""


@dataclass(slots=True)
class Budget:
    """A budget of CPU-seconds; runs in progress when it is spent are given up, and finished ones are kept."""

    limit_s: float
    spent_s: float = 0.0

    @property
    def left(self) -> bool:
        return self.spent_s < self.limit_s

    def bounded(self, runner: Runner, processes: int) -> Runner:
        """Return the same runner, which ends early when the budget is spent."""

        def run(jobs: Iterable[Job], run_job: RunJob, /) -> Endings:
            waiting = list(jobs)
            if not waiting or not self.left:
                return
            self.spent_s += START_CPU_S * min(processes, len(waiting))
            with closing(runner(waiting, run_job)) as endings:
                for job, outcome in endings:
                    self.spent_s += 0.0 if outcome.report is None else cost_s(outcome.report)
                    yield job, outcome
                    if not self.left:
                        return

        return run


def cost_s(report: bytes) -> float:
    """Read the CPU-seconds of the run from its report."""
    cost = json.loads(report).get("cost")
    return 0.0 if cost is None else float(cost["cpu_s"])


def already_spent_s(folder: Path) -> float:
    """Sum the cost of all existing reports, from whatever start."""
    return sum(cost_s(path.read_bytes()) for path in _reports(folder))


def _reports(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*/runs/*.json")) if not path.name.startswith("."))
