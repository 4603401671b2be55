"""What is missing on a machine is named and skipped, and the table says so; a run ends as its events say."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

CELL = {"nodes": 2, "target": 0.9, "rate": 0.2, "repeat": 0}
LINE = {"name": "flare", "label": "p2p", "cell": CELL, "ran_s": 9.0, "learning_s": 1.0, "cpu_s": 2.0, "bytes": 5e6}
LINE |= {"peak_bytes": 7e7, "worst": 0.9, "rounds": 3, "load": 1.0}


@pytest.fixture
def rivals(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "rivals"))
    yield importlib.import_module
    [sys.modules.pop(name, None) for name in ("run", "meter")]  # other benchmarks have such files


CASES = {"echo 2.8.0": "2.8.0 is installed in .*, pinned is nvflare==2.9.0", "exit 1": "nothing is installed in "}
CASES |= {"echo no such package >&2; exit 1": "nvflare==2.9.0 cannot be installed: no such package"}


@pytest.mark.parametrize(("script", "named"), CASES.items())
def test_what_is_not_as_pinned_is_named_with_the_reason(script, named, tmp_path, monkeypatch, rivals):
    def create(folder, **_):
        (folder / "bin").mkdir(parents=True)
        (python := folder / "bin" / "python").write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)

    monkeypatch.setattr(rivals("run").venv, "create", create)
    "package" in script or create(tmp_path / "flare")
    assert re.search(named, rivals("run").install("flare", tmp_path))


def test_without_namespaces_nothing_is_measured_and_the_table_says_so(tmp_path, monkeypatch, capsys, rivals):
    monkeypatch.setattr(rivals("run"), "SPACES", ["false"])
    monkeypatch.setattr(sys, "argv", ["run.py", "flare", "--out", str(tmp_path)])
    rivals("run").main()
    assert "not measured: flare: no network namespaces here" in capsys.readouterr().out.splitlines()[-1]


def test_a_rival_without_a_clone_at_its_commit_is_skipped_and_the_table_says_so(tmp_path, monkeypatch, capsys, rivals):
    monkeypatch.setattr(rivals("run"), "SPACES", ["true"])
    monkeypatch.setattr(sys, "argv", ["run.py", "decentralize", "--out", str(tmp_path)])
    for named in ("", str(tmp_path)):
        monkeypatch.setenv("DECENTRALIZEPY", named)
        rivals("run").main()
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.endswith("decentralize: DECENTRALIZEPY names no clone of decentralizepy at a5d46be")


def test_the_table_has_medians_of_those_that_arrived_and_who_went_on(tmp_path, rivals):
    lines = [*(LINE | {"seconds": each} for each in (4, 0, 8)), LINE | {"cell": CELL | {"kill": 1}, "killed": 1}]
    (tmp_path / "results.jsonl").write_text("\n".join(json.dumps(line | {"after": {"0": 9}}) for line in lines))
    (tmp_path / "byzfl_rules.md").write_text("its own table")
    text = rivals("run").table(tmp_path, {"gossipy": "no reason given"})
    assert "| 2 of 3 | 6.0 | 1.0 | 2.0 | 5.00 | 70 | 3 |" in text
    assert "node 1 after three rounds: 1 of 1 others made five rounds more" in text
    assert "\nits own table\n" in text
    assert "\nnot measured: gossipy: no reason given" in text


def test_a_run_has_arrived_when_the_last_test_of_every_node_reached_the_target(tmp_path, rivals):
    run = rivals("meter").Run(CELL)
    for place, accuracy in enumerate((0.95, 0.8, 0.85, 0.92, 0.9)):
        assert not run.arrived
        line = json.dumps({"time": place, "node": place % 2, "accuracy": accuracy}) + "\n"
        (tmp_path / "told").write_text(" " * run.offset + line)
        run.read(tmp_path / "told")
    assert run.arrived == 4
