"""A node announces itself on the LAN and finds the others, by multicast DNS (python-zeroconf, an extra).

A name under `_p2pfl._tcp.local.` is a hash of the federation's name and the member's public key, with a random suffix
that changes whenever the node starts to announce itself, so that two nodes with the same key do not conflict. A reader
without the key learns neither the key nor the federation.

Announcements are hints: addresses at which to dial listed members; anyone who knows a member's public key can forge
one. Nothing else in them is trusted, and nothing waits for them. Interfaces are checked every few seconds. If one
appears, disappears or changes its address, the node announces itself again under a new name, and queries the others
again. It also queries them now and then while a neighbor is missing, because their announcements may have been lost.

`Overhearing` listens beside a node, or without one: for the doctor, who counts what came on each interface, and for the
owner of the admin key or a newcomer, who look for members (`find_nearby`). Its sockets share the port with a node that
runs here, or with avahi, and need no privileges.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import secrets
import socket
import struct
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Self

from p2pfl.config.model import FederationConfig, Member, NodeConfig
from p2pfl.errors import UserError
from p2pfl.features.lan.interfaces import Interface, all_interfaces, cover, own_addresses
from p2pfl.limits import MDNS_BYTES, MOST_ADDRESSES, MOST_ANNOUNCED, MOST_LOOKUPS
from p2pfl.net.address import Address, parse_address
from p2pfl.net.links import Links
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Check, Feature, Inspected, NodeView
from p2pfl.system import IS_LINUX

if TYPE_CHECKING:
    from zeroconf import Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf


SERVICE = "_p2pfl._tcp.local."
TTL_S = 120
"""The time for which others may cache a record: short, so that no machine seems present long after it has left."""
PREFIX_BYTES = 16
ENDING_BYTES = 4
log = logging.getLogger("p2pfl.net")
LOOK_S = 2.0
ASK_AGAIN_S = 30.0
RESOLVE_S = 3.0
GOODBYE_S = 1.0
QUERY, POINTER, INTERNET = 0, 12, 1
"""DNS constants: the flags of a query, the type PTR and the class IN."""
INSTALL = "pip install '.[lan]' in a checkout of p2pfl"


@lru_cache(maxsize=4096)
def prefix_of(federation: str, key: bytes) -> str:
    """Return the prefix of a member's instance names: 32 letters."""
    name = federation.encode()
    content = len(name).to_bytes(8, "little") + name + key
    return hashlib.blake2b(content, digest_size=PREFIX_BYTES, person=b"p2pfl-lan-name").hexdigest()


def instance_of(prefix: str) -> str:
    """Return a new instance name for a member, as it appears in records."""
    return f"{prefix}-{secrets.token_hex(ENDING_BYTES)}.{SERVICE}"


def member_of(instance: str, prefixes: Container[str]) -> str | None:
    """Return the prefix of an instance's name, or None if it is none of `prefixes`."""
    prefix = instance.partition("-")[0].lower()
    return prefix if prefix in prefixes else None


def require_zeroconf(file: object = None) -> None:
    """Check that discovery, which `file` asks for, can run. Raises UserError: not Linux, or no python-zeroconf."""
    if not IS_LINUX:
        raise UserError("nodes find each other on a LAN on Linux only", file=file, key="network.discovery", value=True,
                        allowed="false, and an address for each node")  # fmt: skip
    if find_spec("zeroconf") is None:
        raise UserError("needs python-zeroconf, which is not installed", file=file, key="network.discovery", value=True,
                        allowed=f"true after {INSTALL}; or false, and an address for each node")  # fmt: skip


