"""The rows of vitals of all members: how they spread, and what a node knows by them.

Each node passes rows on to the neighbors that have older ones, a few at a time. An edge carries at most
EDGE_BYTES_PER_S in both directions together, and only while nothing else is waiting to be sent. A restarted node has
lost its counter, and learns it from its own last row, which its neighbors still have. A row is verified once before it
is used, and never stops the node: an invalid row is dropped and counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from p2pfl.config.model import Edges, FederationConfig
from p2pfl.core.limits import TokenBucket
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.limits import (
    CHANNEL_AT_ONCE,
    CHANNEL_PER_S,
    EDGE_BYTES_PER_S,
    HEARD_AT_ONCE,
    HEARD_ROWS_PER_S,
    MOST_ROW_BYTES,
    MOST_VITALS_ROWS,
    VITALS_BURST_BYTES,
)
from p2pfl.net.extensions import ExtensionChannel
from p2pfl.node.status import SILENT_S
from p2pfl.reporting.vitals import Vitals, is_among, prove, read, shortened, sign

MESSAGE_BYTES = 64
"""The bytes in a message besides its rows: frame, encryption and WebSocket."""
ROW_BYTES = 8
"""The bytes in a row besides its content: its age and its length."""
LEAST_PERIOD_S = 2.0
PERIOD_S_PER_MEMBER = 0.4
"""Each member adds this much to the period of rows, so that all rows, of about 200 bytes each, can pass an edge once
per period in one direction.
"""
CALM_S = 60
"""The time between two rows of a member of which nothing changes."""
OLDEST_S = 10_000_000
OVER = ("finished", "stopped")
"""The phases after which a member sends nothing."""


# Opaque here: the receiver verifies its signature.
Row = Annotated[bytes, Meta(min_length=1, max_length=MOST_ROW_BYTES)]
Age = Annotated[int, Meta(ge=0, lt=2**53)]
Intervals = Mapping[str, tuple[float, float]]
QUIET_PERIODS = 3
QUIET_EXTRA_S = 15.0
"""A member counts as quiet this many seconds after QUIET_PERIODS periods; they allow for network delays."""
NOTICED_S = SILENT_S + 2.0
"""Who vanishes is no longer heard, by the rows of its neighbors, within so many seconds: they look once a second."""
QUIET = (*OVER, "paused")
"""The phases in which nothing is expected of a member."""
LEAST_RATED_S = 0.5
"""The minimum time between two rows for computing a rate: delayed rows arrive together, and give no meaningful rate."""


class VitalsTold(Struct, frozen=True, kw_only=True, array_like=True, tag=1, forbid_unknown_fields=True, gc=False):
    """Rows of vitals, which are only displayed.

    Each row has its signature, and its age in seconds according to the sender of the message.
    """

    rows: Annotated[tuple[tuple[Age, Row], ...], Meta(max_length=MOST_VITALS_ROWS)]


CHANNEL = ExtensionChannel(
    "vitals",
    VitalsTold,
    most_bytes=MOST_VITALS_ROWS * (MOST_ROW_BYTES + 16),
    per_s=CHANNEL_PER_S["vitals"],
    at_once=CHANNEL_AT_ONCE["vitals"],
)


def period_s(members: int) -> float:
    """Return the time between two rows from a member, if nothing notable happens."""
    return max(LEAST_PERIOD_S, PERIOD_S_PER_MEMBER * members)


@dataclass(frozen=True, slots=True, kw_only=True)
class VitalsRow:
    """The newest row of one member.

    `said_at` is in seconds on our own clock; it is approximate for a row that others passed on.
    """

    vitals: Vitals
    raw: bytes
    said_at: float
    source: int | None
    """The neighbor that sent it; None for our own row."""


@dataclass(slots=True)
class Recipient:
    """The rows that a neighbor with an open session lacks; those that it has lacked longest come first."""

    lacks: dict[int, None]
    filled_at: float
    is_calm: bool = False
    """True if its rows say their period; until then it may run the version before, which knows only the shorter one."""
    tokens: float = VITALS_BURST_BYTES
    hears: TokenBucket = field(
        default_factory=lambda: TokenBucket(HEARD_ROWS_PER_S, tokens=HEARD_AT_ONCE, burst=HEARD_AT_ONCE)
    )

    def fill(self, now: float) -> float:
        self.tokens = min(VITALS_BURST_BYTES, self.tokens + (now - self.filled_at) * EDGE_BYTES_PER_S / 2)
        self.filled_at = now
        return self.tokens


class VitalsSpread:
    """The rows of all members, and what each neighbor lacks.

    `key_of` returns a member's public key, or None if no current member has this index. `on_row` is called with each
    newer row and the previous one; `on_own` with a row that this node signed before this process started. `send` passes
    a message to a neighbor, an `urgent` one anyway, and returns False if its line is busy. Times are monotonic.
    """

    def __init__(
        self,
        *,
        own: int,
        identity: Identity,
        realm: bytes,
        key_of: Callable[[int], bytes | None],
        send: Callable[..., bool],
        on_row: Callable[[VitalsRow, VitalsRow | None], Any] = lambda row, before: None,  # noqa: ARG005 - whoever does not look
        on_own: Callable[[Vitals], Any] = lambda vitals: None,  # noqa: ARG005 - as above
    ) -> None:
        self.own = own
        self.rows: dict[int, VitalsRow] = {}
        """The newest row of each member, by index."""
        self.refused: Counter[int] = Counter()
        """The number of invalid rows, by the neighbor that sent them."""
        self.counter = 0
        self.is_behind = False
        """True if a neighbor has a row that this node signed before this process started: a newer one is due."""
        self.hurries = False
        """True if a row that should not wait for the next tick has arrived since the last one."""
        self._identity, self._realm = identity, realm
        self._key_of, self._send, self._on_row, self._on_own = key_of, send, on_row, on_own
        self._listeners: dict[int, Recipient] = {}

    def opened(self, peer: int, now: float) -> None:
        """Send a neighbor its own latest row at once, because it may have lost its counter."""
        self._listeners[peer] = Recipient(dict.fromkeys(member for member in self.rows if member != peer), now)
        if peer in self.rows:
            self._send(peer, self._message_with([peer], now), urgent=True)

    def closed(self, peer: int) -> None:
        self._listeners.pop(peer, None)

    def publish(self, vitals: Vitals, now: float) -> None:
        """Sign and store a row for this node, with the next counter; `tick` sends it before those of others.

        Raises ValueError: it has a value that no member would accept.
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
        """Verify and store newer rows. `peer` may pass on any member's; invalid ones count only against `peer`."""
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
        """Process a row. Return True if it must not wait for the next tick, because it changes which members are
        present or hear each other.
        """
        vitals = read(raw)
        member, key = vitals.member, self._key_of(vitals.member)
        if key is None:
            return False  # a node with a newer member list may know another member
        if member == self.own:
            self._hear_own(listener, raw, vitals, key)
            return False
        listener.is_calm |= member == peer and vitals.period_s > 0
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
        for other, recipient in self._listeners.items():
            if other not in (peer, member):
                recipient.lacks[member] = None
        self._on_row(row, known)
        return known is None or _sessions(known.vitals) != _sessions(vitals)

    def _hear_own(self, listener: Recipient, raw: bytes, vitals: Vitals, key: bytes) -> None:
        """Process one of this node's own rows. Unless it is the newest, it was signed before this process started."""
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
        """Forget a former member."""
        self.rows.pop(member, None)
        for listener in self._listeners.values():
            listener.lacks.pop(member, None)

    def tick(self, now: float, *, last: bool = False) -> None:
        """Send what neighbors lack, if the line is free and within its share. Call this about once a second.

        With `last`, this node is about to end: its own row is sent whatever it costs, and so are the others' last rows,
        which no other node may pass on to this neighbor.
        """
        self.hurries = False
        for peer, listener in self._listeners.items():
            tokens = listener.fill(now) - MESSAGE_BYTES
            chosen: list[int] = []
            lacks = sorted(listener.lacks, key=self._is_last, reverse=True) if last else list(listener.lacks)
            for member in lacks if listener.is_calm else [member for member in lacks if not self._is_late(member, now)]:
                cost = len(self.rows[member].raw) + ROW_BYTES
                if len(chosen) == MOST_VITALS_ROWS or (cost > tokens and not (last and self._is_last(member))):
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
        """Return True if a neighbor with a session lacks the last rows."""
        return any(self._is_last(member) for listener in self._listeners.values() for member in listener.lacks)

    def _is_last(self, member: int) -> bool:
        """Return True if a row must be sent before this node ends."""
        return member == self.own or self.rows[member].vitals.phase in OVER

    def _is_late(self, member: int, now: float) -> bool:
        """Return True if the version before would take a calm member for quiet by its row; a newer one is due soon."""
        row, least_s, most_s = self.rows[member], period_s(len(self.rows)), CALM_S + QUIET_EXTRA_S / QUIET_PERIODS
        may_wait = member != self.own and row.vitals.period_s >= CALM_S and row.vitals.phase not in QUIET
        return may_wait and least_s < (now - row.said_at) / QUIET_PERIODS < most_s

    def _message_with(self, members: list[int], now: float) -> VitalsTold:
        rows = [self.rows[member] for member in members]
        return VitalsTold(rows=tuple((max(0, round(now - row.said_at)), row.raw) for row in rows))


