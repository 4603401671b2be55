"""`p2pfl staleness`: which functions there are, and what they make of an exchange that is late."""

from __future__ import annotations

import json

from p2pfl.core.staleness import STALENESS


def test_all_functions_are_listed_with_what_they_do(p2pfl):
    rows = json.loads(p2pfl("staleness", "--format", "json").out)
    assert [row["staleness"] for row in rows] == [entry.usage for entry in STALENESS.values()]
    assert all(row["counts"] for row in rows)


def test_of_a_spec_the_weights_are_shown(p2pfl):
    (row,) = json.loads(p2pfl("staleness", "hinge:1,4", "--format", "json").out)
    assert row == {
        "staleness": "hinge:1,4",
        "tau 0": 1.0,
        "tau 1": 1.0,
        "tau 4": 1.0,
        "tau 16": 1 / 13,
        "tau 64": 1 / 61,
    }


def test_what_names_no_function_is_the_users_mistake(p2pfl):
    outcome = p2pfl("staleness", "hing:1,4")
    assert outcome.code == 2
    assert "did you mean hinge?" in outcome.err
