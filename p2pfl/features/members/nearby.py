"""Find members on this LAN without a running node: for the owner of the admin key, and for a newcomer.

A node listens all the time (`net/discovery`); here multicast DNS is asked once, for a few seconds at most. The answers
are hints: the handshake proves which member is at an address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from ipaddress import ip_address

from p2pfl.config.model import FederationConfig
from p2pfl.features.lan.beacon import member_of, prefix_of
from p2pfl.features.lan.interfaces import Interface, all_interfaces, cover, own_addresses
from p2pfl.features.lan.overhear import Overhearing
from p2pfl.net.address import Address

LISTEN_S = 3.0
LOOK_S = 0.1
MOST_ADDRESSES = 4
"""The most addresses of one member."""

Places = Mapping[bytes, Sequence[str]]
"""Addresses host:port by public key."""


async def find_nearby(federation: FederationConfig, *, named: Sequence[str] = (), listen_s: float = LISTEN_S) -> Places:
    """Return the addresses that members announce, as soon as all are heard. `named` are the interfaces to listen on.

    Empty if python-zeroconf is not installed or no interface can be used.
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
            await asyncio.wait([listening], timeout=LOOK_S)
    finally:
        listening.cancel()
        await asyncio.wait([listening])
    return _announced_places(overhearing, keys, usable)


def _announced_places(overhearing: Overhearing, keys: Mapping[str, bytes], interfaces: Sequence[Interface]) -> Places:
    """Return the announced addresses on this network, IPv4 first; those beyond a router are useless here."""
    found: dict[bytes, list[str]] = {}
    for one in overhearing.announced.values():
        prefix = member_of(one.name, keys)
        near = [text for text in one.addresses if any(interface.reaches(text) for interface in interfaces)]
        if prefix is not None and 0 < one.port < 65536 and near:
            near.sort(key=lambda text: (ip_address(text).version, text))
            places = found.setdefault(keys[prefix], [])
            places += [str(Address(text, one.port)) for text in near]
            del places[MOST_ADDRESSES:]
    return found
