"""A job that needs no simulator: what it does is told by its attack. Every start leaves a line in a file.

`sweep_script.py` runs a sweep of them in a process of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from p2pfl import Report
from p2pfl.errors import UserError

STARTS = "FAKE_JOBS_STARTS"
GATE = "FAKE_JOBS_GATE"
"""A named pipe: the run with seed 3 waits there until somebody opens it for writing."""
AT_THE_GATE = "at the gate\n"

SOFTWARE = {"version": "of the tests", "source": "that may change while they run"}


class NoReport:
    def to_bytes(self):
        return b'{"something": "else"}'


def run(job):
    with Path(os.environ[STARTS]).open("a") as starts:
        starts.write(f"{job.key}\n")
    if GATE in os.environ and job.seed == 3:
        sys.stderr.write(AT_THE_GATE)
        sys.stderr.flush()
        Path(os.environ[GATE]).read_bytes()
    match job.options.get("attack", "none"):
        case "raises":
            raise ValueError("no such\nthing")
        case "user-error":
            raise UserError("nothing to learn from", key="task.path", value="x.csv")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leaves":
            raise SystemExit(7)
        case "no-report":
            return NoReport()
        case "prints":
            sys.stdout.write("words of a task\n")
            sys.stdout.flush()
    return report(job)


def threads(job):
    """What the libraries of mathematics are told in the process of a run."""
    return Report(nodes=[], config={name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")})


def report(job):
    accuracy = 0.9 + job.seed / 100 - (0.05 if job.options.get("topology") == "ring" else 0.0)
    nodes = job.options.get("nodes", 4)
    poisoned = job.options.get("attack") == "label-flip"
    found = {
        "nodes": [{"name": f"node{index}"} for index in range(nodes)],
        "accuracy": {"mean": accuracy, "min": accuracy - 0.1, "max": 1.0},
        "loss": {"mean": float("inf"), "min": 0.0, "max": 1.0} if job.options.get("attack") == "diverges" else None,
        "attack_success": {"mean": 0.2, "min": 0.1, "max": 0.3 + job.seed / 10} if poisoned else None,
        "mean_model": {"accuracy": accuracy + 0.05, "loss": 0.1},
        "consensus_distance": 1e-3,
        "bytes_sent": 1000 * nodes,
        "contraction": {"predicted": 0.5, "measured": 0.6},
        "history": [{"time_s": 0.0}],
    }
    return msgspec.convert(found, type=Report)


def check(job):
    if job.options.get("topology") == "torus" and job.options.get("nodes") == 7:
        raise UserError("no torus of a prime number of nodes", key="topology", value="torus")
