"""The doorway: connections that are not sessions yet, their stages, their number, and which of them to drop.

A `ConnectionGate` is placed before the HTTP protocol of one accepted connection and drops it if it takes too long,
whatever it does. The `Doorway` counts the gates, by stage and by group of addresses. Each stage has its own places, so
that a connection never makes room for one at an earlier stage: idle connections replace only idle connections. Within a
stage the connection that has waited longest is dropped, not the newcomer, because an honest peer needs only a round
trip or two. All work for a connection before it is a session is charged as loop time (`looptime`).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Coroutine
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeVar

from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.net.limits import IDLE_BYTES, UNSENT_BYTES, Limits, Tap
from p2pfl.net.looptime import LoopTime, Stopwatch, measure

GREETING_BYTES = 2**14
"""The bytes that a peer may send before it has shown that it knows our key: an HTTP request and 48 bytes."""
SLICE_BYTES = 2**11
"""The bytes read from such a peer before its time budget is checked again: at most 341 empty pings."""
NETWORK_BITS = 64
"""The length of an IPv6 network prefix: a peer with one address controls its whole network."""
MOST_GROUPS = 1024
"""The maximum number of address groups whose handshakes are counted."""
MOST_VISITS = 8
"""The maximum number of simultaneous visitors about the charter; each may bring a MiB."""
VISITS_PER_S, VISIT_BURST = 0.5, 16.0
"""The limit on visits: from unlisted peers in one group of addresses, and from one member that asks for no session or
may not have one.

A member that was just added, or that has an older graph, dials its neighbors once every few seconds.
"""
NEIGHBOR_HANDSHAKES = 2.0
"""The handshakes allowed at once for each neighbor: all neighbors may share one address, and start together."""


T = TypeVar("T")


class ConnectionStage(IntEnum):
    """The stage of a connection on its way to a session."""

    CONNECTED = 0
    UPGRADED = 1
    """The connection speaks WebSocket."""
    ADDRESSED = 2
    """The first handshake message was meant for this node, so the peer knows our public key."""
    VISITING = 3
    """The peer's key may not have a session, and may at most exchange the charter."""
    PROVEN = 4
    """The peer is a member of the federation."""


class Doorway:
    """The places for connections at each stage.

    A connection may send at most `greeting_bytes` before it is ADDRESSED.
    """

    def __init__(self, limits: Limits, *, neighbors: int = 0, greeting_bytes: int = GREETING_BYTES) -> None:
        self.limits = limits
        self.greeting_bytes = greeting_bytes
        self.turned_away = 0
        self._rooms: dict[ConnectionStage, dict[ConnectionGate, None]] = {stage: {} for stage in ConnectionStage}
        self._handshakes: dict[str, TokenBucket] = {}
        self._visits: dict[str, TokenBucket] = {}
        self.time = LoopTime()
        self.expect(neighbors)

    def expect(self, neighbors: int) -> None:
        """Set the number of neighbors."""
        self.time.expect(neighbors)
        self._burst = max(self.limits.handshake_burst, NEIGHBOR_HANDSHAKES * neighbors)

    def know(self, address: str) -> None:
        """Record that a member has, or had, that address."""
        self.time.know(group_of(address))

    @property
    def waiting(self) -> int:
        return sum(map(len, self._rooms.values()))

    def enter(self, gate: ConnectionGate, stage: ConnectionStage = ConnectionStage.CONNECTED) -> None:
        """Give a connection a place.

        If the stage is full, drop the connection that has waited longest in it, from the newcomer's group or, failing
        that, from the most crowded one.
        """
        room = self._rooms[stage]
        most = MOST_VISITS if stage is ConnectionStage.VISITING else self.limits.pending
        by_group = Counter(other.group for other in room)
        if by_group[gate.group] >= self.limits.pending_per_address:
            self._turn_away(room, gate.group)
        elif len(room) >= most:
            self._turn_away(room, by_group.most_common(1)[0][0])
        room[gate] = None

    def advance(self, gate: ConnectionGate, stage: ConnectionStage) -> None:
        """Move a connection to a stage. Raises PeerFault if its group exceeds the limit on handshakes or visits."""
        if not any(gate in room for room in self._rooms.values()):
            return
        if stage is ConnectionStage.ADDRESSED and not self._may(self._handshakes, gate.group, self._handshake_bucket):
            raise PeerFault("more handshakes from one address than all neighbors together would begin")
        if stage is ConnectionStage.VISITING and not self._may(self._visits, gate.group, visit_bucket):
            raise PeerFault("more visits from one address than the charter can have news for")
        self.leave(gate)
        self.enter(gate, stage)

    def leave(self, gate: ConnectionGate) -> None:
        for room in self._rooms.values():
            room.pop(gate, None)

    def close(self) -> None:
        """Close all connections."""
        for gate in [gate for room in self._rooms.values() for gate in room]:
            gate.abort()

    def _turn_away(self, room: dict[ConnectionGate, None], group: str) -> None:
        oldest = next(gate for gate in room if gate.group == group)
        self.turned_away += 1
        self.leave(oldest)
        oldest.abort()

    def _handshake_bucket(self) -> TokenBucket:
        return TokenBucket(self.limits.handshakes_per_s, tokens=self._burst, burst=self._burst)

    def _may(self, buckets: dict[str, TokenBucket], group: str, make: Callable[[], TokenBucket]) -> bool:
        bucket = buckets.pop(group, None) or make()
        buckets[group] = bucket
        if len(buckets) > MOST_GROUPS:
            del buckets[next(iter(buckets))]
        return bucket.take(asyncio.get_running_loop().time()) == 0.0


