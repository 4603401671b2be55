"""The simulator compared with real processes on the same federation files: a table of means over seeds.

    python benchmarks/conformance.py --seeds 3

The first case and the last two are those of docs/explanation/study.md. Real nodes sleep through most of a round, so a
small machine is enough. `busy` is the share of the processors in use during that time, by any process; above one half,
the real figures do not represent separate machines.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "conformance"))
import faces  # noqa: F401 - its kits import names from packages
from both import LIMITS, Setting, apart, make, means, really, seeds_of, virtually

CASES = (
    (8, "ring", "shards:2"),
    (8, "random-regular:degree=4", "shards:2"),
    (16, "ring", "shards:2"),
    (16, "random-regular:degree=4", "shards:2"),
    (8, "exponential", "dirichlet:0.5"),
    (9, "torus", "iid"),
)


def case(nodes: int, topology: str, partition: str, *, seeds: int, rounds: int) -> bool:
    """Run and print one case; return True if all figures are within the limits."""
    real, simulated, loads = [], [], []
    base = Setting(nodes=nodes, topology=topology, partition=partition, seed=0, rounds=rounds)
    for setting in seeds_of(base, seeds):
        with tempfile.TemporaryDirectory() as folder:
            made = make(Path(folder) / "both", setting)
            reports, busy = really([made], timeout_s=300)
            real += reports
            loads.append(busy)
            simulated.append(virtually(made, setting))
    measured, predicted = means(real), means(simulated)
    print(f"\n{nodes} nodes, {topology}, {partition}, {seeds} seeds, busy {max(loads):.2f}")
    print(f"{'':20}{'real':>12}{'simulated':>12}{'apart':>9}{'limit':>9}")
    for key, value in measured.items():
        limit = f"{apart(measured, predicted, key):9.4f}{LIMITS[key][1]:9}" if key in LIMITS else ""
        print(f"{key:20}{value:12.5f}{predicted[key]:12.5f}{limit}", flush=True)
    return all(apart(measured, predicted, key) <= limit for key, (_, limit) in LIMITS.items())


def main() -> int:
    parser = argparse.ArgumentParser(description="the simulator against real processes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--nodes", type=int, help="only the cases of so many nodes")
    given = parser.parse_args()
    within = [
        case(nodes, *rest, seeds=given.seeds, rounds=given.rounds)
        for nodes, *rest in CASES
        if given.nodes in {None, nodes}
    ]
    print(json.dumps({"within": within}))
    return 0 if all(within) else 1


if __name__ == "__main__":
    raise SystemExit(main())
