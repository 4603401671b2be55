"""A designed graph is the best there is where that can be known, and never worse than the obvious choices."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner

from topologies import (
    CRITERIA,
    FAMILIES,
    Goal,
    Robustness,
    Topology,
    TopologyError,
    build,
    robustness,
    rounds_to_consensus,
    search,
    spectrum,
    with_more,
    write_topology,
)
from topologies.cli import topology as group
from topologies.design import design

WEIGHTS = ("metropolis", "best-constant")
QUICK = 400
"""evaluations: enough for these claims, and fast."""


@cache
def all_graphs(nodes):
    """Every connected graph with its degrees, edges and mixing rates, the latter from W itself and by numpy alone."""
    found = []
    for graph in nx.graph_atlas_g():
        if graph.number_of_nodes() == nodes and nx.is_connected(graph):
            degrees = sorted(degree for _, degree in graph.degree)
            rates = {weights: reference_rate(nx.to_numpy_array(graph), weights) for weights in WEIGHTS}
            found.append((graph, degrees, graph.number_of_edges(), rates))
    return found


def reference_rate(adjacency, weights):
    degrees = adjacency.sum(axis=0)
    laplacian = np.diag(degrees) - adjacency
    values = np.linalg.eigvalsh(laplacian)
    match weights:
        case "metropolis":
            shares = adjacency / (1.0 + np.maximum.outer(degrees, degrees))
            mixing = shares + np.diag(1.0 - shares.sum(axis=0))
        case _:
            mixing = np.eye(len(degrees)) - laplacian * 2.0 / (values[1] + values[-1])
    moduli = np.sort(np.abs(np.linalg.eigvalsh(mixing)))
    return float(moduli[-2])


def value(minimize, rate, edges):
    """What the criterion promises to make small, by its definition."""
    rounds = rounds_to_consensus(rate)
    return {"rounds": (round(rate, 9), edges), "bytes": (2 * edges * rounds, round(rate, 9))}.get(
        minimize, (edges, round(rate, 9))
    )


def best_value(nodes, highest, minimize, weights):
    return min(
        value(minimize, rates[weights], edges)
        for _, degrees, edges, rates in all_graphs(nodes)
        if degrees[-1] <= highest
    )


def reached(found):
    best = found.winner
    return value(found.goal.minimize, best.rate, best.topology.edge_count)


def assert_close(mine, best):
    """The second figure breaks a tie of the first, so that it counts only where the first is the same."""
    assert mine[0] == pytest.approx(best[0], abs=1e-9)
    assert mine[1] == pytest.approx(best[1], abs=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(
    "goal", [Goal(nodes=30), Goal(nodes=10, max_degree=9, byzantine=2), Goal(nodes=9, maximize="lambda_2")]
)
def test_the_complete_graph_is_the_proven_answer_without_a_search_where_it_is_allowed(goal):
    told = []
    found = design(goal, tell=told.append, over=lambda: any("searched" in text for text in told))
    assert (found.winner.spec, found.proven, found.stopped) == ("complete", True, False)
    assert not any("searched" in text for text in told)


@pytest.mark.parametrize("minimize", CRITERIA)
@pytest.mark.parametrize("nodes", [3, 4, 5, *(pytest.param(nodes, marks=pytest.mark.long) for nodes in (6, 7))])
def test_up_to_seven_nodes_the_winner_is_the_best_of_all_connected_graphs(nodes, minimize):
    """Every degree, each with one of the two kinds of weights; all kinds: see the long test."""
    for highest in range(2, nodes):
        assert_best(nodes, highest, minimize, WEIGHTS[(nodes + highest + CRITERIA.index(minimize)) % 2])


@pytest.mark.long
@pytest.mark.parametrize("weights", WEIGHTS)
def test_up_to_seven_nodes_the_winner_is_the_best_under_all_weights(weights):
    for nodes in range(3, 8):
        for highest in range(2, nodes):
            for minimize in CRITERIA:
                assert_best(nodes, highest, minimize, weights)


def assert_best(nodes, highest, minimize, weights):
    found = design(Goal(nodes=nodes, max_degree=highest, minimize=minimize, weights=weights))
    assert found.proven
    assert_close(reached(found), best_value(nodes, highest, minimize, weights))


@pytest.mark.long
@pytest.mark.parametrize("weights", ["metropolis", "best-constant"])
@pytest.mark.parametrize(("nodes", "highest"), [(6, 3), (6, 4), (7, 3), (7, 4)])
def test_the_search_by_itself_finds_the_best_of_all_graphs_of_six_and_seven_nodes(nodes, highest, weights):
    """It never looks at the atlas, so that what it finds on larger graphs can be trusted a little."""
    degree = highest - highest * nodes % 2
    specs = [("ring", 0), ("path", 0), *((f"random-regular:degree={degree}", seed) for seed in (1, 2))]
    goal = Goal(nodes=nodes, max_degree=highest, weights=weights)
    _, rate, ends = search(goal, [build(spec, nodes, seed).ends for spec, seed in specs], 1_000).ranked()[0]
    assert_close((rate, len(ends)), best_value(nodes, highest, "rounds", weights))


@pytest.mark.long
@pytest.mark.parametrize("liars", [1])
@pytest.mark.parametrize("nodes", [5, 6, 7])
def test_with_liars_the_winner_is_the_best_of_all_that_are_robust_enough(nodes, liars):
    need = 2 * liars + 1
    robust = [
        (round(rates["metropolis"], 9), edges)
        for graph, degrees, edges, rates in all_graphs(nodes)
        if degrees[0] >= need and robustness(Topology("", nodes, graph.edges)).lower >= need
    ]
    found = design(Goal(nodes=nodes, byzantine=liars))
    assert_close(reached(found), min(robust))


@pytest.mark.long
@pytest.mark.parametrize("minimize", ["rounds", "bytes"])
@pytest.mark.parametrize(
    ("nodes", "highest", "weights"),
    [
        (8, 2, "metropolis"),
        (15, 5, "metropolis"),
        (16, 8, "best-constant"),
        (26, 7, "metropolis"),
        (9, 3, "metropolis"),
        (12, 4, "best-constant"),
        (21, 3, "metropolis"),
        (30, 3, "best-constant"),
    ],
)
def test_no_ring_and_no_random_regular_graph_is_better(nodes, highest, weights, minimize):
    found = design(Goal(nodes=nodes, max_degree=highest, weights=weights, minimize=minimize), evaluations=QUICK)
    rivals = [build("ring", nodes)]
    for degree in {highest, highest - 1, max(2, highest // 2)} - {1}:
        if nodes * degree % 2 == 0:
            rivals += [build(f"random-regular:degree={degree}", nodes, seed) for seed in range(100, 106)]
    for rival in rivals:
        rate = spectrum(rival, weights).mixing_rate
        if rate < 1.0:
            assert reached(found) <= value(minimize, rate, rival.edge_count)


@pytest.mark.parametrize(("nodes", "highest"), [(21, 3), (15, 5), (9, 3)])
def test_where_no_regular_graph_is_possible_the_degree_is_used_all_the_same(nodes, highest):
    """Of an odd number of nodes, not all can have an odd number of neighbors; those that can are worth it."""
    best = design(Goal(nodes=nodes, max_degree=highest), evaluations=QUICK).winner
    sparser = (build(f"random-regular:degree={highest - 1}", nodes, seed) for seed in range(10))
    assert best.topology.degrees.max() == highest
    assert best.rate < 0.95 * min(spectrum(rival).mixing_rate for rival in sparser)


@pytest.mark.parametrize("nodes", [5, 20])
def test_the_same_arguments_give_the_same_graph(nodes):
    goal = Goal(nodes=nodes, max_degree=4, minimize="bytes", seed=3)
    first, second = (design(goal, evaluations=QUICK) for _ in range(2))
    assert [entry.spec for entry in first.qualified] == [entry.spec for entry in second.qualified]
    assert all(a.topology == b.topology for a, b in zip(first.qualified, second.qualified, strict=True))


def test_what_is_said_of_the_winner_is_true():
    goal = Goal(nodes=20, max_degree=6, byzantine=1)
    best = design(goal, evaluations=QUICK).winner
    graph = best.topology.to_networkx()
    rate = reference_rate(nx.to_numpy_array(graph, nodelist=range(20)), "metropolis")
    assert nx.is_connected(graph)
    assert not list(nx.bridges(graph))
    assert 3 <= min(dict(graph.degree).values()) <= max(dict(graph.degree).values()) <= 6
    assert robustness(best.topology).lower >= 3
    assert best.rate == pytest.approx(rate, abs=1e-9)
    assert best.sent == 2 * graph.number_of_edges() * rounds_to_consensus(rate) * 400_000


def test_graphs_that_are_too_large_to_search_are_designed_from_the_families(monkeypatch):
    monkeypatch.setattr("topologies.design.SEARCH_LIMIT", 50)
    found = design(Goal(nodes=60, max_degree=4))
    assert not found.proven
    assert found.winner.spec.partition(":")[0] in FAMILIES
    assert found.winner.topology.degrees.max() <= 4


def test_a_graph_whose_robustness_is_unknown_stands_behind_those_known_to_qualify(monkeypatch):
    def half_known(topology):
        lower = 3 if topology.spec.startswith("random-regular") else 2
        return Robustness(lower=lower, upper=3, method="told")

    monkeypatch.setattr("topologies.design.candidates.robustness", half_known)
    found = design(Goal(nodes=16, max_degree=6, byzantine=1), evaluations=200)
    known = [entry.proven for entry in found.qualified]
    assert known == sorted(known, reverse=True)
    assert True in known
    assert min(entry.key for entry in found.qualified) < found.winner.key


@pytest.mark.parametrize(
    ("requirements", "key", "said"),
    [
        ({"nodes": 1}, "nodes", "from 2"),
        ({"nodes": 5, "max_degree": 1}, "max-degree", "from 2"),
        ({"nodes": 20, "max_degree": 2, "byzantine": 1}, "max-degree", "from 3"),
        ({"nodes": 9, "max_degree": 3, "byzantine": 1}, "max-degree", "from 4"),
        ({"nodes": 4, "byzantine": 1}, "byzantine", "at least 5 nodes"),
        ({"nodes": 5, "byzantine": -1}, "byzantine", "from 0"),
        pytest.param(
            {"nodes": 20, "max_degree": 4, "byzantine": 1}, "byzantine", "max-degree = ", marks=pytest.mark.long
        ),
        ({"nodes": 5, "minimize": "byte"}, "minimize", "did you mean 'bytes'"),
        ({"nodes": 5, "weights": "best"}, "weights", "best-constant"),
    ],
)
def test_what_cannot_be_met_is_an_error_that_names_the_key_and_what_would_do(requirements, key, said):
    with pytest.raises(TopologyError) as caught:
        design(Goal(**requirements), evaluations=200)
    assert caught.value.key == key
    assert said in str(caught.value)


@pytest.mark.long
def test_where_few_graphs_are_robust_enough_more_are_drawn():
    found = design(Goal(nodes=14, max_degree=5, byzantine=1), evaluations=0)
    assert robustness(found.winner.topology).lower >= 3
    assert found.winner.topology.degrees.max() <= 5


@pytest.mark.long
def test_the_degree_that_would_do_is_looked_for_among_drawn_graphs_too():
    with pytest.raises(TopologyError) as caught:
        design(Goal(nodes=14, max_degree=4, byzantine=1), evaluations=0)
    assert "max-degree = 5" in caught.value.allowed


# -- `design SPEC --add K`: the graph with its edges, and the K that help it most.

IRREGULAR = [
    ("path", 9, 0),
    ("barbell", 12, 0),
    ("watts-strogatz", 20, 1),
    ("erdos-renyi:p=0.3", 14, 2),
    ("random-regular:degree=3", 16, 3),
    ("barabasi-albert", 18, 4),
]


def lambda_2(topology):
    return np.sort(np.linalg.eigvalsh(nx.laplacian_matrix(topology.to_networkx()).toarray().astype(float)))[1]


def every_addition(given):
    for pair in combinations(range(given.nodes), 2):
        if pair not in given.edges:
            yield Topology("", given.nodes, [*given.edges, pair])


def best_of(given, count, **wishes):
    goal = Goal(nodes=given.nodes, given=given, add=count, **wishes)
    return design(goal, evaluations=2_000).winner


@pytest.mark.parametrize(("spec", "nodes", "seed"), IRREGULAR)
def test_one_edge_is_the_best_single_edge_of_all_for_lambda_2(spec, nodes, seed):
    given = build(spec, nodes, seed)
    found = best_of(given, 1, maximize="lambda_2").topology
    assert lambda_2(found) == pytest.approx(max(map(lambda_2, every_addition(given))), abs=1e-9)


@pytest.mark.parametrize("weights", ["metropolis", "best-constant"])
@pytest.mark.parametrize(("spec", "nodes"), [("ring", 9), ("watts-strogatz", 12), ("star", 7)])
def test_no_other_single_edge_needs_fewer_rounds(spec, nodes, weights):
    given = build(spec, nodes, 1)
    rates = [spectrum(other, weights).mixing_rate for other in every_addition(given)]
    assert best_of(given, 1, weights=weights).rate == pytest.approx(min(rates), abs=1e-9)


@pytest.mark.parametrize("wishes", [{}, {"maximize": "lambda_2"}, {"minimize": "bytes"}])
def test_all_given_edges_stay_and_so_many_come(wishes):
    given = build("ring", 16)
    found = best_of(given, 4, max_degree=3, **wishes).topology
    assert set(given.edges) < set(found.edges)
    assert (found.edge_count, found.degrees.max()) == (20, 3)


def test_each_criterion_is_best_by_its_own():
    ring = build("ring", 16)
    by_rounds, by_lambda = best_of(ring, 3), best_of(ring, 3, maximize="lambda_2")
    assert by_rounds.rounds <= min(47, by_lambda.rounds)
    assert by_lambda.lambda_2 >= by_rounds.lambda_2 - 1e-9


@pytest.mark.parametrize(("offset", "nodes"), [(2, 8), (3, 12), (6, 12)])
def test_parts_are_joined_first(offset, nodes):
    given = build(f"circulant:offsets={offset}", nodes)
    assert lambda_2(best_of(given, offset - 1).topology) > 0
    if offset > 2:
        with pytest.raises(TopologyError, match=r"add: .* leave the graph in 2 parts .*; allowed: more"):
            design(Goal(nodes=nodes, given=given, add=offset - 2), evaluations=0)


def test_the_first_choice_lifts_the_eigenvalues_that_equal_lambda_2_most():
    """A path: its ends are farthest apart in the only eigenvector."""
    ends = with_more(Goal(nodes=9, add=1), build("path", 9))
    assert [0, 8] in ends.tolist()


@pytest.mark.parametrize(
    ("given", "count", "highest", "key", "said"),
    [
        (("complete", 5), 1, None, "add", "up to 0|from 1 to 0"),
        (("ring", 5), 6, None, "add", "from 1 to 5"),
        (("ring", 5), 0, None, "add", "from 1 to 5"),
        (("ring", 5), 1, 2, "add", "up to 0, or a larger --max-degree"),
        (("ring", 501), 1, None, "nodes", "up to 500"),
        (("star", 8), 1, 4, "add", "a node has 7 neighbors"),
    ],
)
def test_what_cannot_be_added_is_refused_with_what_would_do(given, count, highest, key, said):
    with pytest.raises(TopologyError, match=said) as caught:
        best_of(build(*given), count, max_degree=highest)
    assert caught.value.key == key


def call(*arguments):
    return CliRunner().invoke(group, arguments, catch_exceptions=False)


def test_the_command_writes_the_graph_and_tells_what_it_added_to_what(tmp_path):
    path = tmp_path / "better.json"
    asked = ("design", "ring", "-n", "12", "--add", "3", "--evaluations", "300", "-o", str(path), "--format", "json")
    result = call(*asked)
    best, given = json.loads(result.stdout)["candidates"]
    read = build(str(path), 12)
    added = [f"{i}-{j}" for i, j in read.edges if (i, j) not in build("ring", 12).edges]
    assert best["why"].startswith(f"adds {', '.join(added)}; needs the fewest rounds of all that were tried")
    assert (best["edges"], given["edges"], given["topology"], given["why"]) == (15, 12, "ring", "as given")
    assert spectrum(read).mixing_rate == pytest.approx(best["mixing_rate"])
    assert given["rounds"] > best["rounds"]
    assert f'topology = "{path.as_posix()}"' in result.stderr


def test_an_edge_is_told_by_the_names_that_the_file_gives_its_ends(tmp_path):
    """A path that lost its node 1: its numbers from 0 on are not those in the file."""
    path = tmp_path / "left.json"
    write_topology(Topology("", 5, [(1, 2), (2, 3), (3, 4)], names=["0", "2", "3", "4", "5"]), path)
    asked = ("design", str(path), "--add", "2", "--maximize", "lambda_2", "--evaluations", "200", "--format", "json")
    best, *_ = json.loads(call(*asked).stdout)["candidates"]
    assert best["why"].startswith("adds 0 - ")
    assert set(resolved_names(path)) == {"0", "2", "3", "4", "5"}


def resolved_names(path):
    return [node["id"] for node in json.loads(path.read_text())["nodes"]]


@pytest.mark.parametrize("arguments", [("ring", "-n", "9"), ("-n", "9", "--add", "2")])
def test_a_graph_and_how_many_to_add_go_together(arguments):
    with pytest.raises(TopologyError, match="a graph SPEC and --add, or neither"):
        call("design", *arguments)
