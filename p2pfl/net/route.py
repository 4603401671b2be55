"""The route to a member: its address in the federation's file, and hints from others.

Anybody on the LAN can make up hints; the handshake decides whether they are right. So hints wait in a queue, and a few
are dialed at a time: the newest, and as many from the queue, taking one port per machine before the next port, and as
many IPv4 as IPv6 addresses. In between, the configured address and the one that last worked are dialed again. A flood
of hints on a LAN thus delays a connection but does not prevent it: each machine on one IPv4 network gets its turn.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2pfl.net.address import Address

MOST_HINTS = 4
"""The maximum number of hints dialed at a time, and kept for a member that is not currently a neighbor."""
MOST_KEPT = 512
"""The maximum number of hints kept for a neighbor; half of them hold one port for each machine on a usual network
(/24).
"""
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
        self._tell(address)
        return True

    def hint(self, addresses: Iterable[Address], *, most: int = MOST_KEPT) -> None:
        """Keep hints that arrived together, and at most `most` hints in all."""
        new = [address for address in dict.fromkeys(addresses) if address not in self.hints][:most]
        for address in new:
            while len(self.hints) >= most:
                del self.hints[self._one_too_many()]
            self.hints[address] = None
            if address not in (self.configured, self.worked):
                self._tell(address)
        self.latest = new or self.latest

    def forget(self, addresses: Iterable[Address | None]) -> None:
        """Drop hints. The address that last worked stays known, since the handshake has proven it."""
        gone = set(addresses)
        self.hints = {hint: None for hint in self.hints if hint not in gone}

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

    def _tell(self, address: Address | None) -> None:
        if address is not None:
            self.news.set()


def _is_v6(address: Address) -> bool:
    return ":" in address.host
