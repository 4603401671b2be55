"""Bytes a second on an edge between nodes that have nothing to tell, with real processes.

    python benchmarks/idle.py [--nodes 4] [--topology ring] [--seconds 240]

The nodes train two rounds and stay in the third. They run in a network namespace of their own, whose loopback counts
every byte: headers, acknowledgments, heartbeats and vitals, both directions together. This takes `unshare` and `ip`.
To measure another tree: PYTHONPATH=TREE python .../benchmarks/idle.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from topologies import build

TASK = """
import time
import numpy as np
from p2pfl.learn.interface import LocalRound

class Idles:
    size, samples, personal, shape_digest = 24, 10, 0, b"idles-in-round-3"
    initial = lambda self: np.zeros(24, np.float32)
    evaluate = lambda self, vector, part: None
    local_state = lambda self: {}
    load_local_state = lambda self, state: None
    state_dict = lambda self, vector: {"w": vector}

    def train(self, start, round_index):
        time.sleep(86_400 if round_index > 1 else 0.1)
        return LocalRound(vector=start.model + 1, steps=1, learning_rate=0.0, samples=10, loss=0.0)

class Task:
    learner = lambda self, context, training: Idles()

task = Task()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--topology", default="ring")
    parser.add_argument("--seconds", type=float, default=240.0, help="counted, from a minute after the start on")
    options = parser.parse_args()
    if "ALONE" not in os.environ:
        inside = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
        os.execvpe(inside[0], inside, os.environ | {"ALONE": "1"})  # noqa: S606 - the same script
    edges, command = len(build(options.topology, options.nodes).edges), [sys.executable, "-m", "p2pfl.cli.main"]
    with tempfile.TemporaryDirectory() as folder:
        made = [*command, "new", "ward", "--nodes", str(options.nodes), "--topology", options.topology]
        subprocess.run(made, cwd=folder, check=True, capture_output=True)
        (Path(folder) / "ward/task.py").write_text(TASK, encoding="utf-8")
        with subprocess.Popen(
            [*command, "launch", "ward"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as fleet:
            while len(list(Path(folder).glob("ward/*/state/address.json"))) < options.nodes and fleet.poll() is None:
                time.sleep(1.0)
            time.sleep(60.0)
            before = carried_bytes()
            time.sleep(options.seconds)
            rate = (carried_bytes() - before) / edges / options.seconds
            fleet.terminate()
    print(f"{options.nodes} nodes, {edges} edges: {rate:.0f} bytes/s an edge, {rate * 86_400 / 1e6:.1f} MB a day")


def carried_bytes() -> int:
    """Return the bytes that the loopback of this namespace has carried."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


if __name__ == "__main__":
    main()
