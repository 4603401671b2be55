"""A node's noise, planned so that its rounds stay within the budget; whether it affords another; what it may report.

A plan is made once, after a node has read its data. The caller keeps the spending, a sequence of `Spend`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import cast

from p2pfl.config.model import FederationConfig, TrainingConfig
from p2pfl.config.sections import MEMBER, MOST_EPSILON, MOST_NOISE, PRIVACY, PUBLIC, RECORD, PrivacyConfig
from p2pfl.errors import UserError
from p2pfl.learn.privacy.accounting import Spend, epsilon_of, merged, noise_for, require_opacus
from p2pfl.learn.privacy.noise import Chance, Secret

SPARE = 20
"""With shared noise a refused sum has been paid for, so that the budget holds one in this many rounds more."""
STAGES = 32
"""The number of stages in which `Plan.spent` reports a budget: computing each takes time."""
MOST_TIMES = 8
"""The most rounds allowed, in multiples of the plan, if rounds have become cheap: PRV's arrays grow with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The budget and noise of one node. `training` defines a round."""

    unit: str
    epsilon: float
    """The budget. If the file sets the noise, this is what the planned rounds spend."""
    delta: float
    clip: float
    noise: float
    """The noise multiplier."""
    accountant: str
    rounds: int
    """The number of rounds that the budget was planned for."""
    training: TrainingConfig
    shared_rate: float | None = None
    """With shared noise, the probability with which a round samples each row (1 for unit `member`); otherwise None."""
    share: float = 1.0
    """This node's part of the standard deviation of the noise."""

    def spend(self, samples: int) -> Spend:
        """Return the cost of one round at a node with `samples` rows."""
        if self.shared_rate is not None:
            return Spend(self.noise, self.shared_rate, 1)
        if self.unit == MEMBER:
            return Spend(self.noise, 1.0, 1)
        training = self.training
        a_pass = math.ceil(samples / min(training.batch_size, samples))
        steps = training.local_steps or a_pass * (training.local_epochs or 0)
        return Spend(self.noise, min(1.0, training.batch_size / samples), steps)

    def allows(self, spent: Sequence[Spend], next: Spend) -> bool:  # noqa: A002 - reads as a sentence
        """Return True if the budget can afford `next` after the spending so far."""
        before, steps = _split_last_kind((*spent, next))
        return steps <= _limit(self, before, next)

    def rounds_left(self, spent: Sequence[Spend], samples: int) -> int:
        """Return the number of further rounds that the budget allows, if the node still has `samples` rows."""
        cost = self.spend(samples)
        before, steps = _split_last_kind((*spent, cost))
        return max(0, (_limit(self, before, cost) - steps) // cost.steps + 1)

    def spent(self, spent: Sequence[Spend]) -> float:
        """Return an upper bound on epsilon so far. The budget has STAGES stages; steps are rounded up to the next."""
        if not spent:
            return 0.0
        is_one = self.shared_rate is not None or self.unit == MEMBER
        cost = spent[-1]._replace(steps=1 if is_one else self.training.local_steps or 1)
        before, steps = _split_last_kind(spent)
        most = _limit(self, before, cost)
        stage = cost.steps * math.ceil(most / cost.steps / STAGES)
        shown = min(most, -(-steps // stage) * stage) if steps <= most else steps
        return epsilon_of((*before, cost._replace(steps=shown)), self.delta, self.accountant)


def plan_of(federation: FederationConfig, samples: int) -> Plan | None:
    """Return the plan for a node with `samples` rows, or None if the federation has no `[privacy]`.

    Raises UserError: Opacus is not installed, delta is above 1/n, or no noise stays within epsilon.
    """
    privacy = federation.privacy
    if privacy is None:
        return None
    require_opacus(federation.path)
    if privacy.unit == RECORD and privacy.delta * samples > 1.0:
        text = f"exceeds one in the {samples:,} rows of a node: everything about one row might be revealed"
        allowed = f"at most {1 / samples:.2g}, better a tenth of that"
        raise UserError(text, file=federation.path, key="privacy.delta", value=privacy.delta, allowed=allowed)
    plan = Plan(
        unit=privacy.unit,
        epsilon=privacy.epsilon or 0.0,
        delta=privacy.delta,
        clip=privacy.clip,
        noise=privacy.multiplier or 1.0,
        accountant=privacy.accountant,
        rounds=planned_rounds(federation),
        training=federation.training,
        shared_rate=None if not privacy.is_shared else privacy.rate if privacy.unit == RECORD else 1.0,
        share=share_of(privacy, len(federation.present)) if privacy.is_shared else 1.0,
    )
    once = plan.spend(samples)
    if privacy.multiplier is None:
        return replace(plan, noise=_noise(federation, plan, once))
    epsilon = epsilon_of((once._replace(steps=plan.rounds * once.steps),), plan.delta, plan.accountant)
    if not epsilon <= MOST_EPSILON:
        text = f"is too little for any protection: epsilon is {epsilon:.3g}"
        allowed = f"enough that epsilon is at most {MOST_EPSILON:g}; or epsilon, from which the noise follows"
        raise UserError(text, file=federation.path, key="privacy.noise", value=privacy.noise, allowed=allowed)
    return replace(plan, epsilon=epsilon)


def share_of(privacy: PrivacyConfig, members: int) -> float:
    """Return each member's part of the standard deviation of a shared noise.

    The smallest set whose sum may be revealed has the whole noise even if all colluders in it leave theirs out.
    """
    return 1.0 / math.sqrt(privacy.least_of(members) - privacy.colluders)


def planned_in_words(federation: FederationConfig) -> str:
    """Describe the settings that determine epsilon, besides the noise and each node's number of rows."""
    training, privacy = federation.training, federation.privacy
    if privacy is not None and privacy.is_shared:
        rate = f", each row with probability {privacy.rate:g}" if privacy.unit == RECORD else ""
        return f"{planned_rounds(federation)} sums with shared noise{rate}, by {privacy.accountant}"
    length = f"{training.local_steps} steps" if training.local_steps else f"{training.local_epochs:g} epochs"
    accountant = "" if privacy is None else f", by {privacy.accountant}"
    return f"{planned_rounds(federation)} rounds of {length}, batches of {training.batch_size}{accountant}"


def planned_rounds(federation: FederationConfig) -> int:
    """Return the rounds that the budget is planned for. A file without this number is refused."""
    privacy, rounds = federation.privacy, federation.training.trained_rounds or 0
    if privacy is not None and privacy.is_shared and privacy.rounds is None:
        return rounds + math.ceil(rounds / SPARE)
    return (None if privacy is None else privacy.rounds) or rounds


def _noise(federation: FederationConfig, plan: Plan, cost: Spend) -> float:
    steps = plan.rounds * cost.steps
    try:
        return noise_for(plan.epsilon, plan.delta, cost.rate, steps, plan.accountant)
    except ValueError:
        least = epsilon_of((Spend(MOST_NOISE, cost.rate, steps),), plan.delta, plan.accountant)
        text = f"no noise up to {MOST_NOISE:g} is enough for this in {plan.rounds} rounds ({steps:,} steps)"
        allowed = f"above {least:.2g}, or fewer rounds; {PRIVACY['epsilon'].allowed}"
        raise UserError(
            text, file=federation.path, key="privacy.epsilon", value=plan.epsilon, allowed=allowed
        ) from None


def _split_last_kind(spent: Sequence[Spend]) -> tuple[tuple[Spend, ...], int]:
    """Split the spending into steps of earlier kinds and the number of steps of the last kind."""
    kind = spent[-1][:2]
    steps = sum(spend.steps for spend in spent if spend[:2] == kind)
    return merged([spend for spend in spent if spend[:2] != kind]), steps


@lru_cache(maxsize=256)
def _limit(plan: Plan, before: tuple[Spend, ...], cost: Spend) -> int:
    """Return the most steps of the kind of `cost`, in whole rounds, that the budget allows after spending `before`.

    The planned number of rounds probably fits; the limit is MOST_TIMES as many.
    """

    def fits(rounds: int) -> bool:
        steps = rounds * cost.steps
        return epsilon_of((*before, cost._replace(steps=steps)), plan.delta, plan.accountant) <= plan.epsilon

    most = MOST_TIMES * plan.rounds
    least, beyond, stride = 0, plan.rounds, 1
    while beyond <= most and fits(beyond):
        least, beyond, stride = beyond, min(beyond + stride, most + 1), 2 * stride
    while beyond - least > 1:
        middle = (least + beyond) // 2
        least, beyond = (middle, beyond) if fits(middle) else (least, middle)
    return least * cost.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The protection of a node; `plan_for` plans for a number of rows, once, after the data have been read."""

    plan_for: Callable[[int], Plan]
    chance: Chance
    public_test: bool = False
    """True if the common test set is not private, so that scores on it may be reported."""

    def may_report(self, part: str) -> bool:
        """Return True if scores on this part, "test" or "local", may be reported: all, if chance is no secret."""
        return not self.chance.is_secret or (part == "test" and self.public_test)

    def public_loss(self, loss: float) -> float:
        """Return the loss of a local round as others may see it: NaN if it was computed on protected rows."""
        return loss if self.may_report("local") else math.nan


def protection_of(federation: FederationConfig, chance: Chance | None = None) -> Protection | None:
    """Return the protection of a node, or of simulated nodes with this `chance`; None without `[privacy]`."""
    privacy = federation.privacy
    if privacy is None:
        return None
    plan_for = cast("Callable[[int], Plan]", partial(plan_of, federation))
    return Protection(plan_for=plan_for, chance=chance or Secret(), public_test=privacy.test_set == PUBLIC)
