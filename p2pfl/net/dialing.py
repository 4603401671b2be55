"""Both ways to a session: dialing neighbors, and receiving peers that dial this node.

The dialer dials neighbors that have no session and whose address is configured or hinted at. The reception reveals
nothing of value to strangers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from logging import DEBUG, INFO, WARNING
from typing import Any

from p2pfl.crypto import FederationMismatch, UnlistedKey
from p2pfl.errors import PeerFault
from p2pfl.net.address import Address, Relayed, Way
from p2pfl.net.greeting import Greeter
from p2pfl.net.hurdles import Hurdle, UnreachedError
from p2pfl.net.limits import Limits
from p2pfl.net.line import GoneError, Line
from p2pfl.net.link import PeerLink, Shared
from p2pfl.net.notices import NoEdgeFault, SealedFault
from p2pfl.net.refusals import Refusals
from p2pfl.net.route import Route
from p2pfl.net.session_table import SPARED_TRY_S, Dial, NeighborPlace, SessionTable, expire
from p2pfl.net.transport import Transport, Visit

FOR_PEOPLE = (Hurdle.CERTIFICATE, Hurdle.PROXY, Hurdle.NAME)
"""The hurdles that do not go away by themselves: a person must do something."""
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
        """Use the longest delay next: a refused dial would be refused again a second later."""
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
    """Routes to all members with a known address."""
    _silent: set[int] = field(default_factory=set)
    _hindered: set[tuple[int, str]] = field(default_factory=set)
    """What must be done about the way to a member's listed address, as far as it has been logged since its last
    session.
    """

    def route(self, peer: int) -> Route:
        return self.routes.setdefault(peer, Route())

    def configure(self, addresses: Mapping[int, Address]) -> None:
        """Adopt the addresses in the federation file. A dial to an outdated address is abandoned."""
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
            await self._vacancy(peer, place, route)
            if await self._try(peer, place, route):
                backoff.exhaust()
            await self._vacancy(peer, place, route)
            if place.settled:
                place.settled = False
                backoff.reset()
            elif await route.rest(backoff.next_s()):
                backoff.reset()

    def is_dialed(self, peer: int) -> bool:
        """Return True if there is any way to that neighbor."""
        route = self.routes.get(peer)
        return (route is not None and bool(route.addresses())) or bool(self._relays(peer))

    def _relays(self, peer: int) -> Sequence[Relayed]:
        key = self.greeter.key_of(peer)
        place = self.table.places.get(peer)
        return () if key is None else self.transport.ways(key, None if place is None else place.relay)

    async def _vacancy(self, peer: int, place: NeighborPlace, route: Route) -> None:
        """Wait until there is no session. While it goes through a relay, try the addresses and other relays from time
        to time.
        """
        while place.is_relayed:
            try:
                async with asyncio.timeout(self.shared.limits.direct_again_s):
                    await place.free.wait()
            except TimeoutError:
                for address in route.next_go():
                    if place.is_relayed:
                        await self._attempt(peer, place, address)
                await self._change_relay(peer, place)
        await place.vacancy()

    async def _change_relay(self, peer: int, place: NeighborPlace) -> None:
        """Move a session to a relay that is clearly better. The end with the lower index decides."""
        key, link = self.greeter.key_of(peer), place.link
        if key is None or link is None or self.table.own > peer or (relay := link.connection.line.relay) is None:
            return
        exchange_s = link.exchanges.typical_s(asyncio.get_running_loop().time())
        way = await self.transport.faster_way(key, relay, exchange_s)
        if way is not None and place.is_relayed:
            place.moves_to = way.relay
            try:
                await self._attempt(peer, place, way)
            finally:
                place.moves_to = None

    async def _try(self, peer: int, place: NeighborPlace, route: Route) -> bool:
        """Dial one way after another until there is a session. Return True if one end has refused the other."""
        route.news.clear()
        place.try_at = asyncio.get_running_loop().time() + SPARED_TRY_S
        refused = False
        addresses, relays = route.next_go(), self._relays(peer)
        ways: list[Way] = [*relays, *addresses] if route.relayed else [*addresses, *relays]
        for way in ways:
            refused |= await self._attempt(peer, place, way)
            if place.link is not None or place.rest_s:
                break
        return refused and place.link is None

    async def _attempt(self, peer: int, place: NeighborPlace, way: Way) -> bool:
        """Dial one way. Return True if one end refused the other, since another attempt is unlikely to change that."""
        try:
            async with asyncio.timeout(self.shared.limits.connect_s + self.shared.limits.handshake_s) as scope:
                place.dial = Dial(scope)
                await self._connect(peer, place.dial, way)
            self._silent.discard(peer)
            self._hindered = {one for one in self._hindered if one[0] != peer}
        except (GoneError, TimeoutError) as error:
            self._report_silence(peer, way, error)
        except PeerFault as fault:
            if isinstance(way, Relayed) and not is_proven(fault):
                self.refusals.mention(peer, "%s at %s: %s", self.shared.name_of(peer), way, fault)
                return False
            self.refusals.note(peer, f"{self.shared.name_of(peer)} at {way}", fault)
            return not isinstance(fault, NoEdgeFault)
        finally:
            place.dial = None
            place.wake()
        return False

    async def _connect(self, peer: int, dial: Dial, way: Way) -> None:
        line, clock = await self._open(way), asyncio.get_running_loop().time
        opened_at, link = clock(), None
        try:
            candidate = await self.greeter.dial(line, peer)
            dial.reached = True
            link = await self.table.admit(candidate)
        except PeerFault as fault:
            if not is_proven(fault):
                line.doubt(str(fault))
            raise
        except asyncio.CancelledError:
            if not dial.reached and clock() - opened_at >= self.shared.limits.handshake_s:
                line.doubt("no answer to the handshake")
            raise
        finally:
            if link is None:
                await line.close(self.shared.limits.close_s)
            else:
                self._note_way(peer, way, line)

    def _note_way(self, peer: int, way: Way, line: Line) -> None:
        """Record the way that has led to a session."""
        route = self.route(peer)
        route.relayed = isinstance(way, Relayed)
        if isinstance(way, Address):
            route.has_worked(way)
            self.transport.know(line.peer_address)

    async def _open(self, way: Way) -> Line:
        async with asyncio.timeout(self.shared.limits.connect_s):
            return await self.transport.dial(way)

    def _report_silence(self, peer: int, way: Way, error: Exception) -> None:
        place = self.table.places.get(peer)
        level = DEBUG if peer in self._silent or place is None or place.link else INFO
        hurdle = (peer, error.remedy) if isinstance(error, UnreachedError) and error.hurdle in FOR_PEOPLE else None
        if hurdle is not None and hurdle not in self._hindered and way == self.route(peer).configured:
            self._hindered.add(hurdle)
            level = WARNING
        self._silent.add(peer)
        name = self.shared.name_of(peer)
        self.refusals.mention(peer, "%s at %s does not answer yet: %s", name, way, _reason_of(error), level=level)


def is_proven(fault: PeerFault) -> bool:
    """Return True if the peer itself, and nobody on the way, is the cause of the fault."""
    return isinstance(fault, SealedFault | FederationMismatch | UnlistedKey)


def _reason_of(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error)


@dataclass(kw_only=True, eq=False, repr=False)
class Reception:
    """Receives lines that others have dialed."""

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
            if line.relay is not None and not is_proven(fault):
                line.doubt(str(fault))
                self.refusals.mention(line.peer, "a line from %s: %s", visit.address, fault)
                await line.close(self.shared.limits.close_s)
                return
            who = visit.address if line.peer is None else f"{self.shared.name_of(line.peer)} from {visit.address}"
            self.refusals.note(line.peer, who, fault)
        if link is None:
            await line.close(self.shared.limits.close_s)
            return
        visit.admit()
        await link.finished.wait()
