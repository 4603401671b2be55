"""One torch module for many vectors at once: training and outputs by torch.func, rows side by side.

What one row learns depends on no other row. Whether it has the bits of a row alone depends on the model and on torch's
kernels: `selftest` finds out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from p2pfl.learn.methods import Method
from p2pfl.learn.optimizers import make_optimizer
from p2pfl.learn.params import Place
from p2pfl.learn.trainer import TorchLearner, loss_of, seeded
from sim.learning.losses import means, own_order
from sim.learning.small_products import OneByOne

Batch = tuple[Tensor, Tensor]
"""inputs and targets, (c, n, ...) each: n rows for each of c models."""
Named = dict[str, Tensor]


class StackedModel:
    """Borrows the module of `learner`, which must not train meanwhile."""

    def __init__(self, learner: TorchLearner, method: Method) -> None:
        self.method = method
        self.task, self.training = learner.task, learner.training
        self.places: list[Place] = learner.places
        self._module = learner.module
        self._loss: Callable[..., Tensor] = loss_of(learner.task)
        self._own_order = False
        self._gradients = vmap(grad_and_value(self._loss_of_one, has_aux=True))
        self._outputs = vmap(self._outputs_of_one)
        self._common = vmap(self._outputs_of_one, in_dims=(0, None))
        self._unused = self._find_unused(learner)

    def train(
        self,
        starts: Tensor,
        batches: Iterable[Batch],
        given: Mapping[str, Tensor] | None,
        out: Tensor,
        *,
        careful: bool,
    ) -> Tensor:
        """Learn from each of `batches` in turn, from `starts` (c, d); the result goes to `out` (c, d).

        Each step takes the method's gradient with what is `given` (c, d) to it, None: the loss's own; `careful` takes
        small products one by one. Returns the mean losses (c,).
        """
        tensors = self._unpacked(starts)
        parts = {} if given is None else self._parts({"anchor": starts, **given})
        trained = {place.name: tensors.pop(place.name) for place in self.places if place.trained}
        step = make_optimizer(list(trained.values()), self.training, self.task.name).begin()  # type: ignore[arg-type]
        losses = []
        self._module.train()
        with _quiet(), OneByOne() if careful else nullcontext():
            for inputs, targets in batches:
                losses.append(self._learn(trained, tensors, parts, (inputs, targets)))
                step()
        for place in self.places:
            out[:, place.part] = (trained if place.trained else tensors)[place.name].flatten(1)
        return losses[0] if len(losses) == 1 else torch.stack(losses, dim=1).mean(dim=1)

    def outputs(self, models: Tensor, inputs: Tensor, *, common: bool, careful: bool) -> Tensor:
        """Outputs (c, n, ...) of `models` (c, d) in evaluation mode for inputs (c, n, ...), or (n, ...) `common`."""
        self._module.eval()
        with torch.no_grad(), _quiet(), OneByOne() if careful else nullcontext():
            return (self._common if common else self._outputs)(self._unpacked(models), inputs)

    def _learn(self, trained: Named, fixed: Named, parts: Mapping[str, Named], batch: Batch) -> Tensor:
        """Leaves a gradient at each of `trained`; the losses (c,)."""
        inputs, targets = batch
        gradients, (values, each) = self._gradients(trained, fixed, inputs, targets)
        for name, tensor in trained.items():
            gradient = None if name in self._unused else gradients[name]
            if parts and (gradient is not None or self.method.every_parameter):
                g = torch.zeros_like(tensor) if gradient is None else gradient
                gradient = self.method.gradient(g, tensor, parts[name])
            tensor.grad = gradient
        return means(each) if self._own_order else values

    def _loss_of_one(self, trained: Named, fixed: Named, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of one model; where its mean must be taken in torch's own order, also that of each sample (n,)."""
        outputs = functional_call(self._module, {**trained, **fixed}, (inputs,))
        self._own_order = own_order(self.task, outputs, targets)
        if self._own_order:
            each = functional.cross_entropy(outputs, targets, reduction="none")
            return each.mean(), each
        loss = self._loss(outputs, targets).reshape(())
        return loss, loss

    def _outputs_of_one(self, tensors: Named, inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(self._module, tensors, (inputs,))
        return outputs

    def _parts(self, vectors: Mapping[str, Tensor]) -> dict[str, Named]:
        """Of each trained tensor (c, shape), by its name, the part of each of the `vectors` (c, d) by theirs."""
        return {
            place.name: {name: _part(one, place).to(place.dtype) for name, one in vectors.items()}
            for place in self.places
            if place.trained
        }

    def _unpacked(self, vectors: Tensor) -> Named:
        """Fresh tensors (c, shape) by name."""
        tensors = {}
        for place in self.places:
            part = _part(vectors, place).to(place.dtype, copy=True, memory_format=torch.contiguous_format)
            is_variance = place.name.rpartition(".")[2] == "running_var"
            tensors[place.name] = part.clamp_(min=0) if is_variance else part
        return tensors

    def _find_unused(self, learner: TorchLearner) -> set[str]:
        """Parameters that the loss does not depend on: torch gives them no gradient, vmap gives zeros."""
        own = self._unpacked(torch.from_numpy(learner.initial())[None])
        trained = {p.name: own[p.name][0].requires_grad_() for p in self.places if p.trained}
        fixed = {p.name: own[p.name][0] for p in self.places if not p.trained}
        inputs, targets = learner.train_set.rows(torch.arange(min(2, learner.samples)))
        self._module.train()
        with seeded(0):
            loss, _ = self._loss_of_one(trained, fixed, inputs, targets)
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        return {name for name, gradient in zip(trained, found, strict=True) if gradient is None}


def _part(vectors: Tensor, place: Place) -> Tensor:
    return vectors[:, place.part].reshape(len(vectors), *place.shape)


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch warns where it has no batched kernel and loops itself, which is as right."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        yield


def describe(error: BaseException) -> str:
    """Why a model cannot be batched, in few words."""
    text: Any = " ".join(str(error).split())
    if "randomness" in text:
        return "the model draws chance while it trains"
    if ".item()" in text or "data-dependent" in text:
        return "what the model does depends on its values"
    return f"torch.func cannot batch the model: {text[:120]}"
