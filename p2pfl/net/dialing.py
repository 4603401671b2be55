"""Both ways to a session: dialing neighbors, and receiving peers that dial this node.

The dialer dials neighbors without a session whose address is configured or hinted at. The reception tells strangers
nothing of value.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from logging import DEBUG, INFO
from typing import Any

from p2pfl.errors import PeerFault
from p2pfl.net.address import Address
from p2pfl.net.greeting import Greeter
from p2pfl.net.limits import Limits
from p2pfl.net.line import GoneError, Line
from p2pfl.net.link import PeerLink, Shared
from p2pfl.net.notices import NoEdgeFault
from p2pfl.net.refusals import Refusals
from p2pfl.net.route import Route
from p2pfl.net.session_table import Dial, NeighborPlace, SessionTable, expire
from p2pfl.net.transport import Transport, Visit

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None]


class Backoff:
    """Doubling delays, each shortened by up to half at random so that nodes do not dial in step."""

    def __init__(self, limits: Limits, rng: random.Random) -> None:
        self._limits = limits
        self._rng = rng
        self._delay_s = limits.retry_first_s

    def reset(self) -> None:
        self._delay_s = self._limits.retry_first_s

    def exhaust(self) -> None:
        """Use the longest delay next: a refused dial would be refused again in a second."""
        self._delay_s = self._limits.retry_ceiling_s

    def next_s(self) -> float:
        delay_s = self._delay_s * self._rng.uniform(0.5, 1.0)
        self._delay_s = min(2 * self._delay_s, self._limits.retry_ceiling_s)
        return delay_s


@dataclass(kw_only=True, eq=False, repr=False)
class Dialer:
    greeter: Greeter
    table: SessionTable
    refusals: Refusals
    shared: Shared
    rng: random.Random
    transport: Transport
    routes: dict[int, Route] = field(default_factory=dict)
    """The routes of all members with a known address."""
    _silent: set[int] = field(default_factory=set)

    def route(self, peer: int) -> Route:
        return self.routes.setdefault(peer, Route())

    def configure(self, addresses: Mapping[int, Address]) -> None:
        """Adopt the addresses in the federation's file. A dial to an outdated address is broken off."""
        for address in addresses.values():
            self.transport.know(address.host)
        for peer in self.routes.keys() | addresses.keys():
            place = self.table.places.get(peer)
            if self.route(peer).configure(addresses.get(peer)) and place is not None and place.dial is not None:
                expire(place.dial.scope)

    async def keep(self, peer: int) -> None:
        """Keep a session with a neighbor; never returns.

        Each attempt has a deadline; the wait for a session's end has none.
        """
        place, route = self.table.places[peer], self.route(peer)
        backoff = Backoff(self.shared.limits, self.rng)
        while True:
            await place.vacancy()
            if await self._try(peer, place, route):
                backoff.exhaust()
            await place.vacancy()
            if place.settled:
                place.settled = False
                backoff.reset()
            else:
                if await route.rest(backoff.next_s()):
                    backoff.reset()
                await place.vacancy()

    async def _try(self, peer: int, place: NeighborPlace, route: Route) -> bool:
        """Dial one address after the other until there is a session. Return True if an end has refused the other."""
        route.news.clear()
        refused = False
        for address in route.next_go():
            refused |= await self._attempt(peer, place, address)
            if place.link is not None or place.rest_s:
                break
        return refused and place.link is None

    async def _attempt(self, peer: int, place: NeighborPlace, address: Address) -> bool:
        """Dial one address. Return True if an end refused the other, which another attempt would hardly change."""
        try:
            async with asyncio.timeout(self.shared.limits.connect_s + self.shared.limits.handshake_s) as scope:
                place.dial = Dial(scope)
                await self._connect(peer, place.dial, address)
            self._silent.discard(peer)
        except (GoneError, TimeoutError) as error:
            self._report_silence(peer, address, error)
        except PeerFault as fault:
            self.refusals.note(peer, f"{self.shared.name_of(peer)} at {address}", fault)
            return not isinstance(fault, NoEdgeFault)
        finally:
            place.dial = None
            place.wake()
        return False

    async def _connect(self, peer: int, dial: Dial, address: Address) -> None:
        line = await self._open(address)
        link = None
        try:
            candidate = await self.greeter.dial(line, peer)
            dial.reached = True
            link = await self.table.admit(candidate)
        finally:
            if link is None:
                await line.close(self.shared.limits.close_s)
            else:
                self.route(peer).has_worked(address)
                self.transport.know(line.peer_address)

    async def _open(self, address: Address) -> Line:
        async with asyncio.timeout(self.shared.limits.connect_s):
            return await self.transport.dial(address)

    def _report_silence(self, peer: int, address: Address, error: Exception) -> None:
        place = self.table.places.get(peer)
        level = DEBUG if peer in self._silent or place is None or place.link else INFO
        self._silent.add(peer)
        name = self.shared.name_of(peer)
        self.refusals.mention(peer, "%s at %s does not answer yet: %s", name, address, _reason_of(error), level=level)


def _reason_of(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)


@dataclass(kw_only=True, eq=False, repr=False)
class Reception:
    """The receiver of lines that others have dialed."""

    greeter: Greeter
    table: SessionTable
    refusals: Refusals
    shared: Shared
    spawn: Spawn

    def meet(self, line: Line, visit: Visit) -> asyncio.Task[None] | None:
        return self.spawn(visit.work(self._serve(line, visit)))

    async def _serve(self, line: Line, visit: Visit) -> None:
        link: PeerLink | None = None
        try:
            async with asyncio.timeout_at(visit.ends_at):
                link = await self.table.admit(await self.greeter.answer(line, visit.advance))
        except TimeoutError:
            self.refusals.mention(line.peer, "%s took too long to become a session", visit.address)
        except (GoneError, OSError) as gone:
            self.refusals.mention(line.peer, "%s left before the session: %s", visit.address, gone)
        except PeerFault as fault:
            who = visit.address if line.peer is None else f"{self.shared.name_of(line.peer)} from {visit.address}"
            self.refusals.note(line.peer, who, fault)
        if link is None:
            await line.close(self.shared.limits.close_s)
            return
        visit.admit()
        await link.finished.wait()
