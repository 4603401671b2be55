"""A server that compresses as the peers do, beside the references of a sweep: the same nodes, rounds and data.

The sweep's own server sends and gets float32, as McMahan et al. have it; compared with peers that compress, that says
less about peers than about compressors. Each run of the references has one here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from p2pfl.compress import make_compressor
from p2pfl.reporting.history import Reference
from sim.learning.batched import make_learners
from sim.learning.references import fedavg
from sim.sweeps.model import Job, Plan
from sim.sweeps.work import build

COMPRESSOR = "q4"


class Served(msgspec.Struct):
    """`cost` as in a report, so that the study's budget counts it."""

    cost: dict[str, float]
    fedavg: Reference


def serve(part: str, plan: Plan, folder: Path) -> float:
    """What is not there yet, a file below `folder` for each run of the plan; CPU-seconds spent."""
    import torch  # noqa: PLC0415 - reading what there is takes no torch

    torch.set_num_threads(1)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    spent_s = 0.0
    for combination in plan.combinations:
        for job in combination.possible:
            path = _file(folder, part, combination.values, job.seed)
            if not path.exists():
                found = _served(job)
                spent_s += found.cost["cpu_s"]
                path.write_bytes(msgspec.json.encode(found))
    return spent_s


def read_served(folder: Path, part: str, values: Mapping[str, Any], seed: int) -> Reference | None:
    """None where it was not run."""
    path = _file(folder, part, values, seed)
    return msgspec.json.decode(path.read_bytes(), type=Served).fedavg if path.exists() else None


def _file(folder: Path, part: str, values: Mapping[str, Any], seed: int) -> Path:
    """By what the run is, as with real processes: there is no sweep that would know its key."""
    split = str(values.get("partition", "")).replace(":", "-")
    return folder / "runs" / f"{part}-{split}-{seed}.json"


def _served(job: Job) -> Served:
    began_s = time.process_time()
    federation, _ = build(job)
    found = fedavg(federation, make_learners(federation), compressor=make_compressor(COMPRESSOR))
    if found is None:
        raise ValueError(f"no server has the models of {job.options}")
    return Served({"cpu_s": time.process_time() - began_s}, found)
