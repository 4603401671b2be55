"""Between a node's ledger and its neighbors: the account in its own rows, and the neighbors' memory of it."""

from __future__ import annotations

import time

from p2pfl.engine.ledger import Signed
from p2pfl.features.privacy.budget import BudgetGuard
from p2pfl.features.privacy.evidence import LostAccount
from p2pfl.node.engine_thread import Correct, EngineThread
from p2pfl.reporting.vitals import Vitals

NOTHING = Signed(0, 0, 0)


class Witness:
    """Links the ledger with the rows of vitals, on the event loop."""

    def __init__(self, budget: BudgetGuard, thread: EngineThread) -> None:
        self.budget, self.thread = budget, thread

    def account(self) -> Signed:
        """Return the account that this node signs now. All of it is on disk beside the key before it is paid for."""
        return self.budget.evidence.account(self.thread.engine.state.ledger) or NOTHING

    def opened(self, peer: int) -> None:
        self.budget.evidence.opened(peer, time.monotonic())

    def note_rows(self, peer: int) -> None:
        self.budget.evidence.note_rows(peer)

    def hear_own(self, vitals: Vitals) -> None:
        """Compare the ledger with a row that this node has signed in an earlier process, and that a neighbor sends."""
        if not vitals.budget:
            return
        evidence, before = self.budget.evidence, self.thread.engine.state.ledger
        seen = LostAccount(Signed(vitals.begun, vitals.budget, vitals.paid), vitals.epsilon)
        after = evidence.hear(before, seen)
        if after is None or (after is not before and not after.is_whole):
            self.budget.doubt()
        self.thread.jobs.put(Correct(lambda ledger: evidence.hear(ledger, seen)))
