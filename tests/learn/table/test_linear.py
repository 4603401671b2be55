"""A linear model that numpy trains is torch's but for rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.config import TrainingConfig
from p2pfl.learn import LinearLearner, NodeContext, RoundStart, TorchLearner, learner_for, with_torch
from p2pfl.learn.table import csv_table
from p2pfl.methods import Prox, Variate
from tests.trees.conftest import LINEAR, write_table

CLASSES = {key: value for key, value in LINEAR.items() if key != "name"}
NUMBER = {"target": "b", "numeric": ["a"], "means": {"b": 0.5}, "stds": {"b": 2.0}, "holdout": 0.3}
NEAR = {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A node with a table."""
    write_table(path := tmp_path_factory.mktemp("table") / "mine.csv", 0, rows=70)
    return NodeContext(node=1, nodes=3, name="b", seed=2**40 + 1, base_dir=path.parent, local={"path": path})


@pytest.mark.parametrize("options", [CLASSES, CLASSES | {"class_weights": {"no": 3.0}}, NUMBER])
@given(
    method=st.sampled_from([None, Prox(0.5), Variate()]),
    steps=st.sampled_from([{"momentum": 0.5, "weight_decay": 0.01}, {"local_steps": None, "local_epochs": 3}]),
    batch=st.integers(1, 80),
)
def test_it_starts_with_torchs_bits_and_ends_near_torchs_model_and_scores(place, options, method, steps, batch):
    mine = learner_for(csv_table(**options), place, TrainingConfig(learning_rate=0.1, batch_size=batch, **steps))
    torchs = with_torch(mine)
    for name in ("size", "personal", "samples", "shape_digest", "digest", "measures"):
        assert getattr(mine, name) == getattr(torchs, name), name
    vector = theirs = mine.initial()
    assert vector.tobytes() == torchs.initial().tobytes()
    pull = {name: np.full_like(vector, 0.1) for name in (method.given if method else ())}
    for number in range(3):
        local = mine.train(RoundStart(vector, pull, method), number)
        other = torchs.train(RoundStart(theirs, pull, method), number)
        vector, theirs = local.vector, other.vector
        np.testing.assert_allclose([*vector, local.loss], [*theirs, other.loss], **NEAR)
    for part in ("test", "local"):
        said, expected = mine.evaluate(vector, part), torchs.evaluate(vector, part)
        assert (said.accuracy, said.metrics.keys()) == (expected.accuracy, expected.metrics.keys())
        assert (said.samples, said.intervals.keys()) == (expected.samples, expected.intervals.keys())
        np.testing.assert_allclose(*([s.loss, *s.metrics.values()] for s in (said, expected)), **NEAR)
    assert repr(mine.state_dict(vector)) == repr(torchs.state_dict(vector))


@pytest.mark.parametrize("asked", [{"optimizer": "adam"}, {"keep_optimizer": True}, {"method": "mine.py:Mine"}])
def test_what_numpy_does_not_do_torch_does(place, asked):
    assert type(learner_for(csv_table(**CLASSES), place, TrainingConfig())) is LinearLearner
    assert type(learner_for(csv_table(**CLASSES), place, TrainingConfig(**asked))) is TorchLearner
