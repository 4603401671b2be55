"""A line carries sealed chunks between two nodes, in order, until it ends, and counts them by peer.

Whatever carries it (`websocket`, `in_memory`), a line is unaware of sessions: bytes go out and come in, and the
connection exists or has ended. It counts the sealed bytes, without the overhead of the carrier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

OnAlarm = Callable[[str, int, str], Any]
"""Called with a kind, a peer and a text when the network sees something that the user should know."""


@dataclass(slots=True)
class PeerTraffic:
    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    sessions: int = 0
    refusals: int = 0
    faults: int = 0

    def add(self, other: PeerTraffic) -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass(slots=True)
class Counters:
    """Traffic of `peers` by index; `unknown` is the traffic of strangers, and of peers not identified yet."""

    peers: dict[int, PeerTraffic]
    unknown: PeerTraffic = field(default_factory=PeerTraffic)

    @classmethod
    def of(cls, peers: Iterable[int]) -> Counters:
        return cls({peer: PeerTraffic() for peer in sorted(peers)})

    def include(self, peers: Iterable[int]) -> None:
        """Count these peers too, in addition to those counted so far."""
        for peer in peers:
            self.peers.setdefault(peer, PeerTraffic())

    @property
    def total(self) -> PeerTraffic:
        total = PeerTraffic()
        for traffic in (*self.peers.values(), self.unknown):
            total.add(traffic)
        return total


class GoneError(Exception):
    """The connection has ended, and neither end is at fault."""


class Line(ABC):
    """A connection, dialed or accepted."""

    def __init__(self) -> None:
        self._traffic = PeerTraffic()
        self.peer: int | None = None
        """The index of the node at the other end, once it is known."""

    @property
    @abstractmethod
    def own_address(self) -> str | None:
        """The address of this end, without its port; None if it has none."""

    @property
    @abstractmethod
    def peer_address(self) -> str:
        """The address of the other end, without its port."""

    @property
    def seen_as(self) -> str:
        """The address to tell the other end as its own; by its own account if it came through a web server."""
        return self.peer_address

    @property
    @abstractmethod
    def bytes_came(self) -> int:
        """The number of bytes received over the connection, including incomplete messages."""

    @property
    def relay(self) -> str | None:
        """The URL of the relay that carries the line; None if it goes straight to the other end."""
        return None

    def doubt(self, reason: str) -> None:  # noqa: B027 - only a line through a relay has somebody to doubt
        """Record that the way spoiled the line: something came that the other end did not seal, or nothing came."""

    def book(self, peer: int, traffic: PeerTraffic) -> None:
        """Attribute all traffic on the line, past and future, to `peer`, now that it is known."""
        self.peer = peer
        traffic.add(self._traffic)
        self._traffic = traffic

    async def send(self, data: bytes) -> None:
        """Send a chunk; wait if the peer is not reading. The caller sets the deadline. Raises GoneError."""
        await self._push(data)
        self._traffic.bytes_sent += len(data)

    async def receive(self) -> bytes:
        """Wait for the next chunk; the caller sets the deadline.

        Raises GoneError, or PeerFault for data that no node sends.
        """
        data = await self._pull()
        self._traffic.bytes_received += len(data)
        return data

    @abstractmethod
    async def _push(self, data: bytes) -> None: ...

    @abstractmethod
    async def _pull(self) -> bytes: ...

    @abstractmethod
    async def close(self, within_s: float) -> None: ...
