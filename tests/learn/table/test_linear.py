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
NUMBER = {"target": "a", "numeric": ["b"], "categories": {"c": [*"uvw"]}, "means": {"a": 0.5}, "stds": {"a": 2.0}}
MARGIN = 2e-5


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Make the learner that a node gets for a table, and torch's of the same."""
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    write_table(path, 0, rows=70)
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.startswith(",")))

    def make(options, training=None, seed=0):
        place = NodeContext(node=1, nodes=3, name="b", seed=seed, base_dir=path.parent, local={"path": path})
        mine = learner_for(csv_table(**options), place, training or TrainingConfig())
        return mine, with_torch(mine)

    return make


@given(
    options=st.sampled_from([CLASSES, CLASSES | {"class_weights": {"no": 3.0}}, NUMBER]),
    method=st.sampled_from([None, Prox(0.5), Variate()]),
    length=st.sampled_from([{"local_steps": 30}, {"local_steps": None, "local_epochs": 3}]),
    chosen=st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 80),
            "momentum": st.sampled_from([0.0, 0.5]),
            "weight_decay": st.sampled_from([0.0, 0.01]),
            "schedule": st.sampled_from(["constant", "cosine:rounds=5"]),
        }
    ),
    seed=st.integers(0, 2**40),
)
def test_it_starts_with_torchs_bits_and_ends_near_torchs_model_and_scores(pair, options, method, length, chosen, seed):
    mine, torchs = pair(options, TrainingConfig(learning_rate=0.1, **length, **chosen), seed)
    assert (type(mine), type(torchs)) == (LinearLearner, TorchLearner)
    for name in ("size", "personal", "samples", "shape_digest", "digest", "measures"):
        assert getattr(mine, name) == getattr(torchs, name), name
    own, other = mine.initial(), torchs.initial()
    assert own.tobytes() == other.tobytes()
    pull = {} if not isinstance(method, Variate) else {"correction": np.full(mine.size, 0.1, np.float32)}
    for number in range(3):
        local, theirs = (
            each.train(RoundStart(model, pull, method), number) for each, model in ((mine, own), (torchs, other))
        )
        own, other = local.vector, theirs.vector
        np.testing.assert_allclose(own, other, rtol=MARGIN, atol=MARGIN)
        assert (local.steps, local.learning_rate) == (theirs.steps, theirs.learning_rate)
        assert local.loss == pytest.approx(theirs.loss, rel=MARGIN, abs=MARGIN)
    np.testing.assert_allclose(mine.finetune(own, 2), torchs.finetune(other, 2), rtol=MARGIN, atol=MARGIN)
    for part in ("test", "local"):
        said, expected = mine.evaluate(own, part), torchs.evaluate(own, part)
        assert (said is None) == (expected is None)
        if said is not None:
            assert said.loss == pytest.approx(expected.loss, rel=MARGIN, abs=MARGIN)
            assert said.metrics == pytest.approx(expected.metrics, rel=MARGIN, abs=MARGIN, nan_ok=True)
            assert (said.accuracy, said.samples) == (expected.accuracy, expected.samples)
            assert said.intervals.keys() == expected.intervals.keys()
    state, theirs = mine.state_dict(own), torchs.state_dict(own)
    assert {name: array.tobytes() for name, array in state.items()} == {n: a.tobytes() for n, a in theirs.items()}


@pytest.mark.parametrize("asked", [{"optimizer": "adam"}, {"keep_optimizer": True}, {"method": "mine.py:Mine"}])
def test_what_numpy_does_not_do_torch_does(pair, asked):
    assert type(pair(CLASSES, TrainingConfig(**asked))[0]) is TorchLearner
