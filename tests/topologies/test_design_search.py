"""The walk that searches for graphs: what guides it is the derivative, and what it skips could not have been taken."""

from __future__ import annotations

import csv
import io
import json
import sys
from itertools import count
from random import Random

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner

from topologies import (
    CRITERIA,
    DESIGN_LIMIT,
    EFFORT_LIMIT,
    ConsensusSettings,
    Goal,
    Robustness,
    SymmetricWalk,
    TopologyError,
    Walk,
    adjacency_of,
    build,
    candidate,
    describe,
    effort,
    evaluations_for,
    known_graphs,
    mixing_rate,
    rotations,
    search,
    simulate,
    spectrum,
    weighted_laplacian,
)
from topologies import design as designing
from topologies.cli import topology
from topologies.cli.terminal import progress, time
from topologies.experiments import decay

WEIGHTS = ("metropolis", "best-constant")


def walk_on(spec, nodes, weights="metropolis", *, seed=0, liars=0):
    goal = Goal(nodes=nodes, max_degree=5, byzantine=liars, weights=weights)
    return Walk(goal, build(spec, nodes, seed).ends)


def test_the_gain_of_an_edge_is_how_fast_the_rate_falls_as_its_weight_grows():
    walk = walk_on("watts-strogatz", 14, "best-constant", seed=2)
    values = np.linalg.eigvalsh(weighted_laplacian(walk.adjacency, "best-constant"))
    scale = 2.0 / (values[1] + values[-1]) ** 2
    step = 1e-6
    for edge in [(0, 7), (1, 9), (2, 3), (5, 12)]:
        i, j = edge
        nudged = walk.adjacency.copy()
        nudged[i, j] = nudged[j, i] = nudged[i, j] + step
        slope = (mixing_rate(nudged, "best-constant") - walk.rate) / step
        assert slope == pytest.approx(-scale * walk.gain(edge), abs=1e-5)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_walk_keeps_to_its_degrees_and_never_skips_a_better_graph(weights):
    rng = Random(1)
    walk = walk_on("random-regular:degree=4", 12, weights, liars=1)
    moves = 0
    for _ in range(400):
        move = walk.draw(rng)
        if move is None:
            continue
        moves += 1
        before = walk.adjacency.copy()
        changes = walk.changes(move)
        walk.make(move)
        exact = mixing_rate(walk.adjacency, weights)
        assert walk.at_least(changes) <= exact + 1e-12
        assert walk.rate_after(changes) == pytest.approx(exact, abs=1e-12)
        if moves % 3:
            walk.undo(move)
            assert np.array_equal(walk.adjacency, before)
        else:
            walk.keep(move)
        degrees = walk.adjacency.sum(axis=0)
        assert np.array_equal(walk.adjacency, walk.adjacency.T)
        assert degrees.tolist() == walk.degrees
        assert degrees.min() >= 3
        assert degrees.max() <= 5
        assert sorted(walk.edges) == [tuple(pair) for pair in np.argwhere(np.triu(walk.adjacency)).tolist()]
    assert moves > 100


@pytest.mark.parametrize("minimize", CRITERIA)
def test_the_energy_grows_with_the_rate_so_that_a_bound_on_one_bounds_the_other(minimize):
    goal = Goal(nodes=10, minimize=minimize)
    energies = [goal.energy(rate, 20) for rate in np.linspace(0.0, 1.0, 200)]
    assert energies == sorted(energies)


def test_more_is_tried_on_small_graphs_than_on_large_ones():
    tried = [evaluations_for(nodes) for nodes in (10, 60, 100, 200, 500)]
    assert tried == sorted(tried, reverse=True)
    assert tried[-2:] == [10_000, 1_000]


def test_the_search_reports_for_each_number_of_edges_a_graph_that_has_it():
    goal = Goal(nodes=10, max_degree=4)
    best = search(goal, [build("ring", 10).ends, build("circulant:offsets=1-3", 10).ends], 800)
    assert len(best.by_edges) > 3
    for edges, (_, rate, ends) in best.by_edges.items():
        assert len(ends) == edges
        assert rate == pytest.approx(mixing_rate(adjacency_of(10, ends), "metropolis"), abs=1e-12)


def test_a_walk_for_lambda_2_bounds_and_reaches_it():
    goal = Goal(nodes=10, max_degree=3, maximize="lambda_2")
    (_, rate, ends), *_ = search(goal, [build("ring", 10).ends], 1_000).ranked()
    low = np.linalg.eigvalsh(nx.laplacian_matrix(nx.Graph(ends.tolist())).toarray().astype(float))[1]
    assert rate == pytest.approx(1.0 / (1.0 + low))
    walk = Walk(goal, build("torus", 10).ends)
    ring, torus = ({tuple(pair) for pair in build(spec, 10).ends.tolist()} for spec in ("ring", "torus"))
    changes = walk.changes((tuple(torus - ring), tuple(ring - torus)))
    other = adjacency_of(10, np.array(sorted(ring)))
    assert walk.at_least(changes) <= mixing_rate(other, goal.matrix) == pytest.approx(walk.rate_after(changes))


