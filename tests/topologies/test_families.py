"""Static families without chance: against networkx where it has them, else against what they promise."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from topologies import TopologyError, build, spectrum
from topologies.building import parse
from topologies.families import FAMILIES, GraphRequest
from topologies.families.circulants import equi_shifts


def simple(graph):
    """Without loops and repeated edges."""
    graph = nx.Graph(graph.to_undirected())
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return graph


PALEY_13 = nx.Graph(simple(nx.paley_graph(13)))
REFERENCE = [
    ("torus:dims=3x4x2", 24, nx.grid_graph([3, 4, 2], periodic=True)),
    ("torus:dims=2x2x2", 8, nx.hypercube_graph(3)),
    ("torus:dims=9", 9, nx.cycle_graph(9)),
    ("torus:cols=6", 12, nx.circular_ladder_graph(6)),
    ("grid", 12, nx.grid_2d_graph(3, 4)),
    ("grid:rows=2", 12, nx.ladder_graph(6)),
    ("grid:dims=3x4x2", 24, nx.grid_graph([3, 4, 2])),
    ("complete-bipartite", 9, nx.complete_bipartite_graph(4, 5)),
    ("complete-bipartite:a=2", 9, nx.complete_bipartite_graph(2, 7)),
    ("complete-bipartite:a=1,b=6", 7, nx.star_graph(6)),
    ("wheel", 2, nx.path_graph(2)),
    ("wheel", 3, nx.complete_graph(3)),
    ("wheel", 4, nx.complete_graph(4)),
    ("wheel", 9, nx.wheel_graph(9)),
    ("lollipop", 9, nx.lollipop_graph(5, 4)),
    ("lollipop:clique=3", 9, nx.lollipop_graph(3, 6)),
    ("lollipop:clique=9", 9, nx.complete_graph(9)),
    ("tree", 15, nx.balanced_tree(2, 3)),
    ("tree:branching=3", 20, nx.full_rary_tree(3, 20)),
    ("tree:branching=1", 6, nx.path_graph(6)),
    ("paley", 5, nx.cycle_graph(5)),
    ("paley", 13, PALEY_13),
    ("moore", 10, nx.petersen_graph()),
    ("moore", 50, nx.hoffman_singleton_graph()),
    ("projective-plane", 14, nx.heawood_graph()),
    ("folded-hypercube", 8, nx.complete_bipartite_graph(4, 4)),
    ("margulis", 49, simple(nx.margulis_gabber_galil_graph(7))),
    ("margulis", 4, simple(nx.margulis_gabber_galil_graph(2))),
    ("chordal-cycle", 2, nx.path_graph(2)),
    ("chordal-cycle", 23, simple(nx.chordal_cycle_graph(23))),
    ("ring-of-cliques:size=4", 20, nx.ring_of_cliques(5, 4)),
    ("ring-of-cliques:size=3", 6, nx.barbell_graph(3, 0)),
    ("star-of-cliques:size=1", 7, nx.star_graph(6)),
    ("star-of-cliques:size=5", 10, nx.barbell_graph(5, 0)),
    ("dumbbell:path=3", 9, nx.barbell_graph(3, 3)),
    ("hierarchical:gateways=5", 6, nx.wheel_graph(6)),
    ("hierarchical:gateways=2", 9, nx.Graph([(0, 1), (0, 2), (1, 2), (1, 3), (1, 5), (1, 7), (2, 4), (2, 6), (2, 8)])),
]


@pytest.mark.parametrize(("spec", "nodes", "graph"), REFERENCE)
def test_a_family_is_the_graph_that_networkx_knows(spec, nodes, graph):
    assert nx.is_isomorphic(build(spec, nodes).to_networkx(), graph)


ANY_SIZE = ["ring", "path", "star", "wheel", "complete", "tree", "tree:branching=5", "lollipop", "exponential"]
ANY_SIZE += ["star-of-cliques", "ring-of-cliques", "d-cliques", "d-cliques:inter=fractal", "hierarchical"]
ANY_SIZE += ["d-cliques:inter=small-world", "keyed-rings", "erdos-renyi", "geometric", "u-equi-static"]


@pytest.mark.parametrize("spec", ANY_SIZE)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_these_families_have_a_graph_of_every_size(spec, nodes):
    topology = build(spec, nodes)
    assert topology.nodes == nodes
    chance = spec in {"erdos-renyi", "geometric", "u-equi-static"}
    assert chance or nx.is_connected(topology.to_networkx())


@pytest.mark.parametrize(
    "spec", ["circulant:offsets=2", "u-equi-static:m=1", "erdos-renyi:p=0", "stochastic-block:between=0"]
)
def test_a_disconnected_graph_is_built_all_the_same(spec):
    assert any(not nx.is_connected(build(spec, 12, seed).to_networkx()) for seed in range(12))


@pytest.mark.parametrize("spec", ["star-of-cliques:size=5", "ring-of-cliques:size=5", "d-cliques:size=5"])
@pytest.mark.parametrize("nodes", [11, 14, 16, 23])
def test_cliques_are_of_nearly_equal_size_where_the_size_does_not_divide_the_nodes(spec, nodes):
    graph = build(spec, nodes).to_networkx()
    q, starts = -(-nodes // 5), [k * nodes // -(-nodes // 5) for k in range(-(-nodes // 5) + 1)]
    sizes = sorted(len(clique) for clique in nx.find_cliques(graph) if len(clique) > 2)
    assert sizes == sorted(np.diff(starts).tolist())
    assert len(sizes) == q


@pytest.mark.parametrize("bridges", [1, 2, 4])
def test_so_many_bridges_lead_to_the_next_clique_each_between_nodes_of_its_own(bridges):
    between = [(i, j) for i, j in build(f"ring-of-cliques:size=4,bridges={bridges}", 20).edges if i // 4 != j // 4]
    assert len(between) == 5 * bridges
    for one in range(5):
        edge = [pair for pair in between if {end // 4 for end in pair} == {one, (one + 1) % 5}]
        assert len({end for pair in edge for end in pair}) == 2 * bridges


@pytest.mark.parametrize("gateways", [2, 3, 6])
def test_with_two_uplinks_one_dead_gateway_or_root_disconnects_nobody(gateways):
    graph = build(f"hierarchical:gateways={gateways},uplinks=2", 40).to_networkx()
    for node in range(1 + gateways):
        assert nx.is_connected(nx.subgraph_view(graph, filter_node=lambda other, node=node: other != node))


def test_with_one_uplink_a_dead_gateway_takes_its_devices_with_it():
    graph = build("hierarchical:gateways=3", 40).to_networkx()
    graph.remove_node(1)
    assert nx.number_connected_components(graph) > 1


def test_devices_are_dealt_evenly_to_gateways():
    degrees = build("hierarchical:gateways=7,uplinks=2,roots=2", 100).degrees
    assert np.ptp(degrees[2:9]) <= 1
    assert (degrees[9:] == 2).all()


def test_a_margulis_expander_keeps_its_bound_where_repeated_edges_count_again():
    """Gabber and Galil 1981: no other eigenvalue of the adjacency exceeds 5 sqrt 2."""
    for m in (3, 6, 10, 17):
        values = np.linalg.eigvalsh(nx.adjacency_matrix(nx.margulis_gabber_galil_graph(m)).toarray().astype(float))
        assert 8 - values[-2] >= 8 - 5 * 2**0.5 - 1e-9


def test_a_full_binary_tree_has_at_most_two_nths_of_connectivity():
    for levels in range(2, 8):
        nodes = 2**levels - 1
        assert spectrum(build("tree", nodes)).algebraic_connectivity <= 2 / (nodes - 1) * (1 + 1e-12) or nodes == 3


def test_equitopo_shifts_are_drawn_from_one_to_n_minus_one_and_may_come_twice():
    drawn = equi_shifts(5, 1000, seed=1)
    assert set(drawn.tolist()) == {1, 2, 3, 4}
    assert np.bincount(drawn).max() < 320
    assert len(equi_shifts(1, None, seed=1)) == 0
    assert len(equi_shifts(1000, None, seed=1)) == 10


def test_an_equitopo_graph_joins_each_node_to_those_at_the_shifts():
    shifts = set(equi_shifts(30, 3, seed=8).tolist())
    there = {(i, (i + shift) % 30) for i in range(30) for shift in shifts}
    assert set(build("u-equi-static:m=3", 30, seed=8).edges) == {(min(pair), max(pair)) for pair in there}


def test_a_wrong_closed_form_is_not_given_for_an_impossible_size():
    """Whoever asks a family for its formula alone hears the same mistake."""
    for spec, nodes in [("hypercube", 12), ("circulant:offsets=5", 8), ("paley", 9), ("torus", 7), ("barbell", 9)]:
        wanted = GraphRequest(spec=spec, nodes=nodes, parameters=parse(spec).parameters)
        with pytest.raises(TopologyError):
            FAMILIES[parse(spec).name].closed(wanted)
