"""Diameters against networkx, ranges that hold the truth."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from topologies import Topology, build
from topologies import metrics as distance
from topologies.metrics import bound_diameter, diameter, diameter_bounds, hops

GRAPHS = [("ring", 9), ("path", 9), ("star", 5), ("torus", 20), ("barbell:path=2", 12), ("watts-strogatz", 40)]


@pytest.mark.parametrize(("spec", "nodes"), GRAPHS)
def test_distances_are_those_of_networkx(spec, nodes):
    topology = build(spec, nodes)
    graph = topology.to_networkx()
    for same in (topology, Topology("by hand", nodes, topology.ends)):
        found = diameter_bounds(same)
        assert found.exact
        assert found.upper == nx.diameter(graph)


def test_hops_are_right_where_wide_and_narrow_fronts_alternate():
    """A chain of stars: fronts of one node and of a hundred."""
    edges = [(101 * star, 101 * star + leaf) for star in range(5) for leaf in range(1, 101)]
    edges += [(101 * star + leaf, 101 * (star + 1)) for star in range(4) for leaf in range(1, 101)]
    topology = Topology("by hand", 505 + 1, edges)
    expected = nx.single_source_shortest_path_length(topology.to_networkx(), 0)
    assert hops(topology, 0).tolist() == [expected.get(node, -1) for node in range(506)]


@pytest.mark.parametrize("seed", range(20))
def test_a_range_from_searches_holds_the_diameter(seed, monkeypatch):
    monkeypatch.setattr(distance, "MOST_SEARCHES", 1 + seed % 4)
    graph = nx.connected_watts_strogatz_graph(60, 4, 0.2, seed=seed)
    topology = Topology("by hand", 60, list(graph.edges))
    found = bound_diameter(topology, hops(topology, 0))
    assert found.lower <= nx.diameter(graph) <= found.upper


@pytest.mark.parametrize("searches", [1, 2, 3, 50])
@pytest.mark.parametrize("spec", ["path", "ring", "star", "barbell"])
def test_a_range_from_searches_holds_extreme_diameters(spec, searches, monkeypatch):
    monkeypatch.setattr(distance, "MOST_SEARCHES", searches)
    topology = build(spec, 24)
    found = bound_diameter(topology, hops(topology, 0))
    assert found.lower <= nx.diameter(topology.to_networkx()) <= found.upper


def test_many_searches_close_the_range(monkeypatch):
    monkeypatch.setattr(distance, "EXACT_LIMIT", 0)
    topology = build("watts-strogatz", 300)
    assert diameter(topology) == nx.diameter(topology.to_networkx())


@pytest.mark.long
def test_a_path_from_a_file_of_three_hundred_thousand_nodes_is_measured():
    """By levels in numpy alone it would take ten seconds."""
    ends = build("path", 300_000).ends
    found = diameter_bounds(Topology("by hand", 300_000, ends))
    assert (found.lower, found.upper) == (299_999, 299_999)


def test_a_large_graph_has_a_range_and_not_a_guess():
    topology = build("random-regular:degree=3", 4_000)
    found = diameter_bounds(topology)
    assert found.lower < found.upper
    assert diameter(topology) is None


def test_there_is_no_distance_between_parts():
    apart = Topology("by hand", 4, [(0, 1), (2, 3)])
    assert diameter_bounds(apart) is None


def test_a_graph_whose_edges_are_not_held_has_what_its_formula_knows():
    assert diameter(build("complete", 100_000)) == 1


@pytest.mark.parametrize(("nodes", "expected"), [(1, 0), (2, 1)])
def test_one_and_two_nodes_have_a_diameter(nodes, expected):
    assert diameter(Topology("by hand", nodes, build("path", nodes).ends)) == expected


def test_the_distances_from_a_node_of_a_disconnected_graph_say_where_there_is_no_way():
    assert np.array_equal(hops(Topology("by hand", 3, [(0, 1)]), 1), [1, 0, -1])
