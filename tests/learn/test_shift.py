"""Distances between the nodes' targets are the published ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from p2pfl.learn.figures import flat_targets, label_shift, total_variation, wasserstein, wasserstein_between
from p2pfl.learn.task import parse_partition

scipy_stats = pytest.importorskip("scipy.stats", reason="the extra topology has scipy")

labels = st.lists(arrays(np.int64, st.integers(1, 12), elements=st.integers(-1, 3)), min_size=2, max_size=4)
numbers = st.lists(
    arrays(np.float32, st.integers(1, 12), elements=st.floats(-100, 100, width=16)), min_size=2, max_size=4
)


@given(labels)
def test_total_variation_is_half_the_sum_of_differences_of_shares(parts):
    whole = np.concatenate(parts)
    expected = [sum(abs(np.mean(part == c) - np.mean(whole == c)) for c in range(-1, 4)) / 2 for part in parts]
    np.testing.assert_allclose(total_variation(parts), expected, atol=1e-12)


@given(numbers)
def test_wasserstein_is_scipys(parts):
    whole = np.concatenate(parts)
    expected = [scipy_stats.wasserstein_distance(part, whole) for part in parts]
    np.testing.assert_allclose(wasserstein(parts), expected, atol=1e-6)
    between = scipy_stats.wasserstein_distance(parts[0], parts[1])
    assert wasserstein_between(parts[0], parts[1]) == pytest.approx(between, abs=1e-6)


def test_of_labels_that_are_shared_by_all_alike_nothing_is_apart_and_of_others_everything():
    same = label_shift({"a": np.array([0, 1]), "b": np.array([1, 0, 0, 1])})
    assert (same.kind, same.mean, same.max, same.nodes) == ("total variation", 0.0, 0.0, {"a": 0.0, "b": 0.0})
    apart = label_shift({"a": np.array([0, 0, 0]), "b": np.array([1])})
    assert apart.nodes == {"a": 0.25, "b": 0.75}
    assert (apart.mean, apart.max) == (0.375, 0.75)


def test_numbers_are_apart_in_their_own_unit():
    found = label_shift({"a": np.array([0.0, 0.0]), "b": np.array([10.0, 10.0])})
    assert (found.kind, found.nodes) == ("Wasserstein-1", {"a": 5.0, "b": 5.0})


def test_what_cannot_be_compared_has_no_distance():
    assert label_shift({"a": np.array([0])}) is None
    assert label_shift({"a": np.array([0]), "b": None}) is None
    assert label_shift({"a": np.array([0]), "b": np.array([0.5])}) is None
    assert flat_targets(np.zeros((4, 3), np.float32)) is None
    assert flat_targets(np.zeros((4, 1), np.float32)).shape == (4,)


def test_a_smaller_alpha_sets_nodes_farther_apart():
    common = np.random.default_rng(0).integers(0, 10, 3000)
    means = []
    for spec in ("iid", "dirichlet:10", "dirichlet:0.5", "pathological:2"):
        parts = parse_partition(spec).split(common, 10, seed=1)
        means.append(label_shift({str(node): common[part] for node, part in enumerate(parts)}).mean)
    assert means == sorted(means)
    assert means[-1] == pytest.approx(0.8, abs=0.01), "two of ten classes, as many of each"
