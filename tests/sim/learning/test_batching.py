"""Rounds and scores of many nodes in one call of torch.func, beside each node alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from p2pfl.learn.interface import RoundStart
from p2pfl.methods import Variate
from sim.learning.batching import ManyModels
from sim.learning.nodes import load_learners

ROUNDS = [
    {"local_steps": 5},
    {"local_steps": 2, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"local_steps": 2, "optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
]


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("rounds", ROUNDS, ids=str)
def test_rounds_in_one_call_are_those_of_each_node_up_to_rounding(federation, rounds, corrected):
    nodes, method = load_learners(federation(6, **rounds)), Variate()
    many = ManyModels(nodes, nodes.pool, method)
    rng, initial, every = np.random.default_rng(0), nodes[0].initial(), np.arange(6)
    starts, corrections = (rng.standard_normal((6, len(initial))).astype(np.float32) / 50 for _ in range(2))
    starts += initial
    models, given = torch.from_numpy(starts.copy()), {"correction": torch.from_numpy(corrections)}
    batches = nodes.batches(nodes.pool, every, np.full(6, 3), many.sizes[0])
    losses = many.learn(models, batches, given if corrected else None, nodes.prototype.training.rate(3, 0.0))
    after = models.numpy()
    for node in range(6):
        own = {"correction": corrections[node]}
        start = RoundStart(starts[node], own, method) if corrected else RoundStart(starts[node])
        wanted = nodes[node].train(start, 3)
        np.testing.assert_allclose(after[node], wanted.vector, atol=1e-4)
        assert float(losses[node]) == pytest.approx(wanted.loss, rel=1e-4)
    for part in ("test", "local"):
        for score, one, model in zip(many.evaluate(after, part, every), nodes, after, strict=True):
            alone = one.evaluate(model, part)
            assert replace(score, loss=0.0) == replace(alone, loss=0.0)
            assert score.loss == pytest.approx(alone.loss, rel=1e-4)
