"""The quality of the demo: eight processes on a ring with the default configuration, compared with training in one
place.

Runs `p2pfl demo` for each partition and seed, one after the other, and centralized training of the same model with as
many steps as one node takes (and as many as all nodes take together). Prints a table, and JSON with --json FILE.

Usage: python benchmarks/digits.py [--seeds 3] [--nodes 8]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from p2pfl.config.model import TaskConfig, TrainingConfig
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.load import make_learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--partition", action="append", help="default: shards:2 and iid")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'what':24}{'seed':>5}{'worst':>8}{'mean':>8}{'MB sent':>9}{'seconds':>9}{'apart':>10}{'contraction':>22}")
    for partition in options.partition or ["shards:2", "iid"]:
        for seed in range(options.seeds):
            rows.append(demo(options.nodes, partition, seed))
            show(rows[-1])
    for passes in (1, options.nodes):
        for seed in range(options.seeds):
            rows.append(centralized(passes, seed))
            show(rows[-1])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def demo(nodes: int, partition: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "p2pfl.cli.main", "demo", "--dir", f"{place}/demo"]
        command += ["--nodes", str(nodes), "--partition", partition, "--seed", str(seed), "--format", "json"]
        report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    history = report["history"]
    return {
        "what": f"{nodes} nodes, {partition}",
        "seed": seed,
        "worst": report["accuracy"]["min"],
        "mean": report["accuracy"]["mean"],
        "mb_sent": report["bytes_sent"] / 1e6,
        "seconds": history[-1]["time_s"] - history[0]["time_s"],
        "apart": report["consensus_distance"],
        "contraction": report["contraction"],
    }


def centralized(passes: int, seed: int) -> dict[str, Any]:
    """Train on all data in one place: 40 rounds of 20 steps, or as many steps as all nodes take together."""
    training = TrainingConfig(local_steps=20 * passes)
    learner = make_learner(
        TaskConfig(),
        training,
        seed=seed,
        node_index=0,
        node_count=1,
        node_name="all",
        base_dir=Path(),
        local={},
        local_dir=Path(),
    )
    vector = learner.initial()
    for index in range(training.rounds or 0):
        vector = learner.train(RoundStart(vector), index).vector
    score = learner.evaluate(vector, "test")
    accuracy = None if score is None else score.accuracy
    return {"what": f"centralized, {800 * passes} steps", "seed": seed, "worst": accuracy, "mean": accuracy}


def show(row: dict[str, Any]) -> None:
    line = f"{row['what']:24}{row['seed']:5}{row['worst']:8.3f}{row['mean']:8.3f}"
    if "mb_sent" in row:
        measured, predicted = row["contraction"]["measured"], row["contraction"]["predicted"]
        both = f"{'-' if measured is None else format(measured, '.3f')} ({predicted:.3f})"
        line += f"{row['mb_sent']:9.2f}{row['seconds']:9.1f}{row['apart']:10.1e}{both:>22}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
