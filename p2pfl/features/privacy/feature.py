"""One node pays for its rounds: nothing of a round is computed before its cost is on disk."""

from __future__ import annotations

import time

from p2pfl.features.privacy import budget
from p2pfl.features.privacy.budget import BudgetGuard, Opening
from p2pfl.learn.interface import plan_by
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, FoundAtStart, NodeView
from p2pfl.node.gate import Answer, Payment, RoundPlan, Wait
from p2pfl.reporting.status import NodeResult

UNHEARD = Wait(0.1)
"""The answer while neighbors may still send what this node has forgotten."""


class PrivacyFeature(Feature):
    name = "privacy"

    def guards(self, setup: Setup) -> bool:  # noqa: ARG002 - whatever the files say
        return True

    def withheld(self, setup: Setup) -> frozenset[str]:
        return budget.withheld(setup)

    def recover(self, at_start: FoundAtStart) -> Opening | None:
        """Open the budget at a start, even if nothing is promised any more: then the ledger beside the key must be
        voided.
        """
        at_start.until_over.callback(budget.lock(at_start.setup).release)
        if at_start.setup.passing:
            budget.permit(at_start.setup)
        return budget.opening(at_start.setup, at_start.state)

    def attach(self, node: NodeView) -> Attached | None:
        plan = plan_by(node.setup().learner)
        return None if plan is None else Private(node, BudgetGuard.of(node.setup(), plan))


class Private(Attached):
    """The paying part of one node. `budget` is that of this node; `node.recovered` is its `Opening`."""

    def __init__(self, node: NodeView, own: BudgetGuard) -> None:
        self._node, self.budget = node, own
        self._opening: Opening = node.recovered
        own.evidence.began_now = self._opening.began
        own.look(node.thread.engine.state.ledger, node.setup().learner.samples)
        node.thread.second_ledger = self._opening.file
        node.status.privacy = lambda: own.status

    def begin(self) -> None:
        if self._opening.news:
            self._node.alarm("budget-begun", None, self._opening.news)

    def before_round(self, plan: RoundPlan) -> Answer:
        """Compute the cost of the round from the present rows.

        The accountant may take its time here, and has its answers ready when the engine's thread asks the same.
        """
        own, ledger, samples = self.budget, plan.ledger, plan.samples
        if own.evidence.is_due(time.monotonic()):
            return UNHEARD
        spend, reserved = own.plan.spend(samples), 1
        own.look(ledger, samples)
        if own.wrong(ledger, spend) is None and ledger is not None:
            own.look(ledger.plus(spend), samples)
            reserved = own.reserved_rounds(ledger, samples)
        return Payment(spend=spend, wrong=lambda now: own.wrong(now, spend), reserved=reserved)

    async def over(self, result: NodeResult) -> None:  # noqa: ARG002 - it says so already
        self._opening.file.settle(self._node.thread.engine.state.ledger)
