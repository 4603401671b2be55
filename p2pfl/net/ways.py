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
from p2pfl.net.proxy import ANSWER_BYTES, Proxies, Proxy, proxies_of, tunnel
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
        reader = asyncio.StreamReader(limit=ANSWER_BYTES)
        tls = _tls(trust, Address(proxy.host, proxy.port, tls=proxy.tls))
        try:
            transport = await _open(proxy.host, proxy.port, asyncio.StreamReaderProtocol(reader), tls)
        except ssl.SSLError as error:
            found = of_tls(error, proxy.host, f"the proxy {proxy}: its")
            raise UnreachedError(Hurdle.PROXY, found.text, found.remedy) from None
        except OSError as error:
            found = of_socket(error, proxy.host, f"the proxy {proxy} does not answer: ")
            raise UnreachedError(Hurdle.PROXY, found.text, "correct the proxy's address, or ask who runs it") from None
        try:
            await tunnel(transport, reader, proxy, self.address)
            settings = _tls(trust, self.address)
            if not settings:
                transport.set_protocol(protocol)
                protocol.connection_made(transport)
                return transport
            context = settings.pop("ssl")
            inside = await asyncio.get_running_loop().start_tls(transport, protocol, context, **settings)
            assert isinstance(inside, asyncio.Transport)  # noqa: S101
            protocol.connection_made(inside)
        except BaseException:
            transport.abort()
            raise
        return inside


def _tls(trust: Trust, address: Address) -> dict[str, Any]:
    if not address.tls:
        return {}
    return {"ssl": trust.context(address.pin), "server_hostname": address.host, "ssl_shutdown_timeout": GOODBYE_S}


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
    """Return a socket connected to the first address of a host that answers.

    asyncio's own race between the addresses leaves sockets open when it is cancelled. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, place in places:
        one = socket.socket(family, kind, protocol)
        try:
            one.settimeout(0.0)
            async with asyncio.timeout(None if place is places[-1][4] else NEXT_ADDRESS_S):
                await loop.sock_connect(one, place)
        except (OSError, TimeoutError):
            one.close()
            if place is places[-1][4]:
                raise
        except BaseException:
            one.close()
            raise
        else:
            return one
    raise socket.gaierror(socket.EAI_NONAME, "no address")


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
