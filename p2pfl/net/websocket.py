"""The transport over WebSockets: it dials with a client without browser habits, and the acceptor accepts.

No aiohttp exception leaves this module. At its end a `OneShotClient` dials a node only for its charter, to bring a
newer one or to ask for one, without running a node: `p2pfl member` on a laptop does this, as do a newcomer that no
neighbor lists yet and a node that has lost all of its neighbors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from logging import Logger
from typing import Any, TypeVar

import aiohttp
from aiohttp import ClientSession, web

from p2pfl.config.charter import HASH_BYTES, federation_id, keys
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import MAX_SEALED_BYTES, FederationBinding, Initiator, Session
from p2pfl.errors import P2PFLError, PeerFault
from p2pfl.limits import GREETING_BYTES, IDLE_BYTES, UNSENT_BYTES, Limits
from p2pfl.net.acceptor import Acceptor, ConnectionGate, PendingConnections, StrictHandler, not_found
from p2pfl.net.address import PATH, Address, DialPath, Relayed, cannot_listen, parse_address
from p2pfl.net.dial_paths import (
    DialError,
    Outlet,
    OwnCertificate,
    UnreachedError,
    certificate_of,
    of_answer,
    outlet_of,
)
from p2pfl.net.greeting import ask, bring
from p2pfl.net.transport import (
    ConnectionStage,
    GoneError,
    Line,
    MakeTransport,
    Meet,
    Refusals,
    Tap,
    Transport,
    WebSocketLine,
)

FRAME_BYTES = 16
"""Room for what a relay adds to a sealed chunk."""
MESSAGE_BYTES = MAX_SEALED_BYTES + FRAME_BYTES + 1
"""aiohttp refuses messages of this size or more."""


def reason_of(error: Exception) -> str:
    """Say in a few words why a node was not reached."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


async def refuse_redirect(*_: object) -> None:
    """Refuse a redirect: a stranger at a neighbor's address must not send us elsewhere."""
    raise UnreachedError(
        DialError.NOT_A_NODE, "the web server there redirects", "use the address to which it redirects"
    )


TOWARD: ContextVar[Address] = ContextVar("TOWARD")
"""The address that the running task dials."""


class TappingConnector(aiohttp.BaseConnector):
    """Takes connections from `outlet`, with a tap below HTTP: aiohttp would read interim responses forever."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__(limit=0, force_close=True)
        self._outlet = outlet

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109 - aiohttp's
        del req, traces, timeout
        protocol: Any = await self._outlet.connect(TOWARD.get(), self._factory)
        transport = protocol.transport
        if isinstance(transport, asyncio.Transport):
            transport.set_write_buffer_limits(high=UNSENT_BYTES)
            transport.set_protocol(Tap(protocol, transport, idle_bytes=GREETING_BYTES))
        return protocol


class TappedSocket(aiohttp.ClientWebSocketResponse):
    """A socket that knows the tap below it, and lets more bytes through from here on."""

    def __init__(self, reader: Any, writer: Any, protocol: Any, response: Any, *rest: Any, **more: Any) -> None:
        super().__init__(reader, writer, protocol, response, *rest, **more)
        connection = response.connection
        transport = None if connection is None else connection.transport
        protocol = transport.get_protocol() if isinstance(transport, asyncio.Transport) else None
        self.tap = protocol if isinstance(protocol, Tap) else Tap()
        self.tap.idle_bytes = IDLE_BYTES


def open_browserless(outlet: Outlet | None = None) -> aiohttp.ClientSession:
    """Open a session for `dial_websocket`: no cookies, redirects or software names."""
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse_redirect)
    return aiohttp.ClientSession(
        connector=TappingConnector(outlet or Outlet()),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        timeout=aiohttp.ClientTimeout(total=None),
        ws_response_class=TappedSocket,
        trace_configs=[trace],
    )


async def dial_websocket(http: aiohttp.ClientSession, address: Address) -> WebSocketLine:
    """Dial a WebSocket at an address, with TLS and through a proxy as the address and the session's outlet say.

    The caller sets the deadline. Raises GoneError if nobody answers there: UnreachedError, if it is known why.
    """
    token = TOWARD.set(address)
    try:
        socket = await http.ws_connect(address.url, autoping=False, max_msg_size=MESSAGE_BYTES, compress=0)
    except (aiohttp.ClientError, OSError) as error:
        raise of_answer(error) from None
    finally:
        TOWARD.reset(token)
    assert isinstance(socket, TappedSocket)  # noqa: S101
    return WebSocketLine(socket, socket.tap)


def transport_of(node: NodeConfig) -> MakeTransport:
    """Return the transport of a node: its proxy, and its certificate. Raises UserError if one cannot be used."""
    return partial(WebSocketTransport, outlet=outlet_of(node), certificate=certificate_of(node))


class WebSocketTransport(Transport):
    """The WebSocket transport. Connections that are not sessions yet wait in `pending`.

    With a `certificate` it accepts TLS as well as plain connections, on one port.
    """

    def __init__(
        self,
        limits: Limits,
        refusals: Refusals,
        log: Logger,
        *,
        outlet: Outlet | None = None,
        certificate: OwnCertificate | None = None,
    ) -> None:
        self.pending = PendingConnections(limits, neighbors=0)
        self._refusals, self._log = refusals, log
        self._outlet, self._certificate = outlet, certificate
        self._meet: Meet
        self._server: web.Server | None = None
        self._acceptor: Acceptor | None = None
        self._http: aiohttp.ClientSession | None = None

    @property
    def port(self) -> int:
        return 0 if self._acceptor is None else self._acceptor.port

    async def open(self, address: Address, meet: Meet) -> None:
        self._meet = meet
        server = web.Server(self._receive)
        acceptor = Acceptor(self.pending, lambda gate: StrictHandler(server, gate, self._refusals, logger=self._log))
        acceptor.certificate = self._certificate
        try:
            await acceptor.open(address)
        except OSError as error:
            raise cannot_listen(address, error, "listen") from None
        self._server, self._acceptor = server, acceptor
        self._http = open_browserless(self._outlet)

    def expect(self, neighbors: int) -> None:
        self.pending.expect(neighbors)

    def know(self, host: str) -> None:
        self.pending.know(host)

    async def dial(self, way: DialPath) -> Line:
        if self._http is None or isinstance(way, Relayed):
            raise GoneError("the node stops" if self._http is None else "it knows no relay")
        return await dial_websocket(self._http, way)

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        self.stop_accepting()
        try:
            if self._server is not None:
                await self._server.shutdown(0.1)
            self.pending.close()
        finally:
            if self._http is not None:
                await self._http.close()

    async def _receive(self, request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(autoping=False, max_msg_size=MESSAGE_BYTES, compress=False)
        socket.headers["Server"] = ""
        transport = request.transport
        # A node asks for no subprotocol, and aiohttp would quote it in the log.
        plain = request.path == PATH and "Sec-WebSocket-Protocol" not in request.headers
        if transport is None or not plain or not socket.can_prepare(request):
            return not_found()
        gate = transport.get_protocol()
        await socket.prepare(request)
        if isinstance(gate, ConnectionGate):
            gate.advance(ConnectionStage.UPGRADED)
            task = self._meet(WebSocketLine(socket, gate), gate)
            if task is not None:
                await asyncio.wait({task})
        return socket


PATIENCE = Limits(connect_s=3.0)
LEARNED = ("schema", "model")
"""Sections of a node's binding that a one-shot client cannot know."""
Result = TypeVar("Result")
DialThrough = Callable[[str, bytes], Awaitable[Line]]
"""Dials the member with a public key through the relay at a URL. Raises GoneError."""


