"""The loss of a task on data that a liar knows, and its gradient: for attacks that climb it (`Sight.slope`)."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, Vector
from sim.attacks.attack import Attack

if TYPE_CHECKING:  # the names of attacks are read without torch
    from torch import Tensor

    from p2pfl.learn.samples import Samples
    from p2pfl.learn.trainer import TorchLearner

MOST_SAMPLES = 2048
"""Of more samples than this, evenly spaced ones count: an attack computes the loss a dozen times for each lie."""
DIFFERENTIABLE = "a task with a torch model: digits, mnist-idx, csv, or one of your own in a file"


class Slope:
    """The task's loss as a function: a model (d,) gives the mean loss there and its gradient (d,), in float64.

    It has a module of its own, because a node may train in another thread meanwhile. What a node does not share stays
    as it was at the beginning, and nothing is trained: the module is in evaluation mode. If the vector has several
    channels, as some learning methods exchange, the first is the model; the gradient of the others is 0.
    """

    def __init__(self, learner: TorchLearner, samples: Samples | None = None) -> None:
        """Build the loss over `samples`, None: over the learner's own training data."""
        import torch  # noqa: PLC0415 - as above

        from p2pfl.learn.evaluation import loss_of  # noqa: PLC0415 - as above
        from p2pfl.learn.params import FlatModule  # noqa: PLC0415 - as above

        self.module = deepcopy(learner.model.module).eval()
        self.flat = FlatModule(self.module, learner.task.name, learner.model.share)
        self.loss = loss_of(learner.task)
        known = learner.train_set if samples is None else samples
        every = -(-len(known) // MOST_SAMPLES)
        self.batch: tuple[Any, Any] = known.rows(torch.arange(0, len(known), every))
        named = dict(self.module.named_parameters(remove_duplicate=False))
        self.trained: list[tuple[slice, Tensor]] = [(p.part, named[p.name]) for p in self.flat.places if p.trained]

    def __call__(self, model: Vector) -> tuple[float, Vector]:
        import torch  # noqa: PLC0415 - as above

        self.flat.load(model[: self.flat.size])
        inputs, targets = self.batch
        loss = self.loss(self.module(inputs), targets)
        parts = torch.autograd.grad(loss, [tensor for _, tensor in self.trained], allow_unused=True)
        gradient = np.zeros(model.size)
        for (part, _), found in zip(self.trained, parts, strict=True):
            if found is not None:
                gradient[part] = found.detach().numpy().ravel()
        return float(loss.detach()), gradient


def slope_for(attack: Attack, learner: Learner, samples: Samples | None = None) -> Slope | None:
    """Build the slope that `attack` climbs, None if it climbs none; `samples` as for `Slope`.

    Raises UserError: the attack must climb, and the loss of such a learner has no gradient.
    """
    if not attack.climbs and attack.own is None:
        return None
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - as above

    if isinstance(learner, TorchLearner):
        return Slope(learner, samples)
    if attack.climbs:
        text = "the loss of such a task cannot be climbed"
        raise UserError(text, key="attack", value=attack.spec, allowed=DIFFERENTIABLE)
    return None
