"""Evidence that a node has forgotten what it spent: rows that it has signed itself, and that its neighbors still have.

A neighbor can withhold such a row, and cannot make one. Only a row that counts more than the ledger does is evidence,
so an old one that is told again has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from p2pfl.engine.ledger import Ledger, Signed

WAIT_S = 5.0
"""So long after a session has opened, the first round of a process waits for the rows of that neighbor."""


class LostAccount(NamedTuple):
    """An account that this node has signed and does not have any more; `epsilon` is what it said of it."""

    account: Signed
    epsilon: float | None


@dataclass(slots=True, eq=False)
class Evidence:
    """All times are those of one monotonic clock."""

    seen: LostAccount | None = None
    began_now: bool = False
    """True if permission started the ledger at this start of the node."""
    _unheard: dict[int, float] = field(default_factory=dict)
    """Neighbors that have said nothing yet in their session, and when it opened."""

    def opened(self, peer: int, now: float) -> None:
        self._unheard[peer] = now

    def heard(self, peer: int) -> None:
        """A neighbor has said its first rows, or its session is over. This node's own row comes before all others."""
        self._unheard.pop(peer, None)

    def is_due(self, now: float) -> bool:
        """True if a neighbor may still send a row of this node's own."""
        return any(now - opened_at < WAIT_S for opened_at in list(self._unheard.values()))  # a thread asks

    def account(self, ledger: Ledger | None) -> Signed | None:
        """The account that others see: never less than this node has once signed, so that its neighbors keep that."""
        if ledger is None:
            return None if self.seen is None else self.seen.account
        return ledger.account

    def hear(self, ledger: Ledger | None, seen: LostAccount) -> Ledger | None:
        """Update the ledger by an account that this node has signed; the same ledger if that is no news.

        A later budget than this one is evidence, except where this one began just now and has paid for nothing: then a
        person has begun it knowingly, after the records of the other were lost, and it is the later one. One that began
        at an earlier start may be an old copy, of a day when it was unspent too.
        """
        found, told = ledger, seen.account
        if ledger is not None:
            own = ledger.account
            same = told[:2] == own[:2]
            fresh = self.began_now and not ledger.spent and ledger.is_whole
            later = told.order > own.order or (told.order == own.order and not ledger.spent)
            if not same and later and fresh:
                found = replace(ledger, order=told.order + 1)
            elif told.steps > own.steps if same else later:
                found = ledger.doubted(told)
        if ledger is None or found is None or (found is not ledger and not found.is_whole):
            self.seen = seen
        return found
