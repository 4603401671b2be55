"""A sweep from its file to its results. Finished runs are read, missing ones are run, and everything is kept in a
folder: a report for each finished run, a note for each failed one, and the results so far.

Each file is either complete or absent: it is written under another name, flushed and renamed. Only one sweep at a time
uses the folder.

Jobs are run by processes of this machine, or by Dask, whose `distributed` is an extra. A pool of `concurrent.futures`
fails as a whole if one of its processes is killed, so each process here is a pool of its own: one that dies loses only
its own run, and is replaced. The processes of Dask, on many machines or on this one, must see the same files and have
the same software: a job records both, and its run refuses others.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeAlias

from p2pfl.console.output import ProgressView
from p2pfl.errors import StorageError, UserError
from p2pfl.system import lock, signals_held, sync, sync_folder
from sim.progress import duration, how_it_died
from sim.sweeps.job import Job, RunJob, RunOutcome, build, in_one_line, perform, run
from sim.sweeps.plan import SweepFile, SweepPlan, check_plan, make_plan
from sim.sweeps.results import SweepTally, figures, results

Endings: TypeAlias = "Generator[tuple[Job, RunOutcome], None, None]"
"""Yields each job with its outcome as it ends; if closed early, it stops the running jobs."""
Runner: TypeAlias = Callable[[Iterable[Job], RunJob], Endings]

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables that libraries read when they are loaded: threads in addition to processes only compete for cores."""
ORPHANED = 1
CONNECT_S = 15


def cores() -> int:
    """Return the number of cores that this process may use, if the system reports it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """One process, as a pool of its own."""

    def __init__(self) -> None:
        before = set(multiprocessing.active_children())
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin)
        with _quiet_start():
            self.pool.submit(int)  # this starts the process
        (self.process,) = set(multiprocessing.active_children()) - before

    def outcome(self, future: Future[RunOutcome]) -> RunOutcome | None:
        """Return the outcome of a run that has ended; None if its process died."""
        try:
            return future.result()
        except BrokenProcessPool:
            return None

    def stop(self) -> int | None:
        """Kill the process, which holds nothing worth waiting for; return its exit code."""
        self.process.kill()
        self.pool.shutdown(cancel_futures=True)
        return self.process.exitcode


def run_here(
    jobs: Iterable[Job],
    run_job: RunJob,
    count: int,
    *,
    until: Callable[[], float] | None = None,
) -> Endings:
    """Yield each job with its outcome as it ends; closed early, or at `until()` (monotonic), stop all that run."""
    left, busy = deque(jobs), dict[Future[RunOutcome], tuple[Worker, Job]]()
    spare: list[Worker] = []
    try:
        while left or busy:
            while left and len(busy) < count:
                worker, job = spare.pop() if spare else Worker(), left.popleft()
                busy[worker.pool.submit(perform, run_job, job)] = worker, job
            rest_s = None if until is None else max(0.0, until() - time.monotonic())
            ended, _ = wait(busy, rest_s, FIRST_COMPLETED)
            if not ended:
                return
            for future in ended:
                worker, job = busy.pop(future)
                outcome = worker.outcome(future)
                if outcome is None:
                    outcome = RunOutcome(reason=how_it_died(worker.stop()))
                elif left:
                    spare.append(worker)
                else:
                    worker.stop()
                yield job, outcome
    finally:
        for worker in [*(worker for worker, _ in busy.values()), *spare]:
            worker.stop()


def run_by_dask(jobs: Iterable[Job], run_job: RunJob, scheduler: str) -> Endings:
    """Yield each job with its outcome as it ends, by the workers of a Dask `scheduler` (host:port).

    Raises UserError if there is no such scheduler, ModuleNotFoundError if the extra is missing.
    """
    from distributed import Client, as_completed  # noqa: PLC0415 - slow to import, and an extra

    left = iter(jobs)
    try:
        client = Client(scheduler, timeout=CONNECT_S)
        client.wait_for_workers(1, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no Dask scheduler with a worker answers: {in_one_line(str(error))}",
            key="--scheduler",
            value=scheduler,
            allowed="the address that `dask scheduler` prints, as tcp://host:8786",
        ) from None
    with client:
        pending = {_submit(client, run_job, job): job for job in itertools.islice(left, _width(client))}
        arriving = as_completed(list(pending))
        for future in arriving:
            job = pending.pop(future)
            outcome = _outcome(future)
            # submit no more runs than there are threads: Dask blames a dead process on all the runs it had
            for following in itertools.islice(left, max(0, max(1, _width(client)) - len(pending))):
                started = _submit(client, run_job, following)
                pending[started] = following
                arriving.add(started)
            yield job, outcome


def _begin() -> None:
    """Begin in a process of runs."""
    os.dup2(2, 1)  # a task's prints are not our data
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Exit this process when its parent is gone, because nobody would collect its result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(ORPHANED)


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Prepare what a new process inherits: one thread for numerical libraries, and Ctrl-C left to the parent."""
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # if started later, with the first process, it would unblock Ctrl-C again
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        with signals_held(signal.SIGINT):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _width(client: Any) -> int:
    return sum(client.nthreads().values())


