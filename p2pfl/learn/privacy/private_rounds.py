"""The private rounds of a learner with a torch model: each row hidden in each step, or the round as a whole."""

from __future__ import annotations

from copy import copy

import torch

from p2pfl.config.privacy import MEMBER, RECORD
from p2pfl.learn.evaluation import loss_of
from p2pfl.learn.interface import Vector
from p2pfl.learn.privacy.draws import Draws
from p2pfl.learn.privacy.gradients import RowGradients, row_gradients
from p2pfl.learn.privacy.member import hide_round
from p2pfl.learn.privacy.protection import Protected, Protection
from p2pfl.learn.privacy.record import PrivateSteps
from p2pfl.learn.privacy.row_mixing import refuse_mixing
from p2pfl.learn.samples import Samples
from p2pfl.learn.torch_model import TorchModel


class PrivateRounds(Protected):
    """The private rounds of a learner. `row_gradients` exist where single rows are protected; None where
    the member is.
    """

    row_gradients: RowGradients | None

    def __init__(self, protection: Protection, model: TorchModel, train_set: Samples) -> None:
        """Prepare the rounds. Raises UserError: single rows are protected, and the model mixes them."""
        super().__init__(protection, len(train_set))
        self.row_gradients = _gradients_of_rows(model, train_set) if self.plan.unit == RECORD else None

    @property
    def hides_member(self) -> bool:
        return self.plan.unit == MEMBER

    def at_node(self, samples: int) -> PrivateRounds:
        """The same rounds, with the same model, at a node with `samples` rows."""
        other = copy(self)
        other.plan = self.protection.plan_for(samples)
        return other

    def steps_with(self, samples: int) -> int | None:
        """The number of steps of a round on `samples` rows; None: as many as without privacy."""
        return self.plan.spend(samples).steps if self.plan.unit == RECORD else None

    def steps(self, samples: int, draws: Draws) -> PrivateSteps | None:
        """The steps of a round in which single rows are protected; None: steps are as without privacy."""
        if self.row_gradients is None:
            return None
        return PrivateSteps(self.plan, samples, draws, self.row_gradients)

    def next_model(self, start: Vector, ended: Vector, draws: Draws) -> Vector:
        """The model (d,) to continue from after a round that went from `start` to `ended` (d,)."""
        return hide_round(start, ended, self.plan, draws) if self.hides_member else ended


def _gradients_of_rows(model: TorchModel, train_set: Samples) -> RowGradients:
    with model.device.seeded(0):
        trial = model.reader(train_set)(torch.arange(min(2, len(train_set))))
        refuse_mixing(model.module, trial[0], model.device, model.task.name)
        return row_gradients(model.module, model.parameters, loss_of(model.task), model.device, trial)
