"""The front of a socket, below HTTP and WebSocket: what a stranger may cost before he has shown who he is.

A `Tap` counts a connection's bytes where one sees what never becomes a message: aiohttp takes any number of empty
fragments and tells nobody of them, and each costs more than the bytes it takes. A `Gate` is the tap of an accepted
connection. Its `Doorway` counts those that are no session yet, in all and by address, and drops each that is not one in
time, whatever it is doing: sending nothing, half a request or half a handshake.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from p2pfl.net.limits import Limits

HEADER_BYTES = 14
"""The largest header of a WebSocket frame."""
IDLE_BYTES = 2**21
"""Bytes that may have come without completing a message: an honest end has 768 KiB held back by aiohttp and one message
of 256 KiB under way."""


class Tap(asyncio.Protocol):
    """Stands before a protocol whose connection is made already, or is about to be."""

    def __init__(self, inner: asyncio.Protocol | None = None, transport: asyncio.Transport | None = None) -> None:
        self._inner, self._transport = inner, transport
        self._idle_bytes = 0
        self.overran = False
        """Whether too much has come that is in no message: the connection is then broken off."""

    def account(self, size: int) -> None:
        """A message of so many bytes has come, which an honest end sends as one frame."""
        self._idle_bytes = max(0, self._idle_bytes - size - HEADER_BYTES)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._idle_bytes += len(data)
        self.overran |= self._idle_bytes > IDLE_BYTES
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


class Doorway:
    """Connections that wait to become a session, by remote address.

    Where it is crowded the one that has waited longest goes, not the newcomer: an honest handshake is over in
    milliseconds, so that idlers keep nobody out.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.turned_away = 0
        self._waiting: dict[Gate, str] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, gate: Gate) -> None:
        """Takes the newcomer in; may turn away who has waited longest, of its own address or of the most crowded."""
        by_address = Counter(self._waiting.values())
        if by_address[gate.address] >= self.limits.pending_per_address:
            self._turn_away(gate.address)
        elif self.waiting >= self.limits.pending:
            self._turn_away(by_address.most_common(1)[0][0])
        self._waiting[gate] = gate.address

    def leave(self, gate: Gate) -> None:
        self._waiting.pop(gate, None)

    def _turn_away(self, address: str) -> None:
        oldest = next(gate for gate, place in self._waiting.items() if place == address)
        self.turned_away += 1
        self.leave(oldest)
        oldest.abort()


class Gate(Tap):
    """Stands before the HTTP protocol of one connection."""

    def __init__(self, doorway: Doorway, inner: Callable[[], asyncio.Protocol]) -> None:
        super().__init__()
        self._doorway = doorway
        self._make_inner = inner
        self._deadline: asyncio.TimerHandle | None = None
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        peername = transport.get_extra_info("peername")
        self.address = str(peername[0]) if peername else ""
        self._transport = transport
        self._doorway.enter(self)
        handshake_s = self._doorway.limits.handshake_s
        self._deadline = asyncio.get_running_loop().call_later(handshake_s, transport.abort)
        self._inner = self._make_inner()
        self._inner.connection_made(transport)

    def admit(self) -> None:
        """The connection has become a session: it no longer counts, and may stay."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._doorway.leave(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.admit()
        super().connection_lost(exc)
