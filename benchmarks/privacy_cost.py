"""The cost of record-level privacy to a node's processor: a private local round against a plain one with as many steps.

Plain and private rounds alternate in one process with one thread, so that a machine whose speed drifts is fair to both;
a ratio is the median of those of all repeats. Chance is secret, as in a real node. A way is a method of computing the
gradients of single rows (`p2pfl.learn.privacy.gradients`): the model determines it, here each possible one is tried.
`noise` is the share of a private round in which discrete Gaussians are drawn. Prints a table, and JSON with --json
FILE.

Usage: python benchmarks/privacy_cost.py [--batch 16,128] [--steps 20] [--repeats 15] [--models 2410,100k,cnn]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from p2pfl.config.model import TrainingConfig
from p2pfl.config.privacy import RECORD
from p2pfl.learn.digits import mlp, small_cnn
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.privacy import Plan
from p2pfl.learn.privacy.draws import Secret
from p2pfl.learn.privacy.gradients import OneByOne, Vectorized
from p2pfl.learn.privacy.protection import Protection
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.trainer import TorchLearner

ROWS, SIDE = 4096, 28
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "2410": (lambda: mlp(64, 32, 10), (64,)),
    "100k": (lambda: mlp(SIDE * SIDE, 126, 10), (SIDE * SIDE,)),
    "cnn": (small_cnn, (1, SIDE, SIDE)),
}
Row = dict[str, Any]


def learners(name: str, training: TrainingConfig) -> dict[str, TorchLearner]:
    """Make a learner that is not private, and one for each way."""
    build, shape = MODELS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, *shape, generator=generator)
    data = (inputs, inputs.flatten(1)[:, :10].argmax(1))
    task = Task(name=name, model=build, data=lambda _: (data, None))
    context = NodeContext(node=0, nodes=1, name="a", seed=0, base_dir=Path())
    plan = Plan(
        unit=RECORD, epsilon=8.0, delta=1e-5, clip=1.0, noise=1.0, accountant="rdp", rounds=1, training=training
    )
    protection = Protection(plan_for=lambda _: plan, chance=Secret())

    def private() -> TorchLearner:
        return TorchLearner(task, context, training, protection=protection)

    chosen, found = private(), {"plain": TorchLearner(task, context, training)}
    if chosen.private is not None and chosen.private.row_gradients is not None:
        found[chosen.private.row_gradients.how] = chosen
    for way in (Vectorized, OneByOne):
        other = private()
        if other.private is not None:
            module, parameters = other.model.module, other.model.parameters
            other.private.row_gradients = way(module, parameters, functional.cross_entropy, other.device)
        found.setdefault(way.how, other)
    return found


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measured(name: str, *, batch: int, steps: int, repeats: int) -> list[Row]:
    training = TrainingConfig(local_steps=steps, batch_size=batch, learning_rate=0.01)
    made = learners(name, training)
    start = RoundStart(made["plain"].initial())
    size, times = made["plain"].size, {way: list[float]() for way in (*made, "noise")}

    def noise() -> None:
        for _ in range(steps):
            Secret().noise(size)

    for repeat in range(repeats + 1):
        for way, learner in made.items():
            taken = seconds(partial(learner.train, start, repeat))
            times[way] += [taken] if repeat else []  # the first one warms up
        times["noise"] += [seconds(noise)] if repeat else []
    plain = times["plain"]
    return [
        {
            "parameters": size,
            "batch": batch,
            "way": way,
            "step_ms": 1e3 * statistics.median(times[way]) / steps,
            "ratio": statistics.median(one / other for one, other in zip(times[way], plain, strict=True)),
            "noise": 0.0
            if way == "plain"
            else statistics.median(one / other for one, other in zip(times["noise"], times[way], strict=True)),
        }
        for way in made
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="2410,100k,cnn", help="some of " + ", ".join(MODELS))
    parser.add_argument("--batch", default="16,128")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    print(f"{'parameters':>10}  {'batch':>5}  {'way':<24}  {'ms a step':>9}  {'ratio':>6}  {'noise':>5}")
    for name in given.models.split(","):
        for batch in map(int, given.batch.split(",")):
            for row in measured(name, batch=batch, steps=given.steps, repeats=given.repeats):
                rows.append(row)
                print(
                    f"{row['parameters']:>10,}  {batch:>5}  {row['way']:<24}  {row['step_ms']:>9.3f}  "
                    f"{row['ratio']:>6.2f}  {row['noise']:>5.0%}",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
