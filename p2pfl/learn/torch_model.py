"""A task's torch module in training: steps of an optimizer from the vector that it holds, and the state that stays.

Each round starts with an empty optimizer state, because the model that it belongs to is mixed in between, unless
`training.keep_optimizer` is set: then the state is part of what is not shared. `devices` decides on device and
precision; the learner decides which rows are read, with which random draws, and which figures may be reported.

Between rounds the module is scratch space for the shared tensors, and the home of the personal and the integer ones. A
copy of these is kept as of the last successful round. A failed round restores it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from p2pfl.chance import torch_seed
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.devices import Device, seeded
from p2pfl.learn.evaluation import loss_of
from p2pfl.learn.interface import RoundStart, Vector
from p2pfl.learn.optimizers import make_optimizer, remember, remembered
from p2pfl.learn.params import FlatModule
from p2pfl.learn.samples import Samples
from p2pfl.learn.task import Task
from p2pfl.plugins import FAILURES, describe_failure

OPTIMIZER = "optimizer:"
"""The prefix of the names of an optimizer's arrays beside a model's."""


class TorchModel:
    """The task's initial model, as drawn from the federation's `seed`, on a device.

    `share` are the patterns of what is shared; `flat` moves vectors (d,) in and out.
    """

    def __init__(self, task: Task, training: TrainingConfig, share: Sequence[str], device: Device, seed: int) -> None:
        """Build the model. Raises UserError: the task's function fails, or its model cannot be shared, trained or
        placed there.
        """
        self.task, self.training, self.device, self.seed = task, training, device, seed
        self.share = tuple(share)
        built = self._build()
        on_host = FlatModule(built, task.name, self.share)
        self.module = device.place(built)
        self.flat = on_host if device.is_host else FlatModule(self.module, task.name, self.share)
        if self.flat.digest != on_host.digest:
            text = "tensors of the model that share memory on the CPU do not share it there"
            raise device.mistake(text, "cpu")
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        """The parameters that are trained."""
        self._optimizer = make_optimizer(self.parameters, training, task.name)
        self._loss_of_batch = device.loss(self.module, loss_of(task))
        self._last_local = self._local()

    def anew(self) -> TorchModel:
        """Build another model in the same way."""
        return TorchModel(self.task, self.training, self.share, self.device, self.seed)

    @property
    def keeps_nothing(self) -> bool:
        """True if one round leaves nothing to the next, so that the rounds of several nodes may take turns."""
        return not self._last_local and not self.training.keep_optimizer

    def initial(self) -> Vector:
        """Build the model once more: this is called once, and a copy kept for it would take as much memory as the
        model.

        Raises UserError: the task gives the same module each time.
        """
        module = self._build()
        if module is self.module:
            text = "model returned the same module twice, so that nodes would train each other's"
            allowed = "a function that builds a new one each time"
            raise UserError(text, file=self.task.name, key="model", value=type(module).__name__, allowed=allowed)
        return FlatModule(module, self.task.name, self.share).vector()

    def _build(self) -> nn.Module:
        task = self.task
        with seeded(torch_seed(self.seed, "model")):
            try:
                module: Any = task.model()
            except UserError:
                raise
            except FAILURES as error:
                raise UserError(f"model failed: {describe_failure(error)}", file=task.name, key="model") from error
        if not isinstance(module, nn.Module):
            text = "model returned something else"
            raise UserError(text, file=task.name, key="model", value=module, allowed="a torch.nn.Module")
        return module

    # -- steps --------------------------------------------------------------------------------------------------------

    def reader(self, samples: Samples) -> Callable[[Tensor], tuple[Any, Any]]:
        """Map row numbers to their inputs and targets, on the device."""
        return self.device.rows(samples.rows)

    def backward(self, samples: Samples) -> Callable[[Tensor], Tensor]:
        """Make a function that leaves the gradient of the batch of these rows at the parameters, and
        returns its loss.
        """
        backward, loss_of_batch, read = torch.autograd.backward, self._loss_of_batch, self.reader(samples)

        def differentiate(rows: Tensor) -> Tensor:
            inputs, targets = read(rows)
            loss = loss_of_batch(inputs, targets)
            backward(loss)
            return loss.detach()

        return differentiate

    def gradients(self, start: RoundStart) -> Callable[[], None]:
        """Make a function to call after each backward pass: it replaces the loss's gradients by the method's."""
        method = start.method
        if method is None:
            return lambda: None
        parts = self.flat.parts({"anchor": start.model, **start.given})

        @torch.no_grad()
        def put() -> None:
            for parameter, part in parts:
                if parameter.grad is not None or method.every_parameter:
                    g = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.grad = method.gradient(g, parameter, part)

        return put

    def descend(
        self,
        batches: list[Tensor],
        backward: Callable[[Tensor], Tensor | None],
        put_gradients: Callable[[], None],
        rate: float,
    ) -> float:
        """Take a step for each of `batches`, from the module's present state. Returns the mean of the steps' losses;
        NaN where no step had a row.

        Gradients are gone afterwards, from memory too, and so is an optimizer's state that is not kept. Raises
        LearningError: the task's code failed; UserError: the memory is too small.
        """
        self.module.train()
        try:
            losses = self._steps(batches, backward, put_gradients, rate)
        except FAILURES as error:
            self.device.refuse_shortage(error)
            raise LearningError(f"{self.task.name}: training failed: {describe_failure(error)}") from error
        finally:
            for parameter in self.parameters:
                parameter.grad = None
            if not self.training.keep_optimizer:
                self._optimizer.memory = {}
        return float(torch.stack(losses).float().mean()) if losses else math.nan

    def _steps(
        self,
        batches: list[Tensor],
        backward: Callable[[Tensor], Tensor | None],
        put_gradients: Callable[[], None],
        rate: float,
    ) -> list[Tensor]:
        """Run the inner loop. It looks everything up in local names: a step of a small model takes 0.1 ms."""
        step, losses, parameters = self._optimizer.begin(rate), [], self.parameters
        for rows in batches:
            for parameter in parameters:
                parameter.grad = None
            loss = backward(rows)
            put_gradients()
            step()
            if loss is not None:
                losses.append(loss)
        return losses

    # -- what is not shared -------------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Restore the state that is not shared if the body fails."""
        try:
            yield
        except BaseException:
            self.put_back()
            raise

    def put_back(self) -> None:
        """Restore the state that is not shared to the end of the last successful round."""
        self._load_local(self._last_local)

    def settle(self, vector: Vector) -> None:
        """Keep the tensors that are not shared as of a round that ended in `vector` (d,).

        Raises LearningError: training made one of them infinite or NaN.
        """
        if self.keeps_nothing:
            return
        if not np.isfinite(vector).all():
            self.put_back()
            return
        settled = self._local()
        if not (self.flat.is_finite() and all(np.isfinite(settled[name]).all() for name in _of_optimizer(settled))):
            raise LearningError(f"{self.task.name}: a personal tensor is not finite (learning_rate too high?)")
        self._last_local = settled

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        """The very arrays that are kept: a round replaces them, nobody writes to them."""
        return dict(self._last_local)

    def load_local_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore what `local_state` returned. Raises UserError: it came from another model."""
        self._load_local(state)
        self._last_local = dict(state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Vector:
        """Load a plain model: its shared part (d,) is returned, the rest is kept here.

        Raises RuntimeError: torch says that it is of another model.
        """
        self.module.load_state_dict(dict(state), strict=True)
        self._last_local = self._local()
        return self.flat.vector()

    def _local(self) -> dict[str, NDArray[np.generic]]:
        """Copy the present state that is not shared."""
        if not self.training.keep_optimizer:
            return self.flat.local_state()
        kept = {OPTIMIZER + name: array for name, array in remembered(self._optimizer).items()}
        return self.flat.local_state() | kept

    def _load_local(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        of_optimizer = _of_optimizer(state)
        self.flat.load_local_state({name: array for name, array in state.items() if name not in of_optimizer})
        if self.training.keep_optimizer:
            remember(self._optimizer, {name.removeprefix(OPTIMIZER): state[name] for name in of_optimizer})


def _of_optimizer(state: Mapping[str, NDArray[np.generic]]) -> set[str]:
    return {name for name in state if name.startswith(OPTIMIZER)}
