"""Protection of all rows of a node together: the change of a whole local round, clipped, with noise, for any learner.

DP-FedAvg (McMahan et al., arXiv 1710.06963), with the noise added by each node itself, since nobody else is trusted. So
the noise of a mean over n nodes has variance of order 1/n, where a trusted center that adds it once has 1/n^2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.privacy import MEMBER
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.privacy.draws import Draws
from p2pfl.learn.privacy.grid import Grid
from p2pfl.learn.privacy.plan import Plan
from p2pfl.learn.privacy.protection import Protected, Protection


def hide_round(start: Vector, ended: Vector, plan: Plan, draws: Draws) -> Vector:
    """The model (d,) to continue from after a round from `start` to `ended` (d,): its change clipped, plus noise. A
    change that is not finite counts as none.
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
    """Make the rounds of a learner without torch private.

    Raises UserError: single rows are to be protected, whose gradients such a learner does not show.
    """
    found = HiddenRounds(learner, protection, node)
    if found.plan.unit != MEMBER:
        text = "the task has its own learner, whose rows cannot be told apart"
        raise UserError(
            text, key="privacy.unit", value=found.plan.unit, allowed=f"{MEMBER}, or a task with a torch model"
        )
    return found


class HiddenRounds:
    """A learner whose rounds are hidden in this way. All else is the learner's own."""

    size: int
    personal: int
    shape_digest: bytes
    samples: int

    def __init__(self, learner: Learner, protection: Protection, node: int) -> None:
        """Wrap a learner. Raises UserError: the model has whole numbers that may count rows: they stay on the node, but
        exported files contain them unchanged.

        Counts of batches in torch's norms are accepted: they do not depend on rows.
        """
        whole = [name for name, array in learner.local_state().items() if array.dtype.kind in "iu"]
        if counts := [name for name in whole if not name.endswith("num_batches_tracked")]:
            text = "integer tensors get no noise, and an exported model would contain them"
            raise UserError(text, key="task", value=", ".join(counts), allowed="a model without such tensors")
        self.learner = learner
        self.node = node
        self.protected = Protected(protection, learner.samples)
        self.plan = self.protected.plan

    def __getattr__(self, name: str) -> Any:
        """The learner's attributes, also those that only some have: measures, device, data files."""
        if name == "learner":
            raise AttributeError(name)
        return getattr(self.learner, name)

    def initial(self) -> Vector:
        return self.learner.initial()

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        local = self.learner.train(start, round_index)
        draws = self.protected.draws(self.node, round_index)
        vector = hide_round(start.model, local.vector, self.plan, draws)
        return replace(local, vector=vector, loss=self.protected.public_loss(local.loss))

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        return self.learner.evaluate(vector, part) if self.protected.may_report(part) else None

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return self.learner.local_state()

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        self.learner.load_local_state(state)

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        return self.learner.state_dict(vector)
