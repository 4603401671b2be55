"""r-robustness against all pairs of sets, and against the values of the literature."""

from __future__ import annotations

import networkx as nx
import pytest
from networkx.generators.atlas import graph_atlas_g

from topologies import Topology, build
from topologies.metrics import robustness as robustness_module
from topologies.metrics.robustness import robustness


def masks(topology):
    return [sum(1 << other for other in row) for row in topology.adjacency()]


def reach(near, side):
    """The most neighbors that a node of the set has outside it."""
    return max((mask & ~side).bit_count() for node, mask in enumerate(near) if side >> node & 1)


def by_all_pairs(topology):
    """The definition itself: every two disjoint nonempty sets."""
    everyone, near = (1 << topology.nodes) - 1, masks(topology)
    reaches = [0, *(reach(near, side) for side in range(1, everyone + 1))]
    least = max(1, topology.nodes)
    for one in range(1, everyone + 1):
        two = other = everyone & ~one
        while two and reaches[one] < least:
            least = min(least, max(reaches[one], reaches[two]))
            two = (two - 1) & other
    return least


ATLAS = [graph for i, graph in enumerate(graph_atlas_g()) if len(graph) > 0 and (len(graph) <= 5 or i % 23 == 0)]
SMALL = [Topology(graph.name, len(graph), list(graph.edges)) for graph in ATLAS]


def test_every_small_graph_is_as_robust_as_all_pairs_of_sets_say():
    for topology in SMALL:
        found = robustness(topology)
        assert (found.lower, found.upper) == (by_all_pairs(topology),) * 2, topology.spec


def test_the_bounds_of_every_small_graph_hold_without_the_search(monkeypatch):
    monkeypatch.setattr(robustness_module, "SEARCH_LIMIT", 0)
    for topology in SMALL:
        found = robustness(topology)
        assert found.lower <= by_all_pairs(topology) <= found.upper, topology.spec


def test_the_pair_that_was_found_keeps_the_graph_from_more():
    topology = build("random-regular:degree=4", 30)
    found = robustness(topology)
    near = masks(topology)
    sides = [sum(1 << node for node in side) for side in found.pair]
    assert sides[0] & sides[1] == 0
    assert all(sides)
    assert max(reach(near, side) for side in sides) == found.upper == found.lower


@pytest.mark.parametrize("spec", ["random-regular:degree=8", "erdos-renyi:p=0.5"])
def test_a_search_cut_short_gives_bounds_that_hold(spec):
    topology = build(spec, 24)
    exact = robustness(topology, work=10_000_000)
    assert exact.exact
    for work in (0, 24 * 10, 24 * 300):
        found = robustness(topology, work=work)
        assert found.lower <= exact.lower <= found.upper


def test_a_known_vertex_connectivity_bounds_it():
    topology = build("random-regular:degree=8", 24)
    assert robustness(topology, most=2, work=0).upper == 2


@pytest.mark.parametrize(("spec", "nodes"), [("torus", 10_000), ("hypercube", 4_096), ("watts-strogatz", 10_000)])
def test_a_cut_shows_that_a_large_graph_is_1_robust(spec, nodes):
    found = robustness(build(spec, nodes))
    assert (found.lower, found.upper) == (1, 1)


def test_a_disconnected_graph_is_0_robust():
    found = robustness(Topology("by hand", 6, [(0, 1), (2, 3), (4, 5)]))
    assert (found.lower, found.upper) == (0, 0)


def test_a_graph_whose_edges_are_not_held_has_bounds():
    whole, halves = robustness(build("complete", 100_000)), robustness(build("barbell", 100_000))
    assert (whole.lower, whole.upper) == (50_000, 50_000)
    assert 1 <= halves.lower <= 25_000 <= halves.upper


def test_the_sample_has_connected_and_disconnected_graphs():
    assert {nx.is_connected(graph) for graph in ATLAS} == {True, False}
