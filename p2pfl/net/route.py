"""Where a member may be reached: the address of its federation's file, and what others have hinted at.

Hints are dialed after the configured address, the newest first, and the handshake decides whose they are. One that has
led to a session is kept, however many newer ones come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from p2pfl.net.address import Address

MOST_HINTS = 4
HASTE_S = 2.0
"""The least time between two dials that news have brought forward: whoever makes them up gains nothing by many."""


@dataclass(slots=True, eq=False)
class Route:
    """To one member."""

    configured: Address | None = None
    worked: Address | None = None
    """The hint that led to a session last."""
    hints: list[Address] = field(default_factory=list)
    """Newest first, at most MOST_HINTS."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is an address to try that was not there before."""
    hurried_at: float = float("-inf")
    """When news last brought a dial forward, by the loop's clock."""

    def addresses(self) -> list[Address]:
        """All that there are, in the order in which they are to be tried."""
        known = [address for address in (self.configured, self.worked, *self.hints) if address is not None]
        return list(dict.fromkeys(known))

    def configure(self, address: Address | None) -> bool:
        """Whether that is a change."""
        if address == self.configured:
            return False
        self.configured = address
        self._tell(address)
        return True

    def hint(self, addresses: Iterable[Address]) -> None:
        """The first is the newest."""
        before = self.addresses()
        newest = list(dict.fromkeys(addresses))
        self.hints = [*newest, *(old for old in self.hints if old not in newest)][:MOST_HINTS]
        for address in self.hints:
            if address not in before:
                self._tell(address)

    def has_worked(self, address: Address) -> None:
        """There was a session with the member at that address."""
        if address != self.configured:
            self.worked = address

    async def rest(self, wait_s: float) -> bool:
        """Whether that was cut short by a new address."""
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(wait_s):
                await self.news.wait()
                await asyncio.sleep(self.hurried_at + HASTE_S - clock())
        except TimeoutError:
            return False
        self.hurried_at = clock()
        return True

    def _tell(self, address: Address | None) -> None:
        if address is not None:
            self.news.set()
