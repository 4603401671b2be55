"""A line carries sealed chunks between two nodes, in order, until it ends, and counts them by peer.

Whatever carries it (`websocket`, `in_memory`), a line knows nothing of sessions: bytes go out and come in, and the
connection exists or has ended. It counts the sealed bytes, without the overhead of the carrier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

OnAlarm = Callable[[str, int, str], Any]
"""Called with the kind, the peer and a text when the network sees something that the user should know."""


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
    """The traffic of `peers` by index; `unknown` is the traffic of strangers, and of peers not identified yet."""

    peers: dict[int, PeerTraffic]
    unknown: PeerTraffic = field(default_factory=PeerTraffic)

    @classmethod
    def of(cls, peers: Iterable[int]) -> Counters:
        return cls({peer: PeerTraffic() for peer in sorted(peers)})

    def include(self, peers: Iterable[int]) -> None:
        """Count these peers too; those counted so far stay."""
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
        """The address of this end, without its port; None where it has none."""

    @property
    @abstractmethod
    def peer_address(self) -> str:
        """The address of the other end, without its port."""

    @property
    @abstractmethod
    def bytes_came(self) -> int:
        """The number of bytes that have come over the connection, those of incomplete messages included."""

    def book(self, peer: int, traffic: PeerTraffic) -> None:
        """Count all traffic of the line, past and future, as that of `peer`, which is known now."""
        self.peer = peer
        traffic.add(self._traffic)
        self._traffic = traffic

    async def send(self, data: bytes) -> None:
        """Send a chunk; wait while the peer does not read. The caller sets the deadline. Raises GoneError."""
        await self._push(data)
        self._traffic.bytes_sent += len(data)

    async def receive(self) -> bytes:
        """Wait for the next chunk; the caller sets the deadline.

        Raises GoneError, or PeerFault: no node sends such data.
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
