"""Reconstruction of a node's rows by its neighbors, from a few rounds that they have observed.

*Rank one* recovers the input of a gradient exactly if a layer with weights and biases sees it: x = dW_i / db_i. The
gradient of such a layer for one row is the outer product of the gradient that reaches unit i and the input x, so each
of its rows is a multiple of x. Phong et al. 2018 (IEEE TIFS 13(5), section 3); Geiping et al. 2020 (arXiv 2003.14053,
proposition 3.1). For the gradient of several rows this gives a weighted mean of them.

*Inversion* finds inputs whose gradient points in the same direction as an observed one. Geiping et al. 2020, "Inverting
gradients" (arXiv 2003.14053): minimize the cosine distance of the gradients plus the total variation of the picture,
with Adam on the signs of the gradient. Labels are read off the last layer's bias, whose gradient is the mean of
p - e_y (Zhao et al. 2020, arXiv 2001.02610; for several rows Wainakh et al. 2021, 2105.09369). Local rounds of several
steps are unrolled, with one group of rows per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from p2pfl.config.model import FederationConfig, TrainingConfig
from p2pfl.learn.evaluation import loss_of
from p2pfl.learn.interface import Vector
from p2pfl.learn.methods import method_of
from p2pfl.learn.tensors import TensorPlace
from p2pfl.learn.trainer import TorchLearner
from p2pfl.methods import FLOW, Method, Variate, Vectors
from sim.audits.scene import Observation, RoundSeen

MOST_DB = 100.0
"""The PSNR of equal arrays; beyond it, float32 rounding dominates."""
RECOGNIZABLE_DB = 20.0
"""The PSNR above which one can recognize what a picture shows."""


@dataclass(frozen=True, slots=True)
class Match:
    """The private row closest to a guess, and its `psnr_db`."""

    row: int
    psnr_db: float


def psnr_db(guess: Values, truth: Values, span: float) -> float:
    """Return the peak signal-to-noise ratio of two arrays of one shape whose values span `span`, at most 100 dB."""
    error = float(np.mean((guess.astype(np.float64) - truth) ** 2))
    return MOST_DB if error == 0 else min(MOST_DB, 10 * float(np.log10(span**2 / error)))


def span_of(rows: Values) -> float:
    """Return the range of the private rows' values; 1 if all are equal."""
    return float(rows.max() - rows.min()) or 1.0


def best_match(guess: Values, truths: Values, span: float) -> Match:
    """Find the row of `truths` (n, ...) nearest to `guess` (...), which is clipped to the range of their values."""
    flat = truths.reshape(len(truths), -1).astype(np.float64)
    inside = np.clip(np.nan_to_num(guess.reshape(-1)), flat.min(), flat.max())
    row = int(((flat - inside) ** 2).sum(axis=1).argmin())
    return Match(row, psnr_db(inside, flat[row], span))


def matched(guesses: Values, truths: Values, span: float) -> list[Match]:
    """Match each of the `guesses` (b, ...) with another row of `truths` (n, ...), the closest pair first."""
    flat = truths.reshape(len(truths), -1).astype(np.float64)
    inside = np.clip(np.nan_to_num(guesses.reshape(len(guesses), -1)), flat.min(), flat.max())
    costs = ((inside[:, None] - flat[None]) ** 2).mean(axis=2)
    free, matches = set(range(len(truths))), dict[int, Match]()
    for place in np.argsort(costs, axis=None).tolist():
        guess, row = divmod(place, len(truths))
        if guess not in matches and row in free:
            free.discard(row)
            matches[guess] = Match(row, psnr_db(inside[guess], flat[row], span))
    return [matches[guess] for guess in sorted(matches)]


Values = NDArray[np.floating[Any]]
TRANSPARENT = (nn.Flatten, nn.Identity, nn.Dropout)
"""Modules before a first linear layer that leave the input unchanged."""


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """Where a model's first linear layer is within a vector (d,)."""

    weight: slice
    bias: slice
    outputs: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """The input (inputs,) as `unit` reveals it; `rank_one`, the share of the gradient explained: 1 for one row's."""

    inputs: Values
    unit: int
    rank_one: float


def first_layer(module: nn.Module, places: list[TensorPlace]) -> FirstLayer | str:
    """Find the linear layer that sees unchanged inputs, or say why there is none. `places` is a vector's layout."""
    names = {place.name: place for place in places}
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            at = name + "." if name else ""
            weight, bias = names.get(f"{at}weight"), names.get(f"{at}bias")
            if weight is None or bias is None:
                return "the first layer has no bias, or is not shared"
            return FirstLayer(weight.part, bias.part, part.out_features, part.in_features)
        if not any(part.children()) and not isinstance(part, TRANSPARENT):
            return f"the first layer is not linear ({type(part).__name__})"
    return "the model has no linear layer"


