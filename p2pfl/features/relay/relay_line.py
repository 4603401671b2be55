"""A line through a relay, as the network layer sees it, and the visit of a member that comes through one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from p2pfl.core.messages import CHUNK_BYTES
from p2pfl.errors import PeerFault
from p2pfl.features.relay.relay_frames import WINDOW_BYTES, Closing, FrameKind, pack, pack_number
from p2pfl.net.doorway import ConnectionStage
from p2pfl.net.line import GoneError, Line

T = TypeVar("T")

CREDIT_BYTES = CHUNK_BYTES
"""Credit is given back once so many bytes have been read."""
MOST_CHUNKS = 1 << 15
"""The most chunks that wait to be read, however small they are."""


class Carrier(Protocol):
    """The connection to a relay that carries the lines."""

    @property
    def url(self) -> str: ...
    @property
    def own_address(self) -> str | None: ...

    async def say(self, frame: bytes) -> None:
        """Send a frame; wait if the relay is not reading. Raises GoneError."""
        ...

    def forget(self, line: RelayLine) -> None:
        """Drop a line that has ended."""
        ...

    def doubt(self, key: bytes, reason: str) -> None:
        """Record that a line to the member with that key was spoiled on the way."""
        ...


class RelayLine(Line):
    """One line to the member with the public key `key`, if the relay does not lie: the handshake shows that."""

    def __init__(self, carrier: Carrier, number: int, key: bytes) -> None:
        super().__init__()
        self.number, self.key = number, key
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the other end has taken the line, or it has ended."""
        self._carrier = carrier
        self._coming: deque[bytes] = deque()
        self._came = self._held = self._read = 0
        self._allowed = WINDOW_BYTES
        self._end: str | None = None
        self._turned = asyncio.Event()

    @property
    def relay(self) -> str | None:
        return self._carrier.url

    @property
    def own_address(self) -> str | None:
        return self._carrier.own_address

    @property
    def peer_address(self) -> str:
        return f"relay {self._carrier.url}"

    @property
    def bytes_came(self) -> int:
        return self._came

    def doubt(self, reason: str) -> None:
        self._carrier.doubt(self.key, reason)

    def take_data(self, data: bytes) -> None:
        """Take a chunk from the relay. Raises PeerFault if it is more than this end has given credit for."""
        self._came += len(data)
        self._held += len(data)
        if self._held > WINDOW_BYTES or len(self._coming) >= MOST_CHUNKS:
            raise PeerFault("more than there was credit for")
        self._coming.append(data)
        self._turned.set()

    def take_credit(self, size: int) -> None:
        if not 0 < size <= WINDOW_BYTES - self._allowed:
            raise PeerFault("no credit, or more than there were bytes")
        self._allowed += size
        self._turned.set()

    def finish(self, reason: str) -> None:
        """End the line; what has arrived can still be received."""
        if self._end is None:
            self._end = reason
            self._turned.set()
            if not self.accepted.done():
                self.accepted.set_result(None)

    @property
    def end(self) -> str | None:
        """Why the line has ended; None while it has not."""
        return self._end

    async def _push(self, data: bytes) -> None:
        while self._allowed < len(data) and self._end is None:
            await self._turn()
        if self._end is not None:
            raise GoneError(self._end)
        self._allowed -= len(data)
        await self._carrier.say(pack(FrameKind.DATA, self.number, data))

    async def _pull(self) -> bytes:
        while not self._coming and self._end is None:
            await self._turn()
        if not self._coming:
            raise GoneError(self._end or "closed")
        data = self._coming.popleft()
        self._read += len(data)
        if self._end is None and (self._read >= CREDIT_BYTES):
            given, self._read = self._read, 0
            self._held -= given
            await self._carrier.say(pack_number(FrameKind.CREDIT, self.number, given))
        return data

    async def close(self, within_s: float) -> None:
        if self._end is None:
            self.finish("closed")
            try:
                async with asyncio.timeout(within_s):
                    await self._carrier.say(pack_number(FrameKind.CLOSE, self.number, Closing.DONE))
            except (GoneError, TimeoutError):
                pass
        self._coming.clear()
        self._carrier.forget(self)

    async def _turn(self) -> None:
        self._turned.clear()
        await self._turned.wait()


class RelayVisit:
    """A visit through a relay. Only members that the relay has let in can come, so few limits are needed.

    `count_visit` is called, with the time, for a visitor that may have no session.
    """

    def __init__(self, address: str, ends_at: float, count_visit: Callable[[float], None]) -> None:
        self.address, self.ends_at = address, ends_at
        self._count_visit = count_visit

    def advance(self, stage: ConnectionStage) -> None:
        if stage is ConnectionStage.VISITING:
            self._count_visit(asyncio.get_running_loop().time())

    def admit(self) -> None:
        """Do nothing: the line may stay."""

    def work(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return work
