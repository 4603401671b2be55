"""What a description says about a graph."""

from __future__ import annotations

import pytest

from topologies import TopologyError, build, describe
from topologies.spectral import rounds_to_consensus


def test_the_degrees_are_counted():
    assert describe(build("star", 5))["degree"] == {"min": 1, "mean": 1.6, "max": 4}


def test_a_round_costs_two_messages_for_each_edge():
    described = describe(build("torus", 12), epsilon=1e-6)
    assert described["messages_to_consensus"] == 2 * 24 * described["rounds_to_consensus"]


@pytest.mark.parametrize(
    ("rate", "epsilon", "rounds"), [(0.5, 0.25, 2), (0.5, 0.2, 3), (0.1, 1e-3, 3), (0.0, 0.1, 1), (1.0, 0.1, None)]
)
def test_rounds_are_the_least_power_that_reaches_epsilon(rate, epsilon, rounds):
    assert rounds_to_consensus(rate, epsilon) == rounds


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -1.0, float("nan")])
def test_an_impossible_epsilon_is_refused(epsilon):
    with pytest.raises(TopologyError, match="between 0 and 1"):
        rounds_to_consensus(0.5, epsilon)


def test_a_disconnected_graph_never_reaches_consensus():
    described = describe(build("circulant:offsets=2", 8))
    assert (described["connected"], described["components"], described["algebraic_connectivity"]) == (False, 2, 0.0)
    assert (described["rounds_to_consensus"], described["messages_to_consensus"]) == (None, None)
    assert described["diameter"] is None


def test_one_node_needs_no_round():
    described = describe(build("ring", 1))
    assert (described["rounds_to_consensus"], described["messages_to_consensus"], described["diameter"]) == (0, 0, 0)
