"""DP-SGD (Abadi et al., arXiv 1607.00133): clipped gradients of rows, steps of them, and rounds of a torch model.

A row's loss is that of a batch containing only that row, so no row affects another. With `torch.func`, or one row
after the other, this holds by construction; in a chain of layers, because each layer works row by row. A chain need
not form the gradient of a single row: for a linear layer it is the outer product of the layer's input and the gradient
at its output, and its norm is the product of their norms (Goodfellow, arXiv 1510.01799; Li et al., arXiv 2110.05679,
section 4).

Models that mix rows are refused: in these, clipping a row's own gradient does not bound the row's effect. A layer that
normalizes over a batch is known by its type, others by their effect: an output changes with another row in the batch,
or a tensor changes as rows pass through.

A step takes each row with the same probability, sums the clipped gradients of these rows, adds noise, and divides by
the expected number of rows, because the actual number must stay secret. The learning method and the optimizer see only
this result, so whatever they compute reveals no more. All trained parameters are clipped together and get noise,
personal ones too, because the next step's gradients depend on them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from p2pfl.config.sections import MEMBER, RECORD
from p2pfl.errors import UserError
from p2pfl.learn.evaluation import Device, loss_of, over_tensors
from p2pfl.learn.interface import Vector
from p2pfl.learn.privacy.noise import Draws, Grid, Reals
from p2pfl.learn.privacy.plan import Plan, Protection
from p2pfl.learn.privacy.rounds import SharedRounds, hide_round
from p2pfl.learn.tensors import Samples
from p2pfl.learn.torch_model import TorchModel
from p2pfl.plugins import FAILURES, describe_failure

log = logging.getLogger("p2pfl")

Loss = Callable[[Any, Any], Tensor]
"""A function from a batch's outputs and targets to the scalar loss, the mean over the batch."""

CHUNK_FLOATS = 1 << 21
"""The most numbers in per-row gradients that are in memory at a time."""
CACHED_FLOATS = 1 << 17
"""The number of them that are summed at a time, to fit in the cache."""
ROWWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Dropout, nn.Identity)
"""Parameterless layers that work on each number separately."""


