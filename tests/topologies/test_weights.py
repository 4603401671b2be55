"""The mixing weights of a federation: what they conserve, and that `contraction` predicts the mixing exactly."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import TopologyError, build, contraction, mixing_matrix
from topologies.spectral import sample_weights

SAMPLES = [10, 200, 35, 1, 80, 60, 17, 90]


def test_an_edge_weighs_the_smaller_share_of_its_ends():
    path = build("path", 3)
    assert sample_weights(path, [6, 30, 2]) == pytest.approx([min(6 / 2, 30 / 3), min(30 / 3, 2 / 2)])


@pytest.mark.parametrize("gamma", [1.0, 0.5])
@pytest.mark.parametrize("spec", ["ring", "star", "barbell"])
def test_contraction_is_the_worst_factor_of_one_mixing_step_in_the_weighted_norm(spec, gamma):
    topology, n = build(spec, 8), np.array(SAMPLES, dtype=float)
    to_consensus = np.outer(np.ones(8), n / n.sum())
    shrinking = mixing_matrix(topology, "sample-weighted", SAMPLES, gamma) - to_consensus
    worst = np.linalg.norm(np.sqrt(n)[:, None] * shrinking / np.sqrt(n), ord=2)
    assert contraction(topology, SAMPLES, gamma) == pytest.approx(worst, abs=1e-9)


def test_a_disconnected_graph_does_not_contract():
    assert contraction(build("circulant:offsets=2", 8)) == 1.0


def test_one_node_is_at_consensus():
    assert contraction(build("ring", 1)) == 0.0


@pytest.mark.parametrize("samples", [[1, 2], [1, 1, 0], [1, 1, float("nan")]])
def test_impossible_samples_are_refused(samples):
    with pytest.raises(TopologyError, match="3 positive numbers"):
        contraction(build("ring", 3), samples)
