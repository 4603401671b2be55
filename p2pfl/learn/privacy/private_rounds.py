"""The private rounds of a learner with a torch model: either each row is hidden in each step, or the round as a
whole.
"""

from __future__ import annotations

from copy import copy

import torch

from p2pfl.config.model import Compute
from p2pfl.config.sections import MEMBER, RECORD
from p2pfl.errors import UserError
from p2pfl.learn.evaluation import loss_of
from p2pfl.learn.interface import Vector
from p2pfl.learn.privacy.draws import Draws
from p2pfl.learn.privacy.gradients import RowGradients, row_gradients
from p2pfl.learn.privacy.member import hide_round
from p2pfl.learn.privacy.plan import Plan
from p2pfl.learn.privacy.protection import Protected, Protection
from p2pfl.learn.privacy.record import PrivateSteps, Read
from p2pfl.learn.privacy.row_mixing import refuse_mixing
from p2pfl.learn.privacy.shared import SharedRounds
from p2pfl.learn.samples import Samples
from p2pfl.learn.torch_model import TorchModel


class PrivateRounds(Protected):
    """The private rounds of a learner. `row_gradients` is set if single rows are protected, None if the member is."""

    row_gradients: RowGradients | None

    def __init__(self, protection: Protection, model: TorchModel, train_set: Samples) -> None:
        """Prepare the rounds. Raises UserError: single rows are to be protected, and the model mixes rows."""
        super().__init__(protection, len(train_set))
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
        """Return the steps of a round in which single rows are protected, or None if steps are the same as without
        privacy.
        """
        if self.row_gradients is None:
            return None
        return PrivateSteps(self.plan, samples, draws, self.row_gradients)

    def next_model(self, start: Vector, ended: Vector, draws: Draws) -> Vector:
        """Return the model (d,) to continue from after a round from `start` to `ended` (d,). With shared noise that is
        `start`, until the sum is known.
        """
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
        self.shared.give_gradients(steps.clipped_total(steps.batches[0], read, size)[0], steps.grid(size), draws)


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
    _refuse_parts(model.device.compute)
    with model.device.seeded(0):
        trial = model.reader(train_set)(torch.arange(min(2, len(train_set))))
        refuse_mixing(model.module, trial[0], model.device, model.task.name)
        return row_gradients(model.module, model.parameters, loss_of(model.task), model.device, trial)


def _refuse_parts(compute: Compute) -> None:
    """Refuse settings that these rounds would not follow. Raises UserError."""
    for key, value in (("micro_batch_size", compute.micro_batch_size), ("compile", compute.compile or None)):
        if value is not None:
            text = "gradients of single rows are computed in another way"
            raise UserError(text, file=compute.file, key=f"node.{key}", value=value, allowed='privacy.unit = "member"')
