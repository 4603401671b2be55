"""A node announces itself on the LAN and finds the others, by multicast DNS (python-zeroconf, an extra).

Announcements are hints: addresses of listed members to dial. Nothing else in them is believed, and nothing waits for
them. Interfaces are checked every few seconds; when one has appeared, vanished or changed its address, all is announced
anew under another name, and the others are asked again. They are also asked now and then while a neighbor is missing,
because they may have come while packets were lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from p2pfl.errors import UserError
from p2pfl.features.lan.beacon import ABOUT, SERVICE, TTL_S, instance_of, member_of
from p2pfl.features.lan.interfaces import Interface
from p2pfl.net.address import Address

if TYPE_CHECKING:
    from zeroconf import IPVersion, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

log = logging.getLogger("p2pfl.net")

LOOK_S = 2.0
ASK_AGAIN_S = 30.0
RESOLVE_S = 3.0
MOST_LOOKUPS = 8
"""The names of one member that are resolved at one time."""
GOODBYE_S = 1.0
MOST_ADDRESSES = 4
QUERY, POINTER, INTERNET = 0, 12, 1
"""Constants of DNS: the flags of a query, the type PTR and the class IN."""
INSTALL = "pip install '.[lan]' in a checkout of p2pfl"

OnHint = Callable[[int, Sequence[str]], Any]


def require_zeroconf(file: object = None) -> None:
    """Check that python-zeroconf is installed, which `file` asks for. Raises UserError: it is not."""
    from importlib.util import find_spec  # noqa: PLC0415 - for this alone

    if find_spec("zeroconf") is None:
        raise UserError("needs python-zeroconf, which is not installed", file=file, key="network.discovery", value=True,
                        allowed=f"true after {INSTALL}; or false, and an address for each node")  # fmt: skip


class Discovery:
    """A context on the event loop that announces this node and looks for others.

    `prefix` begins this node's name; `port` is the port on which it listens. `interfaces` returns all of this machine,
    and why it does not announce itself on some; it is called in a thread. `members` returns the prefixes of the other
    members with their indices, as they are now. `on_hint` gets an index and addresses of one machine, at most four.
    `on_change` gets a function that says whether an address is one of this machine, whenever interfaces have changed.
    `is_complete` says whether all neighbors are found.
    """

    def __init__(
        self,
        *,
        prefix: str,
        about: bytes,
        port: int,
        interfaces: Callable[[], list[Interface]],
        members: Callable[[], Mapping[str, int]],
        on_hint: OnHint,
        on_change: Callable[[Callable[[str], bool]], Any],
        is_complete: Callable[[], bool],
    ) -> None:
        self._prefix, self._about, self._port, self._interfaces = prefix, about, port, interfaces
        self._members, self._is_complete = members, is_complete
        self._on_hint, self._on_change = on_hint, on_change
        self._mdns: _Mdns | None = None
        self._watch: asyncio.Task[None] | None = None
        self._last_text: object = None

    async def __aenter__(self) -> Self:
        require_zeroconf()
        logging.getLogger("zeroconf").setLevel(logging.CRITICAL)  # it logs each packet that a missing link refuses
        self._watch = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        await self._close()

    async def _keep(self) -> None:
        """Announce and ask; never returns, whatever the network does: a node that others cannot find can still dial
        them.
        """
        asked_at, asked_for = 0.0, set(self._members())
        loop = asyncio.get_running_loop()
        while True:
            found = await self._look()
            usable = [interface for interface in found if interface.skipped is None]
            members = set(self._members())
            if self._mdns is None or self._mdns.interfaces != usable:
                if found:
                    self._on_change(_ownership(found))
                await self._close()
                await self._open(usable, found)
                asked_at = loop.time()
            elif members - asked_for or (loop.time() - asked_at >= ASK_AGAIN_S and not self._is_complete()):
                asked_at = loop.time()
                self._mdns.ask()
            asked_for = members
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> list[Interface]:
        try:
            return await asyncio.to_thread(self._interfaces)
        except OSError as error:  # for example a service that may not ask the system
            self._tell(logging.WARNING, f"discovery: the network interfaces cannot be listed: {error}")
            return []

    async def _open(self, usable: list[Interface], interfaces: list[Interface]) -> None:
        if not usable and interfaces:
            skipped = ", ".join(f"{one.name} ({one.skipped})" for one in interfaces)
            self._tell(logging.WARNING, f"discovery: no interface to announce on: {skipped}")
        if not usable:
            return
        mdns = self._mdns = _Mdns(usable, lambda name: member_of(name, self._members()), self._pass_hints)
        try:
            await mdns.open(instance_of(self._prefix), self._port, self._about)
        except Exception as error:  # noqa: BLE001 - of sockets, and of zeroconf, which has errors of many kinds
            await self._close()
            self._tell(logging.WARNING, f"discovery: cannot announce: {str(error) or type(error).__name__}")
            return
        where = ", ".join(f"{one.name} ({', '.join(str(address.ip) for address in one.announced)})" for one in usable)
        self._tell(logging.INFO, f"discovery: announced on {where}")

    async def _close(self) -> None:
        mdns, self._mdns = self._mdns, None
        if mdns is not None:
            await mdns.close()

    def _tell(self, level: int, text: str) -> None:
        """Log a text once, until it changes."""
        if text != self._last_text:
            self._last_text = text
            log.log(level, "%s", text)

    def _pass_hints(self, prefix: str, addresses: Sequence[str], port: int) -> None:
        """Pass on addresses of this network: those beyond a router are useless here, and loopback is this machine's
        own.
        """
        index = self._members().get(prefix)
        if index is None or self._mdns is None or not 0 < port < 65536:
            return
        near = [text for text in addresses if any(one.reaches(text) for one in self._mdns.interfaces)]
        usable = [text for text in near if not (ip_address(text).is_multicast or ip_address(text).is_unspecified)]
        if usable:
            hints = [str(Address(text, port)) for text in usable[:MOST_ADDRESSES]]
            log.debug("discovery: member %d may be at %s", index, ", ".join(hints))
            self._on_hint(index, hints)


def _ownership(interfaces: Sequence[Interface]) -> Callable[[str], bool]:
    own = {str(address.ip) for one in interfaces for address in one.addresses}
    return lambda text: text in own or ip_address(text).is_loopback or ip_address(text).is_link_local


class _Mdns:
    """The sockets of one set of interfaces: made, used and closed once."""

    def __init__(
        self,
        interfaces: list[Interface],
        prefix_of: Callable[[str], str | None],
        on_found: Callable[[str, Sequence[str], int], None],
    ) -> None:
        self.interfaces = interfaces
        self._prefix_of, self._on_found = prefix_of, on_found
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._resolving: dict[str, asyncio.Task[None]] = {}

    async def open(self, instance: str, port: int, about: bytes) -> None:
        """Announce and browse. Raises OSError, or whatever zeroconf raises, where it does not work."""
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf  # noqa: PLC0415 - an extra

        texts = [text for interface in self.interfaces for text in _senders(interface)]
        zeroconf = self._zeroconf = AsyncZeroconf(interfaces=texts, ip_version=_versions(texts))
        self._browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[self._on_change_of_service])
        info = AsyncServiceInfo(
            SERVICE,
            instance,
            addresses=[address.ip.packed for interface in self.interfaces for address in interface.announced],
            port=port,
            properties={ABOUT: about},
            server=f"{instance.partition('.')[0]}.local.",  # not the name of this machine, which tells strangers more
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )
        await zeroconf.async_register_service(info)

    def ask(self) -> None:
        """Ask which nodes are present, and check earlier records again: their sender may have become a member since."""
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
        with suppress(Exception):  # goodbyes that cannot be sent any more
            async with asyncio.timeout(GOODBYE_S):
                if self._browser is not None:
                    await self._browser.async_cancel()
                await self._zeroconf.async_unregister_all_services()
        with suppress(Exception):
            await self._zeroconf.async_close()

    def _on_change_of_service(self, *, zeroconf: Zeroconf, service_type: str, name: str, state_change: Any) -> None:
        """Consider an announcement; zeroconf calls this with these keywords."""
        from zeroconf import ServiceStateChange  # noqa: PLC0415 - an extra

        del service_type
        if state_change is not ServiceStateChange.Removed:
            self._consider(zeroconf, name)

    def _consider(self, zeroconf: Zeroconf, name: str) -> None:
        """Report the addresses in an announcement of a listed member.

        A complete announcement is used at once. For the rest it asks, for few names at a time of each member: made-up
        names delay nobody for longer than they are asked for.
        """
        from zeroconf.asyncio import AsyncServiceInfo  # noqa: PLC0415 - an extra

        prefix = self._prefix_of(name)
        if prefix is None:
            return
        info = AsyncServiceInfo(SERVICE, name)
        if info.load_from_cache(zeroconf):
            self._on_found(prefix, info.parsed_addresses(), info.port or 0)
            return
        others = [other for other in self._resolving if other.startswith(prefix)]
        if name.lower() not in others and len(others) < MOST_LOOKUPS:
            task = self._resolving[name.lower()] = asyncio.create_task(self._resolve(zeroconf, info, prefix))
            task.add_done_callback(lambda _: self._resolving.pop(name.lower()))

    async def _resolve(self, zeroconf: Zeroconf, info: AsyncServiceInfo, prefix: str) -> None:
        if await info.async_request(zeroconf, 1000 * RESOLVE_S):
            self._on_found(prefix, info.parsed_addresses(), info.port or 0)


def _senders(interface: Interface) -> list[str]:
    """Return one address of each family, by which zeroconf selects an interface."""
    by_version = {address.version: str(address.ip) for address in reversed(interface.addresses)}
    return [by_version[version] for version in sorted(by_version)]


def _versions(addresses: Sequence[str]) -> IPVersion:
    from zeroconf import IPVersion  # noqa: PLC0415 - an extra

    match sorted({ip_address(text).version for text in addresses}):
        case [4]:
            return IPVersion.V4Only
        case [6]:
            return IPVersion.V6Only
        case _:
            return IPVersion.All
