"""A `networkx.Graph` becomes a Topology, or one sentence says why not."""

from __future__ import annotations

import networkx as nx
import pytest

from topologies import Topology, TopologyError, build, describe, spectrum


def test_a_graph_goes_to_networkx_and_back():
    for spec in ("torus", "watts-strogatz", "star"):
        graph = build(spec, 16, 1)
        assert Topology.from_networkx(graph.to_networkx()) == graph
        assert Topology.from_networkx(graph.to_networkx()).names == ()


def test_names_are_kept_in_the_order_of_the_graph():
    found = Topology.from_networkx(nx.Graph([("north", "south"), ("south", "east")]))
    assert (found.names, found.edges) == (("north", "south", "east"), ((0, 1), (1, 2)))
    assert Topology.from_networkx(nx.Graph([(2, 0), (0, 1)])).edges == ((0, 1), (0, 2))
    assert Topology.from_networkx(nx.Graph([(7, 5)])).names == ("7", "5")


def test_spectrum_and_describe_take_one():
    graph = nx.petersen_graph()
    assert spectrum(graph).algebraic_connectivity == pytest.approx(2.0)
    found = describe(graph)
    assert (found["spec"], found["diameter"], found["rounds_to_consensus"]) == ("Petersen Graph", 2, 10)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (nx.DiGraph([(0, 1)]), "the graph is directed; allowed: an undirected simple graph, as graph.to_undirected"),
        (nx.MultiGraph([(0, 1)]), "the graph is a multigraph"),
        (nx.Graph([(0, 1), (1, 1)]), "an edge from a node to itself .found 1.; allowed: no self-loops"),
        (nx.Graph([(0, 1, {"weight": -0.5})]), "graph: edge 0 - 1: impossible weight .found -0.5."),
        (nx.Graph([(0, 1, {"weight": 0.5}), (1, 2)]), "graph: edge 1 - 2: an edge without a weight"),
        (nx.Graph([("1", 1)]), "two nodes have the same name as text"),
        (nx.Graph(), "impossible size"),
        ("ring", "not a graph of networkx"),
    ],
)
def test_what_cannot_be_kept_is_refused(graph, said):
    with pytest.raises(TopologyError, match=said):
        Topology.from_networkx(graph)


def test_weights_are_kept_in_the_order_of_the_edges():
    graph = nx.Graph()
    graph.add_weighted_edges_from([(2, 1, 0.25), (0, 1, 0.5)])
    found = Topology.from_networkx(graph)
    assert (found.edges, found.weights.tolist()) == (((0, 1), (1, 2)), [0.5, 0.25])
    assert Topology.from_networkx(found.to_networkx()) == found != found.with_weights(None)


def test_a_weight_of_one_is_none():
    assert Topology.from_networkx(nx.Graph([(0, 1, {"weight": 1.0})])).edges == ((0, 1),)


def test_a_graph_that_is_no_networkx_graph_is_not_unfolded_to_find_that_out():
    whole = build("complete", 100_000)
    assert whole.implicit
    assert spectrum(whole).algebraic_connectivity == 100_000
    ring = Topology("own", 9, [(node, (node + 1) % 9) for node in range(9)])
    spectrum(ring)
    assert "edges" not in vars(ring)
