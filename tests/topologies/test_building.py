"""From spec and seed to edges, always the same ones."""

from __future__ import annotations

import os
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

from topologies import (
    FAMILIES,
    Topology,
    TopologyError,
    build,
    build_schedule,
    contraction,
    describe,
    is_file,
    mixing_matrix,
    parse,
    read_edges,
    read_topology,
    spectrum,
    write_topology,
)

STATIC = [name for name, family in FAMILIES.items() if family.build]


@pytest.mark.parametrize("name", STATIC)
def test_edges_are_sorted_unique_pairs_of_nodes_and_equal_for_equal_seeds(name):
    topology = build(name, 16, seed=3)
    assert list(topology.edges) == sorted(set(topology.edges))
    assert all(0 <= i < j < 16 for i, j in topology.edges)
    assert build(name, 16, seed=3) == topology


@pytest.mark.long
@pytest.mark.parametrize("name", STATIC)
def test_only_a_random_family_depends_on_the_seed(name, tmp_path):
    (tmp_path / "labels.csv").write_text("".join(f"{node % 2},{1 - node % 2}\n" for node in range(20)))
    spec = "d-cliques:size=4,labels=labels.csv" if name == "d-cliques" else name
    nodes = 16 if name == "hypercube" else 20
    drawn = {build(spec, nodes, seed, folder=tmp_path).edges for seed in range(5)}
    assert (len(drawn) > 1) == FAMILIES[name].random


@pytest.mark.parametrize("name", STATIC)
def test_what_depends_on_names_says_so(name):
    names = [f"pi{node}" for node in range(16)]
    assert (build(name, 16, names=names) != build(name, 16)) == FAMILIES[name].by_name


