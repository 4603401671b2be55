"""Lines within one process, without a socket: for tests, and for all nodes of a program in one event loop."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Awaitable, Coroutine
from logging import Logger
from typing import Any, TypeVar

from p2pfl.net.address import Address, cannot_listen
from p2pfl.net.doorway import Stage
from p2pfl.net.limits import Limits
from p2pfl.net.line import GoneError, Line
from p2pfl.net.refusals import Refusals
from p2pfl.net.transport import Meet

T = TypeVar("T")

MOST_CHUNKS = 8
"""Chunks on their way in one direction; then `send` waits."""
HOST = "127.0.0.1"
CLOSED = "closed by the peer"


class MemoryLine(Line):
    """One end of a pair. `over` is set when either end closes."""

    def __init__(self, over: asyncio.Event) -> None:
        super().__init__()
        self.coming: asyncio.Queue[bytes] = asyncio.Queue(MOST_CHUNKS)
        self.came = 0
        self.other = self
        self._over, self._closed = over, False

    @classmethod
    def pair(cls) -> tuple[MemoryLine, MemoryLine]:
        over = asyncio.Event()
        one, other = cls(over), cls(over)
        one.other, other.other = other, one
        return one, other

    @property
    def own_address(self) -> str | None:
        return None

    @property
    def peer_address(self) -> str:
        return HOST

    @property
    def bytes_came(self) -> int:
        return self.came

    async def _push(self, data: bytes) -> None:
        if self._over.is_set() or not await self._unless_over(self.other.coming.put(bytes(data))):
            raise GoneError(CLOSED)
        self.other.came += len(data)

    async def _pull(self) -> bytes:
        """What had been sent before the other end closed still comes."""
        if self.coming.empty() and not self._over.is_set():
            coming = asyncio.ensure_future(self.coming.get())
            if await self._unless_over(coming):
                return coming.result()
        if self._closed or self.coming.empty():
            raise GoneError(CLOSED)
        return self.coming.get_nowait()

    async def close(self, within_s: float) -> None:  # noqa: ARG002 - as a line does
        self._closed = True
        self._over.set()

    async def _unless_over(self, work: Awaitable[Any]) -> bool:
        """Whether it was done; else it is cancelled."""
        doing, ending = asyncio.ensure_future(work), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({doing, ending}, return_when=asyncio.FIRST_COMPLETED)
            return bool(doing.done())
        finally:
            ending.cancel()
            doing.cancel()


class MemoryVisit:
    """Nobody but nodes of this process can come: nothing is bounded but the time."""

    def __init__(self, limits: Limits) -> None:
        self.address = HOST
        self.ends_at = asyncio.get_running_loop().time() + limits.handshake_s

    def advance(self, stage: Stage) -> None:
        """Each stage has room."""

    def admit(self) -> None:
        """It may stay."""

    def work(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return work


class MemoryNetwork:
    """The addresses of one process. `transport` makes that of one node."""

    def __init__(self) -> None:
        self.listening: dict[str, MemoryTransport] = {}
        self.ports = itertools.count(1)

    def transport(self, limits: Limits, _refusals: Refusals, _log: Logger) -> MemoryTransport:
        return MemoryTransport(self, limits)


class MemoryTransport:
    def __init__(self, network: MemoryNetwork, limits: Limits) -> None:
        self._network, self._limits = network, limits
        self._address = ""
        self.meet: Meet
        self.port = 0

    async def open(self, address: Address, meet: Meet) -> None:
        self.meet = meet
        self.port = address.port or next(self._network.ports)
        self._address = str(Address(address.host, self.port))
        if self._address in self._network.listening:
            raise cannot_listen(address, OSError(errno.EADDRINUSE, "Address already in use"), "listen")
        self._network.listening[self._address] = self

    def expect(self, neighbors: int) -> None:
        """There is room for all."""

    def know(self, host: str) -> None:
        """Nobody else is there."""

    async def dial(self, address: Address) -> Line:
        other = self._network.listening.get(str(address))
        if other is None:
            raise GoneError("nobody is there")
        own, theirs = MemoryLine.pair()
        if other.meet(theirs, MemoryVisit(self._limits)) is None:
            raise GoneError("it stops")
        return own

    def stop_accepting(self) -> None:
        if self._network.listening.get(self._address) is self:
            del self._network.listening[self._address]

    async def close(self) -> None:
        self.stop_accepting()