class Roster:
    """The rows of all members.

    `federation` returns the node's current federation, `own` is the node's index. This node's own row is up to date;
    the one that the others have is older if there are many members.
    """

    def __init__(self, federation: Callable[[], FederationConfig], own: int) -> None:
        self.federation, self.own = federation, own
        self.rows: dict[int, VitalsRow] = {}
        """The newest row of each member, by index."""
        self.bytes_per_s: dict[int, float] = {}
        """The rate at which each member sent between its latest two rows."""
        self.intervals: dict[str, tuple[float, float]] = {}
        """The intervals of the scores in the node's own row."""
        self._joined: tuple[Edges, dict[int, list[int]]] = (), {}
        self._reached_at: dict[int, float] = {}
        """When a chain of members that hear each other last led from this node to each member."""

    def note(self, row: VitalsRow) -> None:
        """Store a member's new row."""
        member = row.vitals.member
        before, self.rows[member] = self.rows.get(member), row
        if before is not None and row.said_at >= before.said_at + LEAST_RATED_S:
            sent = row.vitals.bytes_sent - before.vitals.bytes_sent
            self.bytes_per_s[member] = max(0.0, sent / (row.said_at - before.said_at))

    def note_own(self, vitals: Vitals, now: float, *, last: bool = False, intervals: Intervals | None = None) -> None:
        """Record this node's own vitals, no more often than members of a small federation send theirs.

        `intervals` are the intervals of its scores, for readers of this node only.
        """
        before = self.rows.get(self.own)
        changed = before is not None and _sessions(before.vitals) != _sessions(vitals)
        if before is None or changed or last or now >= before.said_at + LEAST_PERIOD_S:
            self.note(VitalsRow(vitals=vitals, raw=b"", said_at=now, source=None))
            self.intervals = dict(intervals or {})

    def forget(self, member: int) -> None:
        """Forget a former member."""
        known: list[dict[int, Any]] = [self.rows, self.bytes_per_s, self._reached_at]
        for of_member in known:
            of_member.pop(member, None)

    def name_of(self, index: int) -> str:
        return self.federation().members[index].name

    def key_of(self, index: int) -> bytes | None:
        """Return a member's public key, or None if no current member has this index."""
        members = self.federation().members
        if index >= len(members) or members[index].retired:
            return None
        return members[index].key

    @property
    def period_s(self) -> float:
        """Return the time between two rows from a member, if something changes, but nothing notable."""
        return period_s(len(self.federation().members))

    def own_period_s(self, now: float) -> int:
        """Return the most time between two rows of this node: the shorter one beside a member of the version before."""
        silent = [row for row in self.rows.values() if row.source is not None and not row.vitals.period_s]
        return math.ceil(max(self.period_s, 0 if any(not self.is_gone(row, now) for row in silent) else CALM_S))

    @property
    def quiet_after_s(self) -> float:
        return QUIET_PERIODS * self.period_s + QUIET_EXTRA_S

    def look(self, now: float) -> None:
        """Follow the chains of members that hear each other, as their rows say; call this about once a second."""
        neighbors, chain = self._neighbors(), [self.own]
        self._reached_at[self.own] = now
        for member in chain:
            row = self.rows.get(member)
            for peer in neighbors.get(member, ()):
                if self._reached_at.get(peer) != now and (row is None or _hears(row.vitals, peer)):
                    self._reached_at[peer] = now
                    chain.append(peer)

    def is_quiet(self, row: VitalsRow, now: float) -> bool:
        """Return True if a newer row from its member is overdue, by the period that the row says. A long one holds only
        while a chain of members that hear each other leads there; who vanishes drops out of it within NOTICED_S.
        """
        age_s, limit_s = now - row.said_at, self.quiet_after_s
        if row.source is None or row.vitals.phase in QUIET or age_s <= limit_s:
            return False
        missed_s = now - self._reached_at.get(row.vitals.member, float("-inf")) + NOTICED_S
        said_s = QUIET_PERIODS * min(row.vitals.period_s, CALM_S) + QUIET_EXTRA_S
        return missed_s > limit_s or age_s > max(limit_s, said_s)

    def is_lost(self, index: int, now: float) -> bool:
        """Return True if a member has neighbors with valid rows, and none of them hears from it.

        This node is never lost.
        """
        row = self.rows.get(index)
        if index == self.own or row is None or row.vitals.phase in QUIET:
            return False
        rows = [theirs for peer in self._neighbors().get(index, ()) if (theirs := self.rows.get(peer)) is not None]
        words = [theirs.vitals for theirs in rows if theirs.vitals.phase not in OVER and not self.is_quiet(theirs, now)]
        return bool(words) and not any(_hears(vitals, index) for vitals in words)

    def is_gone(self, row: VitalsRow, now: float) -> bool:
        """Return True if nothing more is expected from a member: it is quiet, or no neighbor hears from it."""
        return self.is_quiet(row, now) or self.is_lost(row.vitals.member, now)

    def missing(self, now: float) -> int:
        """Return the number of members that have not ended and are currently not heard."""
        return sum(self.is_gone(row, now) for row in self.rows.values())

    def somebody_goes_on(self, now: float) -> bool:
        """Return True if another member that has not ended is heard."""
        return any(
            member != self.own and row.vitals.phase not in OVER and not self.is_gone(row, now)
            for member, row in self.rows.items()
        )

    def _neighbors(self) -> dict[int, list[int]]:
        """Return the neighbors of each member, recomputed when the edges change."""
        edges = self.federation().edges
        if self._joined[0] is not edges:
            neighbors = defaultdict[int, list[int]](list)
            for a, b in edges:
                neighbors[a].append(b)
                neighbors[b].append(a)
            self._joined = edges, dict(neighbors)
        return self._joined[1]


def _sessions(vitals: Vitals) -> tuple[bytes, bytes, str]:
    return vitals.live, vitals.unheard, vitals.phase


def _hears(vitals: Vitals, index: int) -> bool:
    return is_among(index, vitals.live) and not is_among(index, vitals.unheard)