def _submit(client: Any, run_job: RunJob, job: Job) -> Any:
    return client.submit(perform, run_job, job, key=f"p2pfl-{job.key}", pure=False)


def _outcome(future: Any) -> RunOutcome:
    from distributed import KilledWorker  # noqa: PLC0415 - as above

    try:
        outcome: RunOutcome = future.result()
    except KilledWorker:
        return RunOutcome(reason="its process was killed (out of memory, or by hand)")
    except Exception as error:  # noqa: BLE001 - whatever Dask could not do for this run
        return RunOutcome(reason=in_one_line(f"Dask: {type(error).__name__}: {error}"))
    return outcome


WRITE_EVERY_S = 1.0

RUNS, FAILURES, LOCK = "runs", "failures", "lock"
RESULTS = "results.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStanding:
    """The progress of a sweep. `elapsed_s` and `finished` count from this start."""

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


class SweepView(ProgressView):
    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.began = False

    def update(self, standing: SweepStanding) -> None:
        due = not self.began or not standing.left  # the first and the last
        self.began = True
        text = f"{standing.done} of {standing.total} runs done"
        text += f", {standing.failed} failed" if standing.failed else ""
        if standing.left and standing.time_left_s is not None:
            text += f", {duration(standing.time_left_s)} left"
        self.show(text, due=due)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The outcome of a sweep: `results` as in `results.json`; `interrupted` if it ended before its runs did."""

    results: dict[str, Any]
    standing: SweepStanding
    interrupted: bool


def run_sweep(
    file: SweepFile,
    out: Path,
    *,
    runner: Runner,
    run_job: RunJob = run,
    check: Callable[[Job], object] = build,
    on_change: Callable[[SweepStanding], None] | None = None,
) -> Sweep:
    """Run the missing runs of the sweep that `file` describes, in the folder `out`.

    `check` raises a UserError for an impossible run; no run begins before all are checked. A run that failed before is
    repeated. SIGINT and SIGTERM end the sweep early. Raises UserError if a combination is impossible, or if the folder
    cannot be used.
    """
    plan, folder, interrupted = make_plan(file), Folder(out), False
    with folder.lock():
        tally = _earlier_tally(plan, folder)
        check_plan(plan, check, tally.figures)
        missing = [job for key, job in plan.jobs.items() if key not in tally.figures]
        sweep = _Run(plan, folder, tally, on_change or (lambda _: None))
        try:
            if missing:
                with ended_by_signals(), closing(runner(missing, run_job)) as ended:
                    for job, outcome in ended:
                        sweep.take(job, outcome)
        except KeyboardInterrupt:
            interrupted = True
        return Sweep(results=sweep.write(), standing=sweep.standing(), interrupted=interrupted)


class _Run:
    """One start of a sweep: stores its runs, and updates the results."""

    def __init__(
        self, plan: SweepPlan, folder: Folder, tally: SweepTally, on_change: Callable[[SweepStanding], None]
    ) -> None:
        self.plan, self.folder, self.tally, self.on_change = plan, folder, tally, on_change
        self.begun, self.finished = time.monotonic(), 0
        self.write()
        self.on_change(self.standing())

    def take(self, job: Job, outcome: RunOutcome) -> None:
        with signals_held(*ENDING):
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
        table = results(self.plan, self.tally)
        replace(self.folder.path / RESULTS, (json.dumps(table, indent=1, allow_nan=False) + "\n").encode())
        self.written_at = time.monotonic()
        return table


def default_folder(path: Path) -> Path:
    return path.with_name(f"{path.stem}-results")


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the folder if it is missing, and keep other sweeps out of it; a dead sweep holds nothing.

        Raises UserError if another sweep is running in it, if it belongs to something else, or if it cannot be created.
        """
        self._make()
        with (self.path / LOCK).open("ab") as file:
            try:
                lock(file.fileno())
            except BlockingIOError:
                text = "another sweep is at work in this folder"
                raise UserError(text, key="--out", value=str(self.path), allowed="another folder, or wait") from None
            for left in [*self.path.glob("*.part"), *self.path.glob("*/*.part")]:
                left.unlink()
            yield

    def _make(self) -> None:
        allowed = "a new folder, or that of a sweep or plan"
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / RUNS).is_dir():
            raise UserError("is not the folder of a sweep or plan", key="--out", value=str(self.path), allowed=allowed)
        try:
            (self.path / RUNS).mkdir(parents=True, exist_ok=True)
            (self.path / FAILURES).mkdir(exist_ok=True)
        except OSError as error:
            text = f"cannot be made: {error.strerror}"
            raise UserError(text, key="--out", value=str(self.path), allowed=allowed) from None

    def report(self, key: str) -> bytes | None:
        return _read(self._place(RUNS, key))

    def keep_report(self, job: Job, report: bytes) -> None:
        """Store a report, and forget an earlier failure of its run."""
        replace(self._place(RUNS, job.key), report)
        self._place(FAILURES, job.key).unlink(missing_ok=True)

    def keep_failure(self, job: Job, reason: str, trace: str | None) -> None:
        note = {"reason": reason, "seed": job.seed, "options": dict(job.options), "trace": trace}
        replace(self._place(FAILURES, job.key), json.dumps(note, indent=1, default=str).encode())

    def _place(self, part: str, key: str) -> Path:
        return self.path / part / f"{key}.json"


