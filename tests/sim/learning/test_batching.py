"""Rounds and scores of many nodes in one call are those of each node alone, up to rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from p2pfl.config.model import TrainingConfig
from p2pfl.learn.digits import mlp
from p2pfl.learn.interface import RoundStart
from p2pfl.learn.load import learner_for
from p2pfl.learn.task import NodeContext, Task
from p2pfl.learn.tensors import Distinct
from p2pfl.methods import Variate
from sim.learning.batching import ManyModels
from sim.learning.nodes import TorchNodes

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


ROUNDS = [
    {"local_steps": 5},
    {"local_steps": 2, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"local_steps": 2, "optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
]


def measured(node, count):
    inputs, _ = labelled(node, count)
    return inputs, (inputs[:, :20] ** 2 - inputs[:, 4:]).astype(np.float32)


def images(node, count):
    return labelled(node, count, shape=(1, 8, 8))


def net():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 4))


@pytest.mark.parametrize(
    "made",
    [
        *(
            lambda how=how: learners(lambda: mlp(24, 32, 24, 4), training=TrainingConfig(batch_size=8, **how))
            for how in ROUNDS
        ),
        lambda: learners(lambda: mlp(24, 32, 20), draw=measured, loss=functional.mse_loss),
        lambda: learners(net, draw=images),
    ],
)
def test_a_round_in_a_group_is_that_of_the_shipped_learner(made):
    """Several layers, nodes of two kinds, corrections on some rows; losses and scores too."""
    nodes = made()
    many, rng = ManyModels(nodes, nodes.pool, METHOD), np.random.default_rng(0)
    initial = nodes[0].initial()
    for kind in sorted(set(many.kinds.tolist())):
        chosen, index = np.flatnonzero(many.kinds == kind), 3
        starts = initial + rng.standard_normal((len(chosen), len(initial))).astype(np.float32) / 20
        extra = rng.standard_normal(starts.shape).astype(np.float32) / 50
        models, rate = torch.from_numpy(starts.copy()), many.training.rate(index, 0.0)
        batches = nodes.batches(nodes.pool, chosen, np.full(len(chosen), index), many.sizes[kind])
        losses = many.learn(models, batches, {"correction": torch.from_numpy(extra)}, rate)
        scores = many.evaluate(models.numpy(), "test", chosen)
        for row, node in enumerate(chosen.tolist()):
            alone = nodes[node].train(RoundStart(starts[row].copy(), {"correction": extra[row]}, METHOD), index)
            np.testing.assert_allclose(models[row].numpy(), alone.vector, rtol=1e-4, atol=1e-5)
            assert float(losses[row]) == pytest.approx(alone.loss, rel=1e-4)
            assert scores[row].loss == pytest.approx(nodes[node].evaluate(alone.vector, "test").loss, rel=1e-4)
