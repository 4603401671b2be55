"""Static families without chance: against networkx where it has them, else against what they promise."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext

import networkx as nx
import numpy as np
import pytest

from topologies import (
    EDGES_LIMIT,
    FAMILIES,
    GraphRequest,
    Laplacian,
    StableDraws,
    TopologyError,
    build,
    component_count,
    even,
    greedy_swap,
    hops,
    keyed_order,
    near,
    parse,
    read_counts,
    skew,
)

REFERENCE = [
    ("ring", 12, nx.cycle_graph(12)),
    ("path", 12, nx.path_graph(12)),
    ("star", 12, nx.star_graph(11)),
    ("complete", 12, nx.complete_graph(12)),
    ("hypercube", 16, nx.hypercube_graph(4)),
    ("torus", 12, nx.grid_2d_graph(3, 4, periodic=True)),
    ("circulant:offsets=1-3", 12, nx.circulant_graph(12, [1, 3])),
    ("exponential", 12, nx.circulant_graph(12, [1, 2, 4, 8])),
    ("barbell", 12, nx.barbell_graph(6, 0)),
    ("barbell:path=2", 12, nx.barbell_graph(5, 2)),
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


# -- What a closed form says of a graph is what the graph is: eigenvalues, edges, degrees, diameter.

SIZES = [*range(2, 27), 29, 30, 32, 36, 37, 41, 60, 61, 64]
SPECS = [
    "ring",
    "path",
    "star",
    "complete",
    "hypercube",
    "torus",
    "torus:rows=2",
    "torus:cols=3",
    "torus:dims=2x2x2",
    "torus:dims=2x3x4",
    "torus:dims=5x2x3x2",
    "torus:dims=7",
    "grid",
    "grid:rows=2",
    "grid:dims=2x2x2",
    "grid:dims=3x5x2",
    "grid:dims=13",
    "circulant:offsets=1",
    "circulant",
    "circulant:offsets=2",
    "circulant:offsets=3-6",
    "circulant:offsets=1-4-5-7",
    "exponential",
    "barbell",
]


def formula(spec, nodes, seed=0):
    wanted = GraphRequest(spec=spec, nodes=nodes, parameters=parse(spec).parameters, seed=seed)
    return FAMILIES[parse(spec).name].closed(wanted)


def graphs(spec):
    """All sizes at which there is such a graph."""
    for nodes in SIZES:
        try:
            yield build(spec, nodes, seed=nodes)
        except TopologyError:
            continue


@pytest.mark.parametrize("spec", SPECS)
def test_a_closed_form_is_exact_at_every_size(spec):
    """lambda_2 and lambda_max to 1e-12 of a dense eigensolver, which is itself no better than that times the norm."""
    known = 0
    for topology in graphs(spec):
        form = topology.formula
        if form is None:
            continue
        known += 1
        values = np.linalg.eigvalsh(Laplacian.plain(topology).dense())
        assert form.high == pytest.approx(values[-1], rel=1e-12, abs=0)
        assert form.low == pytest.approx(values[1], abs=1e-12 * max(1.0, values[-1]))
        assert (form.low > 0.0) == nx.is_connected(topology.to_networkx())
        assert form.edges == topology.edge_count
        assert form.degrees == (topology.degrees.min(), topology.degrees.max())
        if form.diameter is not None:
            assert form.diameter == nx.diameter(topology.to_networkx())
    assert known > 0


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.closed])
def test_every_family_with_a_closed_form_is_among_those_tested(name):
    assert any(parse(spec).name == name for spec in SPECS)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if FAMILIES[parse(spec).name].transitive])
def test_in_a_transitive_family_every_node_sees_the_same_distances(spec):
    for topology in list(graphs(spec))[:12]:
        seen = {tuple(np.bincount(hops(topology, node) + 1)) for node in range(topology.nodes)}
        assert len(seen) == 1


def gap(turns, nodes):
    """2 - 2 cos(2 pi turns / nodes) in extended precision."""
    fraction = np.longdouble(1) * (np.asarray(turns) % nodes) / np.longdouble(nodes)
    pi = np.longdouble("3.14159265358979323846264338327950288")
    return 4 * np.sin(pi * fraction) ** 2


@pytest.mark.parametrize("nodes", [99_991, 100_000, 1_000_000])
def test_a_tiny_lambda_2_keeps_its_digits(nodes):
    """Written as a difference of cosines it would lose ten of sixteen."""
    assert formula("ring", nodes).low == pytest.approx(float(gap(1, nodes)), rel=1e-13, abs=0)
    assert formula("path", nodes).low == pytest.approx(float(gap(0.5, nodes)), rel=1e-13, abs=0)
    k = np.arange(1, nodes // 2 + 1)
    steps = (7_001, 9_000, 31_415)
    expected = float(sum(gap(k * step, nodes) for step in steps).min())
    text = "-".join(map(str, steps))
    assert formula(f"circulant:offsets={text}", nodes).low == pytest.approx(expected, rel=1e-12, abs=0)


def test_an_offset_that_comes_round_from_behind_keeps_its_digits():
    """With offset 3 on a million nodes the smallest eigenvalue is that of k = 333333, whose turn is n - 1."""
    assert formula("circulant:offsets=3", 1_000_000).low == pytest.approx(float(gap(1, 1_000_000)), rel=1e-13, abs=0)


@pytest.mark.parametrize("m", [2, 3, 10, 1_000, 500_000])
def test_a_bridge_between_cliques_keeps_its_digits(m):
    """It is the smaller root of a quadratic, here in sixty digits."""
    with localcontext(prec=60):
        barbell = (m + 2 - (Decimal(m + 2) ** 2 - 8).sqrt()) / 2
    assert formula("barbell", 2 * m).low == pytest.approx(float(barbell), rel=1e-14, abs=0)


@pytest.mark.parametrize(
    ("spec", "nodes", "low", "high"),
    [
        ("complete", 2_000_000, 2e6, 2e6),
        ("barbell", 1_000_000, 4e-6, 500_001.999992),
        ("hypercube", 1 << 20, 2.0, 40.0),
        ("torus:dims=100x100x100", 1_000_000, 2 - 2 * math.cos(2 * math.pi / 100), 12.0),
    ],
)
def test_a_formula_holds_at_a_million_nodes(spec, nodes, low, high):
    form = formula(spec, nodes)
    assert form.low == pytest.approx(low, rel=1e-5, abs=0)
    assert form.high == pytest.approx(high, rel=1e-9, abs=0)
    if form.edges > EDGES_LIMIT:
        assert build(spec, nodes).implicit


@pytest.mark.long
def test_a_disconnected_graph_too_large_to_hold_is_not_called_connected():
    offsets = "-".join(str(2 * k) for k in range(1, 2_600))
    topology = build(f"circulant:offsets={offsets}", 20_000)
    assert topology.implicit
    assert topology.formula.low == 0.0
    with pytest.raises(TopologyError, match="more than can be held"):
        component_count(topology)


# -- Families with chance or names: keyed rings, geometric graphs, D-Cliques, and the streams they draw from.

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
