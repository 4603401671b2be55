"""The mixing step of the design: how fast it contracts, what it conserves, and what a lie about n can gain."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import build, contraction, mixing_matrix, sample_weights

GRAPHS = [
    ("ring", 12),
    ("path", 9),
    ("star", 10),
    ("torus", 16),
    ("random-regular:degree=3", 14),
    ("barbell", 10),
    ("complete", 6),
]
ids = [spec for spec, _ in GRAPHS]


def unequal(nodes, seed=3):
    return np.random.default_rng(seed).integers(1, 500, nodes).astype(float)


def step(topology, n, x, gamma=1.0):
    """x_i -= (gamma/n_i) sum_j c_ij (x_i - x_j), edge by edge as the nodes do it; x is (nodes, d)."""
    moved = x.copy()
    for (i, j), c in zip(topology.edges, sample_weights(topology, n), strict=True):
        flow = gamma * c * (x[i] - x[j])
        moved[i] -= flow / n[i]
        moved[j] += flow / n[j]
    return moved


def matrix(topology, n, gamma=1.0):
    """The W of one such step, (nodes, nodes)."""
    return step(topology, n, np.eye(topology.nodes), gamma)


def disagreement(n, x):
    """The n-weighted distance to consensus."""
    away = x - np.average(x, axis=0, weights=n)
    return float(np.sqrt((n[:, None] * away**2).sum()))


def worst_vector(topology, n, gamma):
    """The slowest eigenvector of one step, found from the step itself: (nodes, 1)."""
    nodes = topology.nodes
    root = np.sqrt(n)
    symmetric = root[:, None] * matrix(topology, n, gamma) / root
    values, vectors = np.linalg.eigh((symmetric + symmetric.T) / 2)
    away_from_mean = [k for k in range(nodes) if abs(vectors[:, k] @ root) < 0.5 * np.linalg.norm(root)]
    slowest = max(away_from_mean, key=lambda k: abs(values[k]))
    return (vectors[:, slowest] / root)[:, None]


@pytest.mark.parametrize("gamma", [1.0, 0.6])
@pytest.mark.parametrize(("spec", "nodes"), GRAPHS, ids=ids)
def test_the_worst_start_contracts_by_exactly_the_predicted_factor(spec, nodes, gamma):
    """Xiao and Boyd, Fast linear iterations for distributed averaging (2004), with node weights n."""
    topology, n = build(spec, nodes), unequal(nodes)
    x = worst_vector(topology, n, gamma)
    after = step(topology, n, x, gamma)
    factor = contraction(topology, n, gamma)
    assert disagreement(n, after) / disagreement(n, x) == pytest.approx(factor, abs=1e-9)


@pytest.mark.parametrize(("spec", "nodes"), GRAPHS, ids=ids)
def test_no_start_contracts_less_than_predicted_and_in_the_long_run_all_do_as_much(spec, nodes):
    topology, n = build(spec, nodes), unequal(nodes)
    factor = contraction(topology, n)
    W = matrix(topology, n)
    x = np.random.default_rng(0).normal(size=(nodes, 3))
    x -= np.average(x, axis=0, weights=n)
    for _ in range(5000):
        x /= np.sqrt((n[:, None] * x**2).sum())
        after = W @ x
        ratio = np.sqrt((n[:, None] * after**2).sum())
        assert ratio <= factor + 1e-12
        if ratio > factor - 1e-7:
            break
        x = after - np.average(after, axis=0, weights=n)
    # Power iteration, until it is there: the ratio's distance to the limit falls with the square of the gap between
    # the moduli.
    assert ratio == pytest.approx(factor, abs=1e-6)


@pytest.mark.parametrize(("spec", "nodes"), GRAPHS, ids=ids)
def test_a_step_of_gamma_one_has_no_negative_weight_and_conserves_the_weighted_sum(spec, nodes):
    topology, n = build(spec, nodes), unequal(nodes)
    W = matrix(topology, n)
    assert W.min() >= -1e-15
    np.testing.assert_allclose(W.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(n @ W, n, rtol=1e-12)
    np.testing.assert_allclose(W, mixing_matrix(topology, "sample-weighted", n), atol=1e-12)
    half = mixing_matrix(topology, "sample-weighted", n, gamma=0.5)
    np.testing.assert_allclose(matrix(topology, n, 0.5), half, atol=1e-12)


@pytest.mark.parametrize("lie", [1e-3, 0.3, 3.0, 1e9])
@pytest.mark.parametrize(("spec", "nodes"), GRAPHS, ids=ids)
def test_a_lie_about_n_never_gives_a_neighbor_more_than_one_part_in_degree_plus_one(spec, nodes, lie):
    """W_ij = c_ij/n_i with the victim's true n_i: `min` bounds it by 1/(deg_i + 1), whatever j claims."""
    topology, n = build(spec, nodes), unequal(nodes)
    liar = int(np.argmax(topology.degrees))
    claimed = n.copy()
    claimed[liar] *= lie
    for (i, j), c in zip(topology.edges, sample_weights(topology, claimed), strict=True):
        victim = {liar}.symmetric_difference({i, j}) if liar in (i, j) else set()
        for k in victim:
            assert c / n[k] <= (1 + 1e-12) / (topology.degrees[k] + 1)