def rank_one(gradient: Values, layer: FirstLayer) -> Reconstruction | None:
    """Recover the input from a gradient (d,), or any multiple of it; None if no bias has moved."""
    weights = gradient[layer.weight].reshape(layer.outputs, layer.inputs).astype(np.float64)
    biases = gradient[layer.bias].astype(np.float64)
    unit = int(np.abs(biases).argmax())
    if not biases[unit]:
        return None
    inputs = weights[unit] / biases[unit]
    total = float((weights**2).sum())
    left = float(((weights - np.outer(biases, inputs)) ** 2).sum())
    return Reconstruction(inputs, unit, max(0.0, 1.0 - left / total) if total else 0.0)


Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class InversionSettings:
    """Settings of the search, which starts from noise. `smoothness` weighs the total variation."""

    iterations: int = 400
    rate: float = 0.1
    smoothness: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Inversion:
    """The inversion: `inputs` (b, ...) with `labels` (b,), the cosine `distance` of their gradient to the observed."""

    inputs: Values
    labels: NDArray[np.int64]
    distance: float


def labels_of(bias_gradient: Values, rows: int) -> NDArray[np.int64]:
    """Read off the likeliest labels (rows,) of the batch: each row takes about 1/rows from its class's gradient."""
    left = np.array(bias_gradient, dtype=np.float64)
    scale = max(1e-12, -left[left < 0].sum()) / rows
    labels = []
    for _ in range(rows):
        labels.append(int(left.argmin()))
        left[labels[-1]] += scale
    return np.sort(np.array(labels, dtype=np.int64))


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
    """Find inputs (b, *shape) with `labels` (b,) whose mean gradient at the model `start` (d,) has the direction of
    `gradient` (d,).

    With `steps` above 1 the inputs form that many groups, and the gradient is that of a round at `learning_rate`.
    Inputs lie within `bounds`. `loss` maps outputs and targets to the mean over rows; the module must be differentiable
    twice almost everywhere.
    """
    target, how = torch.from_numpy(np.array(gradient, np.float32)), settings or InversionSettings()
    given = {place.name: _part(start, place) for place in places}
    trained = [place for place in places if place.trained]
    observed = [target[place.part].view(place.shape) for place in trained]
    targets = torch.as_tensor(labels).long()
    module.eval()

    def change(inputs: Tensor) -> list[Tensor]:
        return _change(
            module, given, [place.name for place in trained], (inputs, targets), (loss, steps, learning_rate)
        )

    generator = torch.Generator().manual_seed(how.seed)
    first = torch.rand((len(targets), *shape), generator=generator) * (bounds[1] - bounds[0]) + bounds[0]
    distance, inputs = _descend(first, change, observed, bounds, how)
    return Inversion(inputs.numpy(), targets.numpy(), distance)


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
    best, kept = math.inf, first
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
    return best, kept


def _change(
    module: nn.Module,
    parameters: Mapping[str, Tensor],
    names: Sequence[str],
    rows: tuple[Tensor, Tensor],
    how: tuple[Loss, int, float],
) -> list[Tensor]:
    """Compute the gradient, or minus the model's movement over the steps, by parameter; differentiable."""
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
    """Return 1 - cos of the angle between two gradients, given tensor by tensor."""
    product = torch.stack([(a * b).sum() for a, b in zip(some, others, strict=True)]).sum()
    squares = [torch.stack([(a * a).sum() for a in tensors]).sum() for tensors in (some, others)]
    return 1 - product / (squares[0] * squares[1]).sqrt().clamp_min(1e-30)


def variation(inputs: Tensor) -> Tensor:
    """Return the mean absolute difference of neighboring values (b, c, h, w), or flat and square (b, h*h); else 0."""
    side = math.isqrt(inputs[0].numel())
    if inputs.ndim == 2 and side * side == inputs.shape[1] and side > 2:
        inputs = inputs.view(-1, 1, side, side)
    if inputs.ndim < 3:
        return torch.zeros(())
    return (inputs.diff(dim=-1).abs().mean() + inputs.diff(dim=-2).abs().mean()).to(inputs.dtype)


def _part(vector: Values, place: TensorPlace) -> Tensor:
    return torch.from_numpy(np.array(vector[place.part], np.float32)).view(place.shape)


class _Known:
    """The victim as its method sees it, as far as its neighbors know."""

    def __init__(self, seen: RoundSeen, samples: int) -> None:
        self._seen, self.samples = seen, samples
        self.channels: Vectors = MappingProxyType({})
        self.kept = self.given = self.channels

    def sum_of_edges(self, name: str, channel: str = "model") -> Vector:
        del channel
        known = self._seen.flows
        return np.zeros_like(self._seen.start) if name != FLOW or known is None else known.copy()


def gradient_of(seen: RoundSeen, training: TrainingConfig, method: Method, *, samples: int, steps: int = 1) -> Vector:
    """Recover the mean gradient (d,) of a round of `steps` SGD steps, without what the method and the weight decay
    added.

    It is exact for one step if compression is lossless. `samples` is the victim's n, which its messages reveal.
    """
    rate = training.rate(seen.number, 0.0)
    gradient = -seen.change / np.float32(rate * steps * seen.versions)
    gradient -= np.float32(training.weight_decay) * seen.start
    if isinstance(method, Variate):
        start = {"anchor": seen.start, **method.begin(_Known(seen, samples))}
        gradient -= method.gradient(np.zeros_like(gradient), seen.start, start)
    return gradient


