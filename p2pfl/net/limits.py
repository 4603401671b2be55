"""Limits on what a stranger or a neighbor may cost, and on how long anything may take. Seconds and bytes throughout.

`Limits` are those of one node. Incomplete messages are limited twice: by the memory that they hold together, and by the
rate that each must keep. Below HTTP and WebSocket a `Tap` counts a connection's bytes, because aiohttp takes any number
of empty fragments, each of which costs more than its bytes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from p2pfl.errors import PeerFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connect_s: float = 10.0
    handshake_s: float = 10.0
    """The time from the accepted connection to the open session; a dialer has as long once it is connected."""
    contest_s: float = 3.0
    """The time for which a newcomer is held back in favor of a session that may be dead at the other end."""
    pending: int = 64
    """The most connections of one stage that are not a session yet (`doorway`)."""
    pending_per_address: int = 32
    """The most such connections from one IPv4 address, or from one /64 of IPv6."""
    handshakes_per_s: float = 100.0
    """The handshakes per second with one address or /64, after `handshake_burst` at once."""
    handshake_burst: float = 128.0
    sessions_per_s: float = 1.0
    """The sessions per second with one neighbor, after `session_burst` at once; above that there is none for
    `churn_rest_s`.
    """
    session_burst: float = 20.0
    churn_rest_s: float = 30.0
    min_rate: float = 1024.0
    """The bytes per second that an incomplete message must bring, averaged over `rate_window_s`."""
    rate_window_s: float = 30.0
    partial_bytes: int | None = None
    """The memory for partly received messages of all sessions; None allows one of the largest per neighbor."""
    queue_messages: int = 64
    drain_s: float = 30.0
    """The time for which one chunk may wait for the peer to read."""
    silence_s: float = 45.0
    """The longest time without a sealed chunk from the other end.

    After that the session is dead, whatever the connection's state. A chunk of 256 KiB must pass in this time, behind
    as much in the socket, so links below about 150 kbit/s are too slow.
    """
    beat_s: float = 4.0
    """The silence after which an end seals an empty chunk."""
    close_s: float = 1.0
    """The time that a goodbye may take."""
    retry_first_s: float = 0.2
    retry_ceiling_s: float = 15.0
    settled_s: float = 5.0
    """The age at which a session proves that dialing works: the next dial is not delayed."""
    session_s: float | None = None
    """The age at which the dialer renews a session; None leaves it to the cipher."""


class ByteBudget:
    """The memory for partly received messages, in bytes, of all sessions together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used = 0

    def change(self, held: int, needed: int) -> int:
        """Replace a session's `held` bytes by `needed` and return these. Raises PeerFault: there is no room."""
        if needed > held and self.used - held + needed > self.limit_bytes:
            raise PeerFault(f"{needed} bytes of unfinished messages do not fit into what is left of {self.limit_bytes}")
        self.used += needed - held
        return needed


class MessagePace:
    """An incomplete message must bring `min_rate * window_s` bytes in every window."""

    def __init__(self, min_rate: float, window_s: float) -> None:
        self._least = min_rate * window_s
        self._window_s = window_s
        self._brought = 0
        self.deadline: float | None = None
        """The time at which the window ends; None while no message is incomplete."""

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


HEADER_BYTES = 14
"""The largest header of a WebSocket frame."""
IDLE_BYTES = 2**21
"""The bytes that may have come without completing a message.

An honest end has 768 KiB held back by aiohttp, and one incomplete message of 256 KiB.
"""


class Tap(asyncio.Protocol):
    """A counter of bytes before a protocol whose connection is made already, or is about to be."""

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
        """The bytes that may have come without completing a message."""
        self.came = 0
        """The bytes that have come in all."""
        self.overran = False
        """True if too many bytes have come that are in no message: the connection is then broken off."""

    def account(self, size: int) -> None:
        """Note a message of `size` bytes, which an honest end sends as one frame."""
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
