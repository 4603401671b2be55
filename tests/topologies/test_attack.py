"""How algebraic connectivity decays as nodes fail."""

from __future__ import annotations

import numpy as np
import pytest

from topologies import Topology, TopologyError, build, spectrum
from topologies.experiments import PATHS_LIMIT, STRATEGIES, connectivity_bounds, decay
from topologies.spectral import fiedler_vector

BOTTLENECKS = ["barbell", "barbell:path=2", "ring", "path", "watts-strogatz:k=4,p=0.1", "random-regular:degree=3"]


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
    first = decay(topology, 1, strategy).left
    assert first[0].failed is None
    assert first[0].algebraic_connectivity == pytest.approx(spectrum(topology).algebraic_connectivity, abs=1e-12)
    assert first[1].algebraic_connectivity == pytest.approx(without(topology, first[1].failed), abs=1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_fails_is_named_by_the_numbers_of_the_whole_graph_and_fails_once(strategy):
    topology = build("random-regular:degree=4", 16, 1)
    found = decay(topology, 9, strategy, seed=4)
    gone = {left.failed for left in found.left[1:]}
    assert len(gone) == 9
    number = [int(name) for name in found.remaining.names]
    assert number == [node for node in range(16) if node not in gone]
    kept = {(i, j) for i, j in topology.edges if not {i, j} & gone}
    assert {(number[i], number[j]) for i, j in found.remaining.edges} == kept


@pytest.mark.long
@pytest.mark.parametrize("spec", BOTTLENECKS)
def test_the_fiedler_vector_finds_a_place_at_least_as_bad_as_chance_does_on_average(spec):
    topology = build(spec, 24, 1)
    worst = decay(topology, 3, "fiedler").left
    draws = [decay(topology, 3, seed=seed).left for seed in range(20)]
    for k in (1, 2, 3):
        assert worst[k].algebraic_connectivity <= np.mean([left[k].algebraic_connectivity for left in draws]) + 1e-9


def test_the_fiedler_vector_finds_the_bridge_at_once():
    left = decay(build("barbell", 20), 1, "fiedler").left[1]
    assert left.failed in {9, 10}
    assert left.components == 2


@pytest.mark.parametrize("spec", BOTTLENECKS)
def test_the_bound_is_never_below_the_connectivity_that_is_left(spec):
    topology = build(spec, 16, 2)
    bounds = connectivity_bounds(topology, fiedler_vector(topology))
    assert len(bounds) == 16
    for node, bound in enumerate(bounds):
        assert bound >= without(topology, node) - 1e-9


def test_the_hub_of_a_star_is_what_degree_takes_first():
    left = decay(build("star", 8), 1, "degree").left[1]
    assert (left.failed, left.components, left.largest) == (0, 7, 1)


def test_most_shortest_paths_of_a_line_use_its_middle():
    assert decay(build("path", 9), 1, "betweenness").left[1].failed == 4


def test_degree_looks_again_after_each_failure():
    """Node 0 has most; without it node 5 has, though node 1 had as many before."""
    edges = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (5, 6), (5, 7), (5, 8), (4, 5)]
    failed = [left.failed for left in decay(Topology("by hand", 9, edges), 2, "degree").left[1:]]
    assert failed == [0, 5]


def test_random_failures_differ_by_seed_and_repeat_with_it():
    def failed(seed):
        return [left.failed for left in decay(build("ring", 30), 5, seed=seed).left]

    assert failed(1) == failed(1)
    assert failed(1) != failed(2)


def test_what_is_cut_off_already_is_left_alone():
    """A clique of six and a path of four on it: the node between them goes first, then what hurts the larger part."""
    clique = [(i, j) for i in range(6) for j in range(i)]
    found = decay(Topology("by hand", 10, [*clique, (5, 6), (6, 7), (7, 8), (8, 9)]), 2, "fiedler")
    assert found.left[1].components == 2
    assert found.left[2].failed in range(5)


def test_no_more_can_fail_than_there_is():
    with pytest.raises(TopologyError, match="0 to 7 nodes"):
        decay(build("ring", 8), 8)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_that_may_fail_can(strategy):
    last = decay(build("ring", 6), 5, strategy).left[-1]
    assert (last.algebraic_connectivity, last.components) == (0.0, 1)


def test_an_unknown_strategy_is_told_the_nearest():
    with pytest.raises(TopologyError, match="did you mean 'fiedler'"):
        decay(build("ring", 8), 1, "fidler")


def test_shortest_paths_are_not_counted_on_large_graphs():
    with pytest.raises(TopologyError, match="betweenness up to"):
        decay(build("ring", PATHS_LIMIT + 1), 1, "betweenness")


def test_the_graph_that_is_asked_about_stays_as_it_was():
    topology = build("torus", 16)
    decay(topology, 3)
    assert topology == build("torus", 16)
    assert spectrum(topology).method == "closed form"
