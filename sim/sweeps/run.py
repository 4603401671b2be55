"""A sweep from its file to its results: what is done already is read, what is missing runs, what is known is kept."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from p2pfl.reporting.plot import check_picture
from sim.sweeps.folder import RESULTS_CSV, RESULTS_JSON, Folder, replace
from sim.sweeps.model import Endings, Job, Plan, RunJob, RunOutcome, SweepFile
from sim.sweeps.plan import check_plan, make_plan
from sim.sweeps.results import Tally, as_csv, as_json, figures, flat_rows, results

if TYPE_CHECKING:
    from pandas import DataFrame

WRITE_EVERY_S = 1.0


class Runner(Protocol):
    """Gives each job with how it ended, as they end. Closed early, it stops those that run."""

    def __call__(self, jobs: Iterable[Job], run_job: RunJob, /) -> Endings: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStanding:
    """How far a sweep is. `elapsed_s` and `finished` count from this start on."""

    total: int
    done: int
    failed: int
    finished: int
    elapsed_s: float

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed

    @property
    def time_left_s(self) -> float | None:
        return self.elapsed_s / self.finished * self.left if self.finished else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """`results` as `results.json` has them; `interrupted` where it ended before its runs did."""

    results: dict[str, Any]
    standing: SweepStanding
    interrupted: bool

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each combination, as results.csv has it."""
        return flat_rows(self.results)

    def to_frame(self) -> DataFrame:
        """`rows` as a pandas DataFrame. Raises ModuleNotFoundError: pandas is not installed."""
        from pandas import DataFrame  # noqa: PLC0415 - p2pfl does not need it

        return DataFrame(self.rows)

    def plot(self, path: Path | str) -> None:
        """Draw the combinations with their confidence intervals into a .png, .svg or .pdf file.
        Raises ModuleNotFoundError: matplotlib is not installed; UserError: the file cannot be written.
        """
        from sim.sweeps.figure import draw_sweep  # noqa: PLC0415 - matplotlib is an extra

        check_picture(Path(path), key="path")
        draw_sweep(self.results, Path(path))


def run_sweep(
    file: SweepFile,
    out: Path,
    *,
    run_job: RunJob,
    check: Callable[[Job], object],
    runner: Runner,
    retry: bool = False,
    on_change: Callable[[SweepStanding], None] | None = None,
) -> Sweep:
    """Run what is missing of the sweep that `file` describes, in the folder `out`.

    `check` raises a UserError for a run that cannot be; no run begins before every one is checked. A run that failed
    before is left alone, unless `retry`. SIGINT and SIGTERM end it early.
    Raises UserError: a combination that cannot be, or a folder that cannot be used.
    """
    plan = make_plan(file)
    folder = Folder(out)
    with folder.held():
        tally = _stand(plan, folder, retry=retry)
        plan = check_plan(plan, check, known={*tally.figures, *tally.failures})
        return _Run(plan, folder, tally, on_change).finish(runner, run_job)


def default_folder(path: Path) -> Path:
    return path.with_name(f"{path.stem}-results")


def _stand(plan: Plan, folder: Folder, *, retry: bool) -> Tally:
    """What earlier starts left in the folder."""
    tally = Tally(figures={}, failures={})
    for key in plan.jobs:
        report = folder.report(key)
        if report is not None and (found := _figures(report)) is not None:
            tally.figures[key] = found
        elif retry:
            folder.forget_failure(key)
        elif (reason := folder.failure(key)) is not None:
            tally.failures[key] = reason
    return tally


def _figures(report: bytes) -> dict[str, float] | None:
    """None for a file that is not ours or is damaged: the run is repeated."""
    try:
        return figures(report)
    except ValueError:
        return None


class _Run:
    """One start of a sweep: its runs come in, are kept, and the results are brought up to date."""

    def __init__(
        self, plan: Plan, folder: Folder, tally: Tally, on_change: Callable[[SweepStanding], None] | None
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.tally = tally
        self.on_change = on_change or (lambda _: None)
        self.begun = self.written_at = time.monotonic()
        self.finished = 0

    def finish(self, runner: Runner, run_job: RunJob) -> Sweep:
        known = {*self.tally.figures, *self.tally.failures}
        missing = [job for key, job in self.plan.jobs.items() if key not in known]
        interrupted = False
        self.write()
        self.on_change(self.standing())
        try:
            with _ended_by_signals(), closing(_ended(runner, missing, run_job)) as ended:
                for job, outcome in ended:
                    self.take(job, outcome)
        except KeyboardInterrupt:
            interrupted = True
        return Sweep(results=self.write(), standing=self.standing(), interrupted=interrupted)

    def take(self, job: Job, outcome: RunOutcome) -> None:
        with _undisturbed():
            _keep(self.folder, self.tally, job, outcome)
        self.finished += 1
        self.on_change(self.standing())
        if time.monotonic() - self.written_at >= WRITE_EVERY_S:
            self.write()

    def standing(self) -> SweepStanding:
        return SweepStanding(
            total=len(self.plan.jobs),
            done=len(self.tally.figures),
            failed=len(self.tally.failures),
            finished=self.finished,
            elapsed_s=time.monotonic() - self.begun,
        )

    def write(self) -> dict[str, Any]:
        found = results(self.plan, self.tally)
        replace(self.folder.path / RESULTS_JSON, as_json(found).encode())
        replace(self.folder.path / RESULTS_CSV, as_csv(found).encode())
        self.written_at = time.monotonic()
        return found


def _ended(runner: Runner, missing: list[Job], run_job: RunJob) -> Endings:
    """Processes are started only where there is something to run."""
    if missing:
        yield from runner(missing, run_job)


def _keep(folder: Folder, tally: Tally, job: Job, outcome: RunOutcome) -> None:
    """A report that has no figures is a failure of the run that made it."""
    found = _figures(outcome.report) if outcome.report is not None else None
    if outcome.report is not None and found is not None:
        folder.keep_report(job, outcome.report)
        tally.figures[job.key] = found
        return
    reason = outcome.reason or "what came back is no report"
    folder.keep_failure(job, reason, outcome.trace)
    tally.failures[job.key] = reason


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A run that has ended is kept before Ctrl-C is heard."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A batch system ends a job by SIGTERM: the same as Ctrl-C. Only the main thread hears signals."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, interrupt)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
