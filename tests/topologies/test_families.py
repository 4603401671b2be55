"""Static families without chance: against networkx where it has them, else against what they promise."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from topologies import TopologyError, build
from topologies.families import FAMILIES, parse
from topologies.family import GraphRequest

REFERENCE = [
    ("torus:dims=3x4x2", 24, nx.grid_graph([3, 4, 2], periodic=True)),
    ("torus:dims=2x2x2", 8, nx.hypercube_graph(3)),
    ("torus:dims=9", 9, nx.cycle_graph(9)),
    ("torus:cols=6", 12, nx.circular_ladder_graph(6)),
    ("grid", 12, nx.grid_2d_graph(3, 4)),
    ("grid:rows=2", 12, nx.ladder_graph(6)),
    ("grid:dims=3x4x2", 24, nx.grid_graph([3, 4, 2])),
    ("hierarchical:gateways=5", 6, nx.wheel_graph(6)),
    ("hierarchical:gateways=2", 9, nx.Graph([(0, 1), (0, 2), (1, 2), (1, 3), (1, 5), (1, 7), (2, 4), (2, 6), (2, 8)])),
]


@pytest.mark.parametrize(("spec", "nodes", "graph"), REFERENCE)
def test_a_family_is_the_graph_that_networkx_knows(spec, nodes, graph):
    assert nx.is_isomorphic(build(spec, nodes).to_networkx(), graph)


ANY_SIZE = ["ring", "path", "star", "complete", "exponential", "d-cliques"]
ANY_SIZE += ["hierarchical", "keyed-rings", "erdos-renyi", "geometric"]


@pytest.mark.parametrize("spec", ANY_SIZE)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_these_families_have_a_graph_of_every_size(spec, nodes):
    topology = build(spec, nodes)
    assert topology.nodes == nodes
    chance = spec in {"erdos-renyi", "geometric"}
    assert chance or nx.is_connected(topology.to_networkx())


@pytest.mark.parametrize("spec", ["circulant:offsets=2", "erdos-renyi:p=0", "stochastic-block:between=0"])
def test_a_disconnected_graph_is_built_all_the_same(spec):
    assert any(not nx.is_connected(build(spec, 12, seed).to_networkx()) for seed in range(12))


@pytest.mark.parametrize("nodes", [11, 14, 16, 23])
def test_cliques_are_of_nearly_equal_size_where_the_size_does_not_divide_the_nodes(nodes):
    graph = build("d-cliques:size=5", nodes).to_networkx()
    q, starts = -(-nodes // 5), [k * nodes // -(-nodes // 5) for k in range(-(-nodes // 5) + 1)]
    sizes = sorted(len(clique) for clique in nx.find_cliques(graph) if len(clique) > 2)
    assert sizes == sorted(np.diff(starts).tolist())
    assert len(sizes) == q


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


def test_a_wrong_closed_form_is_not_given_for_an_impossible_size():
    """Whoever asks a family for its formula alone hears the same mistake."""
    for spec, nodes in [("hypercube", 12), ("circulant:offsets=5", 8), ("torus", 7), ("barbell", 9)]:
        wanted = GraphRequest(spec=spec, nodes=nodes, parameters=parse(spec).parameters)
        with pytest.raises(TopologyError):
            FAMILIES[parse(spec).name].closed(wanted)