class LayerChain:
    """A sequence of layers in which only linear layers have parameters."""

    def __init__(
        self, layers: Sequence[nn.Module], parameters: Sequence[nn.Parameter], loss: Loss, device: Device
    ) -> None:
        self._layers = layers
        self._parameters = parameters
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        linears = (layer for layer in layers if isinstance(layer, nn.Linear))
        self._linears = [(places.get(id(linear.weight)), places.get(id(linear.bias))) for linear in linears]
        """The positions of each linear layer's weight and bias among the parameters; None for one that is not there."""
        self._losses = losses_of_rows(loss)
        self._device = device

    def clipped_sum(
        self, inputs: Any, targets: Any, clip: float, among: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        entered, left, x = [], [], inputs
        with self._device.precision():
            for layer in self._layers:
                if isinstance(layer, nn.Linear):
                    if x.ndim != 2:
                        raise ValueError(f"a linear layer gets inputs of shape {tuple(x.shape)}")
                    entered.append(x.detach().to(layer.weight.dtype))
                    x = functional.linear(x, layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
                    left.append(x if x.requires_grad else x.requires_grad_())
                else:
                    x = layer(x)
            losses = self._losses(x, targets)
        chosen = slice(None) if among is None else among.to(losses.device)
        returned = [wide(tensor[chosen]) for tensor in torch.autograd.grad(losses.sum(), left)]
        return self._summed([wide(tensor[chosen]) for tensor in entered], returned, clip), losses[chosen].detach()

    def _summed(self, entered: list[Tensor], returned: list[Tensor], clip: float) -> list[Tensor]:
        """Compute the sum from the inputs of each linear layer (b, in) and the gradients at its outputs (b, out)."""
        layers = list(zip(self._linears, entered, returned, strict=True))
        squares = torch.zeros_like(returned[0][:, 0])
        for (weight, bias), came, went in layers:
            reach = 0.0 if weight is None else _squares(came)
            squares = squares + _squares(went) * (reach if bias is None else reach + 1.0)
        factors, fine = factors_of(squares.sqrt(), clip)
        sums = [wide(torch.zeros_like(parameter)) for parameter in self._parameters]
        for (weight, bias), came, went in layers:
            scaled = _only_finite(went, fine) * factors[:, None]
            if weight is not None:
                sums[weight] = scaled.t() @ _only_finite(came, fine)
            if bias is not None:
                sums[bias] = scaled.sum(0)
        return sums


class Vectorized:
    """Any module that torch.func's vmap can compute."""

    def __init__(self, module: nn.Module, parameters: Sequence[nn.Parameter], loss: Loss, device: Device) -> None:
        from torch.func import grad_and_value, vmap  # noqa: PLC0415 - slow, and most models do without it

        self._module, self._parameters, self._loss, self._device = module, parameters, loss, device
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._names = [names[id(parameter)] for parameter in parameters]
        self._each = vmap(grad_and_value(self._loss_of_one), in_dims=(None, 0, 0), randomness="different")
        self._rows = max(1, CHUNK_FLOATS // sum(parameter.numel() for parameter in parameters))

    def clipped_sum(
        self, inputs: Any, targets: Any, clip: float, among: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        trained = {name: parameter.detach() for name, parameter in zip(self._names, self._parameters, strict=True)}
        sums, losses = [wide(torch.zeros_like(parameter)).flatten() for parameter in trained.values()], []
        for first in range(0, _count(targets), self._rows):
            part = slice(first, first + self._rows)
            x, y = (_rows(each, part) for each in (inputs, targets))
            grads, values = self._each(trained, x, y)
            chosen = slice(None) if among is None else among[part].to(values.device)
            self._add([grads[name][chosen].reshape(-1, grads[name][0].numel()) for name in self._names], clip, sums)
            losses.append(values[chosen].detach())
        return [total.view(like.shape) for total, like in zip(sums, self._parameters, strict=True)], torch.cat(losses)

    def _add(self, gradients: list[Tensor], clip: float, sums: list[Tensor]) -> None:
        """Clip the gradients (b, d) of b rows and add them to the sums (d,), a few at a time, to stay in the cache."""
        few = max(1, CACHED_FLOATS // sum(total.numel() for total in sums))
        for parts in zip(*(torch.split(gradient, few) for gradient in gradients), strict=True):
            widened = [wide(part) for part in parts]
            factors, fine = factors_of(torch.stack([vector_norm(part, dim=1) for part in widened]).norm(dim=0), clip)
            for total, part in zip(sums, widened, strict=True):
                total.addmv_(_only_finite(part, fine).t(), factors)

    def _loss_of_one(self, trained: dict[str, Tensor], inputs: Any, targets: Any) -> Tensor:
        from torch.func import functional_call  # noqa: PLC0415 - as above

        def outputs(batch: Any) -> Any:
            return functional_call(self._module, trained, (batch,))

        alone = (over_tensors(lambda row: row.unsqueeze(0), each) for each in (inputs, targets))
        return self._device.loss(outputs, self._loss)(*alone).reshape(())


class OneByOne:
    """One backward pass per row, for models that support nothing faster."""

    def __init__(self, module: nn.Module, parameters: Sequence[nn.Parameter], loss: Loss, device: Device) -> None:
        self._parameters = parameters
        self._loss_of_batch = device.loss(module, loss)

    def clipped_sum(
        self, inputs: Any, targets: Any, clip: float, among: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        sums, losses = [wide(torch.zeros_like(parameter)) for parameter in self._parameters], []
        for row in range(_count(targets)) if among is None else among.nonzero().flatten().tolist():
            x, y = (_rows(each, slice(row, row + 1)) for each in (inputs, targets))
            loss = self._loss_of_batch(x, y).reshape(())
            grads = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            pairs = [(total, wide(grad)) for total, grad in zip(sums, grads, strict=True) if grad is not None]
            length = vector_norm(torch.stack([vector_norm(grad) for _, grad in pairs]))
            factors, fine = factors_of(length[None], clip)
            for total, grad in pairs if fine is None else ():
                total.add_(grad * factors[0])
            losses.append(loss.detach())
        return sums, torch.stack(losses)


RowGradients = LayerChain | Vectorized | OneByOne
"""Computes sums of clipped gradients.

`clipped_sum` sums per-row gradients in float64, in the parameters' shapes, and returns the losses too. The mask `among`
(b,) selects the rows, at least one; None selects all. Each gradient is first clipped to norm `clip` over all parameters
together. A gradient that is not finite counts as zero.
"""


def row_gradients(
    module: nn.Module, parameters: Sequence[nn.Parameter], loss: Loss, device: Device, trial: tuple[Any, Any]
) -> RowGradients:
    """Choose the fastest method that works for this module. `trial` has the inputs and targets of a few rows."""
    layers = _chain(module, parameters)
    makers: list[Callable[[], RowGradients]] = [partial(Vectorized, module, parameters, loss, device)]
    if layers is not None:
        makers.insert(0, partial(LayerChain, layers, parameters, loss, device))
    was_training = module.training
    module.train()
    try:
        for make in makers:
            try:
                way = make()
                way.clipped_sum(*trial, 1.0)
            except FAILURES as error:
                log.debug("rows' gradients are not computed in the next fastest way: %s", describe_failure(error))
            else:
                return way
    finally:
        module.train(was_training)
    log.warning("privacy: torch cannot take this model's gradients of many rows at once, so training will be slow")
    return OneByOne(module, parameters, loss, device)


def losses_of_rows(loss: Loss) -> Loss:
    """Return a function of outputs (b, ...) and targets to the losses (b,), each row as a batch of its own."""
    if loss is functional.cross_entropy:
        return lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none")
    from torch.func import vmap  # noqa: PLC0415 - as above

    def alone(outputs: Any, targets: Any) -> Tensor:
        return loss(*(over_tensors(lambda row: row.unsqueeze(0), each) for each in (outputs, targets))).reshape(())

    return vmap(alone, randomness="different")


def factors_of(lengths: Tensor, clip: float) -> tuple[Tensor, Tensor | None]:
    """Return the factors that clip gradients of these norms (b,), and a mask of the finite ones, or None if all are."""
    factors, fine = (clip / lengths).clamp(max=1.0), lengths.isfinite()
    if bool(fine.all()):
        return factors, None
    return torch.where(fine, factors, 0.0), fine


def wide(tensor: Tensor) -> Tensor:
    """Convert to float64, which norms and sums are computed in; on the host if the device lacks float64."""
    return (tensor.detach().cpu() if tensor.device.type == "mps" else tensor.detach()).double()


def _only_finite(rows: Tensor, fine: Tensor | None) -> Tensor:
    """Set the rows (b, d) that are not `fine` to zero."""
    return rows if fine is None else torch.where(fine[:, None], rows, 0.0)


def _squares(rows: Tensor) -> Tensor:
    """Return the squared norms (b,) of the rows (b, d)."""
    return rows.square().sum(1)


def _rows(value: Any, part: slice) -> Any:
    return over_tensors(lambda tensor: tensor[part], value)


def _count(targets: Any) -> int:
    """Return the number of rows, also in a dictionary or tuple of tensors."""
    lengths: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        lengths.append(len(tensor))
        return tensor

    over_tensors(note, targets)
    return lengths[0]


def _chain(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[nn.Module] | None:
    """Return the layers of a plain chain whose trained parameters all belong to linear layers, each used only once."""
    if type(module) is not nn.Sequential or _has_hooks(module):
        return None
    layers = list(module)
    if not all(type(layer) in (nn.Linear, nn.Flatten, *ROWWISE) and not _has_hooks(layer) for layer in layers):
        return None
    if any(getattr(layer, "inplace", False) for layer in layers):
        return None
    if any(isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1) for layer in layers):
        return None
    held = [id(parameter) for layer in layers for parameter in layer.parameters()]
    return layers if len(held) == len(set(held)) and {id(parameter) for parameter in parameters} <= set(held) else None


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"))


ALLOWED = "layers that treat each row separately: torch.nn.GroupNorm or torch.nn.LayerNorm for normalization"
CLOSE = 1e-4
"""The allowed relative difference between a row's outputs in two batches: rounding depends on a batch's shape."""


def refuse_mixing(module: nn.Module, inputs: Any, device: Device, source: str) -> None:
    """Try the module in training mode on the inputs of one or two rows. `source` names the task in errors.

    Raises UserError: the module mixes rows, or remembers them.
    """
    was_training = module.training
    module.train()
    try:
        for name, layer in module.named_modules():
            across = isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.track_running_stats)
            if layer.training and across:
                what = f"{name or 'the model'}: {type(layer).__name__}"
                raise _mistake(source, what, "normalizes across the rows of a batch")
        _check(module, inputs, device, source)
    finally:
        module.train(was_training)


def _check(module: nn.Module, inputs: Any, device: Device, source: str) -> None:
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        # in both batches the first row is the same
        batches = (over_tensors(lambda rows: rows[[0, -1]], inputs), over_tensors(lambda rows: rows[[0, 0]], inputs))
        outputs = [_outputs(module, batch, device) for batch in batches]
    except FAILURES as error:
        text = f"the model fails in training: {describe_failure(error)}"
        raise UserError(text, file=source, key="model") from error
    with suppress(*FAILURES):  # the model may not accept these numbers
        outputs.append(_outputs(module, _beside_strange(inputs), device))
    changed = [name for name, now in module.named_buffers() if name not in before or not torch.equal(before[name], now)]
    for name, buffer in module.named_buffers():
        if name in before:
            buffer.data.copy_(before[name])
    if changed:
        raise _mistake(source, changed[0], "changes with the rows of each batch, and would reveal them without noise")
    if any(not _close(outputs[0], other) for other in outputs[1:]):
        raise _mistake(source, type(module).__name__, "its outputs for a row change with the other rows of the batch")


def _beside_strange(inputs: Any) -> Any:
    """Pair the row with an artificial one, in case the rows in the data are all alike."""

    def beside(tensor: Tensor) -> Tensor:
        return torch.stack([tensor[0], 1 - 2 * tensor[0]]) if tensor.is_floating_point() else tensor[[0, 0]]

    return over_tensors(beside, inputs)


def _outputs(module: nn.Module, batch: Any, device: Device) -> list[Tensor]:
    """Return the outputs for the first row, computed each time from the same state of torch's generators."""
    outputs: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.ndim and len(tensor) == 2:
            outputs.append(tensor[0].double())
        return tensor

    with torch.no_grad(), device.seeded(0):
        over_tensors(keep, module(batch))
    return outputs


def _close(first: list[Tensor], other: list[Tensor]) -> bool:
    return len(first) == len(other) and all(
        torch.allclose(a, b, rtol=CLOSE, atol=CLOSE, equal_nan=True) for a, b in zip(first, other, strict=True)
    )


def _mistake(source: str, value: str, text: str) -> UserError:
    return UserError(
        f"cannot be combined with [privacy] by record: {text}", file=source, key="model", value=value, allowed=ALLOWED
    )


Read = Callable[[Tensor], tuple[Any, Any]]
MOST_ROWS = 256
"""The most rows that torch receives in one batch."""


class PrivateSteps:
    """The steps of one round at a node with `samples` rows; `batches` has each step's rows (b,), maybe none."""

    def __init__(self, plan: Plan, samples: int, draws: Draws, gradients: RowGradients) -> None:
        self._spend = plan.spend(samples)
        self.batches = [torch.from_numpy(draws.rows(samples, self._spend.rate)) for _ in range(self._spend.steps)]
        self._draws, self._gradients = draws, gradients
        self._clip, self._samples, self._noise = plan.clip, samples, plan.noise * plan.share
        self._shape = shape_of(plan.training.batch_size)

    def backward(self, parameters: Sequence[nn.Parameter], read: Read) -> Callable[[Tensor], Tensor | None]:
        """Return the backward pass that stores private gradients and returns the rows' mean loss; None without rows."""
        sizes = [parameter.numel() for parameter in parameters]
        grid = self.grid(sum(sizes))
        expected = self._spend.rate * self._samples

        def differentiate(rows: Tensor) -> Tensor | None:
            total, losses = self.clipped_total(rows, read, sum(sizes))
            hidden = torch.from_numpy(grid.hidden(total, self._draws) / expected)
            for parameter, part in zip(parameters, torch.split(hidden, sizes), strict=True):
                parameter.grad = part.view(parameter.shape).to(parameter)
            return torch.cat(losses).mean() if losses else None

        return differentiate

    def clipped_total(self, rows: Tensor, read: Read, size: int) -> tuple[Reals, list[Tensor]]:
        """Return the sum (size,) of the rows' clipped gradients, still without noise, and their losses."""
        total, losses = torch.zeros(size, dtype=torch.float64), []
        length = self.grid(size).length
        for piece, among in pieces(rows, self._shape, self._draws):
            sums, piece_losses = self._gradients.clipped_sum(*read(piece), length, among)
            total += torch.cat([part.flatten() for part in sums]).cpu()
            losses.append(piece_losses)
        return total.numpy(), losses

    def grid(self, size: int) -> Grid:
        """Return the grid for gradients (size,)."""
        in_sequence = 2 * self._shape + self._samples // self._shape + 1
        return Grid.of(noise=self._noise, clip=self._clip, size=size, rows=self._samples, in_sequence=in_sequence)


def shape_of(batch_size: int) -> int:
    """Return the number of places in a piece of a batch: one piece suffices for all but one batch in thirty."""
    return min(MOST_ROWS, 8 * math.ceil((batch_size + 2 * math.sqrt(batch_size)) / 8))


def pieces(rows: Tensor, shape: int, draws: Draws) -> Iterator[tuple[Tensor, Tensor]]:
    """Split the rows (b,) into pieces (shape,) at random places, with a mask of the places in use (shape,).

    The unused places contain a row that does not count. How torch rounds a row's gradient depends on the row's place
    and the batch's shape, not on the other rows. So an additional row, which takes an unused place, does not change the
    last bits of any other gradient. In a batch of several pieces it may move another row: the grid's margin covers it.
    """
    if not len(rows):
        return
    if len(rows) > shape:
        rows = rows[draws.order(len(rows))]
    for part in torch.split(rows, shape):
        places = draws.order(shape)[: len(part)]
        piece, among = part[:1].repeat(shape), torch.zeros(shape, dtype=torch.bool)
        piece[places], among[places] = part, True
        yield piece, among


class PrivateRounds:
    """The private rounds of a learner. `row_gradients` is set if single rows are protected, None if the member is."""

    row_gradients: RowGradients | None

    def __init__(self, protection: Protection, model: TorchModel, train_set: Samples) -> None:
        """Prepare the rounds. Raises UserError: single rows are to be protected, and the model mixes rows."""
        self.protection, self.plan = protection, protection.plan_for(len(train_set))
        self.row_gradients = _gradients_of_rows(model, train_set) if self.plan.unit == RECORD else None
        self.shared = _shared(self.plan, len(train_set), model)
        """The rounds with shared noise, if it is shared."""

    @property
    def hides_member(self) -> bool:
        return self.plan.unit == MEMBER

    def at_node(self, samples: int) -> PrivateRounds:
        """Return the same rounds, with the same model, for a node with `samples` rows."""
        other = copy(self)
        other.plan = self.protection.plan_for(samples)
        if self.shared is not None:
            other.shared = SharedRounds(other.plan, samples, self.shared.places)
        return other

    def steps_with(self, samples: int) -> int | None:
        """Return the number of steps in a round on `samples` rows, or None if there are as many as without privacy."""
        return self.plan.spend(samples).steps if self.plan.unit == RECORD else None

    def steps(self, samples: int, draws: Draws) -> PrivateSteps | None:
        """Return the steps of a round in which single rows are protected; None: the same as without privacy."""
        if self.row_gradients is None:
            return None
        return PrivateSteps(self.plan, samples, draws, self.row_gradients)

    def next_model(self, start: Vector, ended: Vector, draws: Draws) -> Vector:
        """Return the model (d,) to go on from after a round; with shared noise `start`, until the sum is known."""
        if self.shared is not None:
            self.shared.give_change(start, ended, draws)
            return start
        return hide_round(start, ended, self.plan, draws) if self.hides_member else ended

    def gradient_part(self, samples: int, draws: Draws, read: Read) -> None:
        """Make this node's part of a sum of its rows' clipped gradients; unit `record` and shared noise."""
        steps = self.steps(samples, draws)
        if steps is None or self.shared is None:
            raise ValueError("no rounds that sum the gradients of single rows")
        size = self.shared.entries
        total, _ = steps.clipped_total(steps.batches[0], read, size)
        self.shared.part = steps.grid(size).hidden_steps(total, draws)


def _shared(plan: Plan, samples: int, model: TorchModel) -> SharedRounds | None:
    if plan.shared_rate is None:
        return None
    if plan.unit == MEMBER:  # buffers change too, such as BatchNorm's
        return SharedRounds(plan, samples, [slice(0, model.flat.size)])
    trained = model.flat.trained_parts
    if [id(parameter) for parameter, _ in trained] != [id(parameter) for parameter in model.parameters]:
        text = "trains tensors that are not shared, or in another order: with shared noise each must be in the sum"
        raise UserError(text, file=model.task.name, key="model", allowed="a model without; or noise of each node's own")
    return SharedRounds(plan, samples, [part for _, part in trained])


def _gradients_of_rows(model: TorchModel, train_set: Samples) -> RowGradients:
    """Try the model. Raises UserError: it mixes rows, or a setting asks for what these rounds do not do."""
    compute = model.device.compute
    for key, value in (("micro_batch_size", compute.micro_batch_size), ("compile", compute.compile or None)):
        if value is not None:
            text = "gradients of single rows are computed in another way"
            raise UserError(text, file=compute.file, key=f"node.{key}", value=value, allowed='privacy.unit = "member"')
    with model.device.seeded(0):
        trial = model.reader(train_set)(torch.arange(min(2, len(train_set))))
        refuse_mixing(model.module, trial[0], model.device, model.task.name)
        return row_gradients(model.module, model.parameters, loss_of(model.task), model.device, trial)