class Discovery:
    """An async context that announces this node and looks for others.

    This node's name starts with `prefix`. `interfaces` returns all interfaces of this machine, with the reason if the
    node does not announce itself on one; it is called in a thread. `members` returns the current prefixes of the other
    members with their indices. `links` must already be bound, because their port is announced. They are told where
    members may be, up to four addresses of one machine at a time, and which addresses are own ones when interfaces
    change.
    """

    def __init__(
        self,
        *,
        prefix: str,
        links: Links,
        interfaces: Callable[[], list[Interface]],
        members: Callable[[], Mapping[str, int]],
    ) -> None:
        self._prefix, self._links = prefix, links
        self._interfaces, self._members = interfaces, members
        self._mdns: _Mdns | None = None
        self._watch: asyncio.Task[None]
        self._last_text: object = None

    async def __aenter__(self) -> Self:
        require_zeroconf()
        logging.getLogger("zeroconf").setLevel(logging.CRITICAL)  # it logs each packet lost on a down link
        self._watch = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch
        await self._close()

    async def _keep(self) -> None:
        """Announce and query, whatever the network does, and never return: a node that others cannot find can still
        dial them.
        """
        asked_at, asked_for = 0.0, set(self._members())
        loop = asyncio.get_running_loop()
        while True:
            interfaces = await self._look()
            usable = [interface for interface in interfaces if interface.skipped is None]
            members = set(self._members())
            if self._mdns is None or self._mdns.interfaces != usable:
                await self._close()
                await self._open(usable, interfaces)
                asked_at = loop.time()
            elif members - asked_for or (loop.time() - asked_at >= ASK_AGAIN_S and not self._links.is_complete):
                asked_at = loop.time()
                self._mdns.ask()
            asked_for = members
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> list[Interface]:
        try:
            return await asyncio.to_thread(self._interfaces)
        except OSError as error:  # for example, a service that may not query the system
            self._tell(logging.WARNING, f"discovery: the network interfaces cannot be listed: {error}")
            return []

    async def _open(self, usable: list[Interface], interfaces: list[Interface]) -> None:
        if not usable and interfaces:
            skipped = ", ".join(f"{nic.name} ({nic.skipped})" for nic in interfaces)
            self._tell(logging.WARNING, f"discovery: no interface to announce on: {skipped}")
        if not usable:
            return
        mdns = self._mdns = _Mdns(usable, lambda name: member_of(name, self._members()), self._pass_hints)
        try:
            await mdns.open(instance_of(self._prefix), self._links.port)
        except Exception as error:  # noqa: BLE001 - of sockets, and of zeroconf, which has errors of many kinds
            await self._close()
            self._tell(logging.WARNING, f"discovery: cannot announce: {str(error) or type(error).__name__}")
            return
        where = ", ".join(f"{nic.name} ({', '.join(str(address.ip) for address in nic.announced)})" for nic in usable)
        self._tell(logging.INFO, f"discovery: announced on {where}")

    async def _close(self) -> None:
        mdns, self._mdns = self._mdns, None
        if mdns is not None:
            await mdns.close()

    def _tell(self, level: int, text: str) -> None:
        """Log a text, but not again until it changes."""
        if text != self._last_text:
            self._last_text = text
            log.log(level, "%s", text)

    def _pass_hints(self, prefix: str, addresses: Sequence[str], port: int) -> None:
        """Pass on addresses on this network. Addresses beyond a router are useless here, and loopback is this machine
        itself.
        """
        index = self._members().get(prefix)
        if index is None or self._mdns is None or not 0 < port < 65536:
            return
        near = [text for text in addresses if any(nic.reaches(text) for nic in self._mdns.interfaces)]
        usable = [text for text in near if not (ip_address(text).is_multicast or ip_address(text).is_unspecified)]
        if usable:
            hints = [str(Address(text, port)) for text in usable[:MOST_ADDRESSES]]
            log.debug("discovery: member %d may be at %s", index, ", ".join(hints))
            self._links.hint(index, hints)


