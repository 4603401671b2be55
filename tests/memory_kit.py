"""A transport within one process, without sockets: lines are pairs of queues."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from logging import Logger
from typing import Any, TypeVar

from p2pfl.net import (
    Address,
    ConnectionStage,
    DialPath,
    GoneError,
    Limits,
    Line,
    Meet,
    Refusals,
    Transport,
    cannot_listen,
)

T = TypeVar("T")

MOST_CHUNKS = 8
"""The maximum number of chunks in transit in one direction; beyond that, `send` waits."""
HOST = "127.0.0.1"
CLOSED = "closed by the peer"


class MemoryLine(Line):
    """One end of a pair. `turned` wakes waiters at both ends when a chunk arrives or leaves, or the line ends."""

    def __init__(self, turned: asyncio.Event) -> None:
        super().__init__()
        self.coming: deque[bytes] = deque()
        self.came = 0
        self.closed = False
        self.other = self
        self._turned = turned

    @classmethod
    def pair(cls) -> tuple[MemoryLine, MemoryLine]:
        turned = asyncio.Event()
        one, other = cls(turned), cls(turned)
        one.other, other.other = other, one
        return one, other

    @property
    def peer_address(self) -> str:
        return HOST

    @property
    def bytes_came(self) -> int:
        return self.came

    @property
    def _is_over(self) -> bool:
        return self.closed or self.other.closed

    async def _push(self, data: bytes) -> None:
        while len(self.other.coming) >= MOST_CHUNKS and not self._is_over:
            await self._turn()
        if self._is_over:
            raise GoneError(CLOSED)
        self.other.coming.append(bytes(data))
        self.other.came += len(data)
        self._turned.set()

    async def _pull(self) -> bytes:
        """Wait for the next chunk; chunks sent before the other end closed are still delivered."""
        while not self.coming and not self._is_over:
            await self._turn()
        if self.closed or not self.coming:
            raise GoneError(CLOSED)
        self._turned.set()
        return self.coming.popleft()

    async def close(self, within_s: float) -> None:
        self.closed = True
        self._turned.set()

    async def _turn(self) -> None:
        self._turned.clear()
        await self._turned.wait()


class MemoryArrival:
    """A visit within the process: only its own nodes can come, so only time is limited."""

    def __init__(self, limits: Limits) -> None:
        self.address = HOST
        self.ends_at = asyncio.get_running_loop().time() + limits.handshake_s

    def advance(self, stage: ConnectionStage) -> None:
        """Do nothing: every stage has room."""

    def admit(self) -> None:
        """Do nothing: the line may stay."""

    def work(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        return work()


class MemoryNetwork:
    """The addresses within one process. `transport` creates the transport of one node."""

    def __init__(self) -> None:
        self.listening: dict[str, MemoryTransport] = {}
        self.ports = itertools.count(1)

    def transport(self, limits: Limits, _refusals: Refusals, _log: Logger) -> MemoryTransport:
        return MemoryTransport(self, limits)


class MemoryTransport(Transport):
    port = 0

    def __init__(self, network: MemoryNetwork, limits: Limits) -> None:
        self._network, self._limits = network, limits
        self._address = ""
        self.meet: Meet

    async def open(self, address: Address, meet: Meet) -> None:
        self.meet = meet
        self.port = address.port or next(self._network.ports)
        self._address = str(Address(address.host, self.port))
        if self._address in self._network.listening:
            raise cannot_listen(address, OSError(errno.EADDRINUSE, "Address already in use"), "listen")
        self._network.listening[self._address] = self

    async def dial(self, way: DialPath) -> Line:
        other = self._network.listening.get(str(way))
        if other is None:
            raise GoneError("nobody is there")
        own, theirs = MemoryLine.pair()
        if other.meet(theirs, MemoryArrival(self._limits)) is None:
            raise GoneError("it stops")
        return own

    def stop_accepting(self) -> None:
        if self._network.listening.get(self._address) is self:
            del self._network.listening[self._address]

    async def close(self) -> None:
        self.stop_accepting()
