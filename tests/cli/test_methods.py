"""Learning methods from the command line: what there is, one's own in three places."""

from __future__ import annotations

import json

import pytest

from p2pfl.methods import METHODS

PROX = '''\
"""FedProx (arXiv 1812.06127): each step is also drawn back to the model that its round began with."""

from p2pfl import Method


class prox(Method):
    def __init__(self, mu=0.01):
        self.mu = mu

    def gradient(self, g, w, start):
        return g + self.mu * (w - start["anchor"])
'''


@pytest.fixture
def prox(tmp_path):
    (tmp_path / "prox.py").write_text(PROX)


def test_all_methods_are_listed_with_what_they_do_and_their_source(p2pfl):
    rows = json.loads(p2pfl("methods", "--format", "json").out)
    assert [row["method"].partition(":")[0] for row in rows] == list(METHODS)
    assert "tracking:gain=0.5" in [row["method"] for row in rows]
    assert all(row["does"] and row["source"] for row in rows)
    told = {row["method"].partition(":")[0]: row["rules"] for row in rows}
    assert (told["plain"], told["tracking"]) == ("any", "conservative")


@pytest.mark.usefixtures("prox")
def test_a_file_is_described_too_and_each_mistake_named(p2pfl):
    (row,) = json.loads(p2pfl("methods", "prox.py:prox,mu=0.5", "--format", "json").out)
    assert (row["method"], row["rules"]) == ("prox.py:prox,mu=0.5", "any")
    outcome = p2pfl("methods", "proxy", "prox.py:prax")
    assert outcome.code == 2
    assert "did you mean prox" in outcome.err
    assert "has no 'prax'" in outcome.err


@pytest.mark.long
@pytest.mark.usefixtures("prox")
def test_a_method_file_runs_in_a_simulation(p2pfl, tmp_path):
    arguments = ("--nodes", 3, "--rounds", 2, "--no-references", "--quiet", "--report", tmp_path / "report.json")
    outcome = p2pfl("sim", "run", "--method", "prox.py:prox,mu=0.5", *arguments)
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["config"]["training"]["method"].endswith("prox.py:prox,mu=0.5")


@pytest.mark.long
@pytest.mark.usefixtures("prox")
@pytest.mark.slow
def test_a_method_file_runs_in_a_demo_and_then_in_its_federation(p2pfl, tmp_path):
    demo = ("demo", "--nodes", 2, "--rounds", 2, "--dir", "demo", "--quiet", "--format", "json")
    outcome = p2pfl(*demo, "--method", "prox.py:prox,mu=0.5")
    assert outcome.code == 0, outcome.err
    text = (tmp_path / "demo" / "federation.toml").read_text()
    assert f'method = "{tmp_path}/prox.py:prox,mu=0.5"' in text
    (tmp_path / "demo" / "federation.toml").write_text(text.replace("rounds = 2", "rounds = 3"))
    outcome = p2pfl("launch", "demo", "--quiet", "--format", "json")
    assert outcome.code == 0, outcome.err
    assert all(row["rounds"] >= 3 for row in json.loads(outcome.out)["nodes"])


@pytest.mark.parametrize("arguments", [("demo", "--dir", "demo"), ("sim", "run")])
def test_a_method_that_is_not_there_is_the_option_s_mistake(p2pfl, arguments):
    outcome = p2pfl(*arguments, "--method", "nowhere.py:prox")
    assert outcome.code == 2
    assert "--method" in outcome.err
    assert "there is no file" in outcome.err


def test_a_method_that_the_rule_cannot_carry_is_a_mistake_with_the_reason(p2pfl, tmp_path):
    p2pfl("new", "ward", "--nodes", 4, "--topology", "complete", "--rule", "hampel:b=1")
    file = tmp_path / "ward" / "federation.toml"
    file.write_text(file.read_text().replace("[training]\n", '[training]\nmethod = "variate"\n'))
    outcome = p2pfl("check", "ward")
    assert outcome.code == 2
    assert "training.method: this method needs exchanges that move models" in outcome.err
