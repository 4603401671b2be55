"""Local rounds of many nodes at once, for arrays: perceptrons as written-out products, anything else by `torch.func`;
with convolutions, on a CPU, one node after the other by its own learner, channels last.

A perceptron is a `Sequential` of linear layers with ReLU or tanh between them, trained by SGD on the cross entropy. A
convolution fills the processor alone: `torch.func.vmap` takes 1.3 to 3 times as long. Steps are in bfloat16 where the
processor has AMX (with AVX-512's instructions alone it took 1.6 times as long), else, and for scores, in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from p2pfl.chance import generator
from p2pfl.config.model import Compute
from p2pfl.learn.evaluation import Device
from p2pfl.learn.interface import RoundStart, Score
from p2pfl.learn.torch_model import TorchModel
from p2pfl.methods import Method, overrides
from sim.learning.batching import Batch, ManyModels, closing_of, rate_of
from sim.learning.nodes import TorchNodes

Integers = NDArray[np.int64]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
"""Those whose weights may be channels last."""


def has_convolutions(module: nn.Module) -> bool:
    return any(isinstance(part, CONVOLUTIONS) for part in module.modules())


class OneByOne:
    """Trains and tests `nodes` one at a time, in a module that they share."""

    def __init__(self, nodes: TorchNodes, method: Method) -> None:
        self.nodes, self.method = nodes, method
        precision = "bf16" if getattr(torch.cpu, "_is_amx_tile_supported", bool)() else "float32"
        self.how = f"one node at a time, channels last, {precision}"
        learner = copy(nodes.prototype)
        learner.device = Device(Compute(precision=precision))
        before = learner.model
        learner.model = TorchModel(before.task, before.training, before.share, learner.device, before.seed)
        learner.model.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        nodes.prototype = learner

    def train(self, nodes: Integers, rounds: Integers, starts: Tensor, given: Tensor | None) -> Tensor:
        """Move each of `starts` (b, d) by the node's round; return the losses (b,)."""
        losses = torch.empty(len(nodes), dtype=torch.float64)
        for row, (node, done) in enumerate(zip(nodes.tolist(), rounds.tolist(), strict=True)):
            vectors = {} if given is None else {self.method.given[0]: given[row].numpy()}
            closing = closing_of(self.nodes.prototype.training, done)
            start = RoundStart(starts[row].numpy(), vectors, self.method, closing=closing)
            learned = self.nodes[node].train(start, done)
            starts[row] = torch.from_numpy(learned.vector)
            losses[row] = learned.loss
        return losses

    def evaluate(self, models: NDArray[np.float32], part: str, nodes: Integers) -> list[Score | None]:
        """Score each of `models` (b, d) on its node's data, `part` "test" or "local"."""
        return [self.nodes[node].evaluate(model, part) for node, model in zip(nodes.tolist(), models, strict=True)]


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer: the places of its weight (out, in) and bias (out,) in a model, and what follows it."""

    weight: slice
    bias: slice
    shape: tuple[int, int]
    activation: str


def layers_of(grouped: ManyModels) -> list[Layer] | None:
    """Return the layers of a perceptron that is trained by plain SGD on the cross entropy; None for anything else."""
    training = grouped.training
    plain = training.optimizer == "sgd" and not training.weight_decay
    learner = grouped.nodes.prototype
    module = learner.model.module
    if not (plain and grouped.task.loss is None and learner.labels and isinstance(module, nn.Sequential)):
        return None
    parts = [(name, part) for name, part in module.named_children() if not isinstance(part, nn.Flatten)]
    linear = [(name, part) for name, part in parts[::2] if isinstance(part, nn.Linear)]
    between = [part for _, part in parts[1::2]]
    places = {place.name: place.part for place in grouped.places if place.trained}
    names = {f"{name}.{kind}" for name, _ in linear for kind in ("weight", "bias")}
    activated = all(isinstance(part, nn.ReLU | nn.Tanh) for part in between)
    if len(linear) != len(between) + 1 or not activated or names != places.keys():
        return None
    follows = [*(type(part).__name__.lower() for part in between), ""]
    return [
        Layer(places[f"{name}.weight"], places[f"{name}.bias"], (part.out_features, part.in_features), activation)
        for (name, part), activation in zip(linear, follows, strict=True)
    ]


class Rounds:
    """Trains local rounds, by default with the batches that each node's own learner draws."""

    def __init__(self, grouped: ManyModels, method: Method, device: torch.device, *, own_draws: bool = True) -> None:
        """Without `own_draws` nodes of a chunk draw their batches together, which is several times as fast."""
        self.grouped, self.method, self.own_draws = grouped, method, own_draws
        self.layers = layers_of(grouped)
        convolutions = device.type == "cpu" and has_convolutions(grouped.nodes.prototype.model.module)
        self.one_by_one = OneByOne(grouped.nodes, method) if convolutions else None
        self.losses = np.full(len(grouped.nodes), np.nan)

    def __call__(self, nodes: Integers, rounds: Integers, starts: Tensor, given: Tensor | None) -> None:
        """Move each of `starts` (b, d) by the node's round; the method's gradients get `given` (b, d)."""
        if self.one_by_one is not None:
            self.losses[nodes] = self.one_by_one.train(nodes, rounds, starts, given).numpy()
            return
        kinds = self.grouped.kinds[nodes]
        rates = np.array([rate_of(self.grouped.training, int(done)) for done in rounds])
        for kind, rate in sorted(set(zip(kinds.tolist(), rates.tolist(), strict=True))):
            rows = np.flatnonzero((kinds == kind) & (rates == rate))
            whole = len(rows) == len(nodes)
            index = torch.from_numpy(rows)
            models = starts if whole else starts[index]
            extra = given if whole or given is None else given[index]
            batches = self._batches(kind, nodes[rows], rounds[rows])
            self.losses[nodes[rows]] = self._train(kind, nodes[rows], batches, models, extra, rate)
            if not whole:
                starts[index] = models

    @property
    def how(self) -> str:
        """How rounds are trained, in words."""
        if self.one_by_one is not None:
            return self.one_by_one.how
        return "written-out products" if self.layers else "torch.func"

    def evaluate(self, models: NDArray[np.float32], part: str, nodes: Integers) -> list[Score | None]:
        """Score each of `models` (b, d) on its node's data, `part` "test" or "local"."""
        return (self.one_by_one or self.grouped).evaluate(models, part, nodes)

    def _train(  # noqa: PLR0917 - which rounds, and their vectors
        self, kind: int, nodes: Integers, batches: Iterable[Batch], models: Tensor, given: Tensor | None, rate: float
    ) -> NDArray[np.float64]:
        """Move `models` (b, d) of `nodes` (b,) by a local round; return the mean losses (b,)."""
        vectors = {} if given is None else {self.method.given[0]: given}
        own = overrides(self.method, "gradient")
        if self.layers is None:
            vectors_used, places = vectors if own else None, torch.from_numpy(nodes)
            return self.grouped.learn(models, batches, vectors_used, rate, places).double().cpu().numpy()
        if own and self.method.needs_anchor:
            vectors["anchor"] = models.clone()
        total = models.new_zeros(len(models))
        gradient, momentum, speed = torch.empty_like(models), self.grouped.training.momentum, None
        prior = None if self.grouped.priors is None else self.grouped.priors[nodes, None].to(models.device)
        for batch in batches:
            inputs, targets = (tensor.to(models.device) for tensor in batch)
            total += _gradient(self.layers, models, inputs.flatten(2), targets, gradient, prior)
            step = self.method.gradient(gradient, models, vectors) if own else gradient
            if momentum:
                speed = step.clone() if speed is None else speed.mul_(momentum).add_(step)
                step = speed
            models.sub_(step, alpha=rate)
        return (total / len(self.grouped.sizes[kind])).double().cpu().numpy()

    def _batches(self, kind: int, nodes: Integers, rounds: Integers) -> Iterator[Batch]:
        """Yield inputs and targets (b, rows, ...) of each step; where a step takes all rows their order is moot."""
        grouped, sizes = self.grouped, self.grouped.sizes[kind]
        counts = grouped.pool.counts[nodes]
        first = grouped.pool.first[nodes][:, None]
        if (counts == sizes[0]).all() and len(set(sizes)) == 1:
            batch = grouped.pool.gather(first + np.arange(sizes[0]))
            yield from (batch for _ in sizes)
            return
        if self.own_draws:
            yield from grouped.nodes.batches(grouped.pool, nodes, rounds, sizes)
            return
        rng = generator(grouped.nodes.prototype.context.seed, "batches of a chunk", int(nodes[0]), int(rounds[0]))
        drawn = np.empty((len(nodes), sum(sizes)), np.int64)
        for count in np.unique(counts).tolist():
            alike, passes = np.flatnonzero(counts == count), range(-(-sum(sizes) // count))
            orders = [rng.random((len(alike), count), np.float32).argsort(axis=1) for _ in passes]
            drawn[alike] = np.concatenate(orders, axis=1)[:, : sum(sizes)]
        for rows in np.split(first + drawn, np.cumsum(sizes)[:-1], axis=1):
            yield grouped.pool.gather(rows)


def _gradient(  # noqa: PLR0917 - the models, the rows, and what is added to outputs
    layers: list[Layer], models: Tensor, inputs: Tensor, targets: Tensor, out: Tensor, prior: Tensor | None
) -> Tensor:
    """Fill `out` (c, d) with the gradients of the mean cross entropy of `models` (c, d); return the losses (c,).

    `prior` (c, 1, classes) is added to their outputs.
    """
    count, rows = targets.shape
    seen, values = [], inputs
    for layer in layers:
        seen.append(values)
        weight = models[:, layer.weight].view(count, *layer.shape)
        values = torch.baddbmm(models[:, layer.bias].unsqueeze(1), values, weight.transpose(1, 2))
        if layer.activation:
            values = values.relu_() if layer.activation == "relu" else values.tanh_()
    logs = (values if prior is None else values + prior).log_softmax(dim=2)
    losses = -logs.gather(2, targets.unsqueeze(2)).squeeze(2).mean(dim=1)
    slope = logs.exp_()
    slope.scatter_add_(2, targets.unsqueeze(2), logs.new_full((count, rows, 1), -1.0))
    slope /= rows
    for number in range(len(layers) - 1, -1, -1):
        layer, values = layers[number], seen[number]
        out[:, layer.weight].view(count, *layer.shape).copy_(torch.bmm(slope.transpose(1, 2), values))
        torch.sum(slope, dim=1, out=out[:, layer.bias])
        if number:
            slope = torch.bmm(slope, models[:, layer.weight].view(count, *layer.shape))
            if layers[number - 1].activation == "relu":
                slope *= values > 0
            else:
                slope *= 1 - values * values
    return losses
