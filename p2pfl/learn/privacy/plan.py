"""The noise of one node, planned so that its rounds stay within the budget, and whether one more round may be spent.

A plan is made once, when a node has read its data. The spending is a sequence of `Spend`, kept by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from p2pfl.config.model import FederationConfig, TrainingConfig
from p2pfl.config.privacy import MEMBER, MOST_EPSILON, MOST_NOISE, PRIVACY, RECORD, PrivacyConfig
from p2pfl.errors import UserError
from p2pfl.learn.privacy.accounting import Spend, epsilon_of, merged, noise_for, require_opacus

STAGES = 32
"""The number of stages in which `Plan.spent` reports a budget: each takes an accountant's time."""

MOST_TIMES = 8
"""The most rounds of a node whose rounds have become cheap, in multiples of the plan: PRV's arrays grow with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The budget of one node and its noise. `training` defines a round."""

    unit: str
    epsilon: float
    """The budget. Where the file gives the noise, this is what the planned rounds spend."""
    delta: float
    clip: float
    noise: float
    """The noise multiplier."""
    accountant: str
    rounds: int
    """The rounds that the budget was planned for."""
    training: TrainingConfig

    def spend(self, samples: int) -> Spend:
        """The cost of one round at a node with `samples` rows."""
        return spend_of(self.unit, self.training, self.noise, samples)

    def allows(self, spent: Sequence[Spend], next: Spend) -> bool:  # noqa: A002 - reads as a sentence
        """True if the budget has room for `next` after the spending so far."""
        before, steps = _split_last_kind((*spent, next))
        return steps <= _limit(self._budget, before, next, self.rounds)

    def rounds_left(self, spent: Sequence[Spend], samples: int) -> int:
        """The number of further rounds that the budget has room for, if the node keeps `samples` rows."""
        cost = self.spend(samples)
        before, steps = _split_last_kind((*spent, cost))
        return max(0, (_limit(self._budget, before, cost, self.rounds) - steps) // cost.steps + 1)

    def spent(self, spent: Sequence[Spend]) -> float:
        """An upper bound on epsilon so far, in stages: it grows with every STAGES-th part of the budget."""
        if not spent:
            return 0.0
        cost = self._cost(spent[-1])
        before, steps = _split_last_kind(spent)
        most = _limit(self._budget, before, cost, self.rounds)
        stage = cost.steps * math.ceil(most / cost.steps / STAGES)
        shown = min(most, -(-steps // stage) * stage) if steps <= most else steps
        return epsilon_of((*before, cost._replace(steps=shown)), self.delta, self.accountant)

    def exact(self, spent: Sequence[Spend]) -> float:
        """An upper bound on epsilon so far, without stages."""
        return epsilon_of(tuple(spent), self.delta, self.accountant) if spent else 0.0

    def _cost(self, last: Spend) -> Spend:
        """The cost of a round of the kind of steps that came last."""
        return last._replace(steps=self.training.local_steps or 1 if self.unit == RECORD else 1)

    @property
    def _budget(self) -> Budget:
        return Budget(self.epsilon, self.delta, self.accountant)


class Budget(NamedTuple):
    epsilon: float
    delta: float
    accountant: str


def plan_of(federation: FederationConfig, samples: int) -> Plan | None:
    """The plan of a node with `samples` rows; None: the federation has no `[privacy]`.

    Raises UserError: Opacus is not installed, delta is above 1/n, or no noise keeps within epsilon.
    """
    privacy = federation.privacy
    if privacy is None:
        return None
    require_opacus(federation.path)
    refuse_delta(privacy.unit, privacy.delta, samples, federation.path)
    rounds = planned_rounds(federation)
    once = spend_of(privacy.unit, federation.training, privacy.noise or 1.0, samples)
    told = (privacy.delta, privacy.accountant)
    if privacy.noise is None:
        noise, epsilon = _noise(federation, privacy, once, rounds), privacy.epsilon or 0.0
    else:
        noise, epsilon = privacy.noise, epsilon_of((once._replace(steps=rounds * once.steps),), *told)
    if not epsilon <= MOST_EPSILON:
        text = f"is too little for any protection: epsilon is {epsilon:.3g}"
        allowed = f"enough that epsilon is at most {MOST_EPSILON:g}; or epsilon, from which the noise follows"
        raise UserError(text, file=federation.path, key="privacy.noise", value=privacy.noise, allowed=allowed)
    return Plan(
        unit=privacy.unit,
        epsilon=epsilon,
        delta=privacy.delta,
        clip=privacy.clip,
        noise=noise,
        accountant=privacy.accountant,
        rounds=rounds,
        training=federation.training,
    )


def planned_in_words(federation: FederationConfig) -> str:
    """The settings from which epsilon follows, besides the noise and the rows of each node."""
    training, privacy = federation.training, federation.privacy
    length = f"{training.local_steps} steps" if training.local_steps else f"{training.local_epochs:g} epochs"
    accountant = "" if privacy is None else f", by {privacy.accountant}"
    return f"{planned_rounds(federation)} rounds of {length}, batches of {training.batch_size}{accountant}"


def planned_rounds(federation: FederationConfig) -> int:
    """The rounds that the budget is for. The number exists: a file without one is refused."""
    told = None if federation.privacy is None else federation.privacy.rounds
    return told or federation.training.rounds or 0


def spend_of(unit: str, training: TrainingConfig, noise: float, samples: int) -> Spend:
    """The cost of one round with that noise at a node with `samples` rows."""
    if unit == MEMBER:
        return Spend(noise, 1.0, 1)
    a_pass = math.ceil(samples / min(training.batch_size, samples))
    steps = training.local_steps or a_pass * (training.local_epochs or 0)
    return Spend(noise, min(1.0, training.batch_size / samples), steps)


def refuse_delta(unit: str, delta: float, samples: int, file: object = None) -> None:
    """Refuse a delta that would allow revealing one of the rows entirely. Raises UserError."""
    if unit == RECORD and delta * samples > 1.0:
        text = f"exceeds one in the {samples:,} rows of a node: everything about one row might be revealed"
        allowed = f"at most {1 / samples:.2g}, better a tenth of that"
        raise UserError(text, file=file, key="privacy.delta", value=delta, allowed=allowed)


def _noise(federation: FederationConfig, privacy: PrivacyConfig, cost: Spend, rounds: int) -> float:
    steps, asked = rounds * cost.steps, privacy.epsilon or 0.0
    told = (privacy.delta, privacy.accountant)
    try:
        return noise_for(asked, privacy.delta, cost.rate, steps, privacy.accountant)
    except ValueError:
        least = epsilon_of((Spend(MOST_NOISE, cost.rate, steps),), *told)
        text = f"no noise up to {MOST_NOISE:g} is enough for this in {rounds} rounds ({steps:,} steps)"
        allowed = f"above {least:.2g}, or fewer rounds; {PRIVACY['epsilon'].allowed}"
        raise UserError(text, file=federation.path, key="privacy.epsilon", value=asked, allowed=allowed) from None


def _split_last_kind(spent: Sequence[Spend]) -> tuple[tuple[Spend, ...], int]:
    """Split the spending into steps of earlier kinds and the number of steps of the last kind."""
    kind = spent[-1][:2]
    steps = sum(one.steps for one in spent if one[:2] == kind)
    return merged([one for one in spent if one[:2] != kind]), steps


@lru_cache(maxsize=256)
def _limit(budget: Budget, before: tuple[Spend, ...], cost: Spend, planned: int) -> int:
    """The most steps of the kind of `cost`, in whole rounds, that stay within the budget after the spending `before`.

    `planned` are the rounds that probably fit; MOST_TIMES as many are the most.
    """

    def fits(rounds: int) -> bool:
        steps = rounds * cost.steps
        return epsilon_of((*before, cost._replace(steps=steps)), budget.delta, budget.accountant) <= budget.epsilon

    most = MOST_TIMES * planned
    least, beyond, stride = 0, planned, 1
    while beyond <= most and fits(beyond):
        least, beyond, stride = beyond, min(beyond + stride, most + 1), 2 * stride
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if fits(middle) else (least, middle)
    return least * cost.steps
