"""`p2pfl list` says what a file may name, as what it names says it; the user's own methods and rules, too."""

from __future__ import annotations

import json

import numpy as np
import pytest

from p2pfl.aggregate import RULES
from p2pfl.compress import EXAMPLES, STAGES, make_compressor
from p2pfl.core import STALENESS
from p2pfl.methods import METHODS
from p2pfl.reporting import compressor_figures
from tests.learn.methods.test_methods import TEN_LINES


@pytest.fixture
def prox(tmp_path):
    (tmp_path / "prox.py").write_text(TEN_LINES)


def test_all_methods_are_listed_with_what_they_do_and_their_source(p2pfl):
    rows = json.loads(p2pfl("list", "methods", "--format", "json").out)
    assert [row["method"].partition(":")[0] for row in rows] == list(METHODS)
    assert "tracking:gain=0.5" in [row["method"] for row in rows]
    assert all(row["does"] and row["source"] for row in rows)
    told = {row["method"].partition(":")[0]: row["rules"] for row in rows}
    assert (told["plain"], told["tracking"]) == ("any", "conservative")


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
    demo = ("demo", "--nodes", 2, "--rounds", 2, "--dir", "demo", "--format", "json")
    outcome = p2pfl(*demo, "--method", "prox.py:prox,mu=0.5")
    assert outcome.code == 0, outcome.err
    text = (tmp_path / "demo" / "federation.toml").read_text()
    assert f'method = "{tmp_path}/prox.py:prox,mu=0.5"' in text
    (tmp_path / "demo" / "federation.toml").write_text(text.replace("rounds = 2", "rounds = 3"))
    outcome = p2pfl("launch", "demo", "--format", "json")
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


def test_without_a_spec_every_rule_of_the_grammar_is_told(p2pfl):
    rows = json.loads(p2pfl("list", "rules", "--format", "json").out)
    assert {row["rule"].partition(":")[0] for row in rows} == {*RULES, "nnm+trimmed-mean"} - {"mean"}
    assert all(row["does"] and row["bound"] and row["source"] != "-" for row in rows)
    assert len(rows) == len(RULES)


def test_weights_are_told_of_the_rules_that_use_them(p2pfl):
    rows = json.loads(p2pfl("list", "rules", "--format", "json").out)
    assert {row["rule"] for row in rows if row["weights"]} == {"cs+:b=1", "scc:b=1"}


def test_without_a_spec_every_stage_of_the_grammar_is_explained(p2pfl):
    stages = json.loads(p2pfl("list", "compressors", "--format", "json").out)["stages"]
    told = {row["stage"].partition(":")[0] for row in stages}
    assert {*STAGES, "none"} <= told
    assert all(row["does"] and row["from"] and make_compressor(row["example"]) for row in stages)
    assert len(stages) == len(STAGES) + 1


@pytest.mark.parametrize("spec", EXAMPLES)
def test_the_bytes_shown_are_those_of_a_payload_or_no_less(spec):
    row = compressor_figures(make_compressor(spec), 1000)
    vector = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    payload = len(make_compressor(spec).encode(vector, chance=1))
    assert row["compressor"] == spec
    assert payload == row["message_bytes"] if row["exact"] else payload <= row["message_bytes"]
    assert row["bits_per_parameter"] == pytest.approx(8 * row["message_bytes"] / 1000)
    assert row["times_smaller"] == pytest.approx(4000 / row["message_bytes"])


def test_a_size_that_values_decide_is_said_to_be_a_bound(p2pfl):
    lines = p2pfl("list", "compressors").out.splitlines()
    (bound,) = [line for line in lines if line.split()[:1] == ["top-k:0.05+q8+zstd"]]
    (exact,) = [line for line in lines if line.split()[:1] == ["q4"] and "kB" in line]
    assert "at most" in bound
    assert "at least" in bound
    assert " at " not in exact


def test_all_functions_are_listed_with_what_they_do(p2pfl):
    rows = json.loads(p2pfl("list", "staleness", "--format", "json").out)
    assert [row["staleness"] for row in rows] == [entry.usage for entry in STALENESS.values()]
    assert all(row["counts"] for row in rows)


def test_attacks_are_listed_with_what_a_liar_must_know(p2pfl):
    rows = json.loads(p2pfl("list", "attacks", "--format", "json").out)
    assert "sign-flip[:SCALE]" in [row["attack"] for row in rows]
    assert all(row["shows"] and row["knows"] and row["source"] for row in rows)


@pytest.mark.parametrize(
    "words", [("rules",), ("evaluate", "ward", "--federation"), ("sim", "attacks"), ("launch", "ward", "--spawn")]
)
def test_what_is_gone_says_what_to_use(p2pfl, words):
    outcome = p2pfl(*words)
    assert outcome.code == 2
    assert " is gone: " in outcome.err
