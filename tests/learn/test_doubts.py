"""Warnings about data: what deserves one, and what looks like it and does not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from p2pfl.learn import about_lone_classes, load_digits, lone_classes, own_classes, unscaled, wasserstein

DRAWN = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))


def holding(inputs, targets=None):
    return SimpleNamespace(train_set=SimpleNamespace(inputs=torch.as_tensor(inputs), targets=targets))


def test_inputs_that_spread_a_hundred_times_as_much_are_named():
    text = unscaled(holding(DRAWN * torch.tensor([1.0, 300.0, 1.0]) + 7))
    assert text.startswith("input 2 of 3 spreads 301 ")
    assert "around its median, input " in text


def test_an_input_that_has_a_name_is_called_by_it():
    learner = holding(DRAWN * torch.tensor([1.0, 300.0, 1.0]))
    learner.task = SimpleNamespace(preprocessing={"inputs": ["age", "chol", "dose"]})
    assert unscaled(learner).startswith("input 'chol' spreads ")


@pytest.mark.parametrize(
    "inputs",
    [
        DRAWN * torch.tensor([1.0, 50.0, 1.0]),
        torch.cat([DRAWN, (torch.arange(400) == 7).float()[:, None]], dim=1),
        torch.cat([DRAWN, torch.full((400, 1), 3.0)], dim=1),
        load_digits()[0][0],
        torch.zeros(5, 3),
        torch.arange(10)[:, None],
        torch.rand(4, 3, 8, 8),
    ],
    ids=["fifty times", "a rare indicator", "a constant", "pixels mostly empty", "nothing", "whole numbers", "images"],
)
def test_what_only_looks_uneven_is_not(inputs):
    assert unscaled(holding(inputs)) is None


def test_of_a_learner_without_tensors_nothing_is_said():
    assert unscaled(SimpleNamespace()) is None
    assert own_classes(SimpleNamespace()) is None
    assert own_classes(holding(DRAWN, torch.rand(400))) is None
    assert own_classes(holding(DRAWN, torch.tensor([3, 1, 3]))) == [1, 3]


def test_a_class_on_one_node_alone_is_told_under_a_robust_rule():
    held = {"pi1": [0, 1], "pi2": [1, 2], "pi3": [1]}
    assert lone_classes(held) == {0: "pi1", 2: "pi2"}
    assert about_lone_classes("hampel:b=1", held).startswith(
        "classes are on one node alone: 0 (pi1), 2 (pi2); to hampel"
    )
    assert about_lone_classes("mean", held) is None
    assert about_lone_classes("hampel:b=1", {"pi1": [0, 1], "pi2": [0, 1]}) is None
    assert about_lone_classes("hampel:b=1", {"pi1": [0, 1]}) is None


def numbers():
    return arrays(np.float32, st.integers(1, 12), elements=st.floats(-100, 100, width=16))


@given(numbers(), numbers())
def test_the_wasserstein_distance_is_scipys(first, other):
    stats = pytest.importorskip("scipy.stats", reason="the extra topology has scipy")
    assert wasserstein(first, other) == pytest.approx(stats.wasserstein_distance(first, other), abs=1e-6)
