"""Protection of all rows of a node together: the change in a whole local round is clipped and gets noise, for any
learner.

This is DP-FedAvg (McMahan et al., arXiv 1710.06963), except that each node adds its own noise, since no other party is
trusted. So the noise in a mean over n nodes has variance of order 1/n; a trusted server that adds it once would achieve
1/n^2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.sections import MEMBER
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.privacy.draws import Draws
from p2pfl.learn.privacy.grid import Grid
from p2pfl.learn.privacy.plan import Plan
from p2pfl.learn.privacy.protection import Protected, Protection
from p2pfl.learn.privacy.shared import SharedRounds, own_part


def hide_round(start: Vector, ended: Vector, plan: Plan, draws: Draws) -> Vector:
    """Return the model (d,) to continue from after a round from `start` to `ended` (d,): the change is clipped and gets
    noise. A change that is not finite counts as zero.
    """
    grid = Grid.of(noise=plan.noise, clip=plan.clip, size=start.size, rows=1, in_sequence=1)
    change = ended.astype(np.float64) - start
    length = float(np.linalg.norm(change))
    if not np.isfinite(length):
        change = np.zeros(change.shape)
    elif length > grid.length:
        change *= grid.length / length
    return (start + grid.hidden(change, draws)).astype(ended.dtype)


def hidden_rounds(learner: Learner, protection: Protection, node: int) -> HiddenRounds:
    """Make the rounds of a learner that does not use torch private.

    Raises UserError: single rows are to be protected, and such a learner does not expose their gradients.
    """
    found = HiddenRounds(learner, protection, node)
    if found.plan.unit != MEMBER:
        text = "the task has its own learner, which does not expose single rows"
        raise UserError(
            text, key="privacy.unit", value=found.plan.unit, allowed=f"{MEMBER}, or a task with a torch model"
        )
    return found


class HiddenRounds:
    """A learner whose rounds are hidden in this way. Everything else is delegated to the wrapped learner."""

    size: int
    personal: int
    shape_digest: bytes
    samples: int

    def __init__(self, learner: Learner, protection: Protection, node: int) -> None:
        """Wrap a learner. Raises UserError: the model has integer tensors that may count rows. They stay on the node,
        but exported files would contain them unchanged.

        The batch counters in torch's normalization layers are accepted: they do not depend on rows.
        """
        whole = [name for name, array in learner.local_state().items() if array.dtype.kind in "iu"]
        if counts := [name for name in whole if not name.endswith("num_batches_tracked")]:
            text = "integer tensors get no noise, and an exported model would contain them"
            raise UserError(text, key="task", value=", ".join(counts), allowed="a model without such tensors")
        self.learner = learner
        self.node = node
        self.protected = Protected(protection, learner.samples)
        self.plan = self.protected.plan
        self.shared = None
        if self.plan.shared_rate is not None:
            self.shared = SharedRounds(self.plan, learner.samples, [slice(0, learner.size)])

    def __getattr__(self, name: str) -> Any:
        """Return the learner's attribute, including optional ones such as measures, device and data files."""
        if name == "learner":
            raise AttributeError(name)
        return getattr(self.learner, name)

    def initial(self) -> Vector:
        return self.learner.initial()

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        local = self.learner.train(start, round_index)
        draws = self.protected.draws(self.node, round_index)
        if self.shared is None:
            vector = hide_round(start.model, local.vector, self.plan, draws)
        else:
            self.shared.give_change(start.model, local.vector, draws)
            vector = start.model.copy()
        return replace(local, vector=vector, loss=self.protected.public_loss(local.loss))

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        return self.learner.evaluate(vector, part) if self.protected.may_report(part) else None

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return self.learner.local_state() | ({} if self.shared is None else self.shared.kept())

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        self.learner.load_local_state(own_part(self.shared, state))

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        return self.learner.state_dict(vector)
