"""The same federations as real processes and simulated: three cells, as the conformance test compares them.

Real nodes sleep through most of a round, so that a small machine is enough; `busy` is the share of the processors in
use meanwhile. Above a half, the real figures are not those of separate machines.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "conformance"))
from both import LIMITS, Setting, TooBusyError, apart, make, means, really, stalled_s, virtually

from sim.sweeps.run import replace as replace_file

CELLS = (
    Setting(nodes=8, topology="ring", seed=0, partition="shards:2"),
    Setting(nodes=8, topology="exponential", seed=0, partition="dirichlet:0.5"),
    Setting(nodes=9, topology="torus", seed=0, partition="iid"),
)
TIMEOUT_S = 300.0


def cell_file(folder: Path, cell: Setting) -> Path:
    return folder / f"{cell.topology}-{cell.partition.replace(':', '-')}-{cell.seed}.json"


def compare(folder: Path, *, seeds: int, rounds: int) -> float:
    """Write what is missing into `folder`; return CPU-seconds of the real nodes, and of the simulations."""
    folder.mkdir(parents=True, exist_ok=True)
    began = _cpu_s()
    for cell in CELLS:
        for seed in range(seeds):
            one = replace(cell, seed=seed, rounds=rounds)
            if not cell_file(folder, one).exists():
                replace_file(cell_file(folder, one), json.dumps(_compared(one), indent=1).encode())
    return _cpu_s() - began


def beyond(row: dict[str, Any]) -> list[str]:
    """Return the figures of a cell that are farther apart than the conformance test allows."""
    real, simulated = row["real"], row["simulated"]
    return [key for key, (_, limit) in LIMITS.items() if not apart(real, simulated, key) <= limit]


def _compared(cell: Setting) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        made = make(Path(place) / "both", cell)
        try:
            reports, busy = really([made], timeout_s=TIMEOUT_S)
        except TooBusyError as reason:
            return {"cell": asdict(cell), "why": str(reason)}
        stalled = stalled_s([made])
        simulated = virtually(made, cell)
    return {
        "cell": asdict(cell),
        "busy": busy,
        "stalled_s": stalled,
        "real": means(reports),
        "simulated": means([simulated]),
    }


def _cpu_s() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
