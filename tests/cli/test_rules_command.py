"""`p2pfl rules` says what each rule of the grammar does, and how many neighbors it needs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from p2pfl.aggregate import RULES, make_rule


def test_without_a_spec_every_rule_of_the_grammar_is_told(p2pfl):
    rows = json.loads(p2pfl("rules", "--format", "json").out)
    assert {row["rule"].partition(":")[0] for row in rows} == {*RULES, "nnm+trimmed-mean"} - {"mean"}
    assert all(row["does"] and row["bound"] and row["source"] != "-" for row in rows)
    assert len(rows) == len(RULES)


@pytest.mark.parametrize(("spec", "needed"), [("cs+:b=2", 5), ("nnm+median", 3), ("mean", 0)])
def test_a_spec_is_told_as_it_will_run(p2pfl, spec, needed):
    (row,) = csv.DictReader(io.StringIO(p2pfl("rules", spec, "--format", "csv").out))
    rule = make_rule(spec)
    assert (row["rule"], int(row["b"])) == ((rule.spec, rule.liars) if rule else ("mean", 0))
    assert int(row["neighbors_needed"]) == needed


def test_weights_are_told_of_the_rules_that_use_them(p2pfl):
    rows = json.loads(p2pfl("rules", "--format", "json").out)
    assert {row["rule"] for row in rows if row["weights"]} == {"cs+:b=1", "scc:b=1"}


def test_people_read_one_block_for_each(p2pfl):
    told = p2pfl("rules", "monna", "nnm+median:b=2").out
    assert "neighbors needed  3" in told
    assert "neighbors needed  5" in told


def test_every_mistake_is_told_at_once(p2pfl):
    outcome = p2pfl("rules", "hampl", "median", "cs:b=1")
    assert outcome.code == 2
    assert [line.split(":")[1].strip() for line in outcome.err.splitlines()] == ["SPEC", "SPEC"]
    assert outcome.out == ""
