"""Runs by Dask, on many machines or on this one; `dask.distributed` is an extra.

Its processes must see the same files and have the same software: a job says what both were, and its run refuses others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from p2pfl.errors import UserError
from sim.sweep.model import Job, RunJob
from sim.sweep.outcome import Endings, Outcome, in_one_line, perform

CONNECT_S = 15


def run_by_dask(jobs: Iterable[Job], run_job: RunJob, count: int, scheduler: str | None) -> Endings:
    """Each job with how it ended, as they end; `count` processes here, unless a `scheduler` (host:port) is named.

    Raises:
        UserError: there is no such scheduler.
        ModuleNotFoundError: the extra is missing.
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
            # no more runs are given away than there are threads: Dask blames a dead process on all the runs it had
            for following in itertools.islice(left, max(0, max(1, _width(client)) - len(pending))):
                started = _submit(client, run_job, following)
                pending[started] = following
                arriving.add(started)
            yield job, outcome


def _client(count: int, scheduler: str | None, stack: ExitStack) -> Any:
    import dask  # noqa: PLC0415 - as above
    from distributed import Client, LocalCluster  # noqa: PLC0415 - as above

    if scheduler is None:
        # a run that kills its process would kill the next one just so
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


def _outcome(future: Any) -> Outcome:
    from distributed import KilledWorker  # noqa: PLC0415 - as above

    try:
        found: Outcome = future.result()
    except KilledWorker:
        return Outcome(reason="its process was killed (out of memory, or by hand)")
    except Exception as error:  # noqa: BLE001 - whatever Dask could not do for this run
        return Outcome(reason=in_one_line(f"Dask: {type(error).__name__}: {error}"))
    return found
