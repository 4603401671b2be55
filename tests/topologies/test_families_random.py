"""Families with chance or names: keyed rings, geometric graphs, D-Cliques, and the streams they draw from."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from topologies import TopologyError, build
from topologies.chance import StableDraws
from topologies.families import FAMILIES, parse
from topologies.families.cliques import greedy_swap, read_counts, skew
from topologies.families.random import keyed_order, near
from topologies.family import GraphRequest
from topologies.graph import even

DEVICES = [f"pi-{number}" for number in range(40)]


def named_edges(names, spec="keyed-rings:r=3", seed=4):
    topology = build(spec, len(names), seed, names=names)
    return {frozenset((names[i], names[j])) for i, j in topology.edges}


def test_keyed_rings_know_only_the_names_not_their_order():
    assert named_edges(DEVICES) == named_edges(DEVICES[::-1])


def test_names_default_to_the_numbers_of_the_nodes():
    assert build("keyed-rings", 30, 2) == build("keyed-rings", 30, 2, names=[str(node) for node in range(30)])


@pytest.mark.parametrize("newcomer", ["pi-40", "zebra", "ärmel"])
def test_a_new_member_changes_only_the_places_next_to_it(newcomer):
    """In each ring one edge gives way to two."""
    before, after = named_edges(DEVICES), named_edges([*DEVICES, newcomer])
    new, gone = after - before, before - after
    assert all(newcomer in edge for edge in new)
    assert len(new) == 6
    assert len(gone) <= 3
    neighbors = {name for edge in new for name in edge}
    assert all(edge < neighbors for edge in gone)


def test_each_ring_is_a_cycle_through_all_members_and_no_two_are_alike():
    orders = [keyed_order(DEVICES, ring, seed) for ring in range(3) for seed in (0, 1)]
    assert all(sorted(order.tolist()) == list(range(40)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 6
    edges = build("keyed-rings:r=1", 40, names=DEVICES)
    assert edges.degrees.tolist() == [2] * 40


def test_keyed_rings_of_a_list_of_names_are_the_same_for_ever():
    """Members that run different releases must agree: this order is part of the protocol."""
    assert keyed_order(["a", "b", "c", "d", "e"], 0, 0).tolist() == [1, 0, 2, 4, 3]
    assert keyed_order(["a", "b", "c", "d", "e"], 1, 7).tolist() == [0, 4, 3, 1, 2]


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "a"]])
def test_keyed_rings_want_a_name_for_each_node_and_each_once(names):
    with pytest.raises(TopologyError, match="names: not one name for each node") as caught:
        build("keyed-rings", 3, names=names)
    assert "3 different" in caught.value.allowed


def test_the_streams_are_the_same_for_ever_and_differ_by_seed_and_label():
    assert StableDraws("test", 3).uniform(2).tolist() == [0.012574121841133601, 0.7124044440229119]
    assert StableDraws("test", 3).below(1000, 3).tolist() == [12, 712, 601]
    assert len({tuple(StableDraws(label, seed).uniform(4)) for seed in (0, 1, -1) for label in "ab"}) == 6


@pytest.mark.long
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("reach", [0.02, 0.1, 0.3, 0.34, 0.5, 0.8, 1.5])
def test_a_geometric_graph_has_all_pairs_within_reach_and_no_others(reach, around):
    points = StableDraws("test", 1).uniform(150, 2)
    apart = np.abs(points[:, None] - points)
    apart = np.minimum(apart, 1 - apart) if around else apart
    close = np.argwhere(np.triu((apart**2).sum(axis=2) <= reach**2, 1))
    found = {(min(pair), max(pair)) for pair in near(points, reach, around=around).tolist() if pair[0] != pair[1]}
    assert sorted(found) == [tuple(pair) for pair in close.tolist()]


def test_the_default_radius_joins_three_ln_n_nodes_away_from_the_border():
    topology = build("geometric:metric=torus", 2_000, 1)
    assert topology.degrees.mean() == pytest.approx(3 * math.log(2_000), rel=0.05)


def test_two_nodes_are_joined_wherever_they_are():
    assert all(build("geometric", 2, seed).edge_count == 1 for seed in range(20))


def test_every_degree_of_a_random_regular_graph_is_the_one_asked_for_also_where_its_complement_is_drawn():
    for degree in (3, 8, 12, 14, 15):
        assert build(f"random-regular:degree={degree}", 16, 2).degrees.tolist() == [degree] * 16


@pytest.mark.parametrize(("inside", "between"), [(1, 0), (0, 1), (0.8, 0.2)])
def test_pairs_in_a_block_and_between_blocks_have_each_their_own_probability(inside, between):
    topology = build(f"stochastic-block:blocks=3,inside={inside},between={between}", 100, 2)
    block = np.searchsorted(even(100, 3), topology.ends, side="right")
    same = int((block[:, 0] == block[:, 1]).sum())
    pairs = sum(size * (size - 1) // 2 for size in (34, 33, 33))
    assert same / pairs == pytest.approx(inside, abs=0.04)
    assert (topology.edge_count - same) / (4_950 - pairs) == pytest.approx(between, abs=0.04)


def test_preferential_attachment_makes_hubs_and_m_edges_for_each_newcomer():
    topology = build("barabasi-albert:m=3", 500, 1)
    assert topology.edge_count == 3 * (500 - 3)
    assert topology.degrees.max() > 30


EXPECTED = ["erdos-renyi", "watts-strogatz", "barabasi-albert:m=3", "stochastic-block", "random-regular"]
EXPECTED += ["keyed-rings:r=3", "geometric:metric=torus", "geometric:radius=0.05", "barbell:path=2"]
EXPECTED += ["d-cliques:inter=full", "hierarchical:roots=3,gateways=20,uplinks=2"]


@pytest.mark.parametrize("spec", EXPECTED)
def test_as_many_edges_come_as_were_expected(spec):
    family = FAMILIES[parse(spec).name]
    wanted = GraphRequest(spec=spec, nodes=400, parameters=parse(spec).parameters)
    assert build(spec, 400).edge_count == pytest.approx(family.expected(wanted), rel=0.15)


def labels(nodes, kinds):
    """Each node has samples of one label only."""
    counts = np.zeros((nodes, kinds), dtype=np.int64)
    counts[np.arange(nodes), np.arange(nodes) * kinds // nodes] = 10
    return counts


def test_greedy_swaps_give_each_clique_about_the_labels_of_all():
    """Bellet et al. 2022, section 4: with one label per node, cliques of as many as there are labels have all."""
    counts, starts = labels(100, 10), even(100, 10)
    overall = counts.sum(axis=0) / counts.sum()
    members = greedy_swap(counts, starts, 1_000, seed=1)
    assert sorted(members.tolist()) == list(range(100))
    after = skew(counts[members].reshape(10, 10, 10).sum(axis=1), overall)
    drawn = skew(counts[greedy_swap(counts, starts, 0, seed=1)].reshape(10, 10, 10).sum(axis=1), overall)
    assert drawn.mean() > 0.5
    assert after.max() < 1e-9


def test_d_cliques_are_cliques_of_the_swapped_members(tmp_path):
    (tmp_path / "l.csv").write_text("\n".join(",".join(map(str, row)) for row in labels(30, 3).tolist()))
    topology = build("d-cliques:size=3,labels=l.csv", 30, 5, folder=tmp_path)
    members = greedy_swap(labels(30, 3), even(30, 10), 1_000, seed=5)
    for clique in members.reshape(10, 3).tolist():
        assert {node // 10 for node in clique} == {0, 1, 2}
        assert all(tuple(sorted((i, j))) in topology.edges for i in clique for j in clique if i != j)
    assert topology.edge_count == 30 + 10


@pytest.mark.parametrize(
    ("inter", "cliques", "edges"),
    [("ring", 2, 1), ("ring", 8, 8), ("full", 8, 28)],
)
def test_cliques_are_joined_as_asked(inter, cliques, edges):
    topology = build(f"d-cliques:size=4,inter={inter}", 4 * cliques)
    assert topology.edge_count - 6 * cliques == edges


@pytest.mark.parametrize("inter", ["ring", "full"])
def test_the_edges_between_cliques_are_spread_over_their_members(inter):
    degrees = build(f"d-cliques:size=5,inter={inter}", 60).degrees.reshape(12, 5)
    assert np.ptp(degrees, axis=1).max() <= 1


@pytest.mark.parametrize("text", ["1,2\n3,4\n5,6\n", "x,y\n1,2\n3,4\n5,6\n", "a,1,2\nb,3,4\nc,5,6\n"])
def test_counts_of_labels_may_have_a_header_or_names(tmp_path, text):
    (tmp_path / "l.csv").write_text(text, encoding="utf-8")
    assert read_counts(tmp_path / "l.csv", 3).tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    "text", ["name,x,y\nc,5,6\na,1,2\nb,3,4\n", "c,5,6\nb,3,4\na,1,2\n", "node,0,1\nc,5,6\na,1,2\nb,3,4"]
)
def test_names_decide_which_row_is_whose(tmp_path, text):
    (tmp_path / "l.csv").write_text(text, encoding="utf-8")
    assert read_counts(tmp_path / "l.csv", 3, ["a", "b", "c"]).tolist() == [[1, 2], [3, 4], [5, 6]]


def test_numbers_under_a_head_called_node_are_names(tmp_path):
    (tmp_path / "l.csv").write_text("node,0,1\n2,5,6\n0,1,2\n1,3,4\n", encoding="utf-8")
    assert read_counts(tmp_path / "l.csv", 3).tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3,4\n", r"not one row for each node \(found 2\); allowed: 3 rows"),
        ("", "found 0"),
        ("node,0,1\na,1,2\nb,3,4\n", "found 2"),
        ("1,2\n3,x\n5,6\n", r"l\.csv:2: not counts of labels \(found '3,x'\); allowed: 2 whole numbers"),
        ("1,2\n3\n5,6\n", r"l\.csv:2"),
        ("1,2\n0,0\n5,6\n", r"l\.csv:2.*not all of them 0"),
        ("1,2\n-3,4\n5,6\n", r"l\.csv:2|l\.csv:1"),
        ("a,1,2\nd,3,4\nc,5,6\n", r"l\.csv:2: unknown node \(found 'd'\)"),
        ("a,1,2\na,3,4\nc,5,6\n", r"a row is missing \(found 'b'\)"),
    ],
)
def test_wrong_counts_of_labels_say_where(tmp_path, text, message):
    (tmp_path / "l.csv").write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError, match=message):
        build("d-cliques:size=1,labels=l.csv", 3, names=["a", "b", "c"], folder=tmp_path)


def test_a_missing_file_of_labels_is_named(tmp_path):
    with pytest.raises(TopologyError, match=r"d-cliques:labels: cannot read .*none\.csv"):
        build("d-cliques:size=2,labels=none.csv", 8, folder=tmp_path)


@pytest.mark.parametrize("label", ["random-matchings 9 4", "round-robin 8 0"])
def test_the_draws_of_a_schedule_are_the_doubles_that_a_generator_gave(label):
    """Raw bits in place of numpy's Generator have changed no schedule."""
    family, nodes, seed = label.split()
    draws = StableDraws.of_schedule(family, int(nodes), int(seed))
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(label.encode()).digest()))
    assert all(np.array_equal(draws.uniform(50), generator.random(50)) for _ in range(3))