@pytest.mark.parametrize(
    ("nodes", "degree", "rate"),
    [
        pytest.param(10, 3, 1 - 2 / 4, id="Petersen"),
        pytest.param(14, 3, 1 - (3 - 2**0.5) / 4, id="Heawood"),
        pytest.param(16, 5, 1 - 4 / 6, id="Clebsch"),
    ],
)
def test_symmetric_walks_alone_reach_the_optimum(nodes, degree, rate):
    """Far below the default budget, without families and without a graph to start from."""
    best = search(Goal(nodes=nodes, max_degree=degree), [], 3_000).ranked()[0]
    assert best[1] == pytest.approx(rate)
    assert evaluations_for(nodes) > 5 * 3_000


@pytest.mark.parametrize("sparse", [False, True])
def test_a_symmetric_walk_keeps_to_its_degree_and_can_be_undone(sparse):
    rng = Random(3)
    for cycles in [(4, 4, 2, 1), (5, 5), (3, 3, 3, 3)]:
        walk = SymmetricWalk(cycles, 4, rng, sparse=sparse)
        for turn in range(60):
            before, state = walk.adjacency.copy(), walk.state
            move = walk.move(rng)
            degrees = walk.adjacency.sum(axis=0)
            assert degrees.max() <= 4
            assert walk.least_degree == degrees.min()
            assert walk.edge_count == degrees.sum() / 2
            assert (walk.state == state) == np.array_equal(walk.adjacency, before)
            if move is not None and turn % 2:
                walk.undo(move)
                assert np.array_equal(walk.adjacency, before)
                assert walk.state == state


def test_a_search_that_is_over_ends_with_what_it_has():
    asked = []

    def over():
        asked.append(None)
        return len(asked) > 40

    best = search(Goal(nodes=12, max_degree=3), [build("ring", 12).ends], 10**9, over=over)
    assert best.by_edges
    assert len(asked) < 60


@pytest.mark.parametrize("nodes", [8, 9])
def test_where_every_edge_is_allowed_each_rotation_is_walked_once_because_nothing_can_be_added(nodes):
    """`over` only ends a search that would go on drawing moves that nothing can make."""
    walked, asked = [], []

    def over():
        asked.append(None)
        return len(asked) > 100_000

    best = search(Goal(nodes=nodes), [], 400, walked.append, over)
    assert len([text for text in walked if "symmetric" in text]) == len(rotations(nodes))
    assert best.ranked()[0][1] == pytest.approx(0.0)


# -- `p2pfl topology design`, as a command.

ASKED = ("design", "-n", "12", "--max-degree", "4", "--evaluations", "300")


def call(*arguments):
    return CliRunner().invoke(topology, arguments, catch_exceptions=False)


def test_the_file_that_is_written_holds_the_winner_as_the_table_has_it(tmp_path):
    path = tmp_path / "graph.json"
    result = call(*ASKED, "--format", "json", "-o", str(path))
    document = json.loads(result.stdout)
    best = document["candidates"][0]
    described = describe(build(str(path), 12))
    assert best["rank"] == 1
    assert described["mixing_rate"] == pytest.approx(best["mixing_rate"], abs=1e-12)
    assert (described["edges"], described["diameter"]) == (best["edges"], best["diameter"])
    assert described["rounds_to_consensus"] == best["rounds"]
    assert described["degree"]["max"] == best["degree_max"] <= 4
    assert document["line"] == f'topology = "{path.as_posix()}"'
    assert document["line"] in result.stderr


def test_a_winner_with_a_name_needs_no_file_and_one_without_says_so():
    named = call("design", "-n", "6", "--max-degree", "2")
    nameless = call("design", "-n", "7", "--max-degree", "3")
    assert '  topology = "ring"\n' in named.stderr
    assert "Only a file can hold the best graph: -o graph.json" in nameless.stderr


def test_the_line_of_a_random_family_brings_its_seed():
    asked = ("design", "-n", "100", "--max-degree", "3", "--evaluations", "0", "--seed", "40", "--format", "json")
    document = json.loads(call(*asked).stdout)
    best = document["candidates"][0]
    assert document["line"] == f'topology = "random-regular:degree=3"\nseed = {best["seed"]}'
    assert spectrum(build(best["topology"], 100, best["seed"])).mixing_rate == pytest.approx(best["mixing_rate"])


