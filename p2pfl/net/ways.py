"""The ways to an address: through a proxy or directly, each from TCP to TLS. What comes after is the line's."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from p2pfl.config.model import NodeConfig
from p2pfl.net.address import Address
from p2pfl.net.hurdles import Hurdle, UnreachedError, of_socket, of_tls
from p2pfl.net.proxy import ANSWER_BYTES, SILENCE_S, Proxies, Proxy, proxies_of, read_answer
from p2pfl.net.tls import Trust, require_pin

NEXT_ADDRESS_S = 1.0
"""When one of a host's addresses has not answered for this long, the next one is tried."""
GOODBYE_S = 1.0
"""How long the end of TLS may take."""
ONE_WAY_S = 4.5
"""How long one of several ways is tried: all of them fit into the time of a dial."""

MakeProtocol = Callable[[], asyncio.Protocol]


@dataclass(frozen=True, slots=True)
class Passage:
    address: Address
    proxy: Proxy | None = None

    def __str__(self) -> str:
        return "direct" if self.proxy is None else f"proxy {self.proxy}"

    async def connect(self, trust: Trust, make: MakeProtocol) -> asyncio.Protocol:
        """Return the protocol that `make` makes, connected. The caller sets the deadline. Raises UnreachedError."""
        protocol, address = make(), self.address
        try:
            if self.proxy is None:
                transport = await _open(address.host, address.port, protocol, _tls(trust, address))
            else:
                transport = await self._through(self.proxy, trust, protocol)
        except ssl.SSLError as error:
            raise of_tls(error, address.host) from None
        except OSError as error:
            raise of_socket(error, address.host) from None
        if address.tls:
            try:
                require_pin(address, transport.get_extra_info("ssl_object"))
            except UnreachedError:
                transport.abort()
                raise
        return protocol

    async def _through(self, proxy: Proxy, trust: Trust, protocol: asyncio.Protocol) -> asyncio.Transport:
        transport, settings = await self._tunnel(proxy, trust), _tls(trust, self.address)
        if not settings:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            return transport
        context = settings.pop("ssl")
        try:
            inside = await asyncio.get_running_loop().start_tls(transport, protocol, context, **settings)
        except BaseException:
            transport.abort()
            raise
        if inside is None:  # it was lost at once
            raise UnreachedError(Hurdle.NOT_A_NODE, "the connection was closed in place of an answer")
        protocol.connection_made(inside)
        return inside

    async def _tunnel(self, proxy: Proxy, trust: Trust) -> asyncio.Transport:
        """Return a connection with the address through the proxy."""
        request, reader = proxy.request(self.address), asyncio.StreamReader(limit=ANSWER_BYTES)
        tls = _tls(trust, Address(proxy.host, proxy.port, tls=proxy.tls))
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(SILENCE_S):
                transport = await _open(proxy.host, proxy.port, asyncio.StreamReaderProtocol(reader), tls)
                transport.write(request)
                await read_answer(reader, proxy, self.address)
        except BaseException as error:
            if transport is not None:
                transport.abort()
            match error:
                case TimeoutError():
                    text, remedy = f"the proxy {proxy} does not answer", "correct its address, or ask who runs it"
                    raise UnreachedError(Hurdle.PROXY, text, remedy) from None
                case ssl.SSLError():
                    found = of_tls(error, proxy.host, f"the proxy {proxy}: its")
                    raise UnreachedError(Hurdle.PROXY, found.text, found.remedy) from None
                case OSError():
                    found = of_socket(error, proxy.host, f"the proxy {proxy} does not answer: ")
                    remedy = "correct the proxy's address, or ask who runs it"
                    raise UnreachedError(Hurdle.PROXY, found.text, remedy) from None
            raise
        return transport


def _tls(trust: Trust, address: Address) -> dict[str, Any]:
    if not address.tls:
        return {}
    name = address.host.rstrip(".")
    return {"ssl": trust.context(address.pin), "server_hostname": name, "ssl_shutdown_timeout": GOODBYE_S}


async def _open(host: str, port: int, protocol: asyncio.Protocol, tls: dict[str, Any]) -> asyncio.Transport:
    connected = await _connect(host, port)
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_connection(lambda: protocol, sock=connected, **tls)
    except BaseException:
        connected.close()
        raise
    return transport


async def _connect(host: str, port: int) -> socket.socket:
    """Return a socket connected to the first address of a host that answers. A further one is tried beside the earlier
    ones, whose answers may only be slow. Raises OSError.

    asyncio's own race between the addresses leaves sockets open when it is cancelled.
    """
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed: OSError = socket.gaierror(socket.EAI_NONAME, "no address")
    trying = set[asyncio.Task[socket.socket]]()
    try:
        while places or trying:
            if places:
                trying.add(loop.create_task(_reach(*places.pop(0))))
            patience_s = NEXT_ADDRESS_S if places else None
            await asyncio.wait(trying, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for one in [one for one in trying if one.done()]:
                trying.discard(one)
                try:
                    return one.result()
                except OSError as error:
                    failed = failed if isinstance(failed, ConnectionRefusedError) else error
    finally:
        for one in trying:
            one.add_done_callback(_close)
            one.cancel()
    raise failed


def _close(one: asyncio.Task[socket.socket]) -> None:
    if not one.cancelled() and one.exception() is None:
        one.result().close()


async def _reach(family: int, kind: int, protocol: int, _: str, place: Any) -> socket.socket:
    one = socket.socket(family, kind, protocol)
    try:
        one.settimeout(0.0)
        await asyncio.get_running_loop().sock_connect(one, place)
    except BaseException:
        one.close()
        raise
    return one


@dataclass(frozen=True, slots=True)
class Outlet:
    """How one process dials: by which proxies, and whom it trusts."""

    proxies: Proxies = field(default_factory=lambda: proxies_of(None, None))
    trust: Trust = field(default_factory=Trust)

    def of(self, address: Address) -> list[Passage]:
        """Return the ways in the order in which they are tried.

        A proxy of the environment may be meant for browsers only, so it is not the only way.
        """
        proxy = self.proxies.of(address)
        if proxy is None:
            return [Passage(address)]
        return [Passage(address, proxy)] if proxy is self.proxies.named else [Passage(address, proxy), Passage(address)]

    async def connect(self, address: Address, make: MakeProtocol) -> asyncio.Protocol:
        """Return a connected protocol. The caller sets the deadline. Raises UnreachedError if no way leads there."""
        ways = self.of(address)
        if len(ways) == 1:
            return await ways[0].connect(self.trust, make)
        reasons: list[UnreachedError] = []
        for way in ways:
            try:
                async with asyncio.timeout(ONE_WAY_S):
                    return await way.connect(self.trust, make)
            except UnreachedError as reason:
                reasons.append(reason)
            except TimeoutError:
                reasons.append(UnreachedError(Hurdle.SILENT, f"nothing in {ONE_WAY_S:g} s"))
        first, second = reasons
        raise UnreachedError(first.hurdle, f"by {ways[0]}: {first.text}; directly: {second.text}", first.remedy)


def outlet_of(node: NodeConfig) -> Outlet:
    """Return how a node dials. Raises UserError if the file with the proxy's password cannot be used."""
    return Outlet(proxies_of(node.network.proxy, node.network.proxy_password_file))
