"""Cuts, bridges and connectivity against networkx and against all sets."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from topologies import Topology, build
from topologies.metrics import cuts as connectivity_module
from topologies.metrics.cuts import connectivity, cut_points, sweep_cut


def drawn(seed, largest=14):
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, largest + 1))
    graph = nx.gnp_random_graph(nodes, float(rng.uniform(0.0, 1.0)), seed=seed)
    return graph, Topology("by hand", nodes, list(graph.edges))


def crossing(graph, side):
    return sum((i in side) != (j in side) for i, j in graph.edges)


def test_bridges_and_articulation_points_are_those_of_networkx():
    for seed in range(60):
        graph = nx.gnp_random_graph(25, 0.02 * (1 + seed % 5), seed=seed)
        found = cut_points(Topology("by hand", 25, list(graph.edges)))
        assert set(found.bridges) == {tuple(sorted(edge)) for edge in nx.bridges(graph)}
        assert set(found.nodes) == set(nx.articulation_points(graph))


def test_a_deep_graph_is_searched_without_recursion():
    found = cut_points(build("path", 50_000))
    assert (len(found.bridges), len(found.nodes)) == (49_999, 49_998)


def test_a_graph_over_the_limit_is_not_searched():
    assert cut_points(build("path", 10), limit=18) is None
    assert cut_points(build("barbell", 100_000)) is None


@pytest.mark.parametrize("flows", [True, False])
def test_connectivity_lies_within_its_bounds(flows, monkeypatch):
    """Without maximum flows they are bounds, with them exact."""
    if not flows:
        monkeypatch.setattr(connectivity_module, "EDGE_FLOWS_WORK", 0)
        monkeypatch.setattr(connectivity_module, "NODE_FLOWS_WORK", 0)
    for seed in range(40):
        graph, topology = drawn(seed)
        found = connectivity(topology, cut=sweep_cut(topology))
        assert found.edges.lower <= nx.edge_connectivity(graph) <= found.edges.upper
        assert found.nodes.lower <= nx.node_connectivity(graph) <= found.nodes.upper
        assert not flows or (found.edges.exact and found.nodes.exact)


@pytest.mark.parametrize(
    ("spec", "nodes", "edges", "vertices"),
    [("ring", 1_000, 2, 2), ("torus", 10_000, 4, 4), ("path", 5_000, 1, 1), ("complete", 100_000, 99_999, 99_999)],
)
def test_connectivity_of_large_regular_families_is_exact_without_flows(spec, nodes, edges, vertices):
    found = connectivity(build(spec, nodes))
    assert (found.edges.lower, found.edges.upper) == (edges, edges)
    assert (found.nodes.lower, found.nodes.upper) == (vertices, vertices)


@pytest.mark.parametrize("joined", range(2, 6))
def test_the_spectrum_bounds_the_edges_between_two_cliques(joined, monkeypatch):
    monkeypatch.setattr(connectivity_module, "EDGE_FLOWS_WORK", 0)
    clique = build("complete", 6).edges
    edges = [*clique, *((i + 6, j + 6) for i, j in clique), *((i, i + 6) for i in range(joined))]
    found = connectivity(Topology("by hand", 12, edges)).edges
    assert 2 <= found.lower <= joined < found.upper + 1
    assert joined < 4 or found.lower == joined


def test_the_spectrum_bounds_the_nodes_between_two_cliques(monkeypatch):
    """Three nodes joined to all of two complete graphs: lambda_2 and the vertex connectivity are 3, degrees 6."""
    monkeypatch.setattr(connectivity_module, "NODE_FLOWS_WORK", 0)
    clique = build("complete", 4).edges
    edges = [*clique, *((i + 4, j + 4) for i, j in clique), *((i, j) for i in range(8, 11) for j in range(8))]
    found = connectivity(Topology("by hand", 11, edges)).nodes
    assert (found.lower, found.upper) == (3, 6)


@pytest.mark.parametrize(("nodes", "expected"), [(1, 0), (2, 1)])
def test_one_and_two_nodes_have_a_connectivity(nodes, expected):
    found = connectivity(build("path", nodes))
    assert (found.edges.upper, found.nodes.upper) == (expected, expected)


def test_a_sweep_cut_is_what_it_says():
    for seed in range(30):
        graph, topology = drawn(seed)
        cut = sweep_cut(topology)
        side = set(cut.side)
        assert cut.sizes == (len(side), topology.nodes - len(side))
        assert 2 * len(side) <= topology.nodes
        assert cut.edges == crossing(graph, side)
        assert cut.ratio == cut.edges / len(side)
        if cut.edges:
            assert cut.conductance == pytest.approx(nx.conductance(graph, side))


def test_the_sweep_cut_finds_the_bridge_of_a_barbell():
    cut = sweep_cut(build("barbell", 20))
    assert (cut.edges, cut.sizes) == (1, (10, 10))
    assert cut.side in {tuple(range(10)), tuple(range(10, 20))}


def test_the_sweep_cut_of_a_disconnected_graph_is_a_part():
    cut = sweep_cut(Topology("by hand", 5, [(0, 1), (2, 3), (3, 4)]))
    assert (cut.edges, cut.conductance) == (0, 0.0)


def test_a_graph_without_edges_held_has_no_sweep_cut():
    assert sweep_cut(build("complete", 100_000)) is None
    assert sweep_cut(build("complete", 1)) is None
