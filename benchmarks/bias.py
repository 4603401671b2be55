"""Where each learning method ends: the distance from the true weighted optimum, and the recall of classes that one slow
node owns.

    python benchmarks/bias.py
    python benchmarks/bias.py --table quadratics --method plain --method tracking --rounds 200
    python benchmarks/bias.py --table digits --json bench-out/bias.json

First table: eight quadratics with different curvatures on a ring, q4, 5 local steps. It shows the distance from the
mean model (weighted by n) to the federation's known optimum, relative to the common start; for `fair` also to the
optimum of its own goal. Samples are equal or range from 50 to 400, speeds are equal or range from 10 to 1 (the node
with the most samples is slowest). Second table: ten nodes with digits on a random 4-regular graph; only the slowest,
ten times slower than the fastest, has the classes 8 and 9. It shows their recall in the worst and in the mean node's
model, and the accuracy on all classes. Everything is simulated, so a machine gives the same figures on every run.
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
import torch
from numpy.typing import NDArray

from p2pfl.config.model import FederationConfig, TaskConfig
from p2pfl.learn.digits import CLASSES, PIXELS, load_digits, mlp
from p2pfl.learn.quadratic import QuadraticLearner, QuadraticTask
from p2pfl.learn.task import NodeContext, Pair, Task
from p2pfl.learn.trainer import TorchLearner
from p2pfl.methods.spelling import parse_method
from sim.federations import describe
from sim.learning.batching import make_learners
from sim.prepared_run import PreparedRun, script
from sim.worlds.drawn import settle
from sim.worlds.model import ComputeSpec, SlowNodes, WorldSpec

METHODS = (
    "plain",
    "variate",
    "tracking",
    "tracking:gain=1",
    "prox:mu=0.1",
    "normalized:steps=5",
    "momentum",
    "outer",
    "fair:q=1",
)
NODES = 8
UNEQUAL = [50, 100, 150, 200, 250, 300, 350, 400]
SETTINGS = {
    "equal": ([100] * NODES, False),
    "unequal n": (UNEQUAL, False),
    "tenfold speeds": ([100] * NODES, True),
    "both": (UNEQUAL, True),
}
OWNED = (8, 9)
"""Classes that only the slowest node has."""
DIGITS_NODES = 10
Models = NDArray[np.float64]


def tenfold(nodes: int) -> tuple[SlowNodes, ...]:
    """Make node 0 ten times as fast as the last one."""
    return tuple(SlowNodes(nodes=(node,), speed=1 / (1 + 9 * node / (nodes - 1))) for node in range(1, nodes))


def ended(federation: FederationConfig, world: WorldSpec) -> tuple[Models, PreparedRun]:
    """Return all models (nodes, d) once all nodes are done."""
    world = settle(world, len(federation.members), federation.seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        stage = PreparedRun(script(federation, world, make_learners(federation), check=False))
        cluster = stage.world
        while not cluster.over and cluster.kernel.pending:
            cluster.run(until_ns=cluster.kernel.now_ns + 10**9)
    finally:
        torch.set_num_threads(threads)
    return stage.models().astype(np.float64), stage


def quadratics(method: str, setting: str, rounds: int, **training: Any) -> tuple[FederationConfig, WorldSpec]:
    samples, unequal_speeds = SETTINGS[setting]
    described = describe(nodes=NODES, topology="ring", rounds=rounds, rule="mean", compressor="q4", method=method)
    settings = {"local_steps": 5, "learning_rate": 0.1, "batch_size": 10, "evaluate_every": 0} | training
    federation = replace(
        described,
        task=TaskConfig(name="quadratic", options={"size": 16, "condition": 10.0, "samples": samples}),
        training=replace(described.training, **settings),
    )
    compute = ComputeSpec(round_s=0.05)
    return federation, WorldSpec(compute=compute, slow=tenfold(NODES) if unequal_speeds else ())


def fair_optimum(learner: QuadraticLearner, weights: Models, q: float) -> Models:
    """Compute the minimum of sum n_k F_k^(q+1), by Newton-like steps; at the minimum, sum n_k F_k^q A_k (w - t_k) =
    0.
    """
    targets, curvatures, w = learner._targets, learner._curvatures, learner.optimum()  # noqa: SLF001 - the task's own
    for _ in range(2000):
        losses = 0.5 * (curvatures * (w - targets) ** 2).sum(axis=1)
        scaled = (weights * losses**q)[:, None] * curvatures
        w = w + 0.2 * ((scaled * targets).sum(axis=0) / scaled.sum(axis=0) - w)
    return w


def bias(method: str, setting: str, rounds: int, **training: Any) -> dict[str, float]:
    federation, world = quadratics(method, setting, rounds, **training)
    models, _ = ended(federation, world)
    context = NodeContext(node=0, nodes=NODES, name="node0", seed=0, base_dir=Path())
    learner = QuadraticLearner(QuadraticTask(**federation.task.options), context, federation.training)
    optimum, weights = learner.optimum(), np.array(SETTINGS[setting][0], np.float64)
    mean, scale = np.average(models, axis=0, weights=weights), float(np.linalg.norm(optimum))
    found = {"mean": float(np.linalg.norm(mean - optimum)) / scale}
    found["worst"] = max(float(np.linalg.norm(model - optimum)) for model in models) / scale
    losses = 0.5 * (learner._curvatures * (mean - learner._targets) ** 2).sum(axis=1)  # noqa: SLF001 - the task's own
    found["highest loss of a node"] = float(losses.max())
    parsed = parse_method(method)
    if parsed.name == "fair":
        goal = fair_optimum(learner, weights, parsed.parameters["q"] or 0.0)
        found["own goal"] = float(np.linalg.norm(mean - goal) / np.linalg.norm(goal))
    return found


def owned_digits() -> Task:
    """Make a digits task in which only the last node has the classes OWNED; the others share the rest at random."""

    def data(node: NodeContext) -> tuple[Pair, Pair]:
        (inputs, targets), test = load_digits()
        owned = torch.isin(targets, torch.tensor(OWNED))
        if node.node == node.nodes - 1:
            return (inputs[owned], targets[owned]), test
        rest = torch.from_numpy(np.random.default_rng(node.seed).permutation(np.flatnonzero(~owned.numpy())))
        own = rest[node.node :: node.nodes - 1]
        return (inputs[own], targets[own]), test

    return Task(name="owned digits", model=lambda: mlp(PIXELS, 32, CLASSES), data=data)


def recall(method: str, rounds: int, seed: int, **training: Any) -> dict[str, float]:
    described = describe(
        nodes=DIGITS_NODES, topology="random-regular:degree=4", rounds=rounds, rule="mean", seed=seed, method=method
    )
    task = TaskConfig(name=f"{Path(__file__).resolve()}:owned_digits")
    federation = replace(described, task=task, training=replace(described.training, evaluate_every=0, **training))
    models, stage = ended(federation, WorldSpec(slow=tenfold(DIGITS_NODES)))
    learner = stage.script.learners.learners[0]
    if not isinstance(learner, TorchLearner):
        raise TypeError("digits are a torch task")
    inputs, targets = load_digits()[1]
    owned, recalls, right = torch.isin(targets, torch.tensor(OWNED)), [], []
    for model in models:
        state = {name: torch.from_numpy(np.array(value)) for name, value in learner.state_dict(model).items()}
        learner.model.module.load_state_dict(state)
        with torch.no_grad():
            hits = learner.model.module(inputs).argmax(dim=1) == targets
        recalls.append(float(hits[owned].float().mean()))
        right.append(float(hits.float().mean()))
    return {
        "recall, worst": min(recalls),
        "recall, mean": float(np.mean(recalls)),
        "accuracy, worst": min(right),
        "accuracy, mean": float(np.mean(right)),
    }


def print_quadratics(methods: list[str], rounds: int) -> list[dict[str, Any]]:
    rows = []
    print(
        f"distance to the weighted optimum after {rounds} rounds\n{'':22}" + "".join(f"{one:>20}" for one in SETTINGS)
    )
    for method in methods:
        cells = {setting: bias(method, setting, rounds) for setting in SETTINGS}
        rows.append({"method": method, **cells})
        told = (f"{c['mean']:.2g}" + (f" ({c['own goal']:.2g})" if "own goal" in c else "") for c in cells.values())
        print(f"{method:22}" + "".join(f"{one:>20}" for one in told), flush=True)
    return rows


def print_digits(methods: list[str], rounds: int, seeds: int) -> list[dict[str, Any]]:
    rows = []
    print(f"classes {OWNED} of the slowest node after {rounds} rounds, mean of {seeds} seeds")
    for method in methods:
        began = time.monotonic()
        runs = [recall(method, rounds, seed) for seed in range(seeds)]
        cells = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
        rows.append({"method": method, **cells})
        told = "  ".join(f"{name} {value:.3f}" for name, value in cells.items())
        print(f"{method:22}{told}  ({time.monotonic() - began:.0f} s)", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=["quadratics", "digits"], action="append", help="default: both")
    parser.add_argument("--method", action="append", help="default: all")
    parser.add_argument("--rounds", type=int, help="of each node; default 200, digits 60")
    parser.add_argument("--seeds", type=int, default=2, help="of digits")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tables, methods = options.table or ["quadratics", "digits"], options.method or list(METHODS)
    found = {}
    if "quadratics" in tables:
        found["quadratics"] = print_quadratics(methods, options.rounds or 200)
    if "digits" in tables:
        found["digits"] = print_digits(methods, options.rounds or 60, options.seeds)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
