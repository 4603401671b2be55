"""How much memory a node will take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from p2pfl.config import TrainingConfig
from p2pfl.learn import Device, Task, TorchModel
from p2pfl.node import mapped_weights_bytes, program_bytes, resident_bytes

MB = 10**6


@pytest.mark.parametrize(("training", "models"), [({}, 3), ({"momentum": 0.9}, 4), ({"optimizer": "adam"}, 5)])
def test_a_learner_holds_weights_gradients_and_the_optimizer_s_values(training, models):
    """Of a model that is a single tensor, so that what a step takes beside its largest gradient counts in full."""
    task = Task(model=lambda: torch.nn.Linear(100, 10, bias=False), data=lambda _node: None)
    model = TorchModel(task, TrainingConfig(**training), ("*",), Device(), 0)
    assert model.bytes_in_training == models * 4000


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
