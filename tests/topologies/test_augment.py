"""Edges are added where they raise the algebraic connectivity most."""

from __future__ import annotations

import json
from itertools import combinations, pairwise

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner

from topologies import Topology, TopologyError, build
from topologies.cli import topology as group
from topologies.design import fewer_rounds
from topologies.design.augmenting import augment, best_edge, by_chance, with_edge
from topologies.design.goal import adjacency_of
from topologies.spectral import spectrum

IRREGULAR = [
    ("path", 9, 0),
    ("barbell", 12, 0),
    ("tree", 13, 0),
    ("watts-strogatz", 20, 1),
    ("erdos-renyi:p=0.3", 14, 2),
    ("random-regular:degree=3", 16, 3),
    ("barabasi-albert", 18, 4),
]
SYMMETRIC = [("ring", 11, 0), ("ring", 12, 0), ("torus", 16, 0), ("hypercube", 16, 0), ("star", 9, 0)]


def values(topology):
    return np.sort(np.linalg.eigvalsh(nx.laplacian_matrix(topology.to_networkx()).toarray().astype(float)))


def every_addition(topology):
    there = set(topology.edges)
    for pair in combinations(range(topology.nodes), 2):
        if pair not in there:
            yield Topology("", topology.nodes, [*topology.edges, pair])


@pytest.mark.parametrize(("spec", "nodes", "seed"), IRREGULAR)
def test_the_first_edge_is_the_best_single_edge_of_all(spec, nodes, seed):
    given = build(spec, nodes, seed)
    best = max(values(other)[1] for other in every_addition(given))
    assert values(augment(given, 1).topology)[1] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(("spec", "nodes", "seed"), SYMMETRIC)
def test_of_equal_eigenvalues_the_edge_lifts_one_as_high_as_any_edge_can(spec, nodes, seed):
    given = build(spec, nodes, seed)
    before = values(given)
    width = int(np.count_nonzero(np.abs(before - before[1]) < 1e-9))
    assert width > 1
    best = max(values(other)[width] for other in every_addition(given))
    assert values(augment(given, 1).topology)[width] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(("spec", "nodes", "seed"), [*IRREGULAR, *SYMMETRIC, ("circulant:offsets=3", 9, 0)])
def test_it_is_at_least_as_good_as_random_edges_and_never_goes_down(spec, nodes, seed):
    given = build(spec, nodes, seed)
    for count in (2, 4):
        steps = augment(given, count).steps
        reached = [step.algebraic_connectivity for step in steps]
        assert all(b >= a - 1e-9 for a, b in pairwise(reached))
        assert reached[-1] >= by_chance(given, count, None, seed, 20) - 1e-9


def test_each_step_is_told_as_it_is():
    given = build("watts-strogatz", 20, 1)
    found = augment(given, 3)
    edges = list(given.edges)
    for step in found.steps[1:]:
        assert step.edge not in edges
        edges.append(step.edge)
        expected = spectrum(Topology("", 20, edges))
        assert step.algebraic_connectivity == pytest.approx(expected.algebraic_connectivity, abs=1e-9)
        assert step.mixing_rate == pytest.approx(expected.mixing_rate, abs=1e-9)
    assert set(found.topology.edges) == set(edges)


@pytest.mark.parametrize(("offset", "nodes"), [(2, 8), (3, 12), (6, 12)])
def test_components_are_joined_first_one_with_each_edge(offset, nodes):
    given = build(f"circulant:offsets={offset}", nodes)
    parts = [step.components for step in augment(given, offset).steps]
    assert parts == [*range(offset, 0, -1), 1]


def test_no_node_goes_beyond_the_degree():
    found = augment(build("path", 8), 3, 3)
    assert found.topology.degrees.max() == 3
    assert augment(build("ring", 8), 4, 3).topology.degrees.tolist() == [3] * 8


@pytest.mark.parametrize(
    ("given", "count", "highest", "key", "said"),
    [
        (("complete", 5), 1, None, "add", "up to 0"),
        (("ring", 5), 6, None, "add", "up to 5"),
        (("ring", 5), 1, 2, "max-degree", "add up to 0"),
        (("circulant:offsets=2", 8), 1, 2, "max-degree", "a larger one"),
        (("ring", 5), 0, None, "add", "from 1"),
        (("ring", 5), 1, 0, "max-degree", "from 1"),
    ],
)
def test_where_no_edge_has_room_the_error_says_what_would_do(given, count, highest, key, said):
    with pytest.raises(TopologyError) as caught:
        augment(build(*given), count, highest)
    assert caught.value.key == key
    assert said in str(caught.value)


def test_components_without_room_cannot_be_joined():
    """Two triangles and a pair: the triangles are full at two neighbors, and within the pair nothing is missing."""
    given = Topology("", 8, [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (6, 7)])
    with pytest.raises(TopologyError, match="max-degree"):
        augment(given, 1, 2)


def test_pruning_by_the_gain_misses_nothing(monkeypatch):
    given = build("watts-strogatz", 30, 5)
    whole = best_edge(given)
    monkeypatch.setattr("topologies.design.augmenting.BLOCK", 1)
    assert best_edge(given) == whole


