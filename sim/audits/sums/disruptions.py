"""Deeds that learn nothing: one member tries to stop or to spoil the sums of the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from p2pfl.features.sums.messages import (
    MOST_EPOCH,
    Keys,
    MemberList,
    Message,
    Parcel,
    Post,
    Statement,
    Total,
    VectorReady,
    Wave,
    bits_of,
    members_of,
)
from sim.audits.sums.forger import statement_of, tell_list, zeros
from sim.audits.sums.play import Sent, SumPlay


def misplaced(play: SumPlay, victim: int) -> None:
    """Hand out a total of the roster, which has none."""

    def strange(ready: VectorReady) -> Total:
        roster = bits_of(range(play.cast.count))
        return Total(setup=ready.setup, number=-1, members=roster, vector=zeros(play).tobytes())

    del victim
    _once_ready(play, strange)


def last_wave(play: SumPlay, victim: int) -> None:
    """Send the wave after which no number is left for another."""

    def last(ready: VectorReady) -> Post:
        wave = Wave(setup=ready.setup, number=ready.number, epoch=MOST_EPOCH, terms=ready.terms)
        return play.post(min(play.colluders), wave)

    del victim
    _once_ready(play, last)


def hollow(play: SumPlay, victim: int) -> None:
    """Propose a list of all whose total has no entries."""
    told: set[bytes] = set()

    def tap(sent: Sent) -> bool:
        true = statement_of(sent.message)
        if isinstance(true, MemberList) and true.total and true.setup not in told:
            told.add(true.setup)
            honest = [member for member in range(play.cast.count) if member not in play.colluders]
            tell_list(play, min(play.colluders), true, members_of(true.members), np.zeros(0, "<u8"), honest)
        return not isinstance(true, MemberList) or not true.total

    del victim
    play.taps.append(tap)


def other_keys(play: SumPlay, victim: int) -> None:
    """Publish keys for another number of sums than was agreed."""

    def short(statement: Statement) -> Statement | None:
        if not isinstance(statement, Keys):
            return None
        return replace(statement, masks=statement.masks[:32], seeds=statement.seeds[:16])

    del victim
    _instead(play, short)


def empty_parcels(play: SumPlay, victim: int) -> None:
    """Send parcels of shares with nothing in them."""

    def empty(statement: Statement) -> Statement | None:
        return replace(statement, sealed=b"") if isinstance(statement, Parcel) else None

    del victim
    _instead(play, empty)


def _once_ready(play: SumPlay, say: Callable[[VectorReady], Message]) -> None:
    """Say this to everybody in each set-up, once somebody has a vector."""
    told: set[bytes] = set()

    def tap(sent: Sent) -> bool:
        ready = statement_of(sent.message)
        if isinstance(ready, VectorReady) and ready.setup not in told:
            told.add(ready.setup)
            for member in range(play.cast.count):
                play.tell(min(play.colluders), member, say(ready))
        return True

    play.taps.append(tap)


def _instead(play: SumPlay, change: Callable[[Statement], Statement | None]) -> None:
    """Where this changes a colluder's statement, others get what it makes of it."""

    def tap(sent: Sent) -> bool:
        statement, message = statement_of(sent.message), sent.message
        if statement is None or not isinstance(message, Post) or message.author not in play.colluders:
            return True
        changed = change(statement)
        if changed is not None and sent.sender == message.author:
            play.tell(sent.sender, sent.receiver, play.post(message.author, changed))
        return changed is None

    play.taps.append(tap)