def visit_bucket() -> TokenBucket:
    return TokenBucket(VISITS_PER_S, tokens=VISIT_BURST, burst=VISIT_BURST)


class ConnectionGate(Tap):
    """A gate before the HTTP protocol of one connection; `speak` creates the protocol once data have arrived."""

    def __init__(
        self, doorway: Doorway, speak: Callable[[ConnectionGate], asyncio.Protocol], address: str = ""
    ) -> None:
        super().__init__(idle_bytes=doorway.greeting_bytes)
        self._doorway, self._speak = doorway, speak
        self._deadline: asyncio.TimerHandle | None = None
        self._drop: Callable[[], object] = _nothing
        self._entered = False
        self.address, self.group = address, group_of(address)
        self.ends_at = 0.0
        """When the connection must have become a session, on the loop's clock."""
        self._paid_s = 0.0
        self.pays = True
        """True if the connection is charged for its work; members are not, nor are visitors with the page's token."""
        self.may_ask = False
        """True if the latest request was allowed, so that answering it is not charged to the connection."""

    def pay(self, cost_s: float) -> None:
        """Charge this connection for CPU time."""
        if self.pays:
            self._paid_s += cost_s
            self._doorway.time.spend(self.group, cost_s)

    def watch(self) -> Stopwatch:
        """Return a stopwatch that charges this connection."""
        return Stopwatch(self.pay)

    def work(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Run `work` and charge this connection for it."""
        return measure(work, self.watch())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        if not self._entered:  # it has not knocked
            with self.watch():
                self._enter()

    def knock(self, drop: Callable[[], object]) -> None:
        """Enter before there is a transport, while it is not known whether TLS comes first; `drop` gives this up."""
        self._drop = drop
        with self.watch():
            self._enter()

    def abort(self) -> None:
        if self._transport is None:
            self._drop()
        super().abort()

    def _enter(self) -> None:
        self._entered = True
        self._doorway.enter(self)
        loop = asyncio.get_running_loop()
        self.ends_at = loop.time() + self._doorway.limits.handshake_s
        self._deadline = loop.call_at(self.ends_at, self.abort)

    def pays_below(self, work: Callable[[], object], came: int) -> bool:
        """Do work below this gate, and charge it without what the gate charges for itself; return False if it does not
        pay. `came` is how many bytes have come there; before there is a connection here they are bounded, too.
        """
        if not self.pays:
            return False
        if not self._doorway.time.may_go_on(self.group) or (self._transport is None and came > self.idle_bytes):
            self._doorway.turned_away += 1
            self.abort()
            return True
        paid_s = self._paid_s
        with Stopwatch(lambda cost_s: self.pay(cost_s - self._paid_s + paid_s)):
            work()
        return True

    def data_received(self, data: bytes) -> None:
        if not self.pays:
            self._listen(data)
            return
        for start in range(0, len(data), SLICE_BYTES):
            if not self._doorway.time.may_go_on(self.group):
                self._doorway.turned_away += 1
                self.abort()
            if self._transport is not None and self._transport.is_closing():
                return
            with self.watch():
                self._listen(data[start : start + SLICE_BYTES])

    def advance(self, stage: ConnectionStage) -> None:
        """Move to a stage. Raises PeerFault if the peer's address has begun too many handshakes."""
        self._doorway.advance(self, stage)
        if stage >= ConnectionStage.ADDRESSED:
            self.idle_bytes = IDLE_BYTES

    def admit(self) -> None:
        """Keep a connection that has become a session; it no longer counts."""
        self._leave()
        self.vouch()

    def vouch(self) -> None:
        """Record that the peer is not a stranger: refund its time, and remember its address."""
        if self.pays:
            self.pays = False
            self._doorway.time.spend(self.group, -self._paid_s)
            self._doorway.know(self.address)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        with self.watch():
            super().connection_lost(exc)
        # Nothing refers back here: the memory is free at once, however late garbage is collected.
        self._drop, self._inner, self._transport = _nothing, None, None

    def _listen(self, data: bytes) -> None:
        if self._inner is None and self._transport is not None:
            self._inner = self._speak(self)
            self._inner.connection_made(self._transport)
        super().data_received(data)

    def _leave(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._doorway.leave(self)


@lru_cache(MOST_GROUPS)
def group_of(address: str) -> str:
    """Return the group of addresses that one peer can choose from: an IPv4 address, including when mapped into IPv6, or
    an IPv6 /64.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), NETWORK_BITS), strict=False))


def _nothing() -> None:
    pass
