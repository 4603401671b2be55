"""The privacy budget of one node: how it begins, what speaks against one more round, and what is told of it.

What was spent is the state's (`engine.ledger`). Whatever is not known counts as spent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from p2pfl.config.privacy import PUBLIC
from p2pfl.core.events import RoundRefused
from p2pfl.engine.ledger import Ledger
from p2pfl.engine.state import NodeState
from p2pfl.learn.interface import plan_by
from p2pfl.learn.privacy import Plan, Spend
from p2pfl.reporting.status import PrivacyStatus
from p2pfl.runtime.parts import Setup
from p2pfl.runtime.word import take_word

log = logging.getLogger("p2pfl")

OPEN, SPENT, MISSING, UNSURE = "open", "spent", "missing", "unsure"
"""What a budget is: rounds may be trained; none is left; there is no ledger, or one of another unit; the ledger is
known to lack something.
"""


def withheld(setup: Setup) -> frozenset[str]:
    """The parts of the data of which a node tells no figure: scores and losses have no noise."""
    if plan_by(setup.learner) is None:
        return frozenset()
    privacy = setup.federation.privacy
    public = privacy is not None and privacy.test_set == PUBLIC
    return frozenset({"local"} if public else {"local", "test"})


@dataclass(slots=True, eq=False)
class Budget:
    """`advice` is what a person may do where there is none. `look` and `wrong` may take an accountant's time, for the
    thread that trains; the same question again takes none.
    """

    plan: Plan
    advice: str
    told: PrivacyStatus | None = None
    """The latest, for any thread: replaced, never written to."""

    @classmethod
    def of(cls, setup: Setup) -> Budget | None:
        """None: the federation promises nothing."""
        plan = plan_by(setup.learner)
        where = f"{setup.federation.path.parent} --node {setup.member.name}"
        return None if plan is None else cls(plan, f"p2pfl privacy begin {where}")

    def wrong(self, ledger: Ledger | None, spend: Spend) -> RoundRefused | None:
        """What speaks against a round at that cost."""
        state = self.state(ledger, spend)
        if state == OPEN:
            return None
        if state == SPENT and ledger is not None:
            epsilon = self.plan.spent(ledger.spent)
            why = f"its privacy budget is spent: epsilon {epsilon:.3g} of {self.plan.epsilon:g}"
            return RoundRefused(why=why, for_good=True, planned=True)
        what = "is not known" if ledger is None else f"counts {ledger.unit}s, and a {self.plan.unit} is protected"
        if state == UNSURE:
            what = "lacks what was on disk before"
        text = (
            f"what was spent of its privacy budget {what}, which counts as all; a person begins anew with {self.advice}"
        )
        return RoundRefused(why=text, for_good=True)

    def state(self, ledger: Ledger | None, spend: Spend) -> str:
        if ledger is None or ledger.unit != self.plan.unit:
            return MISSING
        if not ledger.is_whole:
            return UNSURE
        return OPEN if self.plan.allows(ledger.spent, spend) else SPENT

    def look(self, ledger: Ledger | None, samples: int) -> None:
        """Work out what is told of it, at so many rows."""
        plan, state = self.plan, self.state(ledger, self.plan.spend(samples))
        known = ledger is not None and state != MISSING
        self.told = PrivacyStatus(
            unit=plan.unit,
            epsilon=round(plan.spent(ledger.spent), 4) if ledger is not None and known else None,
            budget=plan.epsilon,
            delta=plan.delta,
            rounds_left=plan.rounds_left(ledger.spent, samples) if ledger is not None and state == OPEN else 0,
            state=state,
        )


def begin(setup: Setup, state: NodeState) -> str | None:
    """Take a person's word, if there is one, and begin the ledger of `state` by it: what to tell of that; else None.

    The word is gone before the state is on disk: a crash in between wastes the budget. Raises UserError: the word
    cannot be taken.
    """
    plan = plan_by(setup.learner)
    word = None if plan is None else take_word(setup.node.key_file)
    before = state.ledger
    if plan is None or word is None or (before is not None and before.word == word):
        return None
    state.ledger, state.ended = Ledger(unit=plan.unit, word=word), None
    text = f"by a person's word the privacy budget begins: epsilon {plan.epsilon:g} at delta {plan.delta:g}"
    if before is None or not before.spent:
        return text
    return f"{text}. What was spent before adds to it: epsilon {plan.spent(before.spent):.3g}"
