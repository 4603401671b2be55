"""The parts that make a learner comply with `[privacy]`: its plan, its source of randomness, and the scores that it may
report.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from p2pfl.config.model import FederationConfig
from p2pfl.config.sections import PUBLIC
from p2pfl.learn.privacy.draws import Chance, Draws, Secret
from p2pfl.learn.privacy.plan import Plan, plan_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The protection of a node. `plan_for` makes the plan for a number of rows, and is called once, after the data have
    been read.
    """

    plan_for: Callable[[int], Plan]
    chance: Chance
    public_test: bool = False
    """True if the common test set is not private, so that scores on it may be reported."""

    def may_report(self, part: str) -> bool:
        """Return True if scores on this part of the data, "test" or "local", may be reported. In a simulation with
        seeded randomness nothing is secret, so all may be.
        """
        return not self.chance.is_secret or (part == "test" and self.public_test)


def protection_of(federation: FederationConfig, chance: Chance | None = None) -> Protection | None:
    """Return the protection of a node, or of simulated nodes with the given `chance`; None if there is no
    `[privacy]`.
    """
    privacy = federation.privacy
    if privacy is None:
        return None

    def plan_for(samples: int) -> Plan:
        plan = plan_of(federation, samples)
        if plan is None:
            raise AssertionError("a federation with [privacy] has no plan")
        return plan

    return Protection(plan_for=plan_for, chance=chance or Secret(), public_test=privacy.test_set == PUBLIC)


class Protected:
    """The protection of one learner with `samples` rows."""

    def __init__(self, protection: Protection, samples: int) -> None:
        self.protection = protection
        self.plan = protection.plan_for(samples)

    def draws(self, node: int, round_index: int) -> Draws:
        return self.protection.chance.of_round(node, round_index)

    def may_report(self, part: str) -> bool:
        return self.protection.may_report(part)

    def public_loss(self, loss: float) -> float:
        """Return the loss of a local round as others may see it: NaN if it was computed on protected rows."""
        return loss if self.may_report("local") else math.nan