class UnreachableError(P2PFLError):
    """The node does not answer, or does not answer as a node of this federation; the text says why."""


def control_binding(federation: FederationConfig) -> FederationBinding:
    """Return the binding of a one-shot client, which knows the federation but has not loaded its task."""
    sections = (*keys(federation), *((name, bytes(HASH_BYTES)) for name in LEARNED))
    return FederationBinding(federation_id=federation_id(federation), sections=sections)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShotClient:
    """Control connections to nodes of a federation. `binding` may lack the model's shape, which only nodes know."""

    identity: Identity
    binding: FederationBinding
    limits: Limits = PATIENCE
    outlet: Outlet = field(default_factory=Outlet)
    through: DialThrough | None = None
    """Dials a member through a relay; None if there is no way through any."""
    relays: frozenset[str] = frozenset()
    """The URLs that stand for a relay at which the member is to be met, and not for the member."""

    @classmethod
    def of(cls, federation: FederationConfig, identity: Identity, through: DialThrough | None = None) -> OneShotClient:
        relays = frozenset(federation.relays)
        return cls(identity=identity, binding=control_binding(federation), through=through, relays=relays)

    async def bring(self, address: str, key: bytes, raw: bytes) -> int:
        """Hand over a charter; return the version that the node with that public key then has. It is at `address`, or
        to be met at the relay with that URL.

        Raises UnreachableError.
        """
        return await self.visit(address, key, lambda line, session: bring(line, session, raw))

    async def ask(self, address: str, key: bytes, version: int) -> bytes | None:
        """Return the node's charter if it is newer than `version`.

        Raises UnreachableError, also if the node does not show us its charter.
        """

        async def act(line: Line, session: Session) -> bytes | None:
            try:
                _, raw = await ask(line, session, version)
            except GoneError:  # the node has proven its identity by this point
                raise GoneError("it answers, and does not list this key") from None
            return raw

        return await self.visit(address, key, act)

    async def visit(self, address: str, key: bytes, act: Callable[[Line, Session], Awaitable[Result]]) -> Result:
        """Shake hands with the node with that public key; return what `act` returns. Raises UnreachableError."""
        try:
            async with (
                asyncio.timeout(self.limits.connect_s + self.limits.handshake_s),
                open_browserless(self.outlet) as http,
            ):
                async with asyncio.timeout(self.limits.connect_s):
                    line = await self._dial(http, address, key)
                try:
                    return await act(line, await self._shake_hands(line, key))
                finally:
                    await line.close(self.limits.close_s)
        except (GoneError, TimeoutError, OSError, PeerFault) as error:
            raise UnreachableError(reason_of(error)) from None

    async def _dial(self, http: ClientSession, address: str, key: bytes) -> Line:
        if address not in self.relays:
            return await dial_websocket(http, parse_address(address, "address"))
        if self.through is None:
            raise GoneError("there is no way through relays from here")
        return await self.through(address, key)

    async def _shake_hands(self, line: Line, key: bytes) -> Session:
        initiator = Initiator(self.identity, key, self.binding, control=True)
        await line.send(initiator.first())
        await line.send(initiator.second(await line.receive()))
        return Session(initiator.keys)
