"""Where each learning method ends: how far from the true weighted optimum, and what of classes that one slow node owns.

    python benchmarks/bias.py
    python benchmarks/bias.py --table quadratics --method plain --method tracking --rounds 200
    python benchmarks/bias.py --table digits --json bench-out/bias.json

First table: eight quadratics with curvatures of their own on a ring, whose weighted optimum is known. Distance from the
mean of the models (weighted by n), and from the node farthest away, to that optimum, over the optimum's own distance
from the start. Samples are equal or from 50 to 400, speeds equal or from 1 to 10 (the node with the fewest samples is
the fastest). Second table: ten nodes with digits; the slowest alone owns the classes 8 and 9. Their recall in the worst
and in the mean node's model, and the accuracy over all classes. All by simulation, so the figures are exact.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from p2pfl.config.model import FederationConfig, TaskConfig
from p2pfl.learn.quadratic import QuadraticLearner, QuadraticTask
from p2pfl.learn.task import NodeContext
from sim.federations import describe
from sim.learning.batched import make_learners
from sim.stage import Stage, script
from sim.worlds.choices import settle
from sim.worlds.model import ComputeSpec, SlowNodes, WorldSpec

METHODS = (
    "plain",
    "variate",
    "tracking",
    "prox:mu=0.1",
    "normalized:steps=5",
    "momentum",
    "outer",
    "fair:q=1",
)
NODES = 8
UNEQUAL = [50, 100, 150, 200, 250, 300, 350, 400]
TENFOLD = tuple(SlowNodes(nodes=(node,), speed=1 / (1 + 9 * node / 7)) for node in range(1, NODES))
SETTINGS = {
    "equal n, equal speeds": ([100] * NODES, ()),
    "unequal n": (UNEQUAL, ()),
    "tenfold speeds": ([100] * NODES, TENFOLD),
    "both": (UNEQUAL, TENFOLD),
}


def quadratics(method: str, samples: list[int], rounds: int, **training: Any) -> FederationConfig:
    plain = describe(nodes=NODES, topology="ring", rounds=rounds, rule="mean", compressor="q4", seed=0, method=method)
    options = {"size": 16, "condition": 10.0, "samples": samples}
    settings = {"local_steps": 5, "learning_rate": 0.1, "batch_size": 10, "evaluate_every": 0} | training
    return replace(
        plain,
        task=TaskConfig(name="quadratic", options=options),
        training=replace(plain.training, **settings),
    )


def models_after(federation: FederationConfig, world: WorldSpec) -> tuple[np.ndarray, Stage]:
    """All models (nodes, d) when all nodes are done."""
    world = settle(world, len(federation.members), federation.seed)
    learners = make_learners(federation)
    stage = Stage(script(federation, world, learners, exact=True, check=False))
    cluster = stage.world
    while not cluster.over and cluster.kernel.pending:
        cluster.run(until_ns=cluster.kernel.now_ns + 10**9)
    return stage.models().astype(np.float64), stage


def bias(method: str, setting: str, rounds: int, **training: Any) -> tuple[float, float]:
    """Of the mean and of the farthest node: the distance to the optimum, over that of the common start."""
    samples, slow = SETTINGS[setting]
    federation = quadratics(method, samples, rounds, **training)
    models, _ = models_after(federation, WorldSpec(compute=ComputeSpec(round_s=0.05), slow=slow))
    context = NodeContext(node=0, nodes=NODES, name="node0", seed=0, base_dir=Path())
    optimum = QuadraticLearner(QuadraticTask(**federation.task.options), context, federation.training).optimum()
    scale = float(np.linalg.norm(optimum))
    mean = np.average(models, axis=0, weights=samples)
    worst = max(float(np.linalg.norm(model - optimum)) for model in models)
    return float(np.linalg.norm(mean - optimum)) / scale, worst / scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=["quadratics", "digits"], action="append")
    parser.add_argument("--method", action="append", help="default: all")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for method in options.method or METHODS:
        began, cells = time.monotonic(), {}
        for setting in SETTINGS:
            cells[setting] = bias(method, setting, options.rounds)
        rows.append({"method": method, **cells})
        told = "  ".join(f"{mean:9.2g} {worst:9.2g}" for mean, worst in cells.values())
        print(f"{method:22}{told}  {time.monotonic() - began:.0f} s", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
