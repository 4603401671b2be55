"""Lines and their counters, the interface of a transport, which dials and accepts lines, and the log of refusals.

A line carries sealed chunks between two nodes, in order, until it ends. It is unaware of sessions: bytes go out and
come in, and the connection exists or has ended. It counts the sealed bytes, without the overhead of what carries it.
Lines over a WebSocket are here, their transport is `websocket`; others go through a relay, and in tests through memory.
Below HTTP and WebSocket a `Tap` counts a connection's bytes, because aiohttp accepts any number of empty fragments,
each of which costs more than its bytes.
"""

from __future__ import annotations

import asyncio
import re
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import IntEnum
from logging import DEBUG, INFO, WARNING, Logger
from typing import Any, Protocol, TypeVar

import aiohttp
from aiohttp import ClientWebSocketResponse, WSMsgType, web
from aiohttp.http import WebSocketError

from p2pfl.core.limits import TokenBucket
from p2pfl.crypto import FederationMismatch, UnlistedKey
from p2pfl.errors import PeerFault
from p2pfl.foreign import printable
from p2pfl.limits import (
    CHUNK_BYTES,
    IDLE_BYTES,
    LINE_BYTES,
    MEMBER_LINES_AN_HOUR,
    PINGS_PER_S,
    REASON_BYTES,
    REASON_VARIANTS,
    STRANGERS_LINES_AN_HOUR,
    Limits,
)
from p2pfl.net.address import Address, DialPath, Relayed

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


class SealedFault(PeerFault):
    """A fault that the peer itself has sealed or signed."""


class NoEdgeFault(SealedFault):
    """The other end has no edge to this node; it may not know about a change of the graph yet."""


class LeftBehindFault(SealedFault):
    """The other end's newer charter does not list this node; `Charters.left_behind` has already been called."""


class GoneError(Exception):
    """The connection has ended, and neither end is at fault."""


class ConnectionStage(IntEnum):
    """The stage of a connection on its way to a session."""

    CONNECTED = 0
    UPGRADED = 1
    """The connection speaks WebSocket."""
    ADDRESSED = 2
    """The first handshake message was meant for this node, so the peer knows our public key."""
    CONTROL = 3
    """The peer's key may not have a session, and may at most exchange the charter."""
    PROVEN = 4
    """The peer is a member of the federation."""


HEADER_BYTES = 14
"""The size of the largest WebSocket frame header."""


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


class Line(ABC):
    """A connection, dialed or accepted."""

    def __init__(self) -> None:
        self._traffic = PeerTraffic()
        self.peer: int | None = None
        """The index of the node at the other end, once it is known."""

    @property
    @abstractmethod
    def peer_address(self) -> str:
        """The address of the other end, without its port."""

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


TCP_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)

WebSocket = ClientWebSocketResponse | web.WebSocketResponse


def keep_queue_short(web_socket: WebSocket) -> None:
    """Limit the kernel's send queue: on a slow link a ping must not wait behind megabytes until the peer seems dead."""
    raw = web_socket.get_extra_info("socket")
    if raw is not None and TCP_NOTSENT_LOWAT is not None:
        with suppress(OSError):
            raw.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, CHUNK_BYTES)


