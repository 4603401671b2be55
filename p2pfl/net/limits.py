"""Limits on what a stranger or a neighbor may cost, and on how long anything may take. Seconds and bytes throughout.

`Limits` are for one node. Incomplete messages are limited twice: by the memory that they use together, and by the rate
that each must keep up. Below HTTP and WebSocket a `Tap` counts a connection's bytes, because aiohttp accepts any number
of empty fragments, each of which costs more than its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from p2pfl.errors import PeerFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connect_s: float = 10.0
    handshake_s: float = 10.0
    """The time from accepting a connection to an open session; a dialer has the same time from the moment it is
    connected.
    """
    contest_s: float = 3.0
    """How long a newcomer is held back in favor of a session that may be dead at the other end."""
    pending: int = 64
    """The maximum number of connections in one stage that are not sessions yet (`doorway`)."""
    pending_per_address: int = 32
    """The maximum number of such connections from one IPv4 address or one IPv6 /64."""
    handshakes_per_s: float = 100.0
    """Handshakes per second with one address or /64, beyond a burst of `handshake_burst`."""
    handshake_burst: float = 128.0
    sessions_per_s: float = 1.0
    """Sessions per second with one neighbor, beyond a burst of `session_burst`; a neighbor that exceeds this gets none
    for `churn_rest_s`.
    """
    session_burst: float = 20.0
    churn_rest_s: float = 30.0
    min_rate: float = 1024.0
    """The minimum bytes per second of an incomplete message, averaged over `rate_window_s`."""
    rate_window_s: float = 30.0
    partial_bytes: int | None = None
    """The memory for partly received messages in all sessions; None allows one of maximum size per neighbor."""
    queue_messages: int = 64
    drain_s: float = 30.0
    """How long a chunk may wait for the peer to read it, counted from the peer's last receipt."""
    silence_s: float = 45.0
    """The longest time without a sealed chunk from the other end.

    After that the session is dead, whatever the state of the connection. A chunk takes a second or two at the line's
    rate (`bodies`); to a node of protocol version 9 it has 256 KiB, so that lines below about 150 kbit/s are too slow.
    """
    beat_s: float = 4.0
    """How long an end is silent before it seals an empty chunk."""
    close_s: float = 1.0
    """How long a goodbye may take."""
    retry_first_s: float = 0.2
    retry_ceiling_s: float = 15.0
    settled_s: float = 5.0
    """A session that lasts this long proves that dialing works: the next dial is not delayed."""
    direct_again_s: float = 30.0
    """The time between two attempts to reach a neighbor at its addresses while the session goes through a relay."""
    session_s: float | None = None
    """The age at which the dialer renews a session; None leaves that to the cipher."""
    max_kbit_s: float | None = None
    """The most that all sessions together send on average; None for as much as they can."""
    neighbor_kbit_s: Mapping[int, float] = field(default_factory=dict)
    """The most that sessions with single neighbors send on average, by index."""


class ByteBudget:
    """The memory for partly received messages, in bytes, shared by all sessions."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0

    def change(self, held: int, needed: int) -> int:
        """Change a session's memory from `held` bytes to `needed` and return the latter. Raises PeerFault if there is
        no room.
        """
        if needed > held and self.used - held + needed > self.limit_bytes:
            raise PeerFault(f"{needed} bytes of unfinished messages do not fit into what is left of {self.limit_bytes}")
        self.used += needed - held
        return needed


class MessagePace:
    """Requires an incomplete message to bring `min_rate * window_s` bytes in every window."""

    def __init__(self, min_rate: float, window_s: float) -> None:
        self._least = min_rate * window_s
        self._window_s = window_s
        self._brought = 0
        self.deadline: float | None = None
        """When the window ends; None while no message is incomplete."""

    def note(self, now: float, size: int, *, under_way: bool) -> None:
        if not under_way:
            self.deadline = None
        elif self.deadline is None:
            self._open(now)
        else:
            self._brought += size
            if self._brought >= self._least:
                self._open(now)

    def _open(self, now: float) -> None:
        self.deadline = now + self._window_s
        self._brought = 0


UNSENT_BYTES = 2**16
"""The bytes that may wait in a transport before a writer waits: inside TLS the default is eight times as much."""
HEADER_BYTES = 14
"""The size of the largest WebSocket frame header."""
IDLE_BYTES = 2**21
"""The bytes that may arrive without completing a message.

For an honest peer, aiohttp holds back 768 KiB, and one incomplete message has 256 KiB.
"""


class Tap(asyncio.Protocol):
    """Counts bytes in front of a protocol whose connection is already made, or about to be."""

    def __init__(
        self,
        inner: asyncio.Protocol | None = None,
        transport: asyncio.Transport | None = None,
        *,
        idle_bytes: int = IDLE_BYTES,
    ) -> None:
        self._inner, self._transport = inner, transport
        self._came_idle = 0
        self.idle_bytes = idle_bytes
        """The bytes that may arrive without completing a message."""
        self.came = 0
        """The total number of bytes received."""
        self.overran = False
        """True if too many bytes have arrived outside any message; the connection is then dropped."""

    def account(self, size: int) -> None:
        """Record a message of `size` bytes, which an honest end sends as one frame."""
        self._came_idle = max(0, self._came_idle - size - HEADER_BYTES)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.came += len(data)
        self._came_idle += len(data)
        self.overran |= self._came_idle > self.idle_bytes
        if self.overran:
            self.abort()
        elif self._inner is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()
