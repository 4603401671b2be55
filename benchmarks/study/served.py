"""A server that compresses as the peers do, in addition to a sweep's references: the same nodes, rounds and data.

The sweep's own server sends and receives float32, as in McMahan et al.; comparing it with peers that compress would
measure the compressor more than the peers. Each run of the references has one here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from budget import Budget

from p2pfl.compress import make_compressor
from p2pfl.errors import UserError
from p2pfl.reporting.history import Reference
from sim.learning.nodes import make_learners
from sim.learning.references import fedavg
from sim.sweeps.model import Job, SweepPlan
from sim.sweeps.run import replace
from sim.sweeps.work import build

COMPRESSOR = "q4"


class Served(msgspec.Struct):
    """The result of a server. `cost` is as in a report, so that the study's budget counts it; `identity` is its
    inputs.
    """

    cost: dict[str, float]
    fedavg: Reference
    compressor: str
    identity: dict[str, Any]


def serve(part: str, plan: SweepPlan, folder: Path, budget: Budget) -> int:
    """Run what is missing or was made from different inputs, and write a file below `folder` for each run in the plan.

    Returns how many runs the budget left out.
    """
    import torch  # noqa: PLC0415 - reading what there is takes no torch

    torch.set_num_threads(1)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    left_out = 0
    for combination in plan.combinations:
        for job in combination.possible:
            path = _file(folder, part, combination.values, job.seed)
            if _is_of(path, job):
                continue
            if not budget.left:
                left_out += 1
                continue
            found = _served(job)
            budget.spent_s += found.cost["cpu_s"]
            replace(path, msgspec.json.encode(found))
    return left_out


def read_served(folder: Path, part: str, values: Mapping[str, Any], seed: int) -> Reference | None:
    """Read a server's result; None if it was not run, or was run with another compressor."""
    found = _read(_file(folder, part, values, seed))
    return found.fedavg if found and found.compressor == COMPRESSOR else None


def _read(path: Path) -> Served | None:
    return msgspec.json.decode(path.read_bytes(), type=Served) if path.exists() else None


def _is_of(path: Path, job: Job) -> bool:
    found = _read(path)
    return found is not None and (found.identity, found.compressor) == (_identity(job), COMPRESSOR)


def _identity(job: Job) -> dict[str, Any]:
    """Return the inputs of a run, as JSON stores them."""
    identity: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(job.identity)))
    return identity


def _file(folder: Path, part: str, values: Mapping[str, Any], seed: int) -> Path:
    """Name the file by the content of the run, so that pictures can be made even if the code has changed."""
    split = str(values.get("partition", "")).replace(":", "-")
    return folder / "runs" / f"{part}-{split}-{seed}.json"


def _served(job: Job) -> Served:
    began_s = time.process_time()
    federation, _ = build(job)
    found = fedavg(federation, make_learners(federation), compressor=make_compressor(COMPRESSOR))
    if found is None:
        raise UserError("no server has the models of this task", key="task", value=job.options.get("base"))
    return Served({"cpu_s": time.process_time() - began_s}, found, COMPRESSOR, _identity(job))
