"""The live view: a table where somebody looks on, and otherwise a line now and then."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

from rich.console import Console

from p2pfl.cli import launch as live
from p2pfl.cli.launch import LiveView
from p2pfl.console.overview import view
from p2pfl.learn.metrics import Measure
from p2pfl.reporting.status import MeanAndMax, NodeLine


def line(node, rounds):
    return NodeLine(
        node=node,
        uptime_s=rounds / 2,
        phase="training",
        rounds=rounds,
        rounds_without_neighbor=0,
        version=rounds,
        accuracy=0.75,
        test_loss=None,
        tested_round=rounds - 1,
        tested_version=rounds,
        test_is_stale=True,
        loss=0.5,
        staleness=MeanAndMax(0.0, 0),
        bytes_sent=100,
        bytes_received=0,
        messages_sent=2,
        messages_received=0,
        peers=1,
        quarantined=0,
        exchanges=1,
        closing_rounds=0,
        neighbor_distance=None,
        disk_refuses=None,
    )


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
        training=SimpleNamespace(rounds=9),
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


def test_on_a_terminal_the_table_is_drawn(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    live_view = LiveView(fleet_of(child("pi1", line("pi1", 4))))
    with live_view.shown():
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
    monkeypatch.setattr(live, "LINE_EVERY_S", 0.0)
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
    with live_view.shown():
        live_view.update()
    assert "pi2 failed (exit 2); its log" in sys.stderr.getvalue()
