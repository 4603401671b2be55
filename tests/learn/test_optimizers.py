"""Adam's steps in pieces are the steps of whole parameters."""

from __future__ import annotations

import pytest
import torch

from p2pfl.config import TrainingConfig
from p2pfl.learn import make_optimizer


def moved(kind, decay):
    """Three parameters after three steps, in the second of which one has no gradient; and the optimizer's memory."""
    chance = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=chance)) for shape in ((50, 21), (3,), (20, 10))]
    training = TrainingConfig(optimizer=kind, weight_decay=decay)
    optimizer = make_optimizer(parameters, training, "test")
    step = optimizer.begin(0.01)
    for number in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=chance)
        if number == 1:
            parameters[2].grad = None
        with torch.no_grad():
            step()
    return [*parameters, *(optimizer.memory[name][one] for name in ("first", "second", "taken") for one in parameters)]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_large_parameter_moves_piece_by_piece_with_the_same_bits(kind, decay, monkeypatch):
    whole = moved(kind, decay)
    monkeypatch.setattr("p2pfl.learn.torch_model.PIECE", 64)
    assert all(torch.equal(piecewise, other) for piecewise, other in zip(moved(kind, decay), whole, strict=True))
