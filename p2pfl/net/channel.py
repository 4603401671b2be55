"""Binary messages over one WebSocket, dialed or accepted, and what went over it, by peer.

What aiohttp can raise ends here. A channel knows nothing of sessions: bytes go out and come in, are counted, and the
connection is there or gone. Counted bytes are sealed payload bytes, without TCP, WebSocket and ping overhead.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from aiohttp import ClientConnectorError, ClientWebSocketResponse, WSMsgType, web
from aiohttp.http import WebSocketError

from p2pfl.core.limits import TokenBucket
from p2pfl.core.messages import CHUNK_BYTES
from p2pfl.crypto.session import MAX_SEALED_BYTES
from p2pfl.errors import PeerFault
from p2pfl.net.limits import Tap

OnAlarm = Callable[[str, int, str], Any]
"""Called with the kind, the peer and a text when the network sees what the user should know."""

PATH = "/p2pfl"
TCP_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
MESSAGE_BYTES = MAX_SEALED_BYTES + 1
"""The size from which aiohttp refuses a message."""

PINGS_PER_S = 10.0
"""Pings and pongs allowed, beside `BURST` at once: an honest end sends none. 256 KiB of them in
one piece would hold up the loop for a tenth of a second or more."""

WebSocket = ClientWebSocketResponse | web.WebSocketResponse


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
    """`peers` by index; `unknown` is what came before a peer was known, or from none of the federation."""

    peers: dict[int, PeerTraffic]
    unknown: PeerTraffic = field(default_factory=PeerTraffic)

    @classmethod
    def of(cls, peers: Iterable[int]) -> Counters:
        return cls({peer: PeerTraffic() for peer in sorted(peers)})

    def include(self, peers: Iterable[int]) -> None:
        """Count these too; whoever was counted goes on being so."""
        for peer in peers:
            self.peers.setdefault(peer, PeerTraffic())

    @property
    def total(self) -> PeerTraffic:
        total = PeerTraffic()
        for traffic in (*self.peers.values(), self.unknown):
            total.add(traffic)
        return total


def reason_of(error: Exception) -> str:
    """Why an attempt to reach a node has failed, in a few words. (What aiohttp says names TLS, which is not used.)"""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if not isinstance(error, ClientConnectorError):
        return str(error) or type(error).__name__
    cause = error.os_error
    if isinstance(cause, socket.gaierror):
        return "the name is unknown"
    return os.strerror(cause.errno) if cause.errno else str(cause)


class GoneError(Exception):
    """The connection has ended, nobody's fault."""


def keep_queue_short(web_socket: WebSocket) -> None:
    """On a slow link a ping must not wait behind megabytes in the kernel until the peer is taken for dead."""
    raw = web_socket.get_extra_info("socket")
    if raw is not None and TCP_NOTSENT_LOWAT is not None:
        with suppress(OSError):
            raw.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, CHUNK_BYTES)


class Channel:
    """`tap` stands below the WebSocket."""

    def __init__(self, web_socket: WebSocket, tap: Tap) -> None:
        self._socket, self._tap = web_socket, tap
        keep_queue_short(web_socket)
        self._traffic = PeerTraffic()
        self._pings = TokenBucket(PINGS_PER_S)
        self.peer: int | None = None
        """The index of the node at the other end, once it is known."""

    @property
    def own_address(self) -> str | None:
        """The address of this end, without its port."""
        place = self._socket.get_extra_info("sockname")
        return str(place[0]).partition("%")[0] if place else None

    @property
    def peer_address(self) -> str:
        """The address of the other end, without its port."""
        place = self._socket.get_extra_info("peername")
        return str(place[0]) if place else ""

    @property
    def bytes_came(self) -> int:
        """All that has come over the connection, of messages under way too."""
        return self._tap.came

    def book(self, peer: int, traffic: PeerTraffic) -> None:
        """The peer is known: what went over the channel, and what will, counts as its traffic."""
        self.peer = peer
        traffic.add(self._traffic)
        self._traffic = traffic

    async def send(self, data: bytes) -> None:
        """Waits while the peer does not read; the caller sets the deadline."""
        try:
            await self._socket.send_bytes(data)
        except ConnectionError as error:
            raise GoneError(str(error) or type(error).__name__) from None
        self._traffic.bytes_sent += len(data)

    async def receive(self) -> bytes:
        """The next binary message; the caller sets the deadline. Pings are limited here, which aiohttp would not do."""
        try:
            while (message := await self._socket.receive()).type in (WSMsgType.PING, WSMsgType.PONG):
                self._tap.account(len(message.data))
                if self._pings.take(asyncio.get_running_loop().time()) > 0.0:
                    raise PeerFault("more pings than an honest end sends")
                if message.type is WSMsgType.PING:
                    await self._socket.pong(message.data)
        except ConnectionError as gone:
            raise GoneError(str(gone) or type(gone).__name__) from None
        if self._tap.overran:
            raise PeerFault("WebSocket frames without end that make no message")
        match message.type, message.data:
            case WSMsgType.BINARY, bytes(data):
                self._tap.account(len(data))
                self._traffic.bytes_received += len(data)
                return data
            case WSMsgType.TEXT, _:
                raise PeerFault("a text message")
            case WSMsgType.ERROR, WebSocketError() as error:
                # Its text may quote what the peer has sent.
                raise PeerFault(f"broken WebSocket frame, fault {error.code:d}")
            case WSMsgType.ERROR, error:
                raise GoneError(str(error) or type(error).__name__)
        raise GoneError("closed by the peer")

    async def close(self, within_s: float) -> None:
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(within_s):
                await self._socket.close()
