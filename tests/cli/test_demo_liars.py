"""Options of `p2pfl demo` about liars: each mistake in one line, and a warning where the rule will not bear them."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint

import pytest

from p2pfl.cli import MARK, about_liars
from p2pfl.config import load_config
from p2pfl.fleet import GROUP, find_attackers
from p2pfl.methods import from_here


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--byzantine", "8"], "--byzantine: no honest node is left of 8"),
        (["--byzantine", "1"], "--byzantine: liars without an attack"),
        (["--attack", "alie"], "--attack: an attack without liars"),
        (["--byzantine", "1", "--attack", "flatter"], "--attack: no such attack (found 'flatter'); allowed: sign-flip"),
    ],
)
def test_a_mistake_ends_the_demo_before_anything_is_made(p2pfl, tmp_path, arguments, said):
    outcome = p2pfl("demo", *arguments)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {said}")
    assert len(outcome.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_rule_file_that_is_not_there_ends_the_demo_before_an_older_one_is_replaced(p2pfl, tmp_path):
    older = tmp_path / "p2pfl-demo"
    older.mkdir()
    (older / MARK).touch()
    (older / "report.json").write_text("{}")
    outcome = p2pfl("demo", "--rule", "absent.py:rule")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --rule: there is no file")
    assert (older / "report.json").is_file()


def test_a_rule_file_is_looked_for_from_where_the_demo_is_called(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def rule(vectors):\n    return vectors.mean(axis=0)\n")
    monkeypatch.chdir(tmp_path)
    assert from_here("mine.py:rule,b=2") == f"{tmp_path}/mine.py:rule,b=2"
    assert from_here("cs+:b=2") == "cs+:b=2"


def test_without_a_package_of_attacks_the_demo_says_what_is_missing(p2pfl, monkeypatch):
    monkeypatch.setattr("p2pfl.fleet.fleet.entry_points", lambda **_: [])
    outcome = p2pfl("demo", "--byzantine", "1", "--attack", "mimic")
    assert outcome.code == 2
    assert "no package of attacks is installed" in outcome.err


@pytest.mark.parametrize(("liars", "said"), [("1", r"node\d lies to"), ("2", r"node\d, node\d lie to")])
def test_who_lies_is_told(p2pfl, monkeypatch, liars, said):
    monkeypatch.setattr("p2pfl.cli.launch.run_fleet", lambda *_, **__: 0)
    outcome = p2pfl("demo", "--nodes", "5", "--byzantine", liars, "--attack", "mimic")
    assert re.search(f"^{said} every neighbor: mimic$", outcome.err, re.MULTILINE)


def test_liars_are_found_by_the_name_of_their_entry_point_alone():
    found = EntryPoint("attackers", "sim.attackers.offer:OFFER", GROUP).load()
    assert type(find_attackers()) is type(found)


@pytest.mark.parametrize(
    ("rule", "liars", "said"),
    [
        ("mean", ["node1"], ["trusts every neighbor: expect malicious nodes to ruin"]),
        ("trimmed-mean:b=1", ["node1"], []),
        (
            "trimmed-mean:b=1",
            ["node1", "node2"],
            ["2 malicious among the neighbors of a node, trimmed-mean:b=1 tolerates 1"],
        ),
    ],
)
def test_the_demo_warns_where_the_rule_will_not_bear_the_liars(p2pfl, tmp_path, rule, liars, said):
    p2pfl("new", "ward", "--task", "digits", "--nodes", 6, "--topology", "complete", "--rule", rule)
    warnings = about_liars(load_config(tmp_path / "ward"), liars)
    assert [words in warning for words, warning in zip(said, warnings, strict=True)] == [True] * len(said)
