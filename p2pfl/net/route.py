"""The route to a member: its address in the federation's file, and hints from others.

Anybody on the LAN can make up hints, and the handshake decides whether they are right. So hints wait in a queue, and a
few are dialed at a time: the newest, and as many in turn, one port of each machine before the next port, as many of
IPv4 as of IPv6. Between them the configured address, and the one that worked last, are dialed again. So a flood of
hints on a LAN delays a connection and does not prevent it: each machine of one IPv4 network has its turn.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2pfl.net.address import Address

MOST_HINTS = 4
"""The most hints dialed at a time; also the most kept of a member that is not a neighbor now."""
MOST_KEPT = 512
"""The most hints kept of a neighbor: half of them hold one port of each machine of a usual network (/24)."""
HASTE_S = 2.0
"""The least time between two dials brought forward by a new address: made-up addresses gain nothing by number."""


@dataclass(slots=True, eq=False)
class Route:
    """The addresses of one member."""

    configured: Address | None = None
    worked: Address | None = None
    """The hint that led to a session last."""
    hints: dict[Address, None] = field(default_factory=dict)
    """The hints in the order of their turns."""
    latest: list[Address] = field(default_factory=list)
    """The latest new hints, which came together; empty once they were dialed."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is a new address to try."""
    hurried_at: float = float("-inf")
    """The time at which a new address last brought a dial forward, by the loop's clock."""

    def addresses(self) -> list[Address]:
        """Return all addresses: the configured one and the one that worked, then hints, the latest first."""
        return list(dict.fromkeys([*self._home(), *reversed(self.hints)]))

    def next_go(self) -> list[Address]:
        """Return the addresses to dial now, one after the other; their hints then wait behind all others."""
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
        """Keep hints that came together, and at most `most` of all hints."""
        new = [address for address in dict.fromkeys(addresses) if address not in self.hints][:most]
        for address in new:
            while len(self.hints) >= most:
                del self.hints[self._one_too_many()]
            self.hints[address] = None
            if address not in (self.configured, self.worked):
                self._tell(address)
        self.latest = new or self.latest

    def has_worked(self, address: Address) -> None:
        """Note that there was a session with the member at that address."""
        if address != self.configured:
            self.worked = address

    async def rest(self, wait_s: float) -> bool:
        """Wait for `wait_s`; return True if a new address cut the wait short."""
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
        """Return a random hint to drop: of the machine with the most ports, in the family with the most hints."""
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
