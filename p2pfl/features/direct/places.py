"""The addresses that neighbors tell each other, and how many of them are tried.

A neighbor may lie, and so may a relay about the address that it sees. So a place is an address and a port, never a
name or a path; the first thing said there is the handshake, and each neighbor has an allowance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Annotated

from msgspec import Meta, Struct

from p2pfl.core.limits import TokenBucket
from p2pfl.net.address import Address
from p2pfl.net.side import SideChannel

MOST_PLACES = 8
"""The most places in one message."""
AN_HOUR = 16
"""The most new places of one neighbor that are tried in an hour."""
TRIED_S = 300.0
"""How long a place is tried after it was told."""
HTTPS, LEAST_PORT = 443, 1024

Packed = Annotated[bytes, Meta(min_length=4, max_length=16)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Place = tuple[Packed, Port]
"""An IPv4 or IPv6 address, 4 or 16 bytes, and a port."""


class PlacesTold(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The places at which the sender may be reached, likeliest first."""

    places: Annotated[tuple[Place, ...], Meta(max_length=MOST_PLACES)]


CHANNEL = SideChannel("direct", PlacesTold, most_bytes=256, per_s=1 / 60, at_once=4.0)


def is_plausible(host: str) -> bool:
    """Return True if a node may be at that address: one of a private network or of the internet, and of one machine.

    Link-local addresses need a scope, which the other end does not have; at some of them clouds answer for secrets.
    """
    try:
        ip = ip_address(host)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        # What IPv6 addresses contain others is reserved, but for these two kinds.
        embedded = ip.sixtofour is not None or ip.teredo is not None
        if embedded or ip.is_site_local or ip.scope_id is not None:
            return False
    elif ip.packed[0] == 0:
        return False
    return not (ip.is_loopback or ip.is_multicast or ip.is_unspecified or ip.is_link_local or ip.is_reserved)


def places_of(addresses: Iterable[tuple[str, int]]) -> tuple[Place, ...]:
    """Return the places to tell: the plausible ones, each once."""
    plausible = [(ip_address(host).packed, port) for host, port in addresses if is_plausible(host)]
    return tuple(dict.fromkeys(plausible))[:MOST_PLACES]


def addresses_in(told: PlacesTold) -> list[str]:
    """Return the addresses that may be dialed, as `host:port`."""
    found = []
    for packed, port in told.places:
        host = str(ip_address(packed)) if len(packed) in (4, 16) else ""
        if is_plausible(host) and (port == HTTPS or port >= LEAST_PORT):
            found.append(str(Address(host, port)))
    return list(dict.fromkeys(found))


@dataclass(slots=True)
class TriedPlaces:
    """The places told by one neighbor, with the time until which each is tried. Times are in seconds."""

    tried_until: dict[str, float] = field(default_factory=dict)
    new: TokenBucket = field(default_factory=lambda: TokenBucket(AN_HOUR / 3600, tokens=AN_HOUR, burst=AN_HOUR))

    def take(self, addresses: Iterable[str], now: float) -> list[str]:
        """Return those that are tried from now on; what is being tried already is not tried longer."""
        fresh = [one for one in addresses if one not in self.tried_until and self.new.take(now) == 0.0]
        self.tried_until |= dict.fromkeys(fresh, now + TRIED_S)
        return fresh

    def expire(self, now: float) -> list[str]:
        """Return those that have been tried long enough, and forget them."""
        over = [address for address, until in self.tried_until.items() if until <= now]
        for address in over:
            del self.tried_until[address]
        return over
