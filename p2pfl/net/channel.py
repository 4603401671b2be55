"""Binary messages over one WebSocket, dialed or accepted. What aiohttp can raise ends here.

Knows nothing of sessions: bytes go out and come in, are counted, and the connection is there or gone.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from aiohttp import ClientWebSocketResponse, WSMsgType, web
from aiohttp.http import WebSocketError

from p2pfl.core.limits import TokenBucket
from p2pfl.core.messages import CHUNK_BYTES
from p2pfl.crypto.session import MAX_SEALED_BYTES
from p2pfl.errors import PeerFault
from p2pfl.net.counters import PeerTraffic
from p2pfl.net.limits import Tap

PATH = "/p2pfl"
TCP_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
MESSAGE_BYTES = MAX_SEALED_BYTES + 1
"""The size from which aiohttp refuses a message."""

PINGS_PER_S = 10.0
"""Pings and pongs allowed, beside `BURST` at once: an honest end sends one of each per heartbeat. 256 KiB of them in
one piece would hold up the loop for a tenth of a second or more."""

WebSocket = ClientWebSocketResponse | web.WebSocketResponse


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
                raise PeerFault(f"broken WebSocket frame: {error}")
            case WSMsgType.ERROR, error:
                raise GoneError(str(error) or type(error).__name__)
        raise GoneError("closed by the peer")

    async def close(self, within_s: float) -> None:
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(within_s):
                await self._socket.close()
