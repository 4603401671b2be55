"""Boyd, Ghosh, Prabhakar and Shah, Randomized gossip algorithms, IEEE Trans. Information Theory 52 (2006)."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import build
from topologies.experiments import averaging_ticks, gossip
from topologies.spectral import bracket

GRAPHS = [
    ("ring", 20),
    ("path", 10),
    ("star", 16),
    ("torus", 25),
    ("complete", 10),
    ("complete", 3),
    ("hypercube", 16),
    ("barbell", 12),
    ("random-regular:degree=4", 30),
]


@pytest.mark.long
@pytest.mark.parametrize("epsilon", [0.2, 0.02])
@pytest.mark.parametrize(("spec", "nodes"), GRAPHS)
def test_the_averaging_time_lies_within_the_bracket(spec, nodes, epsilon):
    """Theorem 3: from 0.5 to 3 times log(1/epsilon) / log(1/lambda_2) ticks. Low from the slowest start alone."""
    topology = build(spec, nodes, 1)
    known = bracket(topology, epsilon)
    found = gossip(topology, epsilon, runs=400, limit=100_000, rng=np.random.default_rng(5))
    assert known.low <= averaging_ticks(found.reached, epsilon) <= known.high
    assert found.mean_drift < 1e-12


@pytest.mark.parametrize(("spec", "nodes"), GRAPHS)
def test_the_eigenvalue_is_that_of_the_expected_matrix(spec, nodes):
    topology = build(spec, nodes, 1)
    expected = np.zeros((nodes, nodes))
    for i, j in topology.edges:
        pair = np.eye(nodes)
        pair[np.ix_([i, j], [i, j])] = 0.5
        expected += pair / topology.edge_count
    assert bracket(topology, 0.1).eigenvalue == pytest.approx(np.linalg.eigvalsh(expected)[-2], abs=1e-12)


@pytest.mark.parametrize(("spec", "nodes"), [("ring", 12), ("barbell", 10)])
def test_the_mean_square_distance_falls_at_least_as_fast_as_the_second_eigenvalue(spec, nodes):
    """The proof of Theorem 3: E|y(t)|^2 <= lambda_2^t |y(0)|^2. Here the mean over 2,000 runs."""
    topology = build(spec, nodes)
    found = gossip(topology, 0.05, runs=2_000, limit=600, rng=np.random.default_rng(1))
    eigenvalue = bracket(topology, 0.05).eigenvalue
    assert len(found.history) > 3
    for tick, distance in found.history[1:]:
        assert distance**2 <= 1.1 * eigenvalue**tick


def test_two_nodes_agree_when_they_first_meet():
    found = gossip(build("path", 2), 0.01, runs=100, limit=10, rng=np.random.default_rng(0))
    assert averaging_ticks(found.reached, 0.01) == 1 == bracket(build("path", 2), 0.01).high


def test_runs_that_are_still_on_their_way_leave_the_time_unknown():
    found = gossip(build("ring", 20), 0.01, runs=50, limit=100, rng=np.random.default_rng(0))
    assert averaging_ticks(found.reached, 0.01) is None
    assert set(found.reached) == {-1}


def test_a_share_epsilon_of_the_runs_may_be_late():
    reached = [*range(1, 10), -1]
    assert [averaging_ticks(reached, epsilon) for epsilon in (0.05, 0.1, 0.2, 0.25)] == [None, 9, 8, 8]
    assert averaging_ticks(reached, 0.5) == 5