class _Mdns:
    """The sockets for one set of interfaces: opened, used and closed once."""

    def __init__(
        self,
        interfaces: list[Interface],
        prefix_of: Callable[[str], str | None],
        on_addresses: Callable[[str, Sequence[str], int], None],
    ) -> None:
        self.interfaces = interfaces
        self._prefix_of, self._on_addresses = prefix_of, on_addresses
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._resolving: dict[str, asyncio.Task[None]] = {}

    async def open(self, instance: str, port: int) -> None:
        """Announce and browse. Raises OSError, or whatever zeroconf raises, if this fails."""
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf  # noqa: PLC0415 - an extra

        texts = [text for interface in self.interfaces for text in _senders(interface)]
        zeroconf = self._zeroconf = AsyncZeroconf(interfaces=texts)
        self._browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[self._on_change_of_service])
        info = AsyncServiceInfo(
            SERVICE,
            instance,
            addresses=[address.ip.packed for interface in self.interfaces for address in interface.announced],
            port=port,
            server=f"{instance.partition('.')[0]}.local.",  # not this machine's name, which would tell strangers more
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )
        await zeroconf.async_register_service(info)

    def ask(self) -> None:
        """Ask which nodes are present, and check earlier records again, because their senders may have become members
        since.
        """
        from zeroconf import DNSOutgoing, DNSQuestion  # type: ignore[attr-defined]  # noqa: PLC0415 - an extra

        if self._zeroconf is not None:
            zeroconf = self._zeroconf.zeroconf
            question = DNSOutgoing(QUERY)
            question.add_question(DNSQuestion(SERVICE, POINTER, INTERNET))
            zeroconf.async_send(question)
            records = list(zeroconf.cache.get_all_by_details(SERVICE, POINTER, INTERNET))
            random.shuffle(records)
            for record in records:
                self._consider(zeroconf, getattr(record, "alias", ""))

    async def close(self) -> None:
        for task in [*self._resolving.values()]:
            task.cancel()
        if self._zeroconf is None:
            return
        with suppress(Exception):  # goodbye packets that can no longer be sent
            async with asyncio.timeout(GOODBYE_S):
                if self._browser is not None:
                    await self._browser.async_cancel()
                await self._zeroconf.async_unregister_all_services()
        with suppress(Exception):
            await self._zeroconf.async_close()

    def _on_change_of_service(self, *, zeroconf: Zeroconf, service_type: str, name: str, state_change: Any) -> None:
        """Handle an announcement; zeroconf calls this with these keywords."""
        from zeroconf import ServiceStateChange  # noqa: PLC0415 - an extra

        del service_type
        if state_change is not ServiceStateChange.Removed:
            self._consider(zeroconf, name)

    def _consider(self, zeroconf: Zeroconf, name: str) -> None:
        """Report the addresses in an announcement of a listed member.

        A complete announcement is used at once. Otherwise the missing records are queried, for a few names per member
        at a time, so that made-up names delay others only for the duration of their own queries.
        """
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415 - an extra

        prefix = self._prefix_of(name)
        if prefix is None:
            return
        info = AsyncServiceInfo(SERVICE, name)
        if info.load_from_cache(zeroconf):
            self._on_addresses(prefix, info.parsed_addresses(), info.port or 0)
            return
        others = [other for other in self._resolving if other.startswith(prefix)]
        if name.lower() not in others and len(others) < MOST_LOOKUPS:
            task = self._resolving[name.lower()] = asyncio.create_task(self._resolve(zeroconf, info, prefix))
            task.add_done_callback(lambda _: self._resolving.pop(name.lower()))

    async def _resolve(self, zeroconf: Zeroconf, info: AsyncServiceInfo, prefix: str) -> None:
        if await info.async_request(zeroconf, 1000 * RESOLVE_S):
            self._on_addresses(prefix, info.parsed_addresses(), info.port or 0)


def _senders(interface: Interface) -> list[str]:
    """Return one address of each family, which zeroconf uses to select an interface."""
    by_version = {address.version: str(address.ip) for address in reversed(interface.addresses)}
    return [by_version[version] for version in sorted(by_version)]


def discovery_of(
    member: Member, node: NodeConfig, federation: Callable[[], FederationConfig], links: Links
) -> Discovery:
    """Make the discovery for one node.

    `links` must already be bound, because their port is announced. `federation` may be called at any time to get the
    current members.
    """
    now, host = federation(), parse_address(node.listen, "listen").host

    def others() -> dict[str, int]:
        current = federation()
        return {
            prefix_of(current.name, other.key): other.index for other in current.members if other.index != member.index
        }

    return Discovery(
        prefix=prefix_of(now.name, member.key),
        links=links,
        interfaces=lambda: cover(all_interfaces(), host, node.interfaces),
        members=others,
    )