def test_every_row_has_its_reason_in_every_form():
    table = call(*ASKED).stdout
    as_csv = list(csv.DictReader(io.StringIO(call(*ASKED, "--format", "csv").stdout)))
    as_json = json.loads(call(*ASKED, "--format", "json").stdout)["candidates"]
    assert [row["why"] for row in as_csv] == [row["why"] for row in as_json]
    assert sum(row["rank"] is not None for row in as_json) == 10
    assert all(f"{row['topology']}: {row['why']}" in table for row in as_json)
    assert "complete: does not qualify: a node has 11 neighbors, and max-degree allows 4" in table


def test_differences_are_counted_from_the_winner():
    rows = json.loads(call(*ASKED, "--format", "json").stdout)["candidates"]
    best, other = rows[0], next(row for row in rows[1:] if row["rank"] and row["rounds"] > rows[0]["rounds"] + 1)
    assert f"{other['rounds'] - best['rounds']} more rounds" in other["why"]


def test_unknown_robustness_is_said(monkeypatch):
    unknown = Robustness(lower=2, upper=3, method="told")
    monkeypatch.setattr("topologies.design.candidates.robustness", lambda _: unknown)
    result = call("design", "-n", "14", "--max-degree", "6", "--byzantine", "1", "--evaluations", "50")
    assert "2..3" in result.stdout
    assert "whether it is robust enough is unknown" in result.stdout


def test_lambda_2_is_a_column_and_can_be_the_criterion():
    asked = ("design", "-n", "10", "--max-degree", "3", "--evaluations", "3000", "--format", "json")
    by_rounds, by_lambda = (json.loads(call(*asked, *more).stdout) for more in ((), ("--maximize", "lambda_2")))
    rows = by_lambda["candidates"]
    ranked = [row["lambda_2"] for row in rows if row["rank"]]
    assert ranked == sorted(ranked, reverse=True)
    assert ranked[0] == pytest.approx(2.0)  # the Petersen graph's
    assert rows[0]["why"].startswith("has the largest lambda_2 of all that were tried; the next: a lambda_2 ")
    for row in by_rounds["candidates"]:
        if row["topology"] in {"torus", "complete"}:
            graph = build(row["topology"], 10)
            assert row["lambda_2"] == pytest.approx(spectrum(graph).algebraic_connectivity)


def test_the_largest_lambda_2_of_six_nodes_is_that_of_the_atlas(tmp_path):
    path = tmp_path / "best.json"
    call("design", "-n", "6", "--max-degree", "3", "--maximize", "lambda_2", "-o", str(path))
    degree_three = [graph for graph in nx.graph_atlas_g() if len(graph) == 6 and max(dict(graph.degree).values()) <= 3]
    best = max(np.linalg.eigvalsh(nx.laplacian_matrix(graph).toarray().astype(float))[1] for graph in degree_three)
    assert spectrum(build(str(path), 6)).algebraic_connectivity == pytest.approx(best)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--maximize", "lambda_2", "--minimize", "bytes"), "two criteria"),
        (("--maximize", "lambda2"), "did you mean 'lambda_2'"),
    ],
)
def test_a_criterion_that_cannot_be_is_refused(more, said):
    with pytest.raises(TopologyError, match=said):
        call("design", "-n", "6", *more)


def test_a_search_within_a_time_ends_with_the_best_so_far():
    asked = ("design", "-n", "12", "--max-degree", "3", "--evaluations", "1000000000", "--within", "1ms")
    result = call(*asked, "--format", "json")
    document = json.loads(result.stdout)
    assert document["stopped"]
    assert document["candidates"][0]["degree_max"] <= 3
    assert "The time of --within was over" in result.stderr
    assert not json.loads(call(*ASKED, "--within", "60s", "--format", "json").stdout)["stopped"]


# -- What would take hours is refused before it begins, and the error says what is allowed.


def attempt(*arguments):
    return CliRunner().invoke(topology, arguments)


def refused(key, function, *arguments, **options):
    with pytest.raises(TopologyError) as caught:
        function(*arguments, **options)
    assert caught.value.key == key
    return str(caught.value)


@pytest.mark.parametrize("nodes", [DESIGN_LIMIT + 1, 10_000, 2_000_000])
def test_a_graph_too_large_to_find_is_refused_and_compare_is_named(nodes):
    said = refused("nodes", designing.design, Goal(nodes=nodes))
    assert f"from 2 to {DESIGN_LIMIT}" in said
    assert "topology compare" in said


def test_the_help_of_design_states_the_limit():
    assert f"at most {DESIGN_LIMIT}" in attempt("design", "--help").output


