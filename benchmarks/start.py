"""The cost of starting the nodes of the demo, forked from one process or each separately (`--spawn`), in turns.

From the start of the launcher until every node has trained: seconds, CPU-seconds of all processes together (launcher
and server too), and the nodes' memory: PSS divides a page among the processes that share it. Memory is measured again
after some more training, when nodes have written to pages that they shared. On Linux.

Usage: python benchmarks/start.py
[--nodes 8] [--pairs 5] [--train 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

WAYS = ("forked", "spawned")
TASK = 'name = "digits"\npartition = "shards:2"'
ENDLESS = 1_000_000
LOOK_EVERY_S = 0.02

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--train", type=float, default=10.0, help="seconds after which memory is measured again")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs: dict[str, list[Figures]] = {way: [] for way in WAYS}
    for _ in range(options.pairs):
        for way in WAYS:
            runs[way].append(measured(way, options.nodes, options.train))
    names = list(runs[WAYS[0]][0])
    print(f"{options.nodes} nodes, median (least to most) of {options.pairs}")
    print(f"{'':32}" + "".join(f"{way:>28}" for way in WAYS))
    for name in names:
        print(f"{name:32}" + "".join(f"{in_words([run[name] for run in runs[way]]):>28}" for way in WAYS))
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1))


def in_words(figures: list[float]) -> str:
    return f"{median(figures):.1f} ({min(figures):.1f} to {max(figures):.1f})"


def measured(way: str, nodes: int, train_s: float) -> Figures:
    """Measure one start, in a launcher of its own."""
    with tempfile.TemporaryDirectory() as place:
        ward = Path(place) / "ward"
        command = [sys.executable, "-m", "p2pfl.cli.main", "new", str(ward), "--nodes", str(nodes)]
        subprocess.run([*command, "--base-port", str(free_base_port())], check=True, capture_output=True)
        file = ward / "federation.toml"
        text = file.read_text().replace('name = "task.py:task"', TASK)
        file.write_text(text.replace("rounds = 40", f"rounds = {ENDLESS}"))
        command = [sys.executable, __file__, "--launch", str(ward), way, str(train_s), str(time.time())]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures: Figures = json.loads(said)
        return figures


def free_base_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return 15_000 + int(taken.getsockname()[1]) % 15_000


def launch(ward: Path, way: str, train_s: float, began: float) -> Figures:
    """Start the nodes, measure them, stop them."""
    from p2pfl.config.load import load_config  # noqa: PLC0415 - part of what is measured
    from p2pfl.fleet.fleet import Fleet  # noqa: PLC0415 - as above

    fleet = Fleet(load_config(ward), spawn=way == "spawned")
    figures: Figures = {}

    def look() -> None:
        died = [child.name for child in fleet.children if child.died]
        if died:
            raise SystemExit(f"{died} died")
        now = time.time()
        pids = [child.process.pid for child in fleet.children if child.process is not None]
        if not figures and all(child.last is not None and child.last.rounds for child in fleet.children):
            figures["seconds until all train"] = now - began
            figures["CPU-seconds"] = cpu_of_all(pids)
            figures["MB by PSS"] = sum(map(pss_mb, pids))
            figures["ready_at"] = now
        if "ready_at" in figures and now - figures["ready_at"] >= train_s and not fleet.stopping:
            figures["MB by PSS, later"] = sum(map(pss_mb, pids))
            fleet.stop()

    asyncio.run(fleet.run(look, LOOK_EVERY_S))
    del figures["ready_at"]
    return figures


def cpu_of_all(pids: list[int]) -> float:
    """Sum the CPU time of this process, of those that it has waited for, and of those that run."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in own) + sum(map(cpu_s, pids))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1e3 * 1.024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        place, how, seconds, since = sys.argv[2:]
        print(json.dumps(launch(Path(place), how, float(seconds), float(since))))
    else:
        main()