class LanCheck(Check):
    def of_files(self, inspected: Inspected) -> None:
        for node in inspected.here.values():
            if node.discovery:
                try:
                    require_zeroconf(node.path if node.path.exists() else inspected.federation.path)
                except UserError as error:
                    inspected.mistakes.append(error)

    before_launch = of_files


class LanFeature(Feature):
    name = "lan"

    def check(self, setup: Setup) -> None:
        """Check that the library is installed. Raises UserError: it is not."""
        if setup.node.discovery:
            require_zeroconf(setup.node.path if setup.node.path.exists() else setup.federation.path)

    def attach(self, node: NodeView) -> Attached | None:
        return Lan(node) if node.setup().node.discovery else None


class Lan(Attached):
    def __init__(self, node: NodeView) -> None:
        self._node = node

    async def opened(self, until_closed: AsyncExitStack) -> None:
        setup = self._node.setup()
        discovery = discovery_of(setup.member, setup.node, lambda: self._node.setup().federation, self._node.network)
        await until_closed.enter_async_context(discovery)


PORT = 5353
GROUPS = {4: "224.0.0.251", 6: "ff02::fb"}
IP_MULTICAST_ALL, IPV6_MULTICAST_ALL = 49, 29
"""Linux socket options: whether a socket receives from groups that other sockets have joined."""
SO_REUSEPORT: int = getattr(socket, "SO_REUSEPORT", 0)
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
                ear.transport.close()

    async def _open(self, tally: Tally, version: int, *, multicast: bool) -> None:
        try:
            own = _socket(tally.interface, version, shared=multicast)
        except OSError as error:
            tally.failed = error.strerror or str(error)
            return
        transport, ear = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Ear(self, tally, version, multicast=multicast), sock=own
        )
        ear.transport = transport
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
        self.transport: asyncio.DatagramTransport
        self._overhearing = overhearing
        self._asked = 0

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        with suppress(Exception):  # whatever zeroconf raises on packets from strangers
            source = addr[0].partition("%")[0]
            self._overhearing.note(self.tally, data[:MDNS_BYTES], source, multicast=self.multicast)

    def error_received(self, exc: Exception) -> None:
        self.tally.failed = str(getattr(exc, "strerror", None) or exc)

    def ask(self) -> None:
        """Send a query. Each has a different id, because identical queries are answered only once a second."""
        from zeroconf import DNSOutgoing, DNSQuestion  # type: ignore[attr-defined]  # noqa: PLC0415 - an extra

        self._asked += 1
        out = DNSOutgoing(QUERY, multicast=self.multicast, id_=0 if self.multicast else self._asked)
        out.add_question(DNSQuestion(SERVICE, POINTER, INTERNET))
        scope = (0, self.tally.interface.index) if self.version == 6 else ()
        for packet in out.packets():
            self.transport.sendto(packet, (GROUPS[self.version], PORT, *scope))
        self.tally.sent += 1


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
            made.setsockopt(socket.SOL_SOCKET, SO_REUSEPORT, 1)
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

    The result is empty if this is not Linux, python-zeroconf is not installed, or no interface can be used.
    """
    if find_spec("zeroconf") is None or not IS_LINUX:
        return {}
    usable = [nic for nic in cover(all_interfaces(), "0.0.0.0", named) if nic.skipped is None]  # noqa: S104 - as nodes do
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
    for service in overhearing.announced.values():
        prefix = member_of(service.name, keys)
        near = [text for text in service.addresses if any(interface.reaches(text) for interface in interfaces)]
        if prefix is not None and 0 < service.port < 65536 and near:
            near.sort(key=lambda text: (ip_address(text).version, text))
            places = places_of.setdefault(keys[prefix], [])
            places += [str(Address(text, service.port)) for text in near]
            del places[MOST_ADDRESSES:]
    return places_of
