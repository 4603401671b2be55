"""Real processes with shared noise: one is killed with -9 in the middle, and all end with the same model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from p2pfl.config.load import load_config
from p2pfl.features.privacy.spending import purses
from p2pfl.node.outcomes import read_learned

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from real_field import P2PFL, Field, processes

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]

ROUNDS, DEADLINE_S = 25, 200.0


def test_a_node_killed_in_the_middle_is_back_and_all_four_have_the_same_model(tmp_path):
    field = Field(
        tmp_path / "field", 4, task='name = "quadratic"\nstep_s = 0.2', rounds=ROUNDS, local_steps=1, linger_s=20.0
    )
    privacy = '\n[privacy]\nunit = "member"\nepsilon = 8.0\ndelta = 1e-3\nnoise = "shared"\naccountant = "rdp"\n'
    field.file.write_text(field.file.read_text() + privacy)
    begun = subprocess.run([*P2PFL, "privacy", "begin", str(field.folder)], capture_output=True, text=True, check=False)
    assert begun.returncode == 0, begun.stderr
    with processes(field) as run:
        nodes = [run(name) for name in field.names]
        nodes[1].until(lambda: nodes[1].rounds >= 4, "rounds", deadline_s=DEADLINE_S)
        nodes[1].kill()
        nodes[0].until(lambda: nodes[0].rounds >= 8, "rounds without it", deadline_s=DEADLINE_S)
        nodes[1] = run(field.names[1])
        assert [node.end(DEADLINE_S) for node in nodes] == [0] * 4
    models = [read_learned(field.folder / name).vector for name in field.names]
    assert all((model == models[0]).all() for model in models)
    for purse in purses(load_config(field.folder), field.names):
        result = field.result(purse.name)
        told = result["features"]["shared_noise"]
        assert (result["rounds"], result["finished"]) == (ROUNDS, True)
        assert told["sums"] <= sum(one.steps for one in purse.ledger.spent) <= ROUNDS + 2
        assert purse.epsilon <= 8.0
        assert (told["fetched"] > 0) == (purse.name == field.names[1])
