"""The listening socket: accepts neighbors, answers strangers with nothing worth having."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, web

from p2pfl.errors import PeerFault
from p2pfl.net.address import Address, cannot_listen
from p2pfl.net.channel import MESSAGE_BYTES, PATH, Channel, GoneError
from p2pfl.net.counters import Refusals
from p2pfl.net.greeting import Greeter
from p2pfl.net.limits import Doorway, Gate
from p2pfl.net.link import PeerLink, Shared
from p2pfl.net.table import Table

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None]


def not_found() -> web.Response:
    response = web.Response(status=404, headers={"Server": "", "Content-Type": ""})
    response.force_close()
    return response


class TerseHandler(web.RequestHandler):
    """aiohttp's protocol, except that what it cannot parse gets no explanation."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        # Strangers can make aiohttp stumble in many ways. What is ours runs in a task of its own, not caught here.
        del status, message
        self.logger.debug("broken request from %s", request.remote, exc_info=exc)
        if self.transport is not None:
            self.transport.abort()
        return not_found()


@dataclass(kw_only=True, eq=False, repr=False)
class ListeningSocket:
    address: Address
    greeter: Greeter
    table: Table
    refusals: Refusals
    shared: Shared
    spawn: Spawn
    port: int = 0
    _http: web.Server | None = field(default=None, init=False)
    _server: asyncio.Server | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.doorway = Doorway(self.shared.limits)

    async def start(self) -> None:
        """UserError where the address cannot be bound."""
        loop = asyncio.get_running_loop()
        http = web.Server(self._receive)

        def speak_http() -> TerseHandler:
            return TerseHandler(http, loop=loop, access_log=None, logger=self.shared.log)  # type: ignore[arg-type]

        try:
            self._server = await loop.create_server(
                lambda: Gate(self.doorway, speak_http),
                self.address.host,
                self.address.port,
            )
        except OSError as error:
            raise cannot_listen(self.address, error, "listen") from None
        self._http = http
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        self.stop_accepting()
        if self._http is not None:
            await self._http.shutdown(0.1)

    async def _receive(self, request: web.BaseRequest) -> web.StreamResponse:
        heartbeat_s = self.shared.limits.heartbeat_s
        socket = web.WebSocketResponse(
            autoping=False, heartbeat=heartbeat_s, max_msg_size=MESSAGE_BYTES, compress=False
        )
        socket.headers["Server"] = ""
        transport = request.transport
        # A subprotocol is nothing that a node asks for, and aiohttp would quote it in the log.
        plain = request.path == PATH and "Sec-WebSocket-Protocol" not in request.headers
        if transport is None or not plain or not socket.can_prepare(request):
            return not_found()
        gate = transport.get_protocol()
        await socket.prepare(request)
        if isinstance(gate, Gate):
            task = self.spawn(self._serve(Channel(socket, gate), gate))
            if task is not None:
                await asyncio.wait({task})
        return socket

    async def _serve(self, channel: Channel, gate: Gate) -> None:
        link: PeerLink | None = None
        try:
            async with asyncio.timeout(self.shared.limits.handshake_s):
                link = await self._welcome(channel)
        except (GoneError, OSError, ClientError) as gone:
            self.shared.log.debug("%s left before the session: %s", gate.address, gone)
        except TimeoutError:
            self.shared.log.debug("%s took too long to become a session", gate.address)
        except PeerFault as fault:
            who = gate.address if channel.peer is None else f"{self.shared.name_of(channel.peer)} from {gate.address}"
            self.refusals.note(channel.peer, who, fault)
        if link is None:
            await channel.close(self.shared.limits.close_s)
            return
        gate.admit()
        await link.finished.wait()

    async def _welcome(self, channel: Channel) -> PeerLink | None:
        return await self.table.admit(await self.greeter.answer(channel))
