"""Evidence that a node has lost records of its spending: rows that it signed itself, and that its neighbors still have.

A neighbor can withhold such a row, but cannot forge one. Only a row that reports more than the ledger is evidence, so
replaying an old row has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from p2pfl.learn.privacy.ledger import Ledger, Signed

WAIT_S = 5.0
"""The time after a session opens during which the first round of a process waits for that neighbor's rows."""


class LostAccount(NamedTuple):
    """An account that this node signed and no longer has; `epsilon` is what the account stated."""

    account: Signed
    epsilon: float | None


@dataclass(slots=True, eq=False)
class Evidence:
    """The evidence about this node's spending. All times come from one monotonic clock."""

    seen: LostAccount | None = None
    began_now: bool = False
    """True if a permission started the ledger at this start of the node."""
    _silent_since: dict[int, float] = field(default_factory=dict)
    """The neighbors that have sent nothing yet in their session, each with the time when it opened."""

    def opened(self, peer: int, now: float) -> None:
        self._silent_since[peer] = now

    def note_rows(self, peer: int) -> None:
        """Note that a neighbor has sent its first rows, or that its session is over.

        A neighbor sends this node's own row first.
        """
        self._silent_since.pop(peer, None)

    def is_due(self, now: float) -> bool:
        """Return True if a neighbor may still send one of this node's own rows."""
        return any(now - opened_at < WAIT_S for opened_at in list(self._silent_since.values()))  # from any thread

    def account(self, ledger: Ledger | None) -> Signed | None:
        """Return the account to show to others. It is never below one that this node has signed, so that neighbors keep
        that.
        """
        if ledger is None:
            return None if self.seen is None else self.seen.account
        return ledger.account

    def hear(self, ledger: Ledger | None, seen: LostAccount) -> Ledger | None:
        """Update the ledger with an account that this node has signed; return the same ledger if it contains nothing
        new.

        A later budget than the current one is evidence, unless the current one began just now and has paid for nothing.
        In that case a person has begun it knowingly after the other's records were lost, so the current one is in fact
        later. A budget that began at an earlier start may be an old copy, from when it too was unspent.
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
                found = ledger.as_incomplete(told)
        if ledger is None or found is None or (found is not ledger and not found.is_whole):
            self.seen = seen
        return found
