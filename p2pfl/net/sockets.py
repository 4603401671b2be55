"""Both ways to a session: the dialer keeps dialing the neighbors whose address is configured or hinted at, as long as
there is no session with them; the listening socket accepts neighbors, and answers strangers with nothing worth having.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from logging import DEBUG, INFO
from typing import Any

import aiohttp
from aiohttp import ClientError, web

from p2pfl.errors import PeerFault
from p2pfl.net.address import Address, cannot_listen
from p2pfl.net.channel import MESSAGE_BYTES, PATH, Channel, GoneError, reason_of
from p2pfl.net.doorway import GREETING_BYTES, Doorway, Gate, Stage
from p2pfl.net.entrance import Entrance
from p2pfl.net.greeting import Greeter
from p2pfl.net.limits import IDLE_BYTES, Limits, Tap
from p2pfl.net.link import PeerLink, Shared
from p2pfl.net.looptime import measured
from p2pfl.net.notices import NoEdgeFault
from p2pfl.net.refusals import Refusals
from p2pfl.net.route import Route
from p2pfl.net.table import Dial, NeighborPlace, Table, expire
from p2pfl.net.terse import TerseHandler, not_found

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None]


class Backoff:
    """Doubling delays, each shortened by up to half at random so that nodes do not dial in step."""

    def __init__(self, limits: Limits, rng: random.Random) -> None:
        self._limits = limits
        self._rng = rng
        self._delay_s = limits.retry_first_s

    def reset(self) -> None:
        self._delay_s = self._limits.retry_first_s

    def exhaust(self) -> None:
        """What was refused now will be refused in a second too."""
        self._delay_s = self._limits.retry_ceiling_s

    def next_s(self) -> float:
        delay_s = self._delay_s * self._rng.uniform(0.5, 1.0)
        self._delay_s = min(2 * self._delay_s, self._limits.retry_ceiling_s)
        return delay_s


async def refuse_redirect(*_: object) -> None:
    """A stranger at a neighbor's address must not send us elsewhere."""
    raise GoneError("redirected")


class TappingConnector(aiohttp.TCPConnector):
    """Puts a tap below HTTP: aiohttp would read interim responses without end, and keep the loop busy with them."""

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109 - aiohttp's signature
        connection = await super().connect(req, traces, timeout)
        transport = connection.transport
        if isinstance(transport, asyncio.Transport) and not isinstance(transport.get_protocol(), Tap):
            inner = transport.get_protocol()
            assert isinstance(inner, asyncio.Protocol)  # noqa: S101
            transport.set_protocol(Tap(inner, transport, idle_bytes=GREETING_BYTES))
        return connection


class TappedSocket(aiohttp.ClientWebSocketResponse):
    """Knows the tap below it, which lets more pass from here on."""

    def __init__(self, reader: Any, writer: Any, protocol: Any, response: Any, *rest: Any, **more: Any) -> None:
        super().__init__(reader, writer, protocol, response, *rest, **more)
        connection = response.connection
        transport = None if connection is None else connection.transport
        found = transport.get_protocol() if isinstance(transport, asyncio.Transport) else None
        self.tap = found if isinstance(found, Tap) else Tap()
        self.tap.idle_bytes = IDLE_BYTES


def open_browserless(socket_class: type[TappedSocket] = TappedSocket) -> aiohttp.ClientSession:
    """Dials and nothing else: no cookies, proxies, redirects or software names."""
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse_redirect)
    return aiohttp.ClientSession(
        connector=TappingConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        timeout=aiohttp.ClientTimeout(total=None),
        ws_response_class=socket_class,
        trace_configs=[trace],
    )


