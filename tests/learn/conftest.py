"""Small tasks and one-node contexts for the tests of learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from p2pfl.config import TrainingConfig
from p2pfl.learn import NodeContext, Task, learner_for

torch.set_num_threads(1)


def small_pair(samples=50, features=4, classes=3):
    rng = np.random.default_rng(5)
    inputs = rng.standard_normal((samples, features)).astype(np.float32)
    return inputs, rng.integers(0, classes, samples)


@pytest.fixture
def context():
    """Make a NodeContext; keywords replace its fields."""

    def make(**fields):
        given = {"node": 0, "nodes": 1, "name": "a", "seed": 0, "base_dir": Path()}
        return NodeContext(**{**given, **fields})

    return make


@pytest.fixture
def learner(context):
    """Make the learner of a task given by keywords; `data` may be a (training, test) tuple."""

    def make(*, training=None, seed=0, node=0, **fields):
        data = fields.pop("data", (small_pair(), None))
        fields.setdefault("model", lambda: torch.nn.Linear(4, 3))
        task = Task(name="mine", data=data if callable(data) else lambda _: data, **fields)
        return learner_for(task, context(seed=seed, node=node, nodes=8), training or TrainingConfig())

    return make
