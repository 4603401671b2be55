"""An address as users write it: `host:port`, or the URL of a WebSocket such as `wss://host:443/p2pfl#sha256=...`.

An IPv6 host is in brackets. With `wss` the connection is inside TLS. Its certificate must be one that the system
trusts, or the pinned one. Who answers is decided by the handshake inside, not by the certificate. A `Route` has all
addresses at which a member may be.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import random
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from p2pfl.config.tables import URL, USUAL_PORTS, is_host, without_password
from p2pfl.errors import UserError
from p2pfl.limits import MOST_HINTS, MOST_HINTS_KEPT

FIRST_PORT, LAST_PORT = 15_000, 32_000

ALLOWED = "host:port, such as 192.168.1.20:7000 or [::]:7000; or a URL such as wss://example.org:443/p2pfl"
PATH = "/p2pfl"
"""The path at which a node listens."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: bool = False
    path: str = PATH
    pin: str = ""
    """The SHA-256 of the only certificate that is accepted, 64 hexadecimal digits; empty if the system decides."""
    direct: bool = field(default=False, compare=False)
    """True if no proxy leads there: it was found on the LAN."""

    @property
    def url(self) -> str:
        """The URL without the pin, which is nobody else's business."""
        return f"{'wss' if self.tls else 'ws'}://{self.place}{self.path}"

    @property
    def place(self) -> str:
        """The host and the port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.url if self.tls or self.path != PATH else self.place


@dataclass(frozen=True, slots=True)
class Relayed:
    """A way to a member through a relay."""

    relay: str
    """The relay's URL."""
    key: bytes
    """The member's public key, 32 bytes."""

    def __str__(self) -> str:
        return f"relay {self.relay}"


DialPath = Address | Relayed
"""A way on which a member can be dialed."""


def parse_address(text: str, key: str) -> Address:
    """Parse an address. Raises UserError, naming `key`, if the port is not a number from 0 to 65535 or the host is
    empty.
    """
    if (url := URL.fullmatch(text)) is not None:
        bare, port = url["host"].strip("[]"), url["port"] or str(USUAL_PORTS[url["scheme"]])
        if int(port) <= 65535 and is_host(bare) and (url["host"] != bare) == (":" in bare):
            pin = (url["pin"] or "").replace(":", "").lower()
            return Address(bare, int(port), tls=url["scheme"] == "wss", path=url["path"] or PATH, pin=pin)
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    numbered = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if not (colon and numbered and bracketed == (":" in bare) and is_host(bare)):
        raise UserError("not an address", key=key, value=without_password(text), allowed=ALLOWED)
    return Address(bare, int(port))


def is_loopback(host: str) -> bool:
    """Return True if the host means only this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_hidden(address: str | None, listen: str) -> bool:
    """Return True if a node listens only on its own machine (`listen`) although others dial it at `address`.

    At a URL it may be a web server on this machine that listens.
    """
    if address is None or "://" in address or is_loopback(parse_address(address, "address").host):
        return False
    return is_loopback(parse_address(listen, "listen").host)


def misses(address: str | None, listen: str, forwarded_port: int | None = None) -> bool:
    """Return True if others dial a different port from the one on which the node listens.

    `forwarded_port` is the port that a router forwards to the node, if there is such a router. At a URL a web server
    may be in front of it.
    """
    if address is None or "://" in address:
        return False
    own = parse_address(listen, "listen").port if forwarded_port is None else forwarded_port
    return parse_address(address, "address").port != own


def cannot_listen(address: Address, error: OSError, key: str) -> UserError:
    """Return the user error for a socket that could not be bound."""
    return UserError(
        f"cannot listen on {address}: {os.strerror(error.errno) if error.errno else error.strerror or error}",
        key=key,
        allowed="an address of this machine and a port that is free",
    )


def own_address() -> str:
    """Return the address by which others on its network reach this machine, as far as it can tell. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address (RFC 5737): the kernel only chooses a route
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def free_ports(count: int) -> list[int]:
    """Return free ports below the range for outgoing connections, so that no such connection takes one by chance."""
    chance = random.Random()
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            port = chance.randrange(FIRST_PORT, LAST_PORT)
            with suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
    return ports


