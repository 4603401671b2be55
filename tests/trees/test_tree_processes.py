"""Real processes grow trees: one is killed with -9 in the middle, and all end with those of the pooled rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from p2pfl.node import read_learned

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from real_field import P2PFL, Field, processes  # noqa: F401 - others take it from here

from tests.trees.conftest import LINEAR, TASK, write_table
from tests.trees.test_tree_nodes import pooled

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

ROUNDS, DEADLINE_S = 30, 200.0


def _toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


HEAVY = {"torch", "scipy", "networkx", "pandas", "pyarrow", "matplotlib", "rich", "cryptography", "zeroconf", "sklearn"}
MOST_BYTES = 88e6
"""A tenth above what the tutorial promises of a Raspberry Pi: Pythons differ."""


def table_field(folder, rounds, nodes=3, task=TASK):
    text = "\n".join(f"{key} = {_toml(value)}" for key, value in task.items())
    field = Field(folder, nodes, task=text, rounds=rounds, linger_s=20.0)
    for index, name in enumerate(field.names):
        write_table(field.folder / name / "own.csv", index)
        field.set_data(name, path="own.csv")
    return field


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("task", [TASK, LINEAR])
def test_a_node_of_a_table_loads_nothing_heavy_and_stays_small(tmp_path, monkeypatch, task):
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    field = table_field(tmp_path / "field", 400, task=task)
    with processes(field) as run:
        nodes = [run(name) for name in field.names]
        nodes[0].until(lambda: nodes[0].rounds >= 20, "rounds", deadline_s=DEADLINE_S)
        status = Path(f"/proc/{nodes[0].popen.pid}/status").read_text()
    imported = {
        line.rpartition("|")[2].strip() for line in nodes[0].log.splitlines() if line.startswith("import time:")
    }
    assert "numpy" in imported
    assert {name.partition(".")[0] for name in imported} & HEAVY == set()
    peak_bytes = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    assert peak_bytes < MOST_BYTES


def test_a_site_killed_in_the_middle_is_back_and_the_trees_are_those_of_the_pooled_rows(tmp_path):
    field = table_field(tmp_path / "field", ROUNDS)
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
