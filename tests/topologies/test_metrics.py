"""What a description says about a graph."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from networkx.generators.atlas import graph_atlas_g

from topologies import (
    Topology,
    TopologyError,
    bound_diameter,
    build,
    connectivity,
    core,
    cut_points,
    describe,
    diameter,
    diameter_bounds,
    hops,
    robustness,
    rounds_to_consensus,
    sweep_cut,
    tolerance,
)
from topologies import metrics as distance
from topologies.metrics.byzantine import CAUTION, warnings


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


# -- Diameters against networkx, ranges that hold the truth.

GRAPHS = [("ring", 9), ("path", 9), ("star", 5), ("torus", 20), ("barbell:path=2", 12), ("watts-strogatz", 40)]


@pytest.mark.parametrize(("spec", "nodes"), GRAPHS)
def test_distances_are_those_of_networkx(spec, nodes):
    topology = build(spec, nodes)
    graph = topology.to_networkx()
    for same in (topology, Topology("by hand", nodes, topology.ends)):
        found = diameter_bounds(same)
        assert found.exact
        assert found.upper == nx.diameter(graph)


@pytest.mark.parametrize("walked", [0, 10**9])
def test_hops_are_those_of_networkx_with_scipy_and_without(walked, monkeypatch):
    """A chain of stars, fronts of one node and of a hundred; drawn graphs, of which some have several parts."""
    monkeypatch.setattr("topologies.graph.WALKED", walked)
    edges = [(101 * star, 101 * star + leaf) for star in range(5) for leaf in range(1, 101)]
    edges += [(101 * star + leaf, 101 * (star + 1)) for star in range(4) for leaf in range(1, 101)]
    for topology in (Topology("by hand", 505 + 1, edges), *(drawn(seed)[1] for seed in range(40))):
        expected = nx.single_source_shortest_path_length(topology.to_networkx(), 1)
        assert hops(topology, 1).tolist() == [expected.get(node, -1) for node in range(topology.nodes)]


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


# -- Cuts, bridges and connectivity against networkx and against all sets.


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
        monkeypatch.setattr("topologies.metrics.cuts.EDGE_FLOWS_WORK", 0)
        monkeypatch.setattr("topologies.metrics.cuts.NODE_FLOWS_WORK", 0)
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
    monkeypatch.setattr("topologies.metrics.cuts.EDGE_FLOWS_WORK", 0)
    clique = build("complete", 6).edges
    edges = [*clique, *((i + 6, j + 6) for i, j in clique), *((i, i + 6) for i in range(joined))]
    found = connectivity(Topology("by hand", 12, edges)).edges
    assert 2 <= found.lower <= joined < found.upper + 1
    assert joined < 4 or found.lower == joined


def test_the_spectrum_bounds_the_nodes_between_two_cliques(monkeypatch):
    """Three nodes joined to all of two complete graphs: lambda_2 and the vertex connectivity are 3, degrees 6."""
    monkeypatch.setattr("topologies.metrics.cuts.NODE_FLOWS_WORK", 0)
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


# -- r-robustness against all pairs of sets, and against the values of the literature.


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
    monkeypatch.setattr("topologies.metrics.robustness.SEARCH_LIMIT", 0)
    for topology in SMALL:
        found = robustness(topology)
        assert found.lower <= by_all_pairs(topology) <= found.upper, topology.spec


def test_a_core_is_the_largest_closed_set():
    near = masks(build("path", 5))
    assert core(near, 0b00111, 1) == 0b00111
    assert core(near, 0b00111, 0) == 0
    assert core(near, 0b11111, 0) == 0b11111


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


# -- What a graph is said to bear, and what it is warned of.


def said(topology, liars):
    return " ".join(warnings(topology, liars))


def test_a_hypercube_bears_liars_at_each_node_but_guarantees_none():
    found = tolerance(build("hypercube", 32))
    assert (found.local, found.guaranteed.upper, found.possible.upper) == (2, 0, 0)


def test_a_complete_graph_guarantees_a_quarter():
    found = tolerance(build("complete", 9))
    assert (found.local, found.guaranteed.lower, found.possible.upper) == (3, 2, 3)


def test_a_good_graph_is_not_warned_of():
    assert warnings(build("complete", 9), 2) == []
    assert warnings(build("ring", 9), 0) == []
    assert warnings(build("complete", 100_000), 3) == []
    assert warnings(build("ring", 1), 1) == []


def test_a_bridge_and_its_ends_are_named():
    text = said(build("barbell", 8), 0)
    assert "Edge 3-4 is a bridge" in text
    assert "Nodes 3, 4 are each the only way" in text


def test_many_bridges_are_counted_and_not_listed():
    assert "Edges 0-1, 1-2, 2-3, 3-4, 4-5 and 13 more are bridges" in said(build("path", 19), 0)


def test_a_thin_cut_is_warned_of_when_somebody_may_lie():
    """Two complete graphs joined by two edges: every node has enough neighbors, and there is no bridge."""
    assert warnings(two_cliques(2), 0) == []
    assert "Only 2 edges join nodes" in said(two_cliques(2), 1)
    assert "Only" not in said(two_cliques(3), 1)


def test_a_cut_of_three_edges_that_meet_in_two_nodes_is_thin():
    topology = Topology("by hand", 12, [*two_cliques(2).edges, (0, 7)])
    assert "all by way of 2 of the nodes" in said(topology, 1)


def two_cliques(joined):
    clique = build("complete", 6).edges
    between = [(i, i + 6) for i in range(joined)]
    return Topology("by hand", 12, [*clique, *((i + 6, j + 6) for i, j in clique), *between])


@pytest.mark.parametrize(
    ("spec", "nodes", "liars", "words"),
    [
        ("torus", 36, 1, "The graph is 1-robust: discarding 1 can keep two groups apart though nobody lies"),
        ("random-regular:degree=8", 20, 2, "not 5-robust, as 2 liars in a neighborhood need, but 4 at most"),
        ("random-regular:degree=8", 2_000, 1, "not proven 3-robust, as 1 liar in a neighborhood needs"),
    ],
)
def test_what_is_not_robust_enough_is_said_with_the_caution(spec, nodes, liars, words):
    texts = warnings(build(spec, nodes), liars)
    assert words in texts[-2]
    assert texts[-1] == CAUTION


@pytest.mark.parametrize("liars", [-1, 1.5, True])
def test_an_impossible_number_of_liars_is_refused(liars):
    with pytest.raises(TopologyError, match="liars"):
        warnings(build("ring", 4), liars)


def test_warnings_call_nodes_by_the_names_that_they_have():
    named = Topology("", 4, ((0, 1), (1, 2), (2, 3), (1, 3)), names=["ada", "bob", "eve", "joe"])
    bridge, only_way = warnings(named, 0)
    assert "ada-bob" in bridge
    assert "bob" in only_way
