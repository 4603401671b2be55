"""An attack that plans six rounds ahead, through its victims' training, and that no rule here withstands at degree 4.

    p2pfl sim sweep benchmarks/robust/planned.toml --out FOLDER

Written by somebody who knew the docs and the simulator, and not the rules' code. It knows everything: all models and
rows, the graph, the model (64-32-10), steps and rates of `planned.toml`. It plans the lies for all victims together: it
simulates their steps and their mixing (each pull clipped as by `hampel:b=1`, all nodes of one degree), and follows the
gradient of a smoothed error rate back through both. Of five lengths each victim gets the one that gains most behind its
rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from p2pfl.aggregate import Neighborhood, make_rule
from sim.attacks import Sight

STEPS, RATE, TRAINED, LAST, TAIL = 20, 0.2 / (1 - 0.5), 30, 35, 0.1
"""Of a round; the learning rate over 1 - momentum; the rounds, and with the closing ones; the last one's rate."""
HORIZON, WIDTH, FIRST = 6, 1.0, 2
"""The rounds that are planned; the width of the smoothed error, in logits; the round of the first lie."""
INPUTS, HIDDEN, CLASSES = 64, 32, 10
LENGTHS = (0.6, 0.8, 1.0, 1.3, 1.7)


def logits(models: Tensor, inputs: Tensor) -> Tensor:
    """Return outputs (m, rows, classes) of models (m, d) on rows (m, rows, inputs)."""
    first, second = INPUTS * HIDDEN, (INPUTS + 1) * HIDDEN
    last = second + HIDDEN * CLASSES
    weight = models[:, :first].view(-1, HIDDEN, INPUTS).transpose(1, 2)
    hidden = torch.relu(torch.baddbmm(models[:, first:second].unsqueeze(1), inputs, weight))
    weight = models[:, second:last].view(-1, CLASSES, HIDDEN).transpose(1, 2)
    return torch.baddbmm(models[:, last:].unsqueeze(1), hidden, weight)


