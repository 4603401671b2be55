"""Real processes learn a linear model of a table, one with torch and one that cannot import it."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from tests.trees.conftest import LINEAR, write_table
from tests.trees.test_tree_processes import DEADLINE_S, P2PFL, processes, table_field

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def test_nodes_with_and_without_torch_learn_together_and_each_goes_on_from_the_others_folder(tmp_path, monkeypatch):
    write_table(tests := tmp_path / "tests.csv", 9, rows=200)
    task = {key: value for key, value in LINEAR.items() if key != "holdout"} | {"test_path": "../tests.csv"}
    field = table_field(tmp_path / "field", 200, 2, task)
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")

    def start(run, with_torch, without):
        field.set_node(with_torch, device="auto")
        field.set_node(without, device="cpu")
        nodes = {with_torch: run(with_torch)}
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
            nodes[without] = run(without)
            nodes[without].until(lambda: nodes[without].rounds >= 40, "rounds", deadline_s=DEADLINE_S)
        return [nodes[name] for name in field.names]

    with processes(field) as run:
        for node in start(run, "node0", "node1"):
            node.kill()
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
            for name, *words in (["evaluate"], ["score", tests], ["export", "--finetune", "2", "-o", tmp_path / "m"]):
                command = [*P2PFL, name, field.folder / "node1", *words]
                subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
        assert [node.end(DEADLINE_S) for node in start(run, "node1", "node0")] == [0, 0]
    np.testing.assert_allclose(field.model("node0"), field.model("node1"), rtol=1e-2, atol=1e-2)
    results = [field.result(name) for name in field.names]
    assert min(result["rounds"] for result in results) >= 200
    assert min(result["accuracy"] for result in results) > 0.8
