"""Record the multicast DNS traffic of each network interface, to find out why nodes do not find each other.

On each interface, two kinds of queries for `_p2pfl._tcp.local.` are sent: by multicast from the mDNS port, which is
answered by multicast; and by multicast from another port, which is answered to that port only. The sockets share the
port with a node that runs here, or with avahi, and need no privileges. zeroconf parses the packets.

`find_nearby` uses this to find members without a running node: for the owner of the admin key, and for a newcomer. The
answers are hints: only the handshake proves which member is at an address.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from ipaddress import ip_address
from typing import cast

from p2pfl.config.model import FederationConfig
from p2pfl.features.lan.discovery import INTERNET, MOST_ADDRESSES, POINTER, QUERY, SERVICE, member_of, prefix_of
from p2pfl.features.lan.interfaces import Interface, all_interfaces, cover, own_addresses
from p2pfl.net.address import Address

PORT = 5353
GROUPS = {4: "224.0.0.251", 6: "ff02::fb"}
IP_MULTICAST_ALL, IPV6_MULTICAST_ALL = 49, 29
"""Linux socket options: whether a socket receives from groups that other sockets have joined."""
MOST_BYTES = 9000
MOST_ANNOUNCED = 1000
"""The most names that are kept, because anyone can make them up."""
ASK_EVERY_S = 1.2
LISTEN_S = 3.0
NEARBY_LOOK_S = 0.1
Places = Mapping[bytes, Sequence[str]]
"""Maps public keys to addresses host:port."""


@dataclass(slots=True, kw_only=True)
class Announced:
    """The announcements received for one name."""

    name: str
    addresses: set[str] = field(default_factory=set)
    port: int = 0
    interfaces: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class Tally:
    """The packet counts for one interface; `strangers` are the other machines that were heard."""

    interface: Interface
    sent: int = 0
    failed: str = ""
    """The reason why nothing could be sent or received, as the system reports it."""
    heard_own: int = 0
    heard_others: int = 0
    strangers: set[str] = field(default_factory=set)


class Overhearing:
    """Listens on each interface, and counts and stores announcements. `own` has the addresses of this machine."""

    def __init__(self, interfaces: Sequence[Interface], own: set[str]) -> None:
        self.tallies = [Tally(interface=interface) for interface in interfaces]
        self.announced: dict[str, Announced] = {}
        self._own = own
        self._ears: list[_Ear] = []

    async def run(self, listen_s: float) -> None:
        """Query and listen for `listen_s` seconds."""
        try:
            for tally in self.tallies:
                for version in sorted({address.version for address in tally.interface.addresses}):
                    for multicast in (True, False):
                        await self._open(tally, version, multicast=multicast)
            end = asyncio.get_running_loop().time() + listen_s
            while (left_s := end - asyncio.get_running_loop().time()) > 0:
                for ear in self._ears:
                    ear.ask()
                await asyncio.sleep(min(ASK_EVERY_S, left_s))
        finally:
            for ear in self._ears:
                ear.close()

    async def _open(self, tally: Tally, version: int, *, multicast: bool) -> None:
        try:
            own = _socket(tally.interface, version, shared=multicast)
        except OSError as error:
            tally.failed = error.strerror or str(error)
            return
        _, ear = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Ear(self, tally, version, multicast=multicast), sock=own
        )
        self._ears.append(ear)

    def note(self, tally: Tally, data: bytes, source: str, *, multicast: bool) -> None:
        """Count a received packet, and store its records."""
        from zeroconf import DNSIncoming  # type: ignore[attr-defined]  # noqa: PLC0415 - an extra

        packet = DNSIncoming(data)
        if not packet.valid:
            return
        if source not in self._own:
            tally.heard_others += 1
            tally.strangers.add(source)
        elif multicast:
            tally.heard_own += 1
        if packet.is_response():
            self._note_records(packet.answers(), tally)

    def _note_records(self, records: Sequence[object], tally: Tally) -> None:
        from zeroconf import DNSAddress, DNSService  # type: ignore[attr-defined]  # noqa: PLC0415 - an extra

        addresses: dict[str, set[str]] = {}
        for record in records:
            if isinstance(record, DNSAddress):
                family = socket.AF_INET if len(record.address) == 4 else socket.AF_INET6
                addresses.setdefault(record.name.lower(), set()).add(socket.inet_ntop(family, record.address))
        for record in records:
            name = str(getattr(record, "name", "")).lower()
            if not name.endswith(f".{SERVICE}") or not isinstance(record, DNSService):
                continue
            if name not in self.announced and len(self.announced) >= MOST_ANNOUNCED:
                continue
            known = self.announced.setdefault(name, Announced(name=name))
            known.interfaces.add(tally.interface.name)
            known.port = record.port
            known.addresses |= addresses.get(record.server.lower(), set())


class _Ear(asyncio.DatagramProtocol):
    """One socket. With `multicast` it uses the mDNS port, else a port of its own."""

    def __init__(self, overhearing: Overhearing, tally: Tally, version: int, *, multicast: bool) -> None:
        self.tally, self.version, self.multicast = tally, version, multicast
        self._overhearing = overhearing
        self._transport: asyncio.DatagramTransport | None = None
        self._asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        with suppress(Exception):  # whatever zeroconf raises on packets from strangers
            source = addr[0].partition("%")[0]
            self._overhearing.note(self.tally, data[:MOST_BYTES], source, multicast=self.multicast)

    def error_received(self, exc: Exception) -> None:
        self.tally.failed = str(getattr(exc, "strerror", None) or exc)

    def ask(self) -> None:
        """Send a query. Each has a different id, because identical queries are answered only once a second."""
        from zeroconf import DNSOutgoing, DNSQuestion  # type: ignore[attr-defined]  # noqa: PLC0415 - an extra

        if self._transport is None:
            return
        self._asked += 1
        out = DNSOutgoing(QUERY, multicast=self.multicast, id_=0 if self.multicast else self._asked)
        out.add_question(DNSQuestion(SERVICE, POINTER, INTERNET))
        scope = (0, self.tally.interface.index) if self.version == 6 else ()
        for packet in out.packets():
            self._transport.sendto(packet, (GROUPS[self.version], PORT, *scope))
        self.tally.sent += 1

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _socket(interface: Interface, version: int, *, shared: bool) -> socket.socket:
    """Open a socket. With `shared`, it uses the mDNS port and joins the mDNS group on that interface only; else it uses
    any port.
    """
    own = next(str(address.ip) for address in interface.addresses if address.version == version)
    made = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)  # noqa: FBT003 - the socket's signature
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if version == 4:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
            made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
        else:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, interface.index)
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        if shared:  # bound to the group: unicast packets are for the node that runs here
            made.bind((GROUPS[version], PORT, *(() if version == 4 else (0, interface.index))))
        else:
            made.bind((own, 0))
        if shared:
            _join(made, interface, version, own)
    except BaseException:
        made.close()
        raise
    return made


def _join(made: socket.socket, interface: Interface, version: int, own: str) -> None:
    """Join the mDNS group, and receive only packets from that interface."""
    if version == 4:
        made.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        group = socket.inet_aton(GROUPS[4]) + socket.inet_aton(own) + struct.pack("@i", interface.index)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
        return
    with suppress(OSError):  # older kernels
        made.setsockopt(socket.IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0)
    group = socket.inet_pton(socket.AF_INET6, GROUPS[6]) + struct.pack("@I", interface.index)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)


async def find_nearby(federation: FederationConfig, *, named: Sequence[str] = (), listen_s: float = LISTEN_S) -> Places:
    """Return the addresses that members announce, as soon as all have answered. `named` are the interfaces to listen
    on.

    The result is empty if python-zeroconf is not installed or no interface can be used.
    """
    if find_spec("zeroconf") is None:
        return {}
    usable = [one for one in cover(all_interfaces(), "0.0.0.0", named) if one.skipped is None]  # noqa: S104 - as nodes do
    if not usable:
        return {}
    keys = {prefix_of(federation.name, member.key): member.key for member in federation.present}
    overhearing = Overhearing(usable, own_addresses())
    listening = asyncio.create_task(overhearing.run(listen_s))
    try:
        while not listening.done() and len(_announced_places(overhearing, keys, usable)) < len(keys):
            await asyncio.wait([listening], timeout=NEARBY_LOOK_S)
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    return _announced_places(overhearing, keys, usable)


def _announced_places(overhearing: Overhearing, keys: Mapping[str, bytes], interfaces: Sequence[Interface]) -> Places:
    """Return the announced addresses on this network, IPv4 first. Addresses beyond a router are useless here."""
    places_of: dict[bytes, list[str]] = {}
    for one in overhearing.announced.values():
        prefix = member_of(one.name, keys)
        near = [text for text in one.addresses if any(interface.reaches(text) for interface in interfaces)]
        if prefix is not None and 0 < one.port < 65536 and near:
            near.sort(key=lambda text: (ip_address(text).version, text))
            places = places_of.setdefault(keys[prefix], [])
            places += [str(Address(text, one.port)) for text in near]
            del places[MOST_ADDRESSES:]
    return places_of
