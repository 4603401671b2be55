"""The front of the listening socket: what a stranger may cost before he has shown who he is.

Counts connections that are no session yet, in all and by address, and drops each that is not one in time, whatever
it is doing: sending nothing, half a request or half a handshake. Behind it aiohttp speaks HTTP and WebSocket.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from p2pfl.net.limits import Limits
from p2pfl.net.tap import Tap


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
