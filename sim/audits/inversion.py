"""Gradient inversion: inputs whose gradient points where an observed one does.

Geiping et al. 2020, "Inverting gradients" (arXiv 2003.14053): the cosine distance of the gradients plus the total
variation of the picture, by Adam on the signs of the gradient. Labels are read off the last layer's bias, whose
gradient is the mean of p - e_y (Zhao et al. 2020, arXiv 2001.02610; for several rows Wainakh et al. 2021, 2105.09369).
Local rounds of several steps are unrolled, with one group of rows for each step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from p2pfl.learn.params import TensorPlace

Values = NDArray[np.floating[Any]]
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class InversionSettings:
    """Settings of the search. `smoothness` weighs the total variation; each of the `tries` begins at other noise, and
    the best fit counts.

    A try ends after `limit_s` seconds at the latest.
    """

    iterations: int = 400
    rate: float = 0.1
    smoothness: float = 1e-3
    tries: int = 1
    seed: int = 0
    limit_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Inversion:
    """The result of an inversion: `inputs` (b, ...) with `labels` (b,), whose gradient has the cosine distance
    `distance` to the observed one.
    """

    inputs: Values
    labels: NDArray[np.int64]
    distance: float


def labels_of(bias_gradient: Values, rows: int) -> NDArray[np.int64]:
    """Read off the most likely labels (rows,) of the batch: each row takes about 1/rows from the gradient
    of its class.
    """
    left = np.array(bias_gradient, dtype=np.float64)
    scale = max(1e-12, -left[left < 0].sum()) / rows
    found = []
    for _ in range(rows):
        found.append(int(left.argmin()))
        left[found[-1]] += scale
    return np.sort(np.array(found, dtype=np.int64))


def invert(
    module: nn.Module,
    places: Sequence[TensorPlace],
    start: Values,
    gradient: Values,
    *,
    loss: Loss,
    shape: Sequence[int],
    labels: Sequence[int] | NDArray[np.int64] | Tensor,
    bounds: tuple[float, float] = (0.0, 1.0),
    steps: int = 1,
    learning_rate: float = 0.0,
    settings: InversionSettings | None = None,
) -> Inversion:
    """Find inputs (b, *shape) with `labels` (b,) whose mean gradient at the model `start` (d,) points where `gradient`
    (d,) does.

    With `steps` above 1 the inputs form that many groups, and the gradient is that of a round at `learning_rate`.
    Inputs lie within `bounds`. `loss` maps outputs and targets to the mean over rows; the module must be differentiable
    twice almost everywhere.
    """
    wanted, how = torch.from_numpy(np.array(gradient, np.float32)), settings or InversionSettings()
    given = {place.name: _part(start, place) for place in places}
    trained = [place for place in places if place.trained]
    observed = [wanted[place.part].view(place.shape) for place in trained]
    targets = torch.as_tensor(labels).long()
    module.eval()

    def change(inputs: Tensor) -> list[Tensor]:
        return _change(
            module, given, [place.name for place in trained], (inputs, targets), (loss, steps, learning_rate)
        )

    best: tuple[float, Tensor] | None = None
    for attempt in range(how.tries):
        generator = torch.Generator().manual_seed(how.seed + attempt)
        first = torch.rand((len(targets), *shape), generator=generator) * (bounds[1] - bounds[0]) + bounds[0]
        found = _descend(first, change, observed, bounds, how)
        best = found if best is None or found[0] < best[0] else best
    if best is None:
        raise ValueError("an inversion of no tries")
    return Inversion(best[1].numpy(), targets.numpy(), best[0])


def _descend(
    first: Tensor,
    change: Callable[[Tensor], list[Tensor]],
    observed: list[Tensor],
    bounds: tuple[float, float],
    how: InversionSettings,
) -> tuple[float, Tensor]:
    inputs = first.clone().requires_grad_()
    optimizer = torch.optim.Adam([inputs], lr=how.rate * (bounds[1] - bounds[0]))
    marks = [how.iterations * part // 8 for part in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, marks, gamma=0.1)
    best, kept, ends_at = math.inf, first, time.monotonic() + how.limit_s
    for _ in range(how.iterations):
        distance = cosine_distance(change(inputs), observed)
        if float(distance.detach()) < best:
            best, kept = float(distance.detach()), inputs.detach().clone()
        total = distance + how.smoothness * variation(inputs)
        (slope,) = torch.autograd.grad(total, [inputs])
        inputs.grad = slope.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            inputs.clamp_(*bounds)
        if time.monotonic() > ends_at:
            break
    return best, kept


def _change(
    module: nn.Module,
    parameters: Mapping[str, Tensor],
    names: Sequence[str],
    rows: tuple[Tensor, Tensor],
    how: tuple[Loss, int, float],
) -> list[Tensor]:
    """Compute the gradient, or minus the model's movement over the steps: by parameter, differentiable."""
    loss, steps, rate = how
    now = {name: parameters[name].clone().requires_grad_() for name in names}
    begun, way = dict(now), [torch.zeros(())] * len(names)
    for inputs, targets in zip(rows[0].chunk(steps), rows[1].chunk(steps), strict=True):
        said = loss(functional_call(module, {**parameters, **now}, (inputs,)), targets)
        slopes = torch.autograd.grad(said, list(now.values()), create_graph=True)
        way = [a + b for a, b in zip(way, slopes, strict=True)]
        if steps > 1:
            now = {name: begun[name] - rate * w for name, w in zip(names, way, strict=True)}
    return way


def cosine_distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """1 - cos of the angle between two gradients, given tensor by tensor."""
    product = torch.stack([(a * b).sum() for a, b in zip(some, others, strict=True)]).sum()
    squares = [torch.stack([(a * a).sum() for a in one]).sum() for one in (some, others)]
    return 1 - product / (squares[0] * squares[1]).sqrt().clamp_min(1e-30)


def variation(inputs: Tensor) -> Tensor:
    """The mean absolute difference of neighboring values: of pictures (b, c, h, w), or of flat square ones (b, h*h);
    0 for inputs that are neither.
    """
    side = math.isqrt(inputs[0].numel())
    if inputs.ndim == 2 and side * side == inputs.shape[1] and side > 2:
        inputs = inputs.view(-1, 1, side, side)
    if inputs.ndim < 3:
        return torch.zeros(())
    return (inputs.diff(dim=-1).abs().mean() + inputs.diff(dim=-2).abs().mean()).to(inputs.dtype)


def _part(vector: Values, place: TensorPlace) -> Tensor:
    return torch.from_numpy(np.array(vector[place.part], np.float32)).view(place.shape)
