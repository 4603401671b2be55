"""Torch's own SGD, Adam and AdamW steps, through its functional interface.

The `torch.optim.Optimizer` objects pull in torch's compiler when the first one is made: 1.3 CPU-seconds and 80 MB that
a node on a small board never uses. State lasts one local round: what momentum or Adam remember does not outlive it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError

Step = Callable[[], None]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Optimizer(Protocol):
    def begin(self) -> Step:
        """A step function with an empty state; parameters whose gradient is None are left alone."""


class Sgd:
    def __init__(self, parameters: Sequence[nn.Parameter], training: TrainingConfig) -> None:
        self.parameters = parameters
        self.training = training

    def begin(self) -> Step:
        parameters, training = self.parameters, self.training
        rate, momentum, decay = training.learning_rate, training.momentum, training.weight_decay
        buffers: dict[Tensor, Tensor | None] = dict.fromkeys(parameters)

        @torch.no_grad()
        def step() -> None:
            moving, gradients = _with_gradients(parameters)
            remembered = [buffers[parameter] for parameter in moving]
            sgd(
                moving,
                gradients,
                remembered,
                weight_decay=decay,
                momentum=momentum,
                lr=rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                foreach=False,
                fused=False,
            )
            if momentum:
                buffers.update(zip(moving, remembered, strict=True))

        return step


class Adam:
    """Adam, or AdamW with `decoupled` weight decay."""

    def __init__(self, parameters: Sequence[nn.Parameter], training: TrainingConfig, *, decoupled: bool) -> None:
        self.parameters = parameters
        self.training = training
        self.function = adamw if decoupled else adam

    def begin(self) -> Step:
        parameters, function = self.parameters, self.function
        rate, decay = self.training.learning_rate, self.training.weight_decay
        first: dict[Tensor, Tensor] = {parameter: torch.zeros_like(parameter) for parameter in parameters}
        second: dict[Tensor, Tensor] = {parameter: torch.zeros_like(parameter) for parameter in parameters}
        taken: dict[Tensor, Tensor] = {parameter: torch.tensor(0.0) for parameter in parameters}

        @torch.no_grad()
        def step() -> None:
            moving, gradients = _with_gradients(parameters)
            function(
                moving,
                gradients,
                [first[parameter] for parameter in moving],
                [second[parameter] for parameter in moving],
                [],
                [taken[parameter] for parameter in moving],
                amsgrad=False,
                beta1=BETA1,
                beta2=BETA2,
                lr=rate,
                weight_decay=decay,
                eps=EPSILON,
                maximize=False,
                foreach=False,
                fused=False,
            )

        return step


def make_optimizer(parameters: Sequence[nn.Parameter], training: TrainingConfig, source: str) -> Optimizer:
    """The optimizer that `training.optimizer` names.

    Raises UserError: no such optimizer, no parameter to train, or momentum where there is none.
    """
    if not parameters:
        raise UserError("the model has no parameter that can be trained", file=source, key="model")
    if training.momentum and training.optimizer != "sgd":
        text = f"{training.optimizer} has no momentum"
        raise UserError(text, key="training.momentum", value=training.momentum, allowed="0, or optimizer sgd")
    match training.optimizer:
        case "sgd":
            return Sgd(parameters, training)
        case "adam" | "adamw":
            return Adam(parameters, training, decoupled=training.optimizer == "adamw")
        case other:
            raise UserError("no such optimizer", key="training.optimizer", value=other, allowed="sgd, adam, adamw")


def _with_gradients(parameters: Sequence[nn.Parameter]) -> tuple[list[Tensor], list[Tensor]]:
    moving: list[Tensor] = []
    gradients: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None:
            moving.append(parameter)
            gradients.append(parameter.grad)
    return moving, gradients
