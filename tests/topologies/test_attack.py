"""How algebraic connectivity decays as nodes fail."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import Topology, TopologyError, build, spectrum
from topologies.experiments import STRATEGIES, decay


def without(topology, node):
    """The connectivity that is left without this node, by numpy alone."""
    laplacian = np.zeros((topology.nodes, topology.nodes))
    for i, j in topology.edges:
        if node not in {i, j}:
            laplacian[[i, j], [i, j]] += 1.0
            laplacian[[i, j], [j, i]] -= 1.0
    return np.linalg.eigvalsh(np.delete(np.delete(laplacian, node, 0), node, 1))[1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_row_is_about_the_graph_without_what_failed(strategy):
    topology = build("watts-strogatz:k=4,p=0.3", 20, 3)
    first = decay(topology, 1, strategy)
    assert first[0].failed is None
    assert first[0].algebraic_connectivity == pytest.approx(spectrum(topology).algebraic_connectivity, abs=1e-12)
    assert first[1].algebraic_connectivity == pytest.approx(without(topology, first[1].failed), abs=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_fails_is_named_by_the_numbers_of_the_whole_graph_and_fails_once(strategy):
    topology = build("random-regular:degree=4", 16, 1)
    found = decay(topology, 9, strategy, seed=4)
    gone = {left.failed for left in found[1:]}
    assert len(gone) == 9
    assert gone < set(range(16))
    assert found[-1].largest <= 7


def test_the_hub_of_a_star_is_what_degree_takes_first():
    left = decay(build("star", 8), 1, "degree")[1]
    assert (left.failed, left.components, left.largest) == (0, 7, 1)


def test_degree_looks_again_after_each_failure():
    """Node 0 has most; without it node 5 has, though node 1 had as many before."""
    edges = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (5, 6), (5, 7), (5, 8), (4, 5)]
    failed = [left.failed for left in decay(Topology("by hand", 9, edges), 2, "degree")[1:]]
    assert failed == [0, 5]


def test_random_failures_differ_by_seed_and_repeat_with_it():
    def failed(seed):
        return [left.failed for left in decay(build("ring", 30), 5, seed=seed)]

    assert failed(1) == failed(1)
    assert failed(1) != failed(2)


def test_no_more_can_fail_than_there_is():
    with pytest.raises(TopologyError, match="0 to 7 nodes"):
        decay(build("ring", 8), 8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_that_may_fail_can(strategy):
    last = decay(build("ring", 6), 5, strategy)[-1]
    assert (last.algebraic_connectivity, last.components) == (0.0, 1)


def test_an_unknown_strategy_is_told_the_nearest():
    with pytest.raises(TopologyError, match="did you mean 'degree'"):
        decay(build("ring", 8), 1, "degre")
    with pytest.raises(TopologyError, match="fiedler is gone; use degree"):
        decay(build("ring", 8), 1, "fiedler")


def test_the_graph_that_is_asked_about_stays_as_it_was():
    topology = build("torus", 16)
    decay(topology, 3)
    assert topology == build("torus", 16)
    assert spectrum(topology).method == "closed form"