@dataclass(kw_only=True, eq=False, repr=False)
class Dialer:
    greeter: Greeter
    table: Table
    refusals: Refusals
    shared: Shared
    rng: random.Random
    know: Callable[[str], None]
    """Called with each address that is a member's."""
    routes: dict[int, Route] = field(default_factory=dict)
    """Of every member that there is an address of."""
    _silent: set[int] = field(default_factory=set)

    def route(self, peer: int) -> Route:
        return self.routes.setdefault(peer, Route())

    def configure(self, addresses: Mapping[int, Address]) -> None:
        """These are the addresses in the federation's file now. A dial to another one is broken off."""
        for address in addresses.values():
            self.know(address.host)
        for peer in self.routes.keys() | addresses.keys():
            place = self.table.places.get(peer)
            if self.route(peer).configure(addresses.get(peer)) and place is not None and place.dial is not None:
                expire(place.dial.scope)

    async def keep(self, http: aiohttp.ClientSession, peer: int) -> None:
        """Never returns. Each attempt has its deadline; waiting for a session to end has none."""
        place, route = self.table.places[peer], self.route(peer)
        backoff = Backoff(self.shared.limits, self.rng)
        while True:
            await place.vacancy()
            if await self._try(http, peer, place, route):
                backoff.exhaust()
            await place.vacancy()
            if place.settled:
                place.settled = False
                backoff.reset()
            else:
                if await route.rest(backoff.next_s()):
                    backoff.reset()
                await place.vacancy()

    async def _try(self, http: aiohttp.ClientSession, peer: int, place: NeighborPlace, route: Route) -> bool:
        """Dial one address after the other until there is a session. True if an end has refused the other."""
        route.news.clear()
        refused = False
        for address in route.next_go():
            refused |= await self._attempt(http, peer, place, address)
            if place.link is not None or place.rest_s:
                break
        return refused and place.link is None

    async def _attempt(self, http: aiohttp.ClientSession, peer: int, place: NeighborPlace, address: Address) -> bool:
        """True if the two ends do not accept each other, which another attempt would hardly change."""
        try:
            async with asyncio.timeout(self.shared.limits.connect_s + self.shared.limits.handshake_s) as scope:
                place.dial = Dial(scope)
                await self._connect(http, peer, place.dial, address)
            self._silent.discard(peer)
        except (GoneError, TimeoutError, aiohttp.ClientError, OSError) as error:
            self._report_silence(peer, address, error)
        except PeerFault as fault:
            self.refusals.note(peer, f"{self.shared.name_of(peer)} at {address}", fault)
            return not isinstance(fault, NoEdgeFault)
        finally:
            place.dial = None
            place.wake()
        return False

    async def _connect(self, http: aiohttp.ClientSession, peer: int, dial: Dial, address: Address) -> None:
        channel = await self._open(http, address)
        link = None
        try:
            candidate = await self.greeter.dial(channel, peer)
            dial.reached = True
            link = await self.table.admit(candidate)
        finally:
            if link is None:
                await channel.close(self.shared.limits.close_s)
            else:
                self.route(peer).has_worked(address)
                self.know(channel.peer_address)

    async def _open(self, http: aiohttp.ClientSession, address: Address) -> Channel:
        async with asyncio.timeout(self.shared.limits.connect_s):
            socket = await http.ws_connect(
                f"ws://{address}{PATH}",
                autoping=False,
                max_msg_size=MESSAGE_BYTES,
                compress=0,
            )
        assert isinstance(socket, TappedSocket)  # noqa: S101
        return Channel(socket, socket.tap)

    def _report_silence(self, peer: int, address: Address, error: Exception) -> None:
        place = self.table.places.get(peer)
        level = DEBUG if peer in self._silent or place is None or place.link else INFO
        self._silent.add(peer)
        name = self.shared.name_of(peer)
        self.refusals.mention(peer, "%s at %s is not there yet: %s", name, address, reason_of(error), level=level)


@dataclass(kw_only=True, eq=False, repr=False)
class ListeningSocket:
    address: Address
    greeter: Greeter
    table: Table
    refusals: Refusals
    shared: Shared
    spawn: Spawn
    _http: web.Server | None = field(default=None, init=False)
    _entrance: Entrance | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.doorway = Doorway(self.shared.limits, neighbors=len(self.table.places))

    @property
    def port(self) -> int:
        return 0 if self._entrance is None else self._entrance.port

    async def start(self) -> None:
        """UserError where the address cannot be bound."""
        http = web.Server(self._receive)
        entrance = Entrance(self.doorway, lambda gate: TerseHandler(http, gate, self.refusals, logger=self.shared.log))
        try:
            await entrance.open(self.address)
        except OSError as error:
            raise cannot_listen(self.address, error, "listen") from None
        self._http, self._entrance = http, entrance

    def stop_accepting(self) -> None:
        if self._entrance is not None:
            self._entrance.close()

    async def stop(self) -> None:
        self.stop_accepting()
        if self._http is not None:
            await self._http.shutdown(0.1)
        self.doorway.close()

    async def _receive(self, request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(autoping=False, max_msg_size=MESSAGE_BYTES, compress=False)
        socket.headers["Server"] = ""
        transport = request.transport
        # A subprotocol is nothing that a node asks for, and aiohttp would quote it in the log.
        plain = request.path == PATH and "Sec-WebSocket-Protocol" not in request.headers
        if transport is None or not plain or not socket.can_prepare(request):
            return not_found()
        gate = transport.get_protocol()
        await socket.prepare(request)
        if isinstance(gate, Gate):
            gate.advance(Stage.UPGRADED)
            task = self.spawn(self._visit(Channel(socket, gate), gate))
            if task is not None:
                await asyncio.wait({task})
        return socket

    async def _visit(self, channel: Channel, gate: Gate) -> None:
        await measured(self._serve(channel, gate), gate.watch())

    async def _serve(self, channel: Channel, gate: Gate) -> None:
        link: PeerLink | None = None
        try:
            async with asyncio.timeout_at(gate.ends_at):
                link = await self._welcome(channel, gate)
        except TimeoutError:  # an OSError too
            self.refusals.mention(channel.peer, "%s took too long to become a session", gate.address)
        except (GoneError, OSError, ClientError) as gone:
            self.refusals.mention(channel.peer, "%s left before the session: %s", gate.address, gone)
        except PeerFault as fault:
            who = gate.address if channel.peer is None else f"{self.shared.name_of(channel.peer)} from {gate.address}"
            self.refusals.note(channel.peer, who, fault)
        if link is None:
            await channel.close(self.shared.limits.close_s)
            return
        gate.admit()
        await link.finished.wait()

    async def _welcome(self, channel: Channel, gate: Gate) -> PeerLink | None:
        return await self.table.admit(await self.greeter.answer(channel, gate.advance))
