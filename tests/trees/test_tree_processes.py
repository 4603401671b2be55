"""Real processes grow trees: one is killed with -9 in the middle, and all end with those of the pooled rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from real_field import P2PFL, Field, processes

from p2pfl.node import read_learned
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


def test_nodes_with_and_without_torch_learn_a_linear_model_and_go_on_from_each_others_folders(tmp_path, monkeypatch):
    field, nodes = table_field(tmp_path / "field", 200, 2, LINEAR), []
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")

    def start(run, *devices):
        for name, device in zip(field.names, devices, strict=True):
            field.set_node(name, device=device)  # "auto" asks torch, and "cpu" has none
            monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path)] * (device == "cpu") + sys.path))
            nodes.append(run(name))
        nodes[-1].until(lambda: nodes[-1].rounds >= 40, "rounds", deadline_s=DEADLINE_S)

    with processes(field) as run:
        start(run, "auto", "cpu")
        for node in nodes:
            node.kill()
        there = field.folder / "node1"
        for name, *words in (
            ["evaluate"],
            ["predict", there / "own.csv"],
            ["export", "-o", tmp_path / "m.safetensors"],
        ):
            subprocess.run([*P2PFL, name, there, *words], check=True, capture_output=True)
        start(run, "cpu", "auto")
        assert [node.end(DEADLINE_S) for node in nodes[2:]] == [0, 0]
    assert min(field.result(name)["rounds"] for name in field.names) >= 200
    np.testing.assert_allclose(*map(field.model, field.names), rtol=1e-2, atol=1e-2)
