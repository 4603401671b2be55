"""The runners of a sweep's jobs: processes of this machine, or Dask, whose `distributed` is an extra.

A local process that dies loses only its own run, and is replaced. The standard library's pool fails as a whole if one
of its processes is killed, and its tasks wait in pipes that outlive the parent; here each process has one run at a
time, and exits when the parent is gone. The processes of Dask, on many machines or on this one, must see the same files
and have the same software: a job records both, and its run refuses others.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from p2pfl.errors import UserError
from sim.processes import how_it_died
from sim.sweeps.model import Endings, Job, RunJob, RunOutcome, in_one_line, perform

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables that libraries read when they are loaded: threads in addition to processes only compete for cores."""
ORPHANED = 1
SPAWN = multiprocessing.get_context("spawn")

CONNECT_S = 15


def cores() -> int:
    """Return the number of cores that this process may use, if the system reports it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """One process and its current run."""

    def __init__(self, run_job: RunJob) -> None:
        self.job: Job | None = None
        self.pipe: Connection
        self.pipe, theirs = SPAWN.Pipe()
        self.process: BaseProcess = SPAWN.Process(target=_work, args=(theirs, run_job), daemon=True)
        with _quiet_start():
            self.process.start()
        theirs.close()

    def begin(self, job: Job) -> None:
        """Send a job. A process that has just died does not respond; `take` notices that."""
        self.job = job
        with suppress(OSError):
            self.pipe.send(job)

    def take(self) -> RunOutcome:
        """Receive the outcome. Called when the pipe is readable, even if only because it was closed."""
        try:
            found: RunOutcome = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return RunOutcome(reason=how_it_died(self.process.exitcode))
        return found

    def stop(self) -> None:
        """Kill the process, which holds nothing worth waiting for."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_here(
    jobs: Iterable[Job],
    run_job: RunJob,
    count: int,
    *,
    until: float | None = None,
    pool: list[Worker] | None = None,
) -> Endings:
    """Yield each job with its outcome as it ends; if closed early, or at `until` on the monotonic clock, stop the
    running jobs.

    Processes without a job stay in `pool` for the next call, and the caller stops them; by default they end.
    """
    left = deque(jobs)
    workers: list[Worker] = [] if pool is None else pool
    try:
        while left or any(worker.job for worker in workers):
            idle = [worker for worker in workers if worker.job is None]
            while left and (idle or len(workers) < count):
                if not idle:
                    workers.append(Worker(run_job))
                (idle.pop() if idle else workers[-1]).begin(left.popleft())
            busy = [worker.pipe for worker in workers if worker.job is not None]
            ready = wait(busy, None if until is None else max(0.0, until - time.monotonic()))
            if not ready:
                return
            for worker in [worker for worker in workers if worker.pipe in ready]:
                job, outcome = worker.job, worker.take()
                _give_next(worker, workers, left, keep=pool is not None)
                if job is not None:
                    yield job, outcome
    finally:
        for worker in [worker for worker in workers if pool is None or worker.job is not None]:
            workers.remove(worker)
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


def _give_next(worker: Worker, workers: list[Worker], left: deque[Job], *, keep: bool) -> None:
    """Give the worker its next job; a dead one, or one without a job unless it is to `keep`, leaves the pool."""
    worker.job = None
    alive = worker.process.is_alive()
    if alive and left:
        worker.begin(left.popleft())
    elif not alive or not keep:
        workers.remove(worker)
        worker.stop()


def _work(pipe: Connection, run_job: RunJob) -> None:
    """Work in a process: receive jobs, send outcomes."""
    os.dup2(2, 1)  # a task's prints are not our data
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(perform(run_job, pipe.recv()))


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