@pytest.mark.long
def test_another_process_with_another_hash_seed_makes_the_same_edges():
    """What a federation rests on: every node computes the graph for itself."""
    code = """
import hashlib, sys
from topologies import build
names = [f"device-{node}" for node in range(16)]
for spec in sys.argv[1:]:
    print(spec, hashlib.sha256(build(spec, 16, seed=5, names=names).ends.tobytes()).hexdigest())
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, *STATIC],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout
        for seed in ("0", "12345")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0].splitlines()) == len(STATIC)


@pytest.mark.parametrize(
    ("spec", "edges"),
    [
        ("erdos-renyi:p=0.5", "2.5e+11"),
        ("random-regular:degree=100", "5.0e+07"),
        ("watts-strogatz:k=100", "5.0e+07"),
        ("barabasi-albert:m=50", "5.0e+07"),
        ("stochastic-block:between=0.5", "2.5e+11"),
        ("geometric:radius=0.1", "1.6e+10"),
        ("geometric:radius=3", "5.0e+11"),
        ("keyed-rings:r=100", "1.0e+08"),
        ("barbell:path=2", "2.5e+11"),
        ("d-cliques:inter=full", "5.0e+09"),
        ("hierarchical:gateways=100000,roots=1000", "1.0e+08"),
    ],
)
def test_a_graph_too_large_to_hold_is_refused_before_it_is_made(spec, edges):
    with pytest.raises(TopologyError, match="too many to hold") as caught:
        build(spec, 1_000_000)
    assert edges in str(caught.value)
    assert caught.value.key == "nodes"


def test_a_relative_file_starts_at_the_folder_that_the_caller_names(tmp_path):
    (tmp_path / "g.edges").write_text("0 1\n", encoding="utf-8")
    assert build("g.edges", 2, folder=tmp_path).edges == ((0, 1),)


def test_a_file_for_a_federation_names_no_other_node(tmp_path):
    (tmp_path / "g.edges").write_text("0 1\n0 3\n", encoding="utf-8")
    with pytest.raises(TopologyError, match=r"g\.edges:2: unknown node .*'3'.*0 to 2"):
        build(str(tmp_path / "g.edges"), 3)


@pytest.mark.parametrize("edge", [(0, 3), (0, -1), (0, 2**40), (-1, -2)])
def test_a_graph_made_by_hand_has_no_edge_to_a_node_that_is_not_there(edge):
    with pytest.raises(TopologyError, match="edges: unknown node"):
        Topology("", 3, [(0, 1), edge])


@pytest.mark.parametrize(
    "edges",
    [[(0, 1, 2)], [(0, 1.5)], [(0, 1), (2,)], [0, 1], [("a", "b")], [(False, True)], [(0, None)], [()], 5, "ab"],
    ids=str,
)
def test_an_edge_is_two_whole_numbers(edges):
    with pytest.raises(TopologyError, match="edges: not pairs of nodes"):
        Topology("", 3, edges)


@pytest.mark.parametrize("nodes", [0, -1, 2.0, "3", None, True])
def test_a_graph_made_by_hand_has_at_least_one_node(nodes):
    with pytest.raises(TopologyError, match="nodes: impossible size"):
        Topology("", nodes, [])


def test_a_graph_made_by_hand_has_a_name_for_each_node_or_none():
    with pytest.raises(TopologyError, match="names: not one name for each node"):
        Topology("", 3, [(0, 1)], names=["a"])


def test_numbers_of_numpy_are_numbers_too():
    assert build("random-regular", np.int64(8), np.int64(3)) == build("random-regular", 8, 3)
    by_hand = Topology("", np.int32(3), np.array([[0, 1]], dtype=np.uint8))
    assert (by_hand.edges, type(by_hand.nodes)) == (((0, 1),), int)


@pytest.mark.parametrize("make", [build, build_schedule])
@pytest.mark.parametrize(
    ("arguments", "options", "key"),
    [
        ((None, 5), {}, "topology"),
        ((b"ring", 5), {}, "topology"),
        (("ring", 5.0), {}, "nodes"),
        (("ring", None), {}, "nodes"),
        (("random-regular", 8, 1.5), {}, "seed"),
        (("random-regular", 8, None), {}, "seed"),
        (("random-regular", 8, "a"), {}, "seed"),
        (("random-regular", 8, True), {}, "seed"),
        (("ring", 3), {"names": ["a"]}, "names"),
        (("ring", 3), {"names": ["a", "b", 3]}, "names"),
        (("keyed-rings", 3), {"names": ["a", "b", "a"]}, "names"),
    ],
)
def test_what_cannot_be_asked_for_is_told_by_its_name(make, arguments, options, key):
    with pytest.raises(TopologyError) as caught:
        make(*arguments, **options)
    assert caught.value.key == key


@pytest.mark.parametrize("ask", [spectrum, describe, contraction, mixing_matrix])
@pytest.mark.parametrize("given", ["ring", None])
def test_figures_of_a_spec_are_refused_with_what_to_do(ask, given):
    with pytest.raises(TopologyError, match=r"topology: not a graph .*build it first"):
        ask(given)


@pytest.mark.parametrize("weights", [3, []])
def test_weights_that_are_no_word_are_unknown_ones(weights):
    with pytest.raises(TopologyError, match="unknown mixing weights"):
        spectrum(build("ring", 5), weights=weights)


def test_a_graph_file_is_read_and_written_by_a_path_of_either_kind(tmp_path):
    path = str(tmp_path / "g.json")
    write_topology(build("ring", 5), path)
    assert read_topology(path) == build("ring", 5)
    assert read_edges(path, 5).ends.tolist() == build("ring", 5).ends.tolist()


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ("random-regular:degree=10", 2_000_000),
        ("watts-strogatz:k=10", 2_000_000),
        ("erdos-renyi:p=0.99", 5_000),
        ("barabasi-albert:m=5", 2_000_000),
        ("keyed-rings:r=30", 2_000_000),
        ("stochastic-block:inside=0.00001,between=0.00001", 2_000_000),
        ("stochastic-block:blocks=1,inside=0,between=1", 5_000),
    ],
)
def test_what_would_be_drawn_for_more_than_a_minute_is_refused(spec, nodes):
    with pytest.raises(TopologyError, match="too many") as caught:
        build(spec, nodes)
    assert caught.value.key == "nodes"


# -- A spec is one string; what is wrong with it is said with the nearest right one.


def test_defaults_are_filled_in():
    assert parse("watts-strogatz:p=0.3").parameters == {"k": 4, "p": 0.3}
    assert parse("watts-strogatz: k = 6 , p = 1").parameters == {"k": 6, "p": 1.0}


@pytest.mark.parametrize(
    ("spec", "key", "value", "allowed"),
    [
        ("rng", "topology", "rng", "did you mean 'ring'"),
        ("", "topology", "", "ring"),
        ("RING", "topology", "RING", "did you mean 'ring'? One of: barabasi-albert, "),
        ("random-regular:degre=4", "random-regular", "degre", "did you mean 'degree'"),
        ("ring:degree=4", "ring", "degree", "nothing"),
        ("random-regular:degree=two", "random-regular:degree", "two", "whole number"),
        ("random-regular:degree=0", "random-regular:degree", "0", "whole number from 1"),
        ("random-regular:degree", "random-regular:degree", "degree", None),
        ("erdos-renyi:p=1.5", "erdos-renyi:p", "1.5", "0 to 1"),
        ("erdos-renyi:p=nan", "erdos-renyi:p", "nan", "0 to 1"),
        ("erdos-renyi:p=0.1,p=0.2", "erdos-renyi:p", "p=0.2", None),
        ("circulant:offsets=0-1", "circulant:offsets", "0-1", "joined by '-'"),
        ("ring:", "ring", "", "nothing"),
        ("torus:dims=4x1", "torus:dims", "4x1", "joined by 'x'"),
        ("torus:dims=4*5", "torus:dims", "4*5", "such as 4x5x6"),
        ("torus:dim=4x5", "torus", "dim", "did you mean 'dims'"),
        ("geometric:radius=0", "geometric:radius", "0", "above 0"),
        ("geometric:radius=inf", "geometric:radius", "inf", "above 0"),
        ("geometric:metric=round", "geometric:metric", "round", "flat or torus"),
        ("d-cliques:inter=tree", "d-cliques:inter", "tree", "ring or full"),
        ("d-cliques:labels=", "d-cliques:labels", "", "path"),
        ("barabasi-albert:m=0", "barabasi-albert:m", "0", "from 1"),
        ("keyed-ring", "topology", "keyed-ring", "did you mean 'keyed-rings'"),
    ],
)
def test_a_wrong_spec_names_key_value_and_what_is_allowed(spec, key, value, allowed):
    with pytest.raises(TopologyError) as caught:
        parse(spec)
    assert (caught.value.key, caught.value.value) == (key, value)
    assert allowed is None or allowed in caught.value.allowed


@pytest.mark.parametrize(
    ("spec", "nodes", "allowed"),
    [
        ("hypercube", 12, "8 or 16"),
        ("torus:rows=5,cols=5", 24, "rows"),
        ("torus:rows=8", 8, "at least 2"),
        ("watts-strogatz:k=3", 9, "even"),
        ("circulant:offsets=5", 8, "1 to 4"),
        ("torus:dims=4x5", 24, "20, the product of dims (4x5)"),
        ("torus:dims=4x5,rows=4", 20, "either dims, or rows and cols"),
        ("grid:cols=4", 10, "cols (4)"),
        ("random-regular:degree=5", 7, "nodes times degree even"),
        ("barbell:path=8", 8, "at least 2"),
        ("hierarchical:gateways=8", 8, "from 1 to 7"),
        ("hierarchical:roots=9", 8, "from 1 to 8"),
        ("hierarchical:gateways=2,uplinks=3", 8, "from 1 to 2"),
        ("stochastic-block:blocks=9", 8, "from 1 to 8"),
        ("ring", 0, "from 1"),
        ("ring", True, "from 1"),
        ("ring", 10_000_000, "2000000"),
    ],
)
def test_an_impossible_size_says_what_would_be_possible(spec, nodes, allowed):
    with pytest.raises(TopologyError) as caught:
        build(spec, nodes)
    assert allowed in caught.value.allowed


def test_a_file_is_told_from_a_family_by_its_suffix_or_folder():
    assert is_file("graph.json")
    assert is_file("./graph")
    assert not is_file("erdos-renyi:p=0.1")
    assert not is_file("d-cliques:labels=data/labels.json")
    assert is_file("C:/graphs/g.json")
    assert is_file("C:\\graphs\\g")


@pytest.mark.parametrize("value", ["1_0", "+4", "\u0664", "4.0", "1" + "0" * 9 + "1", "9" * 400, "9" * 5000])
@pytest.mark.parametrize("parameter", ["random-regular:degree", "circulant:offsets", "barbell:path"])
def test_a_parameter_that_counts_is_plain_digits_of_a_bounded_number(parameter, value):
    with pytest.raises(TopologyError, match=r"whole numbers? from [01]"):
        build(f"{parameter}={value}", 12)


@pytest.mark.parametrize(
    ("spec", "edges"),
    [
        ("erdos-renyi:p=1e-320", 0),
        ("erdos-renyi:p=1e-17", 0),
        ("stochastic-block:inside=1e-320,between=0", 0),
        ("geometric:radius=1e-320", 0),
        ("geometric:radius=1e308", 15),
        ("geometric:radius=1e-320,metric=torus", 0),
    ],
)
def test_numbers_at_the_edge_of_floating_point_are_numbers(spec, edges):
    assert len(build(spec, 6).edges) == edges


def test_more_rings_than_anyone_could_wait_for_are_refused():
    with pytest.raises(TopologyError, match=r"keyed-rings:r: .*from 1 to 1000"):
        build("keyed-rings:r=1000000", 12)
    with pytest.raises(TopologyError, match="too many to hold"):
        build("keyed-rings:r=6", 2_000_000)


@pytest.mark.parametrize("spec", ["g\0.json", "a/g\0", "d-cliques:labels=g\0"])
def test_a_path_that_no_system_knows_is_a_mistake(spec):
    with pytest.raises(TopologyError, match="null byte"):
        build(spec, 6)


def test_counts_of_labels_from_a_device_that_never_ends_are_not_read(monkeypatch):
    monkeypatch.setattr("topologies.families.cliques.BYTES_LIMIT", 1000)
    with pytest.raises(TopologyError, match="d-cliques:labels: too large a file"):
        build("d-cliques:labels=/dev/zero", 6)


def test_an_error_shows_little_of_a_long_spec():
    with pytest.raises(TopologyError) as caught:
        build("x" * 100_000, 6)
    assert len(str(caught.value)) < 2000


# -- A `networkx.Graph` becomes a Topology, or one sentence says why not.


def test_a_graph_goes_to_networkx_and_back():
    assert Topology.from_networkx(Topology("", 4, [(0, 1)]).to_networkx()).nodes == 4
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
