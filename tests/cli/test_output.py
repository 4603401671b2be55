"""One set of rows, three forms."""

from __future__ import annotations

import csv
import io
import json

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