def test_above_the_dense_limit_the_fiedler_vector_decides(monkeypatch):
    """On a barbell an edge between the cliques' far sides is as good to first order as any."""
    given = build("barbell:path=4", 24)
    exact = augment(given, 1).steps[-1].algebraic_connectivity
    monkeypatch.setattr("topologies.design.augmenting.DENSE_LIMIT", 10)
    found = augment(given, 1)
    assert found.steps[-1].method == "first order"
    assert found.steps[-1].algebraic_connectivity == pytest.approx(exact, rel=0.01)


def call(*arguments):
    return CliRunner().invoke(group, arguments, catch_exceptions=False)


def test_the_command_writes_the_graph_that_its_last_row_tells_of(tmp_path):
    path = tmp_path / "better.json"
    result = call("augment", "ring", "-n", "12", "--add", "3", "--format", "json", "-o", str(path))
    document = json.loads(result.stdout)
    read = build(str(path), 12)
    assert read.edge_count == 15
    assert spectrum(read).algebraic_connectivity == pytest.approx(document["steps"][-1]["lambda_2"], abs=1e-12)
    assert document["random_lambda_2"] == pytest.approx(by_chance(build("ring", 12), 3, None, 0, 20))
    assert "3 random edges instead" in result.stderr
    assert f'topology = "{path.as_posix()}"' in result.stderr


def test_a_graph_file_is_augmented_and_what_stays_apart_is_said(tmp_path):
    path = tmp_path / "pair.edges"
    path.write_text("0 1\n")
    result = call("augment", str(path), "-n", "4", "--add", "1")
    assert "joins two components" in result.stdout
    assert "Still not connected" in result.stderr


def test_an_edge_is_told_by_the_names_that_the_file_gives_its_ends(tmp_path):
    """A graph that lost its node 1: its numbers from 0 on are not those in the file."""
    path = tmp_path / "left.json"
    call("attack", "path", "-n", "6", "--strategy", "degree", "-o", str(path))
    document = json.loads(call("augment", str(path), "--add", "2", "--format", "json").stdout)
    assert [step["added"] for step in document["steps"]] == [None, "0 - 3", "3 - 5"]


@pytest.mark.parametrize("weights", ["metropolis", "max-degree", "best-constant"])
def test_no_other_single_edge_needs_fewer_rounds(weights):
    for given in (build("ring", 9), build("watts-strogatz", 12, 1), build("star", 7)):
        found = augment(given, 1, weights=weights, minimize="rounds").steps[-1]
        pairs = [pair for pair in combinations(range(given.nodes), 2) if pair not in given.edges]
        rates = [spectrum(with_edge(given, pair), weights).mixing_rate for pair in pairs]
        assert found.mixing_rate == pytest.approx(min(rates), abs=1e-9)


@pytest.mark.parametrize("count", [3, 6])
def test_rounds_as_the_aim_never_need_more_than_lambda_2_as_the_aim(count):
    ring = build("ring", 16)
    by_lambda, by_rounds = augment(ring, count), augment(ring, count, minimize="rounds")
    assert by_rounds.steps[-1].rounds < by_lambda.steps[-1].rounds
    assert by_rounds.topology.edge_count == 16 + count
    assert by_rounds.steps[-1].mixing_rate == pytest.approx(spectrum(by_rounds.topology).mixing_rate)


@pytest.mark.parametrize("weights", ["metropolis", "max-degree", "best-constant"])
def test_the_bound_by_which_edges_are_skipped_holds(weights):
    given = build("erdos-renyi:p=0.3", 12, 4)
    pairs = np.array([pair for pair in combinations(range(12), 2) if pair not in given.edges])
    bounds = fewer_rounds._bounds(adjacency_of(12, given.ends), pairs, weights)
    rates = [spectrum(with_edge(given, tuple(pair)), weights).mixing_rate for pair in pairs.tolist()]
    assert (bounds <= np.array(rates) + 1e-12).all()


def test_exchanged_edges_stay_within_the_degree_and_keep_parts_joined():
    found = augment(build("erdos-renyi:p=0.1", 12, 3), 8, 4, minimize="rounds")
    assert found.steps[-1].components == 1
    assert int(found.topology.degrees.max()) <= 4


def test_more_rounds_than_before_are_warned_of_and_fewer_are_not():
    one = CliRunner().invoke(group, ["augment", "ring", "-n", "16", "--add", "1"])
    assert "warning: rounds rise from 133 to 155" in one.stderr
    assert "--minimize rounds looks at these, too" in one.stderr
    three = CliRunner().invoke(group, ["augment", "ring", "-n", "16", "--add", "3", "--minimize", "rounds"])
    assert (three.exit_code, "warning" in three.stderr) == (0, False)


def test_an_aim_or_a_size_that_cannot_be_is_refused():
    with pytest.raises(TopologyError, match=r"unknown criterion.*rounds; without it lambda_2 is maximized"):
        augment(build("ring", 9), 1, minimize="bytes")
    with pytest.raises(TopologyError, match="too large to look for the fewest rounds"):
        augment(build("ring", 501), 1, minimize="rounds")