MOST_ROWS = 8
"""The maximum number of rows that an attack guesses together."""
MOST_OTHERS = 200


@dataclass(frozen=True, slots=True)
class Guess:
    """One rebuilt row: from round `number`, with the private row closest to it."""

    number: int
    match: Match


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """All guesses of one attack. `missing` says why there are none."""

    guesses: tuple[Guess, ...] = ()
    missing: str = ""

    @property
    def psnr_db(self) -> float | None:
        """The median PSNR over the guesses."""
        return median(guess.match.psnr_db for guess in self.guesses) if self.guesses else None

    def share(self, least_db: float) -> float | None:
        """Return the share of guesses that are at least this close."""
        return (
            sum(guess.match.psnr_db >= least_db for guess in self.guesses) / len(self.guesses) if self.guesses else None
        )


@dataclass(frozen=True, kw_only=True)
class Rebuilder:
    """Rebuilds rows. `learner` is the victim's, providing its model and its rows, which only the auditor has.

    `settings` are for the inversion.
    """

    learner: TorchLearner
    federation: FederationConfig
    settings: InversionSettings = field(default_factory=InversionSettings)

    def exactly(self, observed: Observation, rounds: int) -> Rebuilt:
        """Rebuild rows by rank one, from one-step rounds on one row."""
        layer = first_layer(self.learner.model.module, self.learner.model.flat.places)
        if isinstance(layer, str):
            return Rebuilt(missing=layer)
        guesses = list[Guess]()
        for seen in observed.rounds()[:rounds]:
            rebuilt = rank_one(self._gradient(seen), layer)
            if rebuilt is not None:
                guesses.append(Guess(seen.number, best_match(rebuilt.inputs, self._inputs, self._span)))
        return Rebuilt(tuple(guesses), "" if guesses else "no round was seen")

    def by_inversion(self, observed: Observation, rounds: int, *, rows: int = 1, steps: int = 1) -> Rebuilt:
        """Rebuild rows by inversion, from rounds of `steps` steps on `rows` rows each.

        In larger rounds the first MOST_ROWS rows are guessed, as if the rounds had been one step.
        """
        reason = self.why_not
        if reason:
            return Rebuilt(missing=reason)
        unrolled, guessed = (steps, rows * steps) if rows * steps <= MOST_ROWS else (1, min(rows * steps, MOST_ROWS))
        guesses = list[Guess]()
        for seen in observed.rounds()[:rounds]:
            gradient = self._gradient(seen, steps)
            bias = last_bias(self.learner.model.module, self.learner.model.flat.places)
            labels = labels_of(gradient[bias], guessed) if bias is not None else np.zeros(guessed, np.int64)
            inverted = invert(
                self.learner.model.module,
                self.learner.model.flat.places,
                seen.start,
                gradient,
                loss=loss_of(self.learner.task),
                shape=tuple(self._inputs.shape[1:]),
                labels=labels,
                bounds=(float(self._inputs.min()), float(self._inputs.max())),
                steps=unrolled,
                learning_rate=self.federation.training.learning_rate,
                settings=replace(self.settings, seed=self.settings.seed + seen.number),
            )
            matches = matched(inverted.inputs, self._inputs, self._span)
            guesses += [Guess(seen.number, match) for match in matches]
        return Rebuilt(tuple(guesses), "" if guesses else "no round was seen")

    @property
    def why_not(self) -> str:
        """Say why there is nothing to invert; empty if there is."""
        inputs, _ = self.learner.train_set.rows(torch.arange(1))
        if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point():
            return "the inputs are not real numbers (text, categories, raw bytes)"
        if not self.learner.labels:
            return "the task is not to tell classes"
        if last_bias(self.learner.model.module, self.learner.model.flat.places) is None:
            return "the last layer has no bias that is shared, from which labels could be read"
        return ""

    def recognizable_db(self, others: Values) -> float:
        """Return the PSNR (dB) above which a guess reveals a private row.

        Such a guess is closer than 19 of 20 rows of `others` (n, ...) come to the private row most like them, and close
        enough to recognize a picture.
        """
        near = [best_match(row, self._inputs, self._span).psnr_db for row in others[:MOST_OTHERS]]
        return max(RECOGNIZABLE_DB, float(np.quantile(near, 0.95)))

    @property
    def _inputs(self) -> Values:
        inputs, _ = self.learner.train_set.rows(torch.arange(len(self.learner.train_set)))
        flat: Values = inputs.numpy()
        return flat

    @property
    def _span(self) -> float:
        return span_of(self._inputs)

    def _gradient(self, seen: RoundSeen, steps: int = 1) -> Values:
        return gradient_of(
            seen, self.federation.training, method_of(self.federation), samples=self.learner.samples, steps=steps
        )


def last_bias(module: nn.Module, places: Sequence[TensorPlace]) -> slice | None:
    """Find the bias of the last linear layer in a vector."""
    names = {place.name: place.part for place in places}
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return names.get(f"{linear[-1]}.bias" if linear[-1] else "bias") if linear else None
