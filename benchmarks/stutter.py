"""The cost of a node that stutters to its neighbors: a ring of real processes, one of which runs 40 ms of every 2 s.

All nodes train the quadratic task, whose rounds last a given time. In turns nobody stutters and node 1 does, by SIGSTOP
and SIGCONT; the output is the rounds a second of its neighbors in each, and the ratio.

Usage: python
benchmarks/stutter.py [--nodes 4] [--round 0.25] [--window 30] [--pairs 2]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import fmean
from typing import Any

STUTTERER = 1
FEDERATION = """[federation]
name = "stutter"
topology = "ring"
[task]
name = "quadratic"
step_s = {round_s}
[training]
rounds = 1000000
local_steps = 1
learning_rate = 0.1
evaluate_every = 0
[gossip]
compressor = "none"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--round", type=float, default=0.25, help="seconds that a local round lasts")
    parser.add_argument("--runs", type=float, default=0.04, help="seconds of each period in which the node runs")
    parser.add_argument("--period", type=float, default=2.0)
    parser.add_argument("--window", type=float, default=30.0, help="seconds of each measurement")
    parser.add_argument("--pairs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        nodes, pages = start(Path(place), options.nodes, options.round)
        try:
            measure(nodes[STUTTERER].pid, pages, options)
        finally:
            for node in nodes:
                node.send_signal(signal.SIGCONT)
                node.terminate()
            for node in nodes:
                node.wait(20)


def start(folder: Path, count: int, round_s: float) -> tuple[list[subprocess.Popen[bytes]], list[str]]:
    """Start the processes; return them, and the addresses of their status pages, once all have begun."""
    ports = free_ports(2 * count)
    text = FEDERATION.format(round_s=round_s)
    for index in range(count):
        key = p2pfl("key", str(folder / f"node{index}" / "node.key"))
        public = re.search(r"[A-Za-z0-9+/=_-]{40,}", key)
        if public is None:
            raise SystemExit(f"no key in {key!r}")
        text += f'[[node]]\nname = "node{index}"\nkey = "{public[0]}"\naddress = "127.0.0.1:{ports[index]}"\n'
        own = f'[node]\nlisten = "127.0.0.1:{ports[index]}"\nstatus_listen = "127.0.0.1:{ports[count + index]}"\n'
        (folder / f"node{index}" / "node.toml").write_text(own)
    (folder / "federation.toml").write_text(text)
    command = [sys.executable, "-m", "p2pfl.cli.main", "run", str(folder), "--node"]
    nodes = [
        subprocess.Popen([*command, f"node{index}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for index in range(count)
    ]
    pages = [f"http://127.0.0.1:{port}/status" for port in ports[count:]]
    while not all(rounds(page) for page in pages):
        time.sleep(0.2)
    return nodes, pages


def p2pfl(*arguments: str) -> str:
    Path(arguments[-1]).parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "p2pfl.cli.main", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def status(page: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(page, timeout=5) as answer:  # noqa: S310 - our own page
            said = json.loads(answer.read())
    except OSError:
        return {}
    return said if isinstance(said, dict) else {}


def rounds(page: str) -> int:
    return int(status(page).get("rounds", 0))


def measure(pid: int, pages: list[str], options: argparse.Namespace) -> None:
    near = [pages[(STUTTERER - 1) % len(pages)], pages[(STUTTERER + 1) % len(pages)]]
    print(f"{'node 1':12}{'rounds a second of its neighbors':>34}{'pace_set_by':>16}{'waited_s':>12}")
    paces: dict[str, list[float]] = {"runs": [], "stutters": []}
    for _ in range(options.pairs):
        for what, measured in paces.items():
            before, began = [rounds(page) for page in near], time.monotonic()
            stutter(pid, options) if what == "stutters" else time.sleep(options.window)
            said, took_s = [status(page) for page in near], time.monotonic() - began
            pace = fmean((one["rounds"] - then) / took_s for one, then in zip(said, before, strict=True))
            measured.append(pace)
            edges = [one for row in said for one in row["neighbors"] if one["name"] == f"node{STUTTERER}"]
            cost_s = [one.get("waited_s", 0.0) for one in edges]
            who = ", ".join(str(row.get("pace_set_by") or "-") for row in said)
            print(f"{what:12}{pace:34.2f}{who:>16}{fmean(cost_s):12.2f}", flush=True)
    print(f"ratio {fmean(paces['stutters']) / fmean(paces['runs']):.3f}")


def stutter(pid: int, options: argparse.Namespace) -> None:
    end = time.monotonic() + options.window
    while time.monotonic() < end:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(options.period - options.runs)
        os.kill(pid, signal.SIGCONT)
        time.sleep(options.runs)


if __name__ == "__main__":
    main()
