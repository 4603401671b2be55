"""One set of rows, three forms."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from p2pfl.console.output import write_facts, write_rows

ROWS = [{"name": "pi1", "accuracy": 0.93125, "address": None}, {"name": "pi,2", "accuracy": 1, "address": "a:1"}]


def test_json_keeps_the_values(capsys):
    write_rows(ROWS, "json")
    assert json.loads(capsys.readouterr().out) == ROWS


def test_csv_can_be_read_back(capsys):
    write_rows(ROWS, "csv")
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in read] == ["pi1", "pi,2"]
    assert read[0]["address"] == ""


def test_a_table_into_a_pipe_is_neither_cut_nor_colored(capsys):
    write_rows([{"name": "x" * 300}], "table")
    out = capsys.readouterr().out
    assert "x" * 300 in out
    assert "\x1b" not in out


def test_a_table_shows_what_is_missing_as_a_dash(capsys):
    write_rows(ROWS, "table")
    assert "0.9313   -" in capsys.readouterr().out


NAMES = ("pi1", "hospital-north", "a-hospital-with-a-name-of-forty-letters.1")
STATES = ("finished", "failed (exit 2)", "finished, started 12 times, 3 rounds failed, 4 rounds mixed with nobody")
FIGURES = {"rounds": 40, "samples": 1_200, "accuracy": 0.96667, "95% interval": "0.9529 to 0.9731", "alone": 0.9}
OTHERS = {"own data": 0.98, "average precision": 0.966, "balanced accuracy": 0.97, "loss": 1.5e-12, "sent": "7.2 MB"}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("nodes", [3, 8, 20])
def test_a_table_fits_the_terminal_without_a_broken_word_or_a_lost_figure(capsys, monkeypatch, nodes, width):
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": f"{width}"}.items():
        monkeypatch.setenv(name, value)
    rows = [{"node": f"{NAMES[n % 3]}{n}", "state": STATES[n % 3], **FIGURES, **OTHERS} for n in range(nodes)]
    write_rows(rows, "table")
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= width
    words, parts = out.split(), out.count("node ")
    for name in (*FIGURES, *OTHERS):
        assert all(word in words for word in name.split()), "no word of a heading is broken"
    for value in ("0.9667", "7.2 MB", "1.5e-12", "0.9529 to 0.9731"):
        assert out.count(value) == nodes
    for n in range(nodes):
        assert out.count(f"{NAMES[0]}{n} ") in (parts, 0), "each part names its nodes"
    assert (width == 120) == (parts == 1) or parts > 1


def test_no_rows_are_no_failure(capsys):
    for form in ("table", "json", "csv"):
        write_rows([], form)
    assert "[]" in capsys.readouterr().out


def test_facts_leave_out_what_there_is_none_of(capsys):
    write_facts({"rounds": 40, "time_s": None, "certified": True})
    assert capsys.readouterr().out.split() == ["rounds", "40", "certified", "yes"]


def test_brackets_are_text_and_no_markup(capsys):
    write_facts({"listen": "[red]:1"})
    assert "[red]:1" in capsys.readouterr().out
