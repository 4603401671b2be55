"""From spec and seed to edges, always the same ones."""

from __future__ import annotations

import os
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

from topologies import (
    Topology,
    TopologyError,
    build,
    build_schedule,
    contraction,
    describe,
    mixing_matrix,
    spectrum,
)
from topologies.families import FAMILIES
from topologies.files import read_edges, read_topology, write_topology

STATIC = [name for name, family in FAMILIES.items() if family.build]

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
    "barbell:path=2": nx.barbell_graph(5, 2),
}


@pytest.mark.parametrize("spec", REFERENCE)
def test_a_family_is_the_graph_that_networkx_knows(spec):
    assert nx.is_isomorphic(build(spec, 12).to_networkx(), REFERENCE[spec])


def test_a_hypercube_is_the_graph_that_networkx_knows():
    assert nx.is_isomorphic(build("hypercube", 16).to_networkx(), nx.hypercube_graph(4))


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


def test_networkx_keeps_isolated_nodes():
    assert Topology("", 4, ((0, 1),)).to_networkx().number_of_nodes() == 4


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