HASTE_S = 2.0
"""The shortest time between two dials brought forward by a new address, so that a flood of made-up addresses gains
nothing.
"""


@dataclass(slots=True, eq=False)
class Route:
    """The addresses of one member."""

    configured: Address | None = None
    worked: Address | None = None
    """The hint that last led to a session."""
    hints: dict[Address, None] = field(default_factory=dict)
    """Hints, in the order in which they are dialed."""
    latest: list[Address] = field(default_factory=list)
    """The latest new hints, received together; empty once they have been dialed."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is a new address to try."""
    relayed: bool = False
    """True if the last session went through a relay: the next dial begins there, and addresses are tried meanwhile."""
    hurried_at: float = float("-inf")
    """When a new address last brought a dial forward, on the loop's clock."""

    def addresses(self) -> list[Address]:
        """Return all addresses: the configured one and the one that worked, then hints, latest first."""
        return list(dict.fromkeys([*self._home(), *reversed(self.hints)]))

    def next_go(self) -> list[Address]:
        """Return the addresses to dial now, in order; their hints then move to the end of the queue."""
        home = self._home()
        fresh = [hint for hint in self.latest if hint in self.hints and hint not in home][: MOST_HINTS // 2]
        chosen = list(dict.fromkeys([*fresh, *self._in_line(home)]))[:MOST_HINTS]
        self.latest = []
        for hint in chosen:
            del self.hints[hint]
            self.hints[hint] = None
        return [address for hint in chosen for address in (*home, hint)] if chosen else home

    def configure(self, address: Address | None) -> bool:
        """Set the configured address; return True if it has changed."""
        if address == self.configured:
            return False
        self.configured = address
        if address is not None:
            self.news.set()
        return True

    def hint(self, addresses: Iterable[Address], *, most: int = MOST_HINTS_KEPT) -> None:
        """Keep hints that arrived together, and at most `most` hints in all."""
        new = [address for address in dict.fromkeys(addresses) if address not in self.hints][:most]
        for address in new:
            while len(self.hints) >= most:
                del self.hints[self._one_too_many()]
            self.hints[address] = None
            if address not in (self.configured, self.worked):
                self.news.set()
        self.latest = new or self.latest

    def has_worked(self, address: Address) -> None:
        """Record that there was a session with the member at that address."""
        if address != self.configured:
            self.worked = address

    async def rest(self, wait_s: float) -> bool:
        """Wait for `wait_s`; return True if a new address ended the wait early."""
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(wait_s):
                await self.news.wait()
                await asyncio.sleep(self.hurried_at + HASTE_S - clock())
        except TimeoutError:
            return False
        self.hurried_at = clock()
        return True

    def _home(self) -> list[Address]:
        known = [address for address in (self.configured, self.worked) if address is not None]
        return list(dict.fromkeys(known))

    def _in_line(self, home: list[Address]) -> list[Address]:
        ports: Counter[str] = Counter()
        machines: Counter[tuple[bool, int]] = Counter()
        places: dict[Address, tuple[int, int]] = {}
        for hint in self.hints:
            if hint not in home:
                port = ports[hint.host]
                places[hint] = port, machines[_is_v6(hint), port]
                ports[hint.host] += 1
                machines[_is_v6(hint), port] += 1
        return sorted(places, key=lambda hint: places[hint])

    def _one_too_many(self) -> Address:
        """Return a random hint to drop, from the machine with the most ports in the family with the most hints."""
        hosts = [hint.host for hint in self.hints]
        six = [":" in host for host in hosts]
        crowded = 2 * sum(six) > len(six)
        ports = Counter(host for host, is_v6 in zip(hosts, six, strict=True) if is_v6 == crowded)
        most = max(ports.values())
        return random.choice([hint for hint, host in zip(self.hints, hosts, strict=True) if ports[host] == most])


def _is_v6(address: Address) -> bool:
    return ":" in address.host
