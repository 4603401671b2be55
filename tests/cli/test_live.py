"""The live view: a table where somebody looks on, and otherwise a line now and then. Where a view, a line or a report
shows an accuracy that is of an older model than the node's last, it says so.
"""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rich.console import Console

from p2pfl.cli import LiveView, _in_words, _show
from p2pfl.console.output import figure, footnote
from p2pfl.console.overview import view
from p2pfl.fleet import Child, _node
from p2pfl.learn import Measure
from p2pfl.reporting import MeanAndMax, NodeLine, PrivacyStatus, Report

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


def line(node, rounds):
    told = {"accuracy": 0.75, "test_loss": None, "staleness": MeanAndMax(0.0, 0), "bytes_sent": 100, "peers": 1}
    return replace(LINE, node=node, rounds=rounds, tested_round=rounds - 1, neighbor_distance=None, **told)


def child(name, *lines):
    return SimpleNamespace(
        name=name,
        lines=list(lines),
        last=lines[-1] if lines else None,
        died=False,
        exit_code=None,
        state="running",
        byzantine=False,
        bytes_before=0,
        messages_before=0,
    )


def fleet_of(*children):
    federation = SimpleNamespace(
        name="ward",
        topology="ring",
        privacy=None,
        in_step_by="",
        training=SimpleNamespace(rounds=9, trained_rounds=9),
        gossip=SimpleNamespace(rule="mean"),
    )
    return SimpleNamespace(federation=federation, children=list(children), honest=list(children), elapsed_s=4.0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_words_stand_left_and_figures_right_and_a_node_that_has_said_nothing_has_none():
    overview = LiveView(fleet_of(child("pi1", line("pi1", 4)), child("pi2"))).overview()
    out = io.StringIO()
    Console(file=out, width=100).print(view(overview, width=100))
    lines = [text.split() for text in out.getvalue().splitlines()]
    assert ["member", "state", "round", "accuracy", "staleness", "sent", "peers"] in lines
    rows = [words for words in lines if words and words[0].startswith("pi")]
    assert rows == [["pi1", "running", "4", "0.750*", "0.0", "100", "B", "1"], ["pi2", "running", *["-"] * 5]]
    assert "* of an earlier model: tested after round 3, not since" in out.getvalue()
    assert out.getvalue().count("pi2") == 1


def test_the_live_view_has_star_and_footnote():
    out = io.StringIO()
    Console(file=out, width=120).print(view(LiveView(fleet_of(child("node1", LINE))).overview(), width=120))
    assert out.getvalue().strip().endswith(NOTE)
    assert " 0.835*   0.500* " in out.getvalue()


def test_on_a_terminal_the_table_is_drawn(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    live_view = LiveView(fleet_of(child("pi1", line("pi1", 4))))
    with live_view.live:
        live_view.update()
    assert "1 members of ring, 4 s" in sys.stderr.getvalue()


def test_on_a_narrow_terminal_whole_columns_are_left_out():
    told = line("pi1", 4)
    told.metrics = dict.fromkeys(("auc", "average_precision", "balanced_accuracy"), 0.75)
    told.measures = [Measure(name, name, higher_is_better=True) for name in ("accuracy", *told.metrics)]
    out = io.StringIO()
    overview = LiveView(fleet_of(child("hospital-north", told))).overview()
    Console(file=out, width=80).print(view(overview, width=80))
    assert ["member", "state", "round", "accuracy"] in [line.split()[:4] for line in out.getvalue().splitlines()]
    assert "average_precision" not in out.getvalue()
    assert "…" not in out.getvalue()


def test_elsewhere_a_line_says_now_and_then_how_far_they_are(monkeypatch, capsys):
    monkeypatch.setattr(LiveView, "line_every_s", 0.0)
    fleet = fleet_of(child("pi1", line("pi1", 4)), child("pi2", line("pi2", 6)))
    LiveView(fleet).update()
    assert "4.0 s, round 5, " in capsys.readouterr().err


def test_a_node_that_has_died_is_named_once_at_once(monkeypatch, capsys, tmp_path):
    log = tmp_path / "log"
    log.write_text("1\n2\n3\nerror: why\n")
    fleet = fleet_of(child("pi1", line("pi1", 4)), child("pi2", line("pi2", 6)))
    plain = LiveView(fleet)
    plain.update()
    fleet.children[1].died, fleet.children[1].state, fleet.children[1].log_path = True, "failed (exit 2)", log
    plain.update()
    plain.update()
    assert capsys.readouterr().err == f"pi2 failed (exit 2); its log: {log}\n  2\n  3\n  error: why\n"
    monkeypatch.setattr(sys, "stderr", Terminal())
    live_view = LiveView(fleet)
    with live_view.live:
        live_view.update()
    assert "pi2 failed (exit 2); its log" in sys.stderr.getvalue()


def real_child(tmp_path, **more):
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
    killed = real_child(tmp_path, exit_code=-9)
    killed.lines = [replace(FRESH, tested_version=tested_version)]
    assert _node(killed).test_is_stale == stale


def test_the_final_table_has_star_and_footnote(tmp_path, capsys):
    nodes = [_node(real_child(tmp_path, exit_code=130))]
    _show(Report(nodes=nodes, topology="ring", config={"training": {"rounds": 40}}, history=[]), "table")
    out = capsys.readouterr().out
    assert " 0.835* " in out
    assert NOTE in out.splitlines()