def replace(path: Path, content: bytes) -> None:
    """Replace the whole file or leave the old one, even in a power failure. Raises StorageError if the disk refused."""
    aside = path.with_name(f".{path.name}.part")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
        aside.replace(path)
        sync_folder(path.parent)  # a rename is durable only when its folder is
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _earlier_tally(plan: SweepPlan, folder: Folder) -> SweepTally:
    """Read the results that earlier starts left in the folder."""
    tally = SweepTally(figures={}, failures={})
    for key in plan.jobs:
        report = folder.report(key)
        if report is not None and (measured := _figures(report)) is not None:
            tally.figures[key] = measured
    return tally


def _figures(report: bytes) -> dict[str, float] | None:
    """Read the figures from a report; None if it is not ours or is damaged, so that the run is repeated."""
    try:
        return figures(report)
    except ValueError:
        return None


def _keep(folder: Folder, tally: SweepTally, job: Job, outcome: RunOutcome) -> None:
    """Store an outcome. A report without figures counts as a failure of the run that made it."""
    measured = _figures(outcome.report) if outcome.report is not None else None
    if outcome.report is not None and measured is not None:
        folder.keep_report(job, outcome.report)
        tally.figures[job.key] = measured
        return
    reason = outcome.reason or "what came back is not a report"
    folder.keep_failure(job, reason, outcome.trace)
    tally.failures[job.key] = reason


ENDING = (signal.SIGINT, signal.SIGTERM)
"""The signals that end a sweep, held back while a finished run is stored."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM, with which a batch system ends a job, like Ctrl-C. Only the main thread receives signals."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, interrupt)) for number in ENDING]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
