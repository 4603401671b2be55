"""One torch module for many vectors at once: training and outputs by torch.func, rows side by side.

What one row learns depends on no other row. Whether it has the bits of a row alone depends on the model and on torch's
kernels: `selftest` decides. Two of torch's differences are undone here:

* Under vmap the mean over a batch is summed in another order than torch's own cross entropy sums it. Gradients are the
  same, the value differs in its last bit. So it is computed again from the outputs, in that order.
* Below 400 multiplications torch's batched product uses another kernel than its single one, which rounds otherwise
  (ATen/native/LinearAlgebra.cpp, bmm_out_or_baddbmm_). Nodes with a single sample are in that range. So linear layers
  of few samples are computed one product after the other.
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
from torch.overrides import TorchFunctionMode

from p2pfl.learn.devices import seeded
from p2pfl.learn.evaluation import are_labels, loss_of
from p2pfl.learn.methods import Method
from p2pfl.learn.optimizers import make_optimizer
from p2pfl.learn.params import TensorPlace
from p2pfl.learn.task import Task
from p2pfl.learn.trainer import TorchLearner

Batch = tuple[Tensor, Tensor]
"""Inputs and targets, (c, n, ...) each: n rows for each of c models."""
Named = dict[str, Tensor]


class StackedModel:
    """A model for many vectors. It borrows the module of `learner`, which must not train meanwhile."""

    def __init__(self, learner: TorchLearner, method: Method) -> None:
        self.method = method
        self.task, self.training = learner.task, learner.training
        self.places: list[TensorPlace] = learner.model.flat.places
        self._module = learner.model.module
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
        rate: float,
    ) -> Tensor:
        """Learn from each of `batches` in turn, from `starts` (c, d); the result goes to `out` (c, d).

        Each step takes the method's gradient with the vectors `given` (c, d) to it, None: the loss's own; `careful`
        computes small products one by one. `rate` is the learning rate. Returns the mean losses (c,).
        """
        tensors = self._unpacked(starts)
        parts = {} if given is None else self._named_parts({"anchor": starts, **given})
        trained = {place.name: tensors.pop(place.name) for place in self.places if place.trained}
        step = make_optimizer(list(trained.values()), self.training, self.task.name).begin(rate)  # type: ignore[arg-type]
        losses = []
        self._module.train()
        with _quiet(), Unbatched() if careful else nullcontext():
            for inputs, targets in batches:
                losses.append(self._learn(trained, tensors, parts, (inputs, targets)))
                step()
        for place in self.places:
            out[:, place.part] = (trained if place.trained else tensors)[place.name].flatten(1)
        return losses[0] if len(losses) == 1 else torch.stack(losses, dim=1).mean(dim=1)

    def outputs(self, models: Tensor, inputs: Tensor, *, common: bool, careful: bool) -> Tensor:
        """Compute outputs (c, n, ...) of `models` (c, d) in evaluation mode for inputs (c, n, ...), or (n, ...)
        `common`.
        """
        self._module.eval()
        with torch.no_grad(), _quiet(), Unbatched() if careful else nullcontext():
            return (self._common if common else self._outputs)(self._unpacked(models), inputs)

    def _learn(self, trained: Named, fixed: Named, parts: Mapping[str, Named], batch: Batch) -> Tensor:
        """Leave a gradient at each of `trained` and return the losses (c,)."""
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
        """Compute the loss of one model and, where its mean must be taken in torch's own order, that of each sample
        (n,).
        """
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

    def _named_parts(self, vectors: Mapping[str, Tensor]) -> dict[str, Named]:
        """Return for each of the `vectors` (c, d), by name, the parts of each trained tensor (c, shape), by the
        tensor's name.
        """
        return {
            place.name: {name: _part(one, place).to(place.dtype) for name, one in vectors.items()}
            for place in self.places
            if place.trained
        }

    def _unpacked(self, vectors: Tensor) -> Named:
        """Return fresh tensors (c, shape) by name."""
        tensors = {}
        for place in self.places:
            part = _part(vectors, place).to(place.dtype, copy=True, memory_format=torch.contiguous_format)
            is_variance = place.name.rpartition(".")[2] == "running_var"
            tensors[place.name] = part.clamp_(min=0) if is_variance else part
        return tensors

    def _find_unused(self, learner: TorchLearner) -> set[str]:
        """Find the parameters that the loss does not depend on: torch gives them no gradient, vmap gives zeros."""
        own = self._unpacked(torch.from_numpy(learner.initial())[None])
        trained = {p.name: own[p.name][0].requires_grad_() for p in self.places if p.trained}
        fixed = {p.name: own[p.name][0] for p in self.places if not p.trained}
        inputs, targets = learner.train_set.rows(torch.arange(min(2, learner.samples)))
        self._module.train()
        with seeded(0):
            loss, _ = self._loss_of_one(trained, fixed, inputs, targets)
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        return {name for name, gradient in zip(trained, found, strict=True) if gradient is None}


def _part(vectors: Tensor, place: TensorPlace) -> Tensor:
    return vectors[:, place.part].reshape(len(vectors), *place.shape)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warning that it has no batched kernel and loops itself, which is as correct."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*performance drop.*")
        yield


def describe(error: BaseException) -> str:
    """Say why a model cannot be batched, in few words."""
    text: Any = " ".join(str(error).split())
    if "randomness" in text:
        return "the model draws chance while it trains"
    if ".item()" in text or "data-dependent" in text:
        return "what the model does depends on its values"
    return f"torch.func cannot batch the model: {text[:120]}"


_LEVELS = 8


def own_order(task: Task, outputs: Any, targets: Any) -> bool:
    """Return True if `means` supports this loss: outputs (n, classes) and integer targets (n,) of one model."""
    return task.loss is None and are_labels(outputs, targets) and outputs.ndim == 2


def means(each: Tensor) -> Tensor:
    """Compute the mean losses (c,) of the cross entropies (c, n) of single samples."""
    return _sums(each.t().contiguous()) / each.shape[1]


def losses_of(task: Task, outputs: Tensor, targets: Tensor, *, common: bool) -> Tensor:
    """Compute losses (c,) of outputs (c, n, ...) for targets (c, n, ...), or (n, ...) `common` to all models."""
    if own_order(task, outputs[0], targets if common else targets[0]):
        c, n, classes = outputs.shape
        labels = targets.repeat(c) if common else targets.reshape(c * n)
        return means(functional.cross_entropy(outputs.reshape(c * n, classes), labels, reduction="none").view(c, n))
    return vmap(loss_of(task), in_dims=(0, None if common else 0))(outputs, targets)


def _sums(rows: Tensor) -> Tensor:
    """Sum (c,) rows (n, c) as torch's negative log likelihood adds: a cascade of partial sums.

    ATen/native/LossNLL.cpp, nll_loss_out_frame.
    """
    step = 1 << max(4, (len(rows) - 1).bit_length() // _LEVELS)
    total = torch.zeros_like(rows[0])
    for part in _partial_sums(rows, step, _LEVELS):
        total = total + part
    return total


def _partial_sums(rows: Tensor, step: int, levels: int) -> list[Tensor]:
    """Sum one level: the first row goes up a level alone, then the sum of each `step` rows does; the sum of the rest
    stays.
    """
    if levels == 1 or len(rows) == 1:
        return [_one_by_one(rows)]
    end = 1 + (len(rows) - 1) // step * step
    blocks = rows[1:end].view(-1, step, rows.shape[1]).transpose(0, 1)
    above = torch.cat([rows[:1], _one_by_one(blocks)])
    stays = [_one_by_one(rows[end:])] if end < len(rows) else []
    return [*stays, *_partial_sums(above, step, levels - 1)]


def _one_by_one(rows: Tensor) -> Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


_FEW = 400


class Unbatched(TorchFunctionMode):
    """A mode in which linear layers with few multiplications are not batched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is functional.linear and len(args) == 3 and not kwargs and _is_small(*args):
            return _Linear.apply(*args)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _is_small(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return bias is not None and inputs.ndim == 2 and inputs.shape[0] * weight.numel() < _FEW


class _Linear(torch.autograd.Function):
    """A linear layer of inputs (n, k), weight (m, k) and bias (m,) of one model; under vmap of each of c models."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear(inputs, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return _product(gradient, weight), _product(gradient.t(), inputs), gradient.sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, int]:
        return torch.stack([functional.linear(*row) for row in _rows(info, in_dims, tensors)]), 0


class _Product(torch.autograd.Function):
    """The product of (n, k) by (k, m), only used where nothing more is differentiated."""

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        return left.mm(right)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, int]:
        return torch.stack([torch.mm(*row) for row in _rows(info, in_dims, tensors)]), 0


def _product(left: Tensor, right: Tensor) -> Tensor:
    return _Product.apply(left, right)  # type: ignore[no-untyped-call, no-any-return]


def _rows(info: Any, in_dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the tensors of one model after the other."""
    columns = (
        [tensor] * info.batch_size if dim is None else tensor.unbind(dim)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    )
    return zip(*columns, strict=True)
