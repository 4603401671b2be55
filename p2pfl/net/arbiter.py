"""Which of several connections between the same two nodes is the session: asked by the lower index of the two only.

Two dials that cross: the one of the lower index wins. Two from the same dialer: the newer wins, because nobody dials
who still has a session. Another `boot` is another process: whatever the one before it had is dead. What remains is a
newcomer dialed by the higher index while a session dialed by the lower one is open: either the dials crossed or the
session is dead at the other end. That end drops the newcomer as soon as it hears of the session, so holding the
newcomer back for a moment tells the two apart.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol


class Verdict(Enum):
    OPEN = auto()
    REFUSE = auto()
    WAIT = auto()


class Claim(Protocol):
    """What is known of a connection that wants to be, or is, the session. `ticket` grows in the order of arrival."""

    @property
    def dialer(self) -> int: ...
    @property
    def boot(self) -> bytes: ...
    @property
    def ticket(self) -> int: ...


def decide(newcomer: Claim, current: Claim | None, *, own: int, own_dial: bool, overdue: bool) -> Verdict:
    """`own_dial`: a dial of ours has reached the same peer. `overdue`: the newcomer was held back long enough."""
    dialed_by_peer = newcomer.dialer != own
    if current is None:
        contested = dialed_by_peer and own_dial
    elif newcomer.ticket < current.ticket:
        return Verdict.REFUSE
    elif newcomer.boot != current.boot:
        return Verdict.OPEN
    elif not dialed_by_peer:
        # We began to dial when there was no session, so this one has opened since and is no older than our dial.
        return Verdict.REFUSE
    else:
        contested = current.dialer == own
    return Verdict.WAIT if contested and not overdue else Verdict.OPEN
