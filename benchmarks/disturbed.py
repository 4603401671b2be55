"""Real processes that are disturbed.

    python benchmarks/disturbed.py losses --scenario wipe --rounds 160
    python benchmarks/disturbed.py packets --rates 0,0.01,0.1,0.2 --runs 3

`losses`, on the built-in quadratic, whose optimum is known, next to an undisturbed run: processes lose a folder, a
snapshot's worth of data or a member, or run twice (scenario `digits`: the loss on the common test set). A worst node
may end at twice the twin's excess or .01, whichever is more (digits: 1.25 times the twin's loss); of two copies exactly
one gives up with an error. Exits with 1 if anything is wrong; the lines below a row explain it.

`packets`, beside the simulator: eight nodes in a ring learn digits (`shards:2`) in a network namespace of their own
whose loopback drops that share of packets in each direction, which takes root, `unshare`, `ip` and `iptables`. A row a
rate: medians of the seconds to 90% at the worst node, and its end.

To test another tree, run it there: `cd TREE && PYTHONPATH=TREE python .../benchmarks/disturbed.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))
import faces  # noqa: F401 - its kits import names from packages
import losing
from real_field import WaitedInVainError

from sim import World, simulate
from sim.federations import describe

Row = dict[str, Any]
TARGET = 0.9
IPTABLES = "iptables-legacy"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    command = kinds.add_parser("losses")
    command.add_argument("--scenario", action="append", choices=list(losing.SCENARIOS), help="default: all")
    command.add_argument("--rounds", type=int, help="of each node; in place of the scenario's own")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--keep", type=Path, metavar="DIR", help="leave the federations and their logs there")
    command.add_argument("--json", type=Path, metavar="FILE")
    command.add_argument("--kills", type=int, default=losing.Setting().kills, help="in snapshot-chaos")
    command = kinds.add_parser("packets")
    command.add_argument("--rates", default="0,0.01,0.1,0.2")
    command.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if options.kind == "packets":
        packets(options)
        return 0
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows = list(losses(options, folder))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return int(any(row["wrong"] for row in rows))


def losses(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    print(f"{'scenario':16}{'':11}{'worst':>10}{'mean':>10}{'limit':>10}{'seconds':>9}  rounds; exit codes; what else")
    for scenario in options.scenario or losing.SCENARIOS:
        setting = losing.DIGITS if scenario == "digits" else losing.Setting()
        setting = replace(setting, seed=options.seed, kills=options.kills, rounds=options.rounds or setting.rounds)
        try:
            outcome = losing.play(scenario, folder / scenario, setting)
        except WaitedInVainError as error:
            print(f"{scenario:16}{error}", flush=True)
            yield {"scenario": scenario, "wrong": [str(error)]}
            continue
        sides = ((scenario, "twin", outcome.twin, ""), ("", "disturbed", outcome.disturbed, f"{outcome.limit:.5f}"))
        for name, side, ended, limit in sides:
            alarms = {node: kinds for node, kinds in ended.alarms.items() if kinds}
            more = [*ended.rounds.values()], [*ended.codes.values()], {"alarms": alarms} if alarms else {}, ended.notes
            print(f"{name:16}{side:11}{ended.worst:10.5f}{ended.mean:10.5f}{limit:>10}{ended.seconds:9.1f}", end="  ")
            print("; ".join(str(part) for part in more if part))
        for each in outcome.wrong:
            print(f"    wrong: {each}", flush=True)
        yield outcome.in_json()


def packets(options: argparse.Namespace) -> None:
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


if __name__ == "__main__":
    raise SystemExit(main())
