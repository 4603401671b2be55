"""Spread vitals: each node passes on to its neighbors the rows that are newer than theirs, a little at a time.

An edge carries no more than EDGE_BYTES_PER_S, both directions together, and only while nothing else waits to be sent. A
node that starts again has forgotten its counter, and learns it from its own last row, which its neighbors still have. A
row is verified once before it is believed, and never stops the node: a wrong row is dropped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from p2pfl.core.limits import TokenBucket
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.net.side import SideChannel
from p2pfl.reporting.vitals import MOST_ROW_BYTES, Vitals, prove, read, shortened, sign

EDGE_BYTES_PER_S = 1000.0
BURST_BYTES = 2000.0
"""The bytes that one direction may send at once after a silence."""
MESSAGE_BYTES = 64
"""The bytes of a message besides its rows: frame, seal and WebSocket."""
ROW_BYTES = 8
"""The bytes of a row besides its content: its age and its length."""
LEAST_PERIOD_S = 2.0
PERIOD_S_PER_MEMBER = 0.4
"""The share of a member in the period of rows: all rows, of about 200 bytes, pass an edge once per period in one
direction.
"""
HEARD_ROWS_PER_S = 8.0
"""The rows per second that are read from one neighbor, beside HEARD_AT_ONCE: twice what an honest one sends."""
HEARD_AT_ONCE = 64.0
OLDEST_S = 10_000_000
OVER = ("finished", "stopped")
"""The phases after which a member sends nothing more."""

MOST_ROWS = 16
"""The most rows in one message."""

# Opaque here: the receiver verifies its signature.
Row = Annotated[bytes, Meta(min_length=1, max_length=MOST_ROW_BYTES)]
Age = Annotated[int, Meta(ge=0, lt=2**53)]


class VitalsTold(Struct, frozen=True, kw_only=True, array_like=True, tag=1, forbid_unknown_fields=True, gc=False):
    """Rows of vitals, which are only displayed.

    Each row has its signature, and its age in seconds as the sender of the message knows it.
    """

    rows: Annotated[tuple[tuple[Age, Row], ...], Meta(max_length=MOST_ROWS)]


CHANNEL = SideChannel("vitals", VitalsTold, most_bytes=MOST_ROWS * (MOST_ROW_BYTES + 16), per_s=10.0, at_once=200.0)


def period_s(members: int) -> float:
    """Return the time between two rows of one member, if nothing notable happens."""
    return max(LEAST_PERIOD_S, PERIOD_S_PER_MEMBER * members)


@dataclass(frozen=True, slots=True, kw_only=True)
class VitalsRow:
    """The newest row of one member.

    `said_at` is by our own clock, in seconds; approximate for a row that others passed on.
    """

    vitals: Vitals
    raw: bytes
    said_at: float
    source: int | None
    """The neighbor that sent it; None for our own."""


@dataclass(slots=True)
class Recipient:
    """The rows that one neighbor with an open session lacks, those lacking longest first."""

    lacks: dict[int, None]
    tokens: float = BURST_BYTES
    filled_at: float | None = None
    hears: TokenBucket = field(
        default_factory=lambda: TokenBucket(HEARD_ROWS_PER_S, tokens=HEARD_AT_ONCE, burst=HEARD_AT_ONCE)
    )

    def fill(self, now: float) -> float:
        passed_s = 0.0 if self.filled_at is None else now - self.filled_at
        self.filled_at = now
        self.tokens = min(BURST_BYTES, self.tokens + passed_s * EDGE_BYTES_PER_S / 2)
        return self.tokens


class SendVitals(Protocol):
    """Passes a message to a neighbor; returns False if its line is not free. An `urgent` one is sent in any case."""

    def __call__(self, peer: int, message: VitalsTold, *, urgent: bool = False) -> bool: ...


class VitalsSpread:
    """The rows of all members, and what each neighbor lacks.

    `key_of` returns a member's public key, None for an index that no member has now. `on_row` gets each newer row, with
    the previous one; `on_own` gets a row that this node has signed before this process began. Times are those of one
    monotonic clock.
    """

    def __init__(
        self,
        *,
        own: int,
        identity: Identity,
        realm: bytes,
        key_of: Callable[[int], bytes | None],
        send: SendVitals,
        on_row: Callable[[VitalsRow, VitalsRow | None], Any] = lambda row, before: None,  # noqa: ARG005 - whoever does not look
        on_own: Callable[[Vitals], Any] = lambda vitals: None,  # noqa: ARG005 - as above
    ) -> None:
        self.own = own
        self.rows: dict[int, VitalsRow] = {}
        """The newest row of each member, by index."""
        self.refused: Counter[int] = Counter()
        """The number of wrong rows, by the neighbor that sent them."""
        self.counter = 0
        self.is_behind = False
        """True if a neighbor has a row of this node from before this process: a newer one is due."""
        self.hurries = False
        """True if a row has come since the last tick that should not wait for the next one."""
        self._identity, self._realm = identity, realm
        self._key_of, self._send, self._on_row, self._on_own = key_of, send, on_row, on_own
        self._listeners: dict[int, Recipient] = {}

    def opened(self, peer: int, now: float) -> None:
        """Send a neighbor its own row at once, because it may have forgotten what it sent before."""
        self._listeners[peer] = Recipient(dict.fromkeys(member for member in self.rows if member != peer))
        if peer in self.rows:
            self._send(peer, self._message_with([peer], now), urgent=True)

    def closed(self, peer: int) -> None:
        self._listeners.pop(peer, None)

    def publish(self, vitals: Vitals, now: float) -> None:
        """Sign and keep a row of this node, with the next counter; `tick` sends it before those of others.

        Raises ValueError: it holds a value that no member would accept.
        """
        self.counter += 1
        self.is_behind = False
        counted = shortened(msgspec.structs.replace(vitals, counter=self.counter))
        raw = sign(counted, self._identity, self._realm)
        before = self.rows.get(self.own)
        self.rows[self.own] = row = VitalsRow(vitals=counted, raw=raw, said_at=now, source=None)
        for listener in self._listeners.values():
            listener.lacks = {self.own: None} | listener.lacks
        self._on_row(row, before)

    def hear(self, peer: int, message: VitalsTold, now: float) -> None:
        """Keep newer rows that are verified. `peer` may pass on rows of any member; wrong ones are its fault alone."""
        listener = self._listeners.get(peer)
        if listener is None:
            return
        for age_s, raw in message.rows:
            if listener.hears.take(now) > 0.0:
                return
            try:
                self.hurries |= self._hear(listener, peer, raw, now - min(age_s, OLDEST_S))
            except PeerFault:
                self.refused[peer] += 1

    def _hear(self, listener: Recipient, peer: int, raw: bytes, said_at: float) -> bool:
        """Take a row. Return True if it must not wait for the next tick: it changes which members are there or hear
        each other.
        """
        vitals = read(raw)
        member, key = vitals.member, self._key_of(vitals.member)
        if key is None:
            return False  # a node with a newer member list may know one more
        if member == self.own:
            self._hear_own(listener, raw, vitals, key)
            return False
        known = self.rows.get(member)
        if known is not None and vitals.counter <= known.vitals.counter:
            if vitals.counter == known.vitals.counter:
                listener.lacks.pop(member, None)
            else:
                listener.lacks[member] = None
            return False
        prove(raw, key, self._realm)
        self.rows[member] = row = VitalsRow(vitals=vitals, raw=raw, said_at=said_at, source=peer)
        listener.lacks.pop(member, None)
        for other, one in self._listeners.items():
            if other not in (peer, member):
                one.lacks[member] = None
        self._on_row(row, known)
        return known is None or _standing(known.vitals) != _standing(vitals)

    def _hear_own(self, listener: Recipient, raw: bytes, vitals: Vitals, key: bytes) -> None:
        """Take a row of this node itself, from before this process began unless it is the newest."""
        known = self.rows.get(self.own)
        if known is not None and raw == known.raw:
            listener.lacks.pop(self.own, None)
            return
        prove(raw, key, self._realm)
        if vitals.counter > self.counter:
            self.counter, self.is_behind = vitals.counter, True
        elif known is not None:
            listener.lacks[self.own] = None
        self._on_own(vitals)

    def forget(self, member: int) -> None:
        """Forget a node that is no longer a member."""
        self.rows.pop(member, None)
        for listener in self._listeners.values():
            listener.lacks.pop(member, None)

    def tick(self, now: float, *, last: bool = False) -> None:
        """Send what neighbors lack, as far as each line is free and its share allows. Call about once a second.

        `last`: this node is about to end. Its own row, and the last ones of others, which no other node may bring to
        this neighbor, are sent whatever they cost.
        """
        self.hurries = False
        for peer, listener in self._listeners.items():
            tokens = listener.fill(now) - MESSAGE_BYTES
            chosen: list[int] = []
            lacks = sorted(listener.lacks, key=self._is_last, reverse=True) if last else list(listener.lacks)
            for member in lacks:
                cost = len(self.rows[member].raw) + ROW_BYTES
                if len(chosen) == MOST_ROWS or (cost > tokens and not (last and self._is_last(member))):
                    break
                tokens -= cost
                chosen.append(member)
            if not chosen:
                continue
            before, listener.tokens = (listener.lacks, listener.tokens), tokens
            listener.lacks = {member: None for member in listener.lacks if member not in chosen}
            if not self._send(peer, self._message_with(chosen, now)):
                listener.lacks, listener.tokens = before

    @property
    def owes(self) -> bool:
        """True if a neighbor with a session lacks the last rows."""
        return any(self._is_last(member) for listener in self._listeners.values() for member in listener.lacks)

    def _is_last(self, member: int) -> bool:
        """Return True if a row must be sent before this node ends."""
        return member == self.own or self.rows[member].vitals.phase in OVER

    def _message_with(self, members: list[int], now: float) -> VitalsTold:
        rows = [self.rows[member] for member in members]
        return VitalsTold(rows=tuple((max(0, round(now - row.said_at)), row.raw) for row in rows))


def _standing(vitals: Vitals) -> tuple[str, bytes, bytes]:
    return vitals.phase, vitals.live, vitals.unheard
