"""Real processes grow trees: one is killed with -9 in the middle, and all end with those of the pooled rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from p2pfl.node import read_learned

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from real_field import Field, processes

from tests.trees.conftest import TASK, write_table
from tests.trees.test_tree_nodes import pooled

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

ROUNDS, DEADLINE_S = 30, 200.0


def _toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def test_a_site_killed_in_the_middle_is_back_and_the_trees_are_those_of_the_pooled_rows(tmp_path):
    task = "\n".join(f"{key} = {_toml(value)}" for key, value in TASK.items())
    field = Field(tmp_path / "field", 3, task=task, rounds=ROUNDS, linger_s=20.0)
    for index, name in enumerate(field.names):
        write_table(field.folder / name / "own.csv", index)
        field.set_data(name, path="own.csv")
    with processes(field) as run:
        nodes = [run(name) for name in field.names]
        nodes[1].until(lambda: nodes[1].rounds >= 5, "rounds", deadline_s=DEADLINE_S)
        nodes[1].kill()
        rounds = nodes[0].rounds
        nodes[1] = run(field.names[1])
        assert [node.end(DEADLINE_S) for node in nodes] == [0] * 3
    assert 4 <= rounds < ROUNDS, "it was killed in the middle"
    packed = [read_learned(field.folder / name).learner.forest.pack() for name in field.names]
    assert len({*packed, pooled(field)}) == 1
    for name in field.names:
        result = field.result(name)
        assert (result["rounds"], result["finished"]) == (ROUNDS, True)
