"""What would take hours is refused before it begins, and the error says what is allowed."""

from __future__ import annotations

import sys
from itertools import count

import pytest
from click.testing import CliRunner

from topologies import TopologyError, build
from topologies import design as designing
from topologies.cli import terminal, topology
from topologies.design.candidates import DESIGN_LIMIT, Goal, candidate, known_graphs
from topologies.eigen import EFFORT_LIMIT, effort
from topologies.experiments import ConsensusSettings, decay, simulate


def call(*arguments):
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
    assert f"at most {DESIGN_LIMIT}" in call("design", "--help").output


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
    assert call("design", "-n", "10", "--max-degree", "3", "--evaluations", "50").exit_code == 0
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
    monkeypatch.setattr(terminal.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    with terminal.progress() as tell:
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
    result = call(*command, "-o", str(tmp_path / target))
    assert isinstance(result.exception, TopologyError)
    assert said in str(result.exception)


def test_a_folder_that_may_not_be_written_is_told_before_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr("topologies.cli.terminal.os.access", lambda *_: False)
    monkeypatch.setattr("topologies.design.design", lambda *_, **__: pytest.fail("computed"))
    assert "cannot be written" in str(call("design", "-n", "20", "-o", str(tmp_path / "a.json")).exception)


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
    assert call("design", "-n", "501", "-o", str(path), "--format", "json").exit_code == 0
    assert len(path.read_text().splitlines()) >= 501 * 500 // 2


def test_a_graph_of_wrong_degrees_that_is_not_connected_either_is_left_out(monkeypatch):
    monkeypatch.setattr("topologies.design.candidates.static_choices", lambda _: [("circulant:offsets=2", 0)])
    assert [entry.failures for entry in known_graphs(Goal(nodes=5_000, max_degree=8, byzantine=1))] == []
