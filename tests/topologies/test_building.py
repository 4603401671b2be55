"""From spec and seed to edges, always the same ones."""

from __future__ import annotations

import json

import networkx as nx
import pytest

from topologies import Topology, TopologyError, build
from topologies.families import FAMILIES

REFERENCE = {
    "ring": nx.cycle_graph(12),
    "path": nx.path_graph(12),
    "star": nx.star_graph(11),
    "complete": nx.complete_graph(12),
    "torus": nx.grid_2d_graph(3, 4, periodic=True),
    "torus:rows=2": nx.cartesian_product(nx.path_graph(2), nx.cycle_graph(6)),
    "circulant:offsets=1-3": nx.circulant_graph(12, [1, 3]),
    "exponential": nx.circulant_graph(12, [1, 2, 4, 8]),
    "barbell": nx.barbell_graph(6, 0),
    "dumbbell:path=2": nx.barbell_graph(5, 2),
}


@pytest.mark.parametrize("spec", REFERENCE)
def test_a_family_is_the_graph_that_networkx_knows(spec):
    assert nx.is_isomorphic(build(spec, 12).to_networkx(), REFERENCE[spec])


def test_a_hypercube_is_the_graph_that_networkx_knows():
    assert nx.is_isomorphic(build("hypercube", 16).to_networkx(), nx.hypercube_graph(4))


STATIC = [name for name, family in FAMILIES.items() if family.build]


@pytest.mark.parametrize("name", STATIC)
def test_edges_are_sorted_unique_pairs_of_nodes_and_equal_for_equal_seeds(name):
    topology = build(name, 16, seed=3)
    assert list(topology.edges) == sorted(set(topology.edges))
    assert all(0 <= i < j < 16 for i, j in topology.edges)
    assert build(name, 16, seed=3) == topology


@pytest.mark.parametrize("name", [name for name in STATIC if FAMILIES[name].random])
def test_a_random_family_depends_on_the_seed(name):
    assert len({build(name, 20, seed).edges for seed in range(5)}) > 1


def test_every_degree_of_a_random_regular_graph_is_the_one_asked_for():
    assert build("random-regular:degree=6", 30, seed=1).degrees.tolist() == [6] * 30


def test_two_nodes_in_a_ring_share_one_edge():
    assert build("ring", 2).edges == ((0, 1),)


def test_an_edge_list_and_node_link_json_give_the_same_edges(tmp_path):
    (tmp_path / "g.edges").write_text("# a comment\n0 1\n2 1 1.0\n\n", encoding="utf-8")
    graph = nx.Graph([(0, 1), (1, 2)])
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")), encoding="utf-8")
    assert build(str(tmp_path / "g.edges"), 3).edges == ((0, 1), (1, 2))
    assert build(str(tmp_path / "g.json"), 3).edges == ((0, 1), (1, 2))


def test_a_file_may_call_the_nodes_by_name(tmp_path):
    (tmp_path / "g.txt").write_text("pi2 pi1\n", encoding="utf-8")
    assert build(str(tmp_path / "g.txt"), 2, names=["pi1", "pi2"]).edges == ((0, 1),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.edges", "0 1\n0 3\n", r"g\.edges:2: unknown node .*'3'.*0 to 2"),
        ("g.edges", "0 0\n", "to itself"),
        ("g.edges", "0\n", "two nodes per line"),
        ("g.json", "{", "not JSON"),
        ("g.json", "[1]", "node-link"),
        ("g.json", '{"directed": true, "edges": []}', "directed"),
        ("g.json", '{"edges": [{"source": 0}]}', "edge 0"),
    ],
)
def test_a_wrong_file_says_where(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(TopologyError, match=message):
        build(str(tmp_path / name), 3)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TopologyError, match=r"none\.json"):
        build(str(tmp_path / "none.json"), 3)


def test_networkx_keeps_isolated_nodes():
    assert Topology("", 4, ((0, 1),)).to_networkx().number_of_nodes() == 4
