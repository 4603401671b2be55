"""Learners of one task, each with data of its own, and rounds for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from p2pfl.config.model import TrainingConfig
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.load import learner_for
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.tensors import Distinct
from p2pfl.methods import Variate
from sim.learning.batching import BatchedLearners
from sim.learning.nodes import TorchNodes

torch.set_num_threads(1)

METHOD = Variate()
COUNTS = (5, 14, 14, 9, 23, 16, 17, 14)


def labelled(node, count, shape=(24,), classes=4):
    """Inputs (count, *shape) and labels, other ones for each node."""
    rng = np.random.default_rng([7, node])
    return rng.standard_normal((count, *shape)).astype(np.float32), rng.integers(0, classes, count)


def context(node, nodes=8, seed=3):
    return NodeContext(node=node, nodes=nodes, name=f"n{node}", seed=seed, base_dir=Path())


def learners(model, *, training=None, counts=COUNTS, draw=labelled, tested=True, **fields):
    """One learner for each of `counts`, of one task, all with the same test set."""
    test = draw(len(counts), 40)

    def data(node):
        return draw(node.node, counts[node.node]), test if tested else None

    task = Task(name="mine", model=model, data=fields.pop("data", data), **fields)
    training = training or TrainingConfig(local_steps=2, batch_size=8)
    made = [learner_for(task, context(node, len(counts)), training) for node in range(len(counts))]
    tests = Distinct()
    numbers = [tests.add(one.test_set) for one in made]
    nodes = TorchNodes(made[0], [one.context for one in made], [one.train_set for one in made])
    return nodes.with_tests(tests, numbers)


def work_of(made, *, rounds=2):
    """Every node in each of `rounds` rounds, in no order, every other one with a correction."""
    rng, initial = np.random.default_rng(0), made[0].initial()
    noise = rng.standard_normal((len(made) * rounds, 2, len(initial))).astype(np.float32)
    starts = [
        RoundStart(initial + one / 20, {"correction": other / 50}, METHOD)
        if place % 2
        else RoundStart(initial + one / 20)
        for place, (one, other) in enumerate(noise)
    ]
    order = rng.permutation(len(noise)).tolist()
    return [(place % len(made), start, place // len(made)) for place, start in zip(order, starts, strict=True)]


def same(one, other):
    assert one.vector.tobytes() == other.vector.tobytes()
    about = ("steps", "learning_rate", "samples", "loss")
    assert [getattr(one, name) for name in about] == [getattr(other, name) for name in about]


def assert_as_alone(made):
    """Together, `made` have the bits of each of them. Returns them together."""
    together, work = BatchedLearners(made, METHOD), work_of(made)
    after = together.train(work)
    for (node, start, index), found in zip(work, after, strict=True):
        same(found, made[node].train(start, index))
    models, nodes = np.stack([one.vector for one in after[: len(made)]]), np.arange(len(made))
    for part in ("test", "local"):
        alone = [learner.evaluate(model, part) for learner, model in zip(made, models, strict=True)]
        assert together.evaluate(models, part, nodes) == alone
    return together
