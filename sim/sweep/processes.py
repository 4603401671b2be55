"""Runs in processes of this machine. One that dies takes its run with it and nothing else: it is replaced.

The pool of the standard library gives up as a whole when a process of it is killed, and its tasks wait in pipes that
outlive the parent; here each process has one run at a time, and ends itself when the parent is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from sim.sweep.model import Job, RunJob
from sim.sweep.outcome import Endings, Outcome, perform

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Read when the libraries are loaded: threads on top of processes only take the cores from each other."""
ORPHANED = 1
SPAWN = multiprocessing.get_context("spawn")


class Worker:
    """One process, and the run it has."""

    def __init__(self, run_job: RunJob) -> None:
        self.job: Job | None = None
        self.pipe: Connection
        self.pipe, theirs = SPAWN.Pipe()
        self.process: BaseProcess = SPAWN.Process(target=_work, args=(theirs, run_job), daemon=True)
        with _quiet_start():
            self.process.start()
        theirs.close()

    def begin(self, job: Job) -> None:
        """One that has just died does not answer; `take` finds out."""
        self.job = job
        with suppress(OSError):
            self.pipe.send(job)

    def take(self) -> Outcome:
        """Called when the pipe has something to say, if only that it is closed."""
        try:
            found: Outcome = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return Outcome(reason=_how_it_died(self.process.exitcode))
        return found

    def stop(self) -> None:
        """It holds nothing that is worth waiting for."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_here(jobs: Iterable[Job], run_job: RunJob, count: int) -> Endings:
    """Each job with how it ended, as they end; closed early, it stops those that run."""
    left = deque(jobs)
    workers: list[Worker] = []
    try:
        while left or any(worker.job for worker in workers):
            while left and len(workers) < count:
                workers.append(Worker(run_job))
                workers[-1].begin(left.popleft())
            ready = wait([worker.pipe for worker in workers])
            for worker in [worker for worker in workers if worker.pipe in ready]:
                job, outcome = worker.job, worker.take()
                _give_next(worker, workers, left)
                if job is not None:
                    yield job, outcome
    finally:
        for worker in workers:
            worker.stop()


def _give_next(worker: Worker, workers: list[Worker], left: deque[Job]) -> None:
    """A dead process, or one that has nothing left to do, leaves the pool."""
    worker.job = None
    if worker.process.is_alive() and left:
        worker.begin(left.popleft())
    else:
        workers.remove(worker)
        worker.stop()


def _work(pipe: Connection, run_job: RunJob) -> None:
    """The life of a process: a job comes, an outcome goes."""
    os.dup2(2, 1)  # what a task prints is no data of ours
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(perform(run_job, pipe.recv()))


def _end_with_the_parent() -> None:
    """Nobody would take the result of a run that goes on after its sweep was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(ORPHANED)


@contextmanager
def _quiet_start() -> Iterator[None]:
    """What a new process inherits: one thread for mathematics, and that Ctrl-C is for the parent to hear."""
    resource_tracker.ensure_running()  # its own start, with that of the first process, would make Ctrl-C heard again
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


def _how_it_died(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        out_of_memory = ": out of memory, or by hand" if -code == signal.SIGKILL else ""
        return f"its process was killed ({name}{out_of_memory})"
    return f"its process ended by itself (exit code {code})"
