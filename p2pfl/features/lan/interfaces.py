"""The network interfaces of this machine, and those on which a node announces itself.

A node announces itself on the interfaces that `listen` covers. Bridges (Docker's and libvirt's reach no other machine)
and point-to-point links (tunnels) count only if the user names them. The list is read from the system each time,
because interfaces come and go. This needs `ifaddr`, which comes with python-zeroconf.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from pathlib import Path

SYSTEM = Path("/sys/class/net")
UP, LOOPBACK, POINT_TO_POINT, MULTICAST = 0x1, 0x8, 0x10, 0x1000
"""Interface flags, as in Linux's net/if.h."""
BRIDGES = re.compile(r"docker\d*|br-.*|virbr.*|lxcbr.*|lxdbr.*|cni\d*|podman\d*|veth.*")

IpInterface = IPv4Interface | IPv6Interface
"""An address with its network, such as 192.168.1.11/24."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One interface.

    `addresses` are in the system's order, without IPv6 link-local ones, which need a scope.
    """

    name: str
    index: int
    addresses: tuple[IpInterface, ...]
    announced: tuple[IpInterface, ...] = ()
    """The addresses at which the node answers."""
    loopback: bool = False
    skipped: str | None = None
    """The reason why a node does not announce itself here; None if it does."""

    def reaches(self, address: str) -> bool:
        """Return True if a machine with this address is on the same network, without a router between."""
        ip = ip_address(address)
        return any(ip.version == own.version and ip in own.network for own in self.addresses)


def all_interfaces() -> list[Interface]:
    """Return every interface with an address, by index.

    Raises ModuleNotFoundError: python-zeroconf is not installed.
    """
    import ifaddr  # noqa: PLC0415 - an extra

    listed = []
    for adapter in ifaddr.get_adapters():
        addresses = []
        for ip in adapter.ips:
            text = ip.ip if isinstance(ip.ip, str) else ip.ip[0]
            address = ip_interface(f"{text.partition('%')[0]}/{ip.network_prefix}")
            if not (address.ip.version == 6 and address.ip.is_link_local):
                addresses.append(address)
        if addresses and adapter.index is not None:
            name, flags = str(adapter.name), _flags(str(adapter.name))
            listed.append(
                Interface(
                    name=name,
                    index=adapter.index,
                    addresses=tuple(addresses),
                    loopback=bool(flags & LOOPBACK),
                    skipped=_unfit(name, flags),
                )
            )
    return sorted(listed, key=lambda interface: interface.index)


def own_addresses() -> set[str]:
    """Return all addresses of this machine, including link-local ones."""
    import ifaddr  # noqa: PLC0415 - an extra

    texts = (ip.ip if isinstance(ip.ip, str) else ip.ip[0] for adapter in ifaddr.get_adapters() for ip in adapter.ips)
    return {text.partition("%")[0] for text in texts}


def cover(interfaces: Iterable[Interface], listen: str, named: Sequence[str] = ()) -> list[Interface]:
    """Return every interface, with the addresses at which a socket bound to `listen` answers, or why it is skipped.

    If interfaces are `named`, all others are skipped. Loopback counts only if the node listens only there.
    """
    hosts = hosts_of(listen)
    covered = []
    for interface in interfaces:
        answering = tuple(
            address
            for address in interface.addresses
            if str(address.ip) in hosts or ("0.0.0.0" if address.version == 4 else "::") in hosts  # noqa: S104
        )
        unfit = interface.skipped
        if named:
            unfit = None if interface.name in named else "not among network.interfaces"
        if interface.loopback:
            unfit = None if any(str(address.ip) in hosts for address in answering) else "loopback"
        if unfit is None and not answering:
            unfit = f"listen = {listen} does not cover it"
        covered.append(replace(interface, announced=() if unfit else answering, skipped=unfit))
    return covered


def _flags(name: str) -> int:
    try:
        return int((SYSTEM / name / "flags").read_text(encoding="ascii"), 16)
    except (OSError, ValueError):
        return UP | MULTICAST | (LOOPBACK if name == "lo" else 0)


def _unfit(name: str, flags: int) -> str | None:
    if not flags & UP:
        return "down"
    if not flags & LOOPBACK and not _has_carrier(name):
        return "no link: is the cable plugged in?"
    if (SYSTEM / name / "bridge").exists() or BRIDGES.fullmatch(name):
        return "a bridge"
    if flags & POINT_TO_POINT:
        return "a point-to-point link"
    return None if flags & (MULTICAST | LOOPBACK) else "no multicast on it"


def _has_carrier(name: str) -> bool:
    try:
        return (SYSTEM / name / "carrier").read_text(encoding="ascii").strip() != "0"
    except OSError:
        return True


def hosts_of(host: str) -> set[str]:
    """Return the addresses that a host stands for: itself, or those of its name; the text itself if it is unknown."""
    try:
        return {str(answer[4][0]) for answer in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return {host}
