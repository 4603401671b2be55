"""`design SPEC --add K`: the graph with its edges, and the K that help it most."""

from __future__ import annotations

import json
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner

from topologies import Topology, TopologyError, build, spectrum
from topologies.cli import topology as group
from topologies.design import design, with_more
from topologies.design.candidates import Goal
from topologies.files import write_topology

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
