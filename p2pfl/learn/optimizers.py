"""Torch's SGD, Adam and AdamW steps, through its functional interface.

The `torch.optim.Optimizer` objects pull in torch's compiler when the first one is made, which costs a node on a small
board 1.3 CPU-seconds and 80 MB for nothing. State lasts for one local round, unless `training.keep_optimizer` is set.
Then it carries over to the next round, although mixing has changed the model in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError

Step = Callable[[], None]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
PIECE = 1 << 18
"""The number of values that Adam moves at once."""


Memory = dict[str, dict[Tensor, Tensor]]
"""The state of an optimizer, by kind and parameter; a missing entry is zero."""


class Optimizer(Protocol):
    parameters: Sequence[nn.Parameter]
    memory: Memory
    slots: int
    """How many values it keeps for each parameter."""
    temporaries: int
    """How many more values a step takes for each value of the parameter that it changes."""

    def begin(self, rate: float) -> Step:
        """Make a step function with this learning rate. It skips parameters whose gradient is None. Its state starts
        from `memory`, or empty.
        """


class Sgd:
    def __init__(self, parameters: Sequence[nn.Parameter], training: TrainingConfig) -> None:
        self.parameters = parameters
        self.training = training
        self.memory: Memory = {}
        self.slots = int(training.momentum > 0)
        self.temporaries = int(training.weight_decay > 0)

    def begin(self, rate: float) -> Step:
        parameters, training = self.parameters, self.training
        momentum, decay = training.momentum, training.weight_decay
        if not training.keep_optimizer:
            self.memory = {}
        buffers = self.memory.setdefault("momentum", {}) if momentum else {}

        @torch.no_grad()
        def step() -> None:
            moving, gradients = _with_gradients(parameters)
            buffered = [buffers.get(parameter) for parameter in moving]
            sgd(
                moving,
                gradients,
                buffered,
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
                buffers.update((one, kept) for one, kept in zip(moving, buffered, strict=True) if kept is not None)

        return step


class Adam:
    """Adam, or AdamW with `decoupled` weight decay."""

    slots = 2
    temporaries = 0
    """A step works in pieces."""

    def __init__(self, parameters: Sequence[nn.Parameter], training: TrainingConfig, *, decoupled: bool) -> None:
        self.parameters = parameters
        self.training = training
        self.function = adamw if decoupled else adam
        self.memory: Memory = {}

    def begin(self, rate: float) -> Step:
        parameters, function, decay = self.parameters, self.function, self.training.weight_decay
        if not self.training.keep_optimizer:
            self.memory = {}
        first, second, taken = (self.memory.setdefault(kind, {}) for kind in ("first", "second", "taken"))
        for parameter in parameters:
            first.setdefault(parameter, torch.zeros_like(parameter))
            second.setdefault(parameter, torch.zeros_like(parameter))
            taken.setdefault(parameter, torch.tensor(0.0))

        def move(
            moving: list[Tensor],
            gradients: list[Tensor],
            moments: tuple[list[Tensor], list[Tensor]],
            counts: list[Tensor],
        ) -> None:
            function(
                moving,
                gradients,
                *moments,
                [],
                counts,
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

        @torch.no_grad()
        def step() -> None:
            """Move large parameters in pieces: what a step takes beside its vectors then stays in the cache."""
            moving, gradients = _with_gradients(parameters)
            rest: list[int] = []
            for number, (parameter, gradient) in enumerate(zip(moving, gradients, strict=True)):
                vectors = (parameter, gradient, first[parameter], second[parameter])
                if parameter.numel() <= PIECE or not all(each.is_contiguous() for each in vectors):
                    rest.append(number)
                    continue
                flat, count = [each.view(-1) for each in vectors], taken[parameter]
                for begin in range(0, parameter.numel(), PIECE):
                    w, g, m, v = ([each[begin : begin + PIECE]] for each in flat)
                    move(w, g, (m, v), [count.clone()])
                count += 1
            if rest:
                small = [moving[number] for number in rest]
                moments = [first[parameter] for parameter in small], [second[parameter] for parameter in small]
                move(small, [gradients[number] for number in rest], moments, [taken[parameter] for parameter in small])

        return step


def make_optimizer(parameters: Sequence[nn.Parameter], training: TrainingConfig, source: str) -> Optimizer:
    """Make the optimizer that `training.optimizer` names.

    Raises UserError: there is no such optimizer, no parameter to train, or momentum is set for an optimizer without it.
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


def remembered(optimizer: Optimizer) -> dict[str, NDArray[np.generic]]:
    """Copy the state of an optimizer, keyed by kind and parameter number, such as `momentum.0`."""
    numbers = {id(parameter): number for number, parameter in enumerate(optimizer.parameters)}
    return {
        f"{kind}.{numbers[id(parameter)]}": tensor.detach().float().cpu().numpy().copy()
        for kind, tensors in optimizer.memory.items()
        for parameter, tensor in tensors.items()
    }


def remember(optimizer: Optimizer, state: Mapping[str, NDArray[np.generic]]) -> None:
    """Restore what `remembered` returned. Arrays that do not fit the parameters come from a different optimizer and are
    dropped.
    """
    memory: Memory = {}
    for name, array in state.items():
        kind, _, number = name.rpartition(".")
        parameter = optimizer.parameters[int(number)] if int(number) < len(optimizer.parameters) else None
        if parameter is not None and array.shape in {(), tuple(parameter.shape)}:
            like = torch.from_numpy(np.array(array))
            memory.setdefault(kind, {})[parameter] = like if kind == "taken" else like.to(parameter)
    optimizer.memory = memory


def _with_gradients(parameters: Sequence[nn.Parameter]) -> tuple[list[Tensor], list[Tensor]]:
    moving: list[Tensor] = []
    gradients: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None:
            moving.append(parameter)
            gradients.append(parameter.grad)
    return moving, gradients