class WebSocketLine(Line):
    """A line over a WebSocket; `tap` counts the bytes below it."""

    def __init__(self, web_socket: WebSocket, tap: Tap) -> None:
        super().__init__()
        self._socket, self._tap = web_socket, tap
        keep_queue_short(web_socket)
        self._pings = TokenBucket(PINGS_PER_S)

    @property
    def peer_address(self) -> str:
        place = self._socket.get_extra_info("peername")
        return str(place[0]) if place else ""

    @property
    def bytes_came(self) -> int:
        return self._tap.came

    async def _push(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(data)
        except (ConnectionError, aiohttp.ClientError) as error:
            raise GoneError(str(error) or type(error).__name__) from None

    async def _pull(self) -> bytes:
        """Wait for the next chunk, and limit pings, which aiohttp would not do."""
        try:
            while (message := await self._socket.receive()).type in (WSMsgType.PING, WSMsgType.PONG):
                self._tap.account(len(message.data))
                if self._pings.take(asyncio.get_running_loop().time()) > 0.0:
                    raise PeerFault("more pings than an honest end sends")
                if message.type is WSMsgType.PING:
                    await self._socket.pong(message.data)
        except (ConnectionError, aiohttp.ClientError) as gone:
            raise GoneError(str(gone) or type(gone).__name__) from None
        if self._tap.overran:
            raise PeerFault("WebSocket frames without end that make no message")
        match message.type, message.data:
            case WSMsgType.BINARY, bytes(data):
                self._tap.account(len(data))
                return data
            case WSMsgType.TEXT, _:
                raise PeerFault("a text message")
            case WSMsgType.ERROR, WebSocketError() as error:
                # The error's text may quote data from the peer.
                raise PeerFault(f"broken WebSocket frame, fault {error.code:d}")
            case WSMsgType.ERROR, error:
                raise GoneError(str(error) or type(error).__name__)
        raise GoneError("closed by the peer")

    async def close(self, within_s: float) -> None:
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(within_s):
                await self._socket.close()
        if (error := self._socket.exception()) is not None:
            # The frames refer to the socket, which refers to the error.
            error.with_traceback(None).__context__ = None


DIFFERS = "federation-differs"
"""The kind of alarm about a federation file that differs."""

HOUR_S = 3600.0
STAMP_BYTES = 112
FIGURES = re.compile(r"[A-Za-z0-9_-]{43}|[0-9a-f]{16,}|\d+")
"""Matches public keys, hashes and numbers."""


@dataclass(frozen=True, slots=True)
class LinesAnHour:
    """The number of lines per hour. `unsealed` is for reasons that anybody at a member's address, or on the way, could
    cause.
    """

    reasons: int
    mentions: int
    unsealed: int


STRANGERS = LinesAnHour(*STRANGERS_LINES_AN_HOUR)
MEMBER = LinesAnHour(*MEMBER_LINES_AN_HOUR)


@dataclass(slots=True)
class HourOfRefusals:
    """The refusals of one member, or of all strangers, within this hour."""

    allowance: LinesAnHour
    logged: set[str] = field(default_factory=set)
    wordings: Counter[str] = field(default_factory=Counter)
    counted: int = 0
    """Refusals counted but not logged."""
    mentions: int = 0
    unmentioned: int = 0
    unsealed: int = 0

    def note(self, reason: str, *, sealed: bool) -> bool:
        """Record a reason; return True if it should be logged.

        `sealed` says that the peer itself, and nobody else, is the cause.
        """
        wording = FIGURES.sub("#", reason)
        full = len(self.logged) >= self.allowance.reasons or self.wordings[wording] >= REASON_VARIANTS
        full |= not sealed and self.unsealed >= self.allowance.unsealed
        if full or reason in self.logged:
            return False
        self.logged.add(reason)
        self.unsealed += not sealed
        self.wordings[wording] += 1
        return True

    def may_mention(self) -> bool:
        if self.mentions >= self.allowance.mentions:
            self.unmentioned += 1
            return False
        self.mentions += 1
        return True


@dataclass(slots=True, eq=False)
class Refusals:
    """The log of refusals. A peer is an index, or None for a stranger."""

    counters: Counters
    log: Logger
    on_alarm: OnAlarm
    name_of: Callable[[int], str] = "node {}".format
    name_of_key: Callable[[bytes], str | None] = lambda key: None  # noqa: ARG005 - whoever knows no former members
    """Returns the name of the member that has that public key, also of a former one."""
    _memories: dict[int | None, HourOfRefusals] = field(default_factory=dict)

    def note(self, peer: int | None, name_or_address: str, fault: PeerFault) -> None:
        """Log a refusal, or count it.

        `name_or_address` may be an address if the peer is not known; then only the reason distinguishes two refusals.
        """
        traffic = self.counters.unknown if peer is None else self.counters.peers[peer]
        traffic.refusals += 1
        reason, memory = clip(str(fault), REASON_BYTES), self._memory_of(peer)
        if isinstance(fault, LeftBehindFault):  # one alarm covers all peers that report this
            memory.counted += 1
            self.mention(peer, "refused %s: %s", name_or_address, reason)
            return
        differs = isinstance(fault, FederationMismatch)
        if not memory.note(reason, sealed=isinstance(fault, FederationMismatch | SealedFault)):
            memory.counted += 1
            self.mention(peer, "refused %s again: %s", name_or_address, reason)
            return
        if peer is not None and differs:
            self.on_alarm(DIFFERS, peer, reason)
        level = INFO if differs else WARNING  # the alarm is a warning already
        who = clip(name_or_address, REASON_BYTES // 2)
        if isinstance(fault, UnlistedKey) and (name := self.name_of_key(fault.public)):
            who += f" ({name}, no longer a member)"
        self._say(level, f"refused {who}: {reason}; logged once an hour, else only counted")

    def mention(self, peer: int | None, text: str, *values: object, level: int = DEBUG) -> None:
        """Log a lesser event caused by a stranger or a member, within the allowance."""
        if self.log.isEnabledFor(level) and self._memory_of(peer).may_mention():
            self._say(level, text % values)

    async def begin_hours(self) -> None:
        """Call `begin_hour` every hour until cancelled."""
        while True:
            await asyncio.sleep(HOUR_S)
            self.begin_hour()

    def begin_hour(self) -> None:
        """Begin a new hour: log the counts of the last one, and forget its reasons."""
        memories, self._memories = self._memories, {}
        left_out = [
            f"{'strangers' if peer is None else self.name_of(peer)} {memory.counted} times"
            + (f" ({memory.unmentioned} other lines)" if memory.unmentioned else "")
            for peer, memory in sorted(memories.items(), key=lambda item: -1 if item[0] is None else item[0])
            if memory.counted or memory.unmentioned
        ]
        if left_out:
            refused = any(memory.counted for memory in memories.values())
            self._say(WARNING if refused else DEBUG, f"in the last hour also refused: {', '.join(left_out)}")

    def _memory_of(self, peer: int | None) -> HourOfRefusals:
        if peer not in self._memories:
            self._memories[peer] = HourOfRefusals(STRANGERS if peer is None else MEMBER)
        return self._memories[peer]

    def _say(self, level: int, text: str) -> None:
        self.log.log(level, "%s", clip(text, LINE_BYTES - STAMP_BYTES))


def clip(text: str, most_bytes: int) -> str:
    """Return the text as one printable line of at most `most_bytes`."""
    line = printable(text[:most_bytes])
    return line.encode(errors="replace")[:most_bytes].decode(errors="ignore")


T = TypeVar("T")


class Arrival(Protocol):
    """A line dialed by a peer, until it becomes a session."""

    @property
    def address(self) -> str:
        """The address from which the line comes."""
        ...

    @property
    def ends_at(self) -> float:
        """When the line must have become a session, on the loop's clock."""
        ...

    def advance(self, stage: ConnectionStage) -> None:
        """Move the line to a stage. Raises PeerFault if there is no place for it."""
        ...

    def admit(self) -> None:
        """Let the line stay: it is a session now."""
        ...

    def work(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """Run what `work` makes, once this is awaited, and charge the other end for it."""
        ...


Meet = Callable[[Line, Arrival], "asyncio.Task[None] | None"]
"""The function that receives a line dialed by a peer. It returns None if the node accepts no more lines."""


class Transport(Protocol):
    """A transport dials and accepts lines. `port` is 0 before `open`."""

    @property
    def port(self) -> int: ...

    async def open(self, address: Address, meet: Meet) -> None:
        """Accept lines there from now on. Raises UserError if the address cannot be bound."""
        ...

    def expect(self, neighbors: int) -> None:  # noqa: ARG002 - most have room for all
        """Expect this many neighbors at once."""
        return

    def know(self, host: str) -> None:  # noqa: ARG002 - as above
        """Record that a member is at that address."""
        return

    def relay_paths(self, key: bytes, used: tuple[str, float] | None = None) -> Sequence[Relayed]:  # noqa: ARG002
        """Return the ways through relays to the member with that public key, best first; most transports have none.
        `used` is the URL of the relay in use and what an exchange takes there: another comes first if it is better.
        """
        return ()

    async def dial(self, way: DialPath) -> Line:
        """Dial a member; the caller sets the deadline. Raises GoneError if nobody answers there."""
        ...

    def stop_accepting(self) -> None: ...

    async def close(self) -> None:
        """Accept and dial no more lines; open ones are closed by their users."""
        ...


MakeTransport = Callable[[Limits, Refusals, Logger], Transport]