def test_dense_graphs_that_the_degree_rules_out_are_never_built(monkeypatch):
    built = []

    def counted(spec, nodes, seed):
        made = build(spec, nodes, seed)
        built.append((spec, made.edge_count))
        return made

    monkeypatch.setattr("topologies.design.candidates.build", counted)
    monkeypatch.setattr("topologies.design.candidates.static_choices", lambda _: [(spec, 0) for spec in DENSE])
    found = {entry.spec: entry for entry in known_graphs(Goal(nodes=900, max_degree=4))}
    assert built == [("ring", 900)]
    assert "more than" not in found["ring"].failures
    assert found["complete"].topology.edge_count == 900 * 899 // 2
    assert found["complete"].failures == ("a node has 899 neighbors, and max-degree allows 4",)


DENSE = ("complete", "erdos-renyi", "stochastic-block", "ring")


def test_without_liars_nobody_looks_at_robustness(monkeypatch):
    looked = []
    monkeypatch.setattr("topologies.design.candidates.robustness", looked.append)
    assert attempt("design", "-n", "10", "--max-degree", "3", "--evaluations", "50").exit_code == 0
    assert not looked


def test_a_large_graph_is_looked_at_closely_less_often(monkeypatch):
    told = []
    monkeypatch.setattr(designing, "known_graphs", lambda goal, *_: _rings(goal, 30))
    designing.design(Goal(nodes=600, max_degree=4), tell=told.append, top=100)
    assert told[0] == f"judged 0 of at most {designing.JUDGED_LARGE} graphs"
    assert len(told) == designing.JUDGED_LARGE


def _rings(goal, how_many):
    return [candidate(goal, build("ring", goal.nodes)) for _ in range(how_many)]


@pytest.mark.parametrize(("is_terminal", "lines"), [(False, 2), (True, 0)])
def test_a_long_search_tells_how_far_it_is_in_one_line_of_a_terminal_and_elsewhere_now_and_then(
    monkeypatch, capsys, is_terminal, lines
):
    clock = count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    with progress() as tell:
        for done in range(20):
            tell(f"looked at {done} of 40 graphs")
    shown = capsys.readouterr().err
    assert "looked at" in shown
    assert shown.count("\n") == lines
    assert shown.endswith("\r\x1b[K") is is_terminal


@pytest.mark.parametrize(
    "command",
    [
        ("design", "-n", "20", "--max-degree", "4"),
        ("design", "ring", "-n", "20", "--add", "1"),
    ],
)
@pytest.mark.parametrize(
    ("target", "said"), [("there", "cannot be written"), ("no/where.json", "cannot be written"), ("a.xyz", ".xyz")]
)
def test_the_target_is_checked_before_anything_is_computed(command, target, said, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    for place in ("topologies.design.design", "topologies.families.resolve"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("computed"))
    result = attempt(*command, "-o", str(tmp_path / target))
    assert isinstance(result.exception, TopologyError)
    assert said in str(result.exception)


def test_a_folder_that_may_not_be_written_is_told_before_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr("topologies.cli.terminal.os.access", lambda *_: False)
    monkeypatch.setattr("topologies.design.design", lambda *_, **__: pytest.fail("computed"))
    assert "cannot be written" in str(attempt("design", "-n", "20", "-o", str(tmp_path / "a.json")).exception)


def test_what_is_not_settled_within_the_work_is_said(monkeypatch):
    monkeypatch.setattr("topologies.experiments.WORK_LIMIT", 20_000)
    found = simulate(build("ring", 200))
    assert not found.facts["settled"]
    assert any("had not settled after 100 rounds" in note for note in found.notes)


def test_a_simulation_that_is_asked_for_is_bounded_too():
    refused("rounds", simulate, build("ring", 50_000), ConsensusSettings(rounds=1_000_000))


def test_an_attack_that_would_take_hours_says_how_many_failures_would_not():
    said = refused("remove", decay, build("random-regular:degree=4", 10_000), 9_000)
    most = int(said.rsplit("up to ", 1)[1].split()[0])
    assert most * effort(10_000, 20_000) <= 2 * EFFORT_LIMIT


@pytest.mark.long
def test_a_complete_winner_that_is_known_by_its_formulas_is_written_with_its_edges(tmp_path, monkeypatch):
    monkeypatch.setattr("topologies.design.candidates.static_choices", lambda _: [("complete", 0), ("ring", 0)])
    path = tmp_path / "graph.edges"
    assert attempt("design", "-n", "501", "-o", str(path), "--format", "json").exit_code == 0
    assert len(path.read_text().splitlines()) >= 501 * 500 // 2


def test_a_graph_of_wrong_degrees_that_is_not_connected_either_is_left_out(monkeypatch):
    monkeypatch.setattr("topologies.design.candidates.static_choices", lambda _: [("circulant:offsets=2", 0)])
    assert [entry.failures for entry in known_graphs(Goal(nodes=5_000, max_degree=8, byzantine=1))] == []
