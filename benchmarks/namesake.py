"""Time, bytes and CPU time until the worst of eight nodes knows 90% of the digits: this project beside the older
package p2pfl of the registry (0.4.4 was measured).

Both: a ring of eight nodes on this machine, the built-in digits in equal parts with all labels, a perceptron with 2,410
parameters, SGD with the same learning rate and batches, all nodes in training. Ours are processes with the default
configuration, as in `p2pfl demo`; theirs are threads of one process that talk by gRPC with their standalone settings,
one epoch a round. Theirs are tested here whenever the model has changed; ours test themselves. `learning` begins when
the first node has trained a round; bytes are those that nodes had sent by then, theirs without the transport's own.

Usage: python benchmarks/namesake.py --python OTHER/bin/python [--repeats 3] [--json FILE]
    OTHER is an environment with p2pfl 0.4.4, torch, lightning, torchmetrics and scikit-learn, and nothing of ours.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

NODES, ROUNDS, GOAL = 8, 40, 0.9
SETTING = {"nodes": NODES, "rounds": ROUNDS, "goal": GOAL, "batch": 32, "rate": 0.2, "look_s": 0.1}
SIDE = Path(__file__).with_name("namesake_side.py")

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="the Python of the other package; without it ours runs alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs: dict[str, list[Figures]] = {"ours": []} | ({"theirs": []} if options.python else {})
    for _ in range(options.repeats):
        runs["ours"].append(ours())
        if options.python:
            runs["theirs"].append(theirs(options.python))
    print(f"{'':28}" + "".join(f"{name:>26}" for name in runs))
    for figure in runs["ours"][0]:
        print(f"{figure:28}" + "".join(f"{in_words([run[figure] for run in each]):>26}" for each in runs.values()))
    if options.json:
        options.json.write_text(json.dumps(runs, indent=1))


def in_words(values: list[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def ours() -> Figures:
    with tempfile.TemporaryDirectory() as place:
        log, begun = Path(place) / "log.csv", time.monotonic()
        command = [sys.executable, "-m", "p2pfl", "demo", "--nodes", str(NODES), "--rounds", str(ROUNDS), "--quiet"]
        command += ["--partition", "iid", "--dir", str(Path(place) / "demo"), "--log", f"csv:{log}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while not (log.exists() and (found := reached(log))):
                if process.poll() is not None:
                    raise SystemExit(f"the demo ended before {GOAL:.0%}")
                time.sleep(SETTING["look_s"])
            took_s = time.monotonic() - begun
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds with the start": took_s, "seconds of learning": found["learning_s"], "MB sent": found["mb"]} | {
        "CPU-seconds of the whole run": cpu_s
    }


def reached(log: Path) -> Figures | None:
    """Return the figures at the first row in which the worst node has reached the goal."""
    begun_s = mean_bytes = 0.0
    with log.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["node"] == "mean" and row["bytes_sent"]:
                mean_bytes = float(row["bytes_sent"])
            if row["node"] != "min" or not row["accuracy"]:
                continue
            if not begun_s and row["train_loss"]:
                begun_s = float(row["time_s"])
            if float(row["accuracy"]) >= GOAL:
                return {"learning_s": float(row["time_s"]) - begun_s, "mb": NODES * mean_bytes / 1e6}
    return None


def theirs(python: Path) -> Figures:
    with tempfile.TemporaryDirectory() as place:
        begun = time.monotonic()
        command = [str(python.absolute()), str(SIDE), json.dumps(SETTING)]
        said = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False).stdout
        try:
            found: Figures = json.loads(said.splitlines()[-1])
        except (IndexError, ValueError):
            raise SystemExit(f"the other package ended before {GOAL:.0%}") from None
        return {"seconds with the start": found.pop("at") - begun} | found


if __name__ == "__main__":
    main()