class Plan:
    """The attack, one for all liars of a run."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[Tensor, Tensor]] = {}
        self.round = 0
        self.plan: list[Tensor] = []
        self.lies: dict[int, Any] = {}

    def __call__(self, sight: Sight) -> Any:
        if sight.rounds == 1:
            self.rows[sight.peer] = sight.own_slope().batch  # type: ignore[union-attr]
        if sight.rounds < FIRST:
            return sight.victim
        if not self.round:
            self.prepare(sight)
        if self.round != sight.rounds:
            self.round = sight.rounds
            self.think(sight)
        return self.lies[sight.peer]

    def prepare(self, sight: Sight) -> None:
        self.nodes = list(sight.honest)
        place, edges = {node: index for index, node in enumerate(self.nodes)}, set(sight.edges)
        self.near = [[place[j] for j in self.nodes if (min(i, j), max(i, j)) in edges] for i in self.nodes]
        self.all_inputs, self.all_targets = sight.slope.batch  # type: ignore[union-attr]
        self.rule = make_rule(str(sight.rule))
        most = max(len(targets) for _, targets in self.rows.values())
        self.inputs = torch.zeros(len(self.nodes), most, INPUTS)
        self.targets = torch.zeros(len(self.nodes), most, dtype=torch.long)
        self.shares = torch.zeros(len(self.nodes), most)
        for node, (inputs, targets) in self.rows.items():
            index, count = place[node], len(targets)
            self.inputs[index, :count], self.targets[index, :count] = inputs.flatten(1), targets
            self.shares[index, :count] = 1 / count

    def loss(self, models: Tensor) -> Tensor:
        logs = torch.log_softmax(logits(models, self.inputs), 2)
        return -(logs.gather(2, self.targets.unsqueeze(2)).squeeze(2) * self.shares).sum()

    def error(self, models: Tensor) -> Tensor:
        count = len(models)
        outputs = logits(models, self.all_inputs.flatten(1).expand(count, -1, -1))
        targets = self.all_targets.expand(count, -1).unsqueeze(2)
        wrong = outputs.scatter(2, targets, -1e9).amax(2)
        return torch.sigmoid((wrong - outputs.gather(2, targets).squeeze(2)) / WIDTH).mean()

    def mixing(self, models: Tensor) -> Tensor:
        """Return W - I (m, m) of the honest, each pull clipped at the radius of `hampel:b=1`."""
        pulls = torch.zeros(len(models), len(models))
        for index, near in enumerate(self.near):
            far = (models[near] - models[index]).norm(dim=1)
            pulls[index, near] = (far.sort()[0][len(near) - 2] / far).clamp(max=1) / (len(near) + 2)
        return pulls - torch.diag(pulls.sum(1))

    def gradients(self, models: Tensor) -> list[Tensor]:
        """Return the gradient of the error after the last planned mix by each planned pull (m, d)."""
        tape = []
        for ahead, pull in enumerate(self.plan):
            mixing, steps = self.mixing(models), []
            models = models + mixing @ models + pull / (len(self.near[0]) + 2)
            closing = max(0, self.round + ahead + 1 - TRAINED) / (LAST - TRAINED)
            rate = RATE * TAIL**closing
            for _ in range(STEPS if ahead + 1 < len(self.plan) else 0):
                steps.append(models)
                here = models.clone().requires_grad_()
                models = models - rate * torch.autograd.grad(self.loss(here), here)[0]
            tape.append((mixing, steps, rate))
        here = models.clone().requires_grad_()
        (adjoint,) = torch.autograd.grad(self.error(here), here)
        found: list[Tensor] = []
        for mixing, steps, rate in reversed(tape):
            for before in reversed(steps):
                here = before.clone().requires_grad_()
                (gradient,) = torch.autograd.grad(self.loss(here), here, create_graph=True)
                adjoint = adjoint - rate * torch.autograd.grad((gradient * adjoint).sum(), here)[0]
            found.insert(0, adjoint)
            adjoint = adjoint + mixing.T @ adjoint
        return found

    def think(self, sight: Sight) -> None:
        """Plan anew from the models that are there, and set the lies of this round."""
        models = torch.from_numpy(np.stack([sight.models[node] for node in self.nodes]))
        pulls = [models[near] - models[index] for index, near in enumerate(self.near)]
        each = torch.stack([2 * pull.abs().sort(0)[0][-2] for pull in pulls])
        whole = torch.stack([pull.norm(dim=1).sort()[0][len(pull) - 2] for pull in pulls])
        is_new = not self.plan
        later = self.plan[1:] + [torch.zeros_like(models)] * HORIZON
        self.plan = later[: max(1, min(HORIZON, LAST - self.round + 1))]
        slopes = self.gradients(models)
        steps = [farthest(slope, each, whole) for slope in slopes]
        self.plan = [(old + new) / (1 if is_new else 2) for old, new in zip(self.plan, steps, strict=True)]
        for index, node in enumerate(self.nodes):
            own, way = models[index].numpy(), self.plan[0][index].numpy()
            others = [*models[self.near[index]].numpy()]
            slope = slopes[0][index].numpy()
            tries = [(own + factor * way).astype(np.float32) for factor in LENGTHS]
            gains = [float((self.mixed(own, [*others, lie]) - own) @ slope) for lie in tries]
            self.lies[node] = tries[int(np.argmax(gains))]

    def mixed(self, own: Any, others: list[Any]) -> Any:
        count = len(others)
        weights = np.full(count, 1 / (count + 1))
        around = Neighborhood(own=own, others=others, weights=weights, peers=tuple(range(count)))
        return own if self.rule is None else self.rule.mix(around).model


def farthest(slope: Tensor, each: Tensor, whole: Tensor) -> Tensor:
    """Return the pulls (m, d) along which the error grows most, coordinates at most `each`, lengths at most `whole`."""
    slope = slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-12)
    low, high = torch.full((len(slope),), -3.0), torch.full((len(slope),), 6.0)

    def clipped(power: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(slope * (10**power)[:, None], -each), each)

    for _ in range(25):
        middle = (low + high) / 2
        is_long = clipped(middle).norm(dim=1) > whole
        high, low = torch.where(is_long, middle, high), torch.where(is_long, low, middle)
    return clipped(low)
