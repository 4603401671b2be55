"""A node that will take more memory than it may is refused before it trains."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from p2pfl.config.model import TrainingConfig
from p2pfl.engine.arithmetic import MemoryPlan
from p2pfl.engine.state import NodeState
from p2pfl.errors import UserError
from p2pfl.learn.evaluation import Device
from p2pfl.learn.task import Task
from p2pfl.learn.torch_model import TorchModel
from p2pfl.node.assembly import (
    MemoryNeeds,
    mapped_weights_bytes,
    program_bytes,
    resident_bytes,
    vectors_in_place,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from disks import tiny_disk

MB = 10**6
PLAN = MemoryPlan(model=10 * MB, replicas=40 * MB, flows=20 * MB, scratch=30 * MB, messages=3 * MB, round=20 * MB)


def test_what_will_not_fit_is_refused_with_what_takes_it_and_what_to_do():
    needs = MemoryNeeds(engine=PLAN, learner=40 * MB, data=0, program=200 * MB)
    needs.refuse_shortage(SimpleNamespace(memory_mb=None))
    needs.refuse_shortage(SimpleNamespace(memory_mb=363))
    with pytest.raises(UserError) as caught:
        needs.refuse_shortage(SimpleNamespace(memory_mb=362, path="pi1/node.toml"))
    assert str(caught.value) == (
        "pi1/node.toml: node.memory_mb: the node will take about 363 MB (program 200, replicas 40, learner 40, "
        "scratch 30, flows 20, round 20, model 10, messages 3) (found 362); allowed: 363 or more; or less to hold: "
        "fewer neighbors, gossip.compressor = fragment:8, training.method = plain, gossip.memory = mapped"
    )
    with pytest.raises(UserError, match=r"allowed: 363 or more$"):  # no setting makes program and learner smaller
        needs.refuse_shortage(SimpleNamespace(memory_mb=240, path="pi1/node.toml"))


@pytest.mark.parametrize(
    ("training", "corrected", "models"),
    [({}, True, 3), ({"momentum": 0.9}, False, 4), ({"optimizer": "adam"}, True, 5)],
)
def test_a_learner_holds_weights_gradients_and_the_optimizer_s_values(training, corrected, models):
    """Of a model that is a single tensor, so that what a step takes beside its largest gradient counts in full."""
    task = Task(model=lambda: torch.nn.Linear(100, 10, bias=False), data=lambda _node: None)
    model = TorchModel(task, TrainingConfig(**training), ("*",), Device(), 0)
    assert model.bytes_in_training(corrected=corrected) == models * 4000


def test_weights_that_are_mapped_from_a_file_are_not_counted_twice(tmp_path):
    save_file({"weights": torch.ones(2_000_000)}, tmp_path / "model.safetensors")
    weights = load_file(tmp_path / "model.safetensors")["weights"]
    if (before := program_bytes([])) is None:
        pytest.skip("this system does not say")
    assert float(weights.sum()) == 2_000_000
    assert mapped_weights_bytes() > 7.9 * MB
    assert program_bytes([]) == pytest.approx(before, abs=3 * MB)


def test_the_program_is_what_the_process_has_without_its_learners():
    there = resident_bytes()
    if there is None:
        pytest.skip("this system does not say")
    assert 10 * MB < there < 10_000 * MB
    rows = SimpleNamespace(nbytes=5 * MB)
    learner = SimpleNamespace(size=MB, data_sets=SimpleNamespace(train=rows, test=None))
    assert program_bytes([learner]) == pytest.approx(there - 9 * MB, abs=4 * MB)


def test_a_disk_without_room_for_the_mapped_file_is_one_error_before_the_node_starts(tmp_path):
    state = NodeState.new(np.zeros(100_000, np.float32), 10, (1, 2))
    gossip, method = SimpleNamespace(memory="mapped"), SimpleNamespace(kept_edges=("flow",))
    with tiny_disk(tmp_path / "tiny", "1m") as folder:
        setup = SimpleNamespace(
            federation=SimpleNamespace(gossip=gossip, path="ward/federation.toml"),
            method=method,
            node=SimpleNamespace(state_dir=folder),
        )
        with pytest.raises(UserError) as caught, vectors_in_place(setup, state):
            pass
        assert list(folder.iterdir()) == []
    assert str(caught.value) == (
        f"ward/federation.toml: gossip.memory: cannot write or map {folder}/vectors.mapped: No space left on device "
        "(found 'mapped'); allowed: resident, or 2,400,000 bytes of room on that disk"
    )
    assert state.mapped is None
