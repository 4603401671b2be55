"""Where a report or a view shows an accuracy that is of an older model than the node's last, it says so."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rich.console import Console

from p2pfl.cli.launch import LiveView, _show
from p2pfl.cli.run import _in_words
from p2pfl.console.output import figure, footnote
from p2pfl.console.overview import view as overview
from p2pfl.fleet.fleet import Child
from p2pfl.fleet.report import _node
from p2pfl.reporting.report import Report
from p2pfl.reporting.status import MeanAndMax, NodeLine, PrivacyStatus

LINE = NodeLine(
    node="node1",
    uptime_s=3.0,
    phase="testing",
    rounds=40,
    rounds_without_neighbor=0,
    version=58,
    accuracy=0.8350,
    test_loss=0.5,
    tested_round=35,
    tested_version=35,
    test_is_stale=True,
    loss=0.1,
    staleness=MeanAndMax(mean=1.0, max=2),
    bytes_sent=1000,
    bytes_received=1000,
    messages_sent=10,
    messages_received=10,
    peers=2,
    quarantined=0,
    exchanges=50,
    closing_rounds=0,
    neighbor_distance=0.01,
    disk_refuses=None,
)
FRESH = replace(LINE, test_is_stale=False)
NOTE = "* of an earlier model: tested after round 35, not since"


def child(tmp_path, **more):
    node = SimpleNamespace(path=tmp_path / "node1" / "node.toml", state_dir=tmp_path / "node1" / "state")
    return Child(name="node1", node=node, lines=[LINE], **more)


def test_the_star_stands_beside_the_figure_and_nowhere_else():
    assert figure(0.835, stale=True) == "0.835*"
    assert figure(0.835, stale=False) == "0.835"
    assert figure(0.835, stale=None) == "0.835"
    assert figure(None, stale=True) is None
    assert footnote([35]) == [NOTE]
    assert footnote([35, 3]) == [NOTE.replace("35", "3 to 35")]
    assert footnote([]) == []


def test_the_live_view_has_star_and_footnote(tmp_path):
    training = SimpleNamespace(rounds=40)
    federation = SimpleNamespace(name="ward", topology="ring", training=training, privacy=None, in_step_by="")
    view = LiveView(SimpleNamespace(federation=federation, children=[child(tmp_path)], elapsed_s=3.0))
    out = io.StringIO()
    Console(file=out, width=120).print(overview(view.overview(), width=120))
    assert out.getvalue().strip().endswith(NOTE)
    assert " 0.835*   0.500* " in out.getvalue()


def test_a_line_for_a_reader_says_after_which_round_it_was_tested():
    assert "accuracy 0.835*  tested after round 35" in _in_words(LINE)
    assert "tested" not in _in_words(FRESH)


def test_a_line_for_a_reader_has_the_loss_of_a_test_where_there_is_no_other_figure():
    assert "  accuracy 0.835  loss 0.1  " in _in_words(FRESH)
    lone = replace(FRESH, accuracy=None)
    assert "  test loss 0.5  loss 0.1  " in _in_words(lone)
    assert "  test loss -  loss 0.1  " in _in_words(replace(lone, test_loss=None))


def test_a_line_of_a_private_node_leaves_out_what_is_withheld():
    spent = PrivacyStatus(unit="record", epsilon=1.0, budget=8.0, delta=1e-5, rounds_left=3, state="open")
    said = _in_words(replace(FRESH, accuracy=None, test_loss=None, privacy=spent))
    assert "  phase testing  epsilon 1 of 8  staleness 1  " in said


def test_a_line_for_a_reader_begins_with_the_time_and_the_node():
    assert re.match(r"\d\d:\d\d:\d\d  node1  round ", _in_words(LINE))


@pytest.mark.parametrize(("tested_version", "stale"), [(35, True), (58, False)])
def test_a_node_that_was_killed_ends_with_an_old_figure_unless_it_had_just_tested(tmp_path, tested_version, stale):
    killed = child(tmp_path, exit_code=-9)
    killed.lines = [replace(FRESH, tested_version=tested_version)]
    assert _node(killed).test_is_stale == stale


def test_the_final_table_has_star_and_footnote(tmp_path, capsys):
    nodes = [_node(child(tmp_path, exit_code=130))]
    _show(Report(nodes=nodes, topology="ring", config={"training": {"rounds": 40}}, history=[]), "table")
    out = capsys.readouterr().out
    assert " 0.835* " in out
    assert NOTE in out.splitlines()
