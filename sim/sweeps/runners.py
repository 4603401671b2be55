"""The runners of a sweep's jobs: processes of this machine, or Dask, whose `distributed` is an extra.

A pool of `concurrent.futures` fails as a whole if one of its processes is killed, so each process here is a pool of its
own: one that dies loses only its own run, and is replaced. The processes of Dask, on many machines or on this one, must
see the same files and have the same software: a job records both, and its run refuses others.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import Any, TypeAlias

from p2pfl.errors import UserError
from sim.processes import how_it_died
from sim.sweeps.job import Job, RunJob, RunOutcome, in_one_line, perform

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
    until: float | None = None,
    idle: list[Worker] | None = None,
) -> Endings:
    """Yield each job with its outcome as it ends; if closed early, or at `until` on the monotonic clock, stop the
    running jobs.

    Processes without a job stay in `idle` for the next call, and the caller stops them; by default they end.
    """
    left, busy = deque(jobs), dict[Future[RunOutcome], tuple[Worker, Job]]()
    spare: list[Worker] = [] if idle is None else idle
    try:
        while left or busy:
            while left and len(busy) < count:
                worker, job = spare.pop() if spare else Worker(), left.popleft()
                busy[worker.pool.submit(perform, run_job, job)] = worker, job
            rest_s = None if until is None else max(0.0, until - time.monotonic())
            ended, _ = wait(busy, rest_s, FIRST_COMPLETED)
            if not ended:
                return
            for future in ended:
                worker, job = busy.pop(future)
                outcome = worker.outcome(future)
                if outcome is None:
                    outcome = RunOutcome(reason=how_it_died(worker.stop()))
                elif left or idle is not None:
                    spare.append(worker)
                else:
                    worker.stop()
                yield job, outcome
    finally:
        for worker in [*(worker for worker, _ in busy.values()), *(spare if idle is None else ())]:
            worker.stop()


def run_by_dask(jobs: Iterable[Job], run_job: RunJob, count: int, scheduler: str | None) -> Endings:
    """Yield each job with its outcome as it ends; `count` processes here, unless a `scheduler` (host:port) is named.

    Raises UserError if there is no such scheduler, ModuleNotFoundError if the extra is missing.
    """
    from distributed import as_completed  # noqa: PLC0415 - slow to import, and an extra

    left = iter(jobs)
    with ExitStack() as stack:
        client = _client(count, scheduler, stack)
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
    resource_tracker.ensure_running()  # if started later, with the first process, it would unblock Ctrl-C again
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _client(count: int, scheduler: str | None, stack: ExitStack) -> Any:
    import dask  # noqa: PLC0415 - as above
    from distributed import Client, LocalCluster  # noqa: PLC0415 - as above

    if scheduler is None:
        # a run that kills its process would kill the next one too
        stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": 0}))
        cluster = LocalCluster(n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None)
        return stack.enter_context(Client(stack.enter_context(cluster)))
    try:
        client = stack.enter_context(Client(scheduler, timeout=CONNECT_S))
        client.wait_for_workers(1, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no Dask scheduler with a worker answers: {in_one_line(str(error))}",
            key="--scheduler",
            value=scheduler,
            allowed="the address that `dask scheduler` prints, as tcp://host:8786",
        ) from None
    return client


def _width(client: Any) -> int:
    return sum(client.nthreads().values())


def _submit(client: Any, run_job: RunJob, job: Job) -> Any:
    return client.submit(perform, run_job, job, key=f"p2pfl-{job.key}", pure=False)


def _outcome(future: Any) -> RunOutcome:
    from distributed import KilledWorker  # noqa: PLC0415 - as above

    try:
        found: RunOutcome = future.result()
    except KilledWorker:
        return RunOutcome(reason="its process was killed (out of memory, or by hand)")
    except Exception as error:  # noqa: BLE001 - whatever Dask could not do for this run
        return RunOutcome(reason=in_one_line(f"Dask: {type(error).__name__}: {error}"))
    return found
