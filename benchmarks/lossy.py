"""Real processes on a network that loses packets, beside the simulator: seconds to 90% at the worst node, and the end.

    python benchmarks/lossy.py --rates 0,0.01,0.1,0.2 --runs 3

Eight nodes in a ring learn digits (`shards:2`). The real ones run in a network namespace of their own whose loopback
drops that share of packets in each direction, which takes root, `unshare`, `ip` and `iptables`. A row a rate: medians.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from sim import World, simulate
from sim.federations import describe

TARGET = 0.9
IPTABLES = "iptables-legacy"


def real(rate: float, seed: int) -> Any:
    """Run the demo and return its report."""
    drop = f"{IPTABLES} -A INPUT -i lo -m statistic --mode random --probability {rate} -j DROP" if rate else "true"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        demo = [sys.executable, "-m", "p2pfl", "demo", "--seed", str(seed), "--dir", f"{folder}/demo"]
        script = f'ip link set lo up && {drop} && exec "$@"'
        command = ["unshare", "-n", "sh", "-c", script, "sh", *demo, "--report", str(report)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
        return json.loads(report.read_text())


def simulated(rate: float, seed: int) -> Any:
    federation = describe(nodes=8, topology="ring", rounds=40, partition="shards:2", seed=seed)
    return json.loads(simulate(federation, world=World(loss=rate), references=False).to_json())


def figures(report: Any) -> dict[str, float | None]:
    """Return the seconds from the first round that anybody has done, as processes start one after the other."""
    points = [point for point in report["history"] if point["rounds"] and point["rounds"]["max"] > 0]
    there = [point["time_s"] for point in points if point["accuracy"] and point["accuracy"]["min"] >= TARGET]
    to_90_s = round(there[0] - points[0]["time_s"], 1) if there else None
    return {"to_90_s": to_90_s, "worst": report["accuracy"]["min"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="0,0.01,0.1,0.2")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    ways = {"simulated": simulated}
    if shutil.which("unshare") and shutil.which(IPTABLES):
        ways["real"] = real
    else:
        print(f"no real processes: this needs unshare and {IPTABLES}", file=sys.stderr)
    for rate in map(float, options.rates.split(",")):
        for name, run in ways.items():
            runs = [figures(run(rate, seed)) for seed in range(options.runs)]
            arrived = [outcome["to_90_s"] for outcome in runs if outcome["to_90_s"] is not None]
            row = {"loss": rate, "how": name, "reached": f"{len(arrived)}/{len(runs)}"}
            row |= {"to_90_s": round(median(arrived), 1) if arrived else None}
            print(json.dumps(row | {"worst": [round(outcome["worst"] or 0, 3) for outcome in runs]}), flush=True)


if __name__ == "__main__":
    main()
