"""Rounds of many nodes done at once and one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from p2pfl.config.model import TrainingConfig
from p2pfl.learn.load import learner_for
from p2pfl.learn.task import NodeContext, Task
from p2pfl.methods.variate import Variate
from sim.learning.batched import BatchedLearners
from sim.learning.grouped import RoundStarts

torch.set_num_threads(1)

METHOD = Variate()

COUNTS = (5, 14, 14, 9, 23, 16, 17, 14)


def labelled(node, count, shape=(24,), classes=4):
    """Inputs (count, *shape) and labels, other ones for each node."""
    rng = np.random.default_rng([7, node])
    return rng.standard_normal((count, *shape)).astype(np.float32), rng.integers(0, classes, count)


def measured(node, count):
    """For regression: twenty targets for each sample."""
    inputs, _ = labelled(node, count)
    return inputs, (inputs[:, :20] ** 2 - inputs[:, 4:]).astype(np.float32)


def context(node, nodes=8, seed=3):
    return NodeContext(node=node, nodes=nodes, name=f"n{node}", seed=seed, base_dir=Path())


def learners(model, *, training=None, counts=COUNTS, draw=labelled, tested=True, **fields):
    """One learner for each of `counts`, of one task, all with the same test set."""
    test = draw(len(counts), 40)

    def data(node):
        return draw(node.node, counts[node.node]), test if tested else None

    task = Task(name="mine", model=model, data=fields.pop("data", data), **fields)
    training = training or TrainingConfig(local_steps=2, batch_size=8)
    return [learner_for(task, context(node, len(counts)), training) for node in range(len(counts))]


def round_of_all(batched, *, seed=0, rounds=2, with_corrections=True):
    """What a train call takes: every node in each of `rounds` rounds, half of the rows with a correction."""
    rng = np.random.default_rng(seed)
    count = len(batched) * rounds
    order = rng.permutation(count)
    nodes, indices = order % len(batched), order // len(batched)
    noise = rng.standard_normal((2, count, batched.size)).astype(np.float32)
    starts = batched.initial() + np.float32(0.05) * noise[0]
    by_method = rng.random(count) < 0.5 * with_corrections
    return nodes, indices, RoundStarts(starts, by_method, {"correction": np.float32(0.02) * noise[1]})


def alone(learners, nodes, rounds, starts):
    """The same by the shipped learners: vectors (b, d), losses (b,)."""
    done = [
        learners[node].train(starts.alone(row, METHOD), int(index))
        for row, (node, index) in enumerate(zip(nodes, rounds, strict=True))
    ]
    return np.stack([one.vector for one in done]), np.array([one.loss for one in done])


def trained(batched, work):
    out = np.full_like(work[2].models, np.nan)
    losses = batched.train(*work, out)
    return out, losses


def assert_as_alone(made):
    """Batching `made` gives the bits of each of them. Returns the batched ones."""
    batched = BatchedLearners(made, METHOD)
    work = round_of_all(batched)
    expected, expected_losses = alone(made, *work)
    out, losses = trained(batched, work)
    np.testing.assert_array_equal(out, expected)
    if all(verdict.losses for verdict in batched.verdicts.values()):
        np.testing.assert_array_equal(losses, expected_losses)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)
    for part in ("test", "local"):
        assert batched.evaluate(out, part, work[0]) == [
            made[node].evaluate(model, part) for node, model in zip(work[0], out, strict=True)
        ]
    return batched
