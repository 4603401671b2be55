"""A node's whole network layer for gossip: a listening socket, dials, and one session with each neighbor.

It does not look into messages: they pass through, and callbacks tell the node what happened, on the event loop. The
dialer dials neighbors that have no session and whose address is configured or hinted at. The reception reveals nothing
of value to strangers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from logging import DEBUG, INFO, WARNING, Logger, getLogger
from random import Random
from types import TracebackType
from typing import Any, Self

from p2pfl.crypto import FederationMismatch, UnlistedKey
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding
from p2pfl.errors import PeerFault, UserError
from p2pfl.limits import MOST_HINTS, MOST_HINTS_KEPT, Limits
from p2pfl.net.address import Address, DialPath, Relayed, Route, parse_address
from p2pfl.net.dial_paths import DialError, UnreachedError
from p2pfl.net.extensions import ExtensionChannels
from p2pfl.net.greeting import Charters, Greeter
from p2pfl.net.link import ByteBudget, PeerLink, Shared
from p2pfl.net.outbox import SendingRate
from p2pfl.net.session_table import SPARED_TRY_S, Callbacks, Dial, NeighborPlace, SessionTable, expire
from p2pfl.net.transport import (
    Arrival,
    Counters,
    GoneError,
    Line,
    MakeTransport,
    NoEdgeFault,
    OnAlarm,
    Refusals,
    SealedFault,
    Transport,
)
from p2pfl.net.websocket import WebSocketTransport, reason_of

Work = Coroutine[Any, Any, None]


class Tasks:
    def __init__(self) -> None:
        self.group = asyncio.TaskGroup()
        self.sessions: set[asyncio.Task[None]] = set()
        self.dials: dict[int, asyncio.Task[None]] = {}
        """Dials by neighbor."""
        self.hours: set[asyncio.Task[None]] = set()
        self.arrivals: set[asyncio.Task[None]] = set()

    def spawn(self, work: Work) -> asyncio.Task[None] | None:
        """Start a task; None if the node is already stopping because of a bug elsewhere."""
        try:
            return self.group.create_task(work)
        except RuntimeError:
            work.close()
            return None

    def track(self, work: Work, tasks: set[asyncio.Task[None]]) -> asyncio.Task[None] | None:
        """Start a task, and keep it in `tasks` while it runs; None under the same condition as in `spawn`."""
        task = self.spawn(work)
        if task is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task


FOR_PEOPLE = (DialError.CERTIFICATE, DialError.PROXY, DialError.NAME)
"""The errors that do not go away by themselves: a person must do something."""
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
    """Members, and what a person must do about the way to their listed address, as logged since the last session."""

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

    def _relays(self, peer: int, used: tuple[str, float] | None = None) -> Sequence[Relayed]:
        key = self.greeter.key_of(peer)
        return () if key is None else self.transport.relay_paths(key, used)

    async def _vacancy(self, peer: int, place: NeighborPlace, route: Route) -> None:
        """Wait until there is no session. While it goes through a relay, try the addresses from time to time, and
        another relay if that is better; the end that asks for exchanges decides.
        """
        while place.is_relayed:
            try:
                async with asyncio.timeout(self.shared.limits.direct_again_s):
                    await place.free.wait()
            except TimeoutError:
                for address in route.next_go():
                    if place.is_relayed:
                        await self._attempt(peer, place, address)
                if (link := place.link) and (relay := link.connection.line.relay) and (exchange_s := link.exchange_s):
                    for way in self._relays(peer, (relay, exchange_s))[:1]:
                        if way.relay != relay:
                            await self._attempt(peer, place, way)
        await place.vacancy()

    async def _try(self, peer: int, place: NeighborPlace, route: Route) -> bool:
        """Dial one way after another until there is a session. Return True if one end has refused the other."""
        route.news.clear()
        place.try_at = asyncio.get_running_loop().time() + SPARED_TRY_S
        refused = False
        addresses, relays = route.next_go(), self._relays(peer)
        ways: list[DialPath] = [*relays, *addresses] if route.relayed else [*addresses, *relays]
        for way in ways:
            refused |= await self._attempt(peer, place, way)
            if place.link is not None or place.rest_s:
                break
        return refused and place.link is None

    async def _attempt(self, peer: int, place: NeighborPlace, way: DialPath) -> bool:
        """Dial one way. Return True if one end refused the other, since another attempt is unlikely to change that."""
        try:
            async with asyncio.timeout(self.shared.limits.connect_s + self.shared.limits.handshake_s) as scope:
                place.dial = Dial(scope)
                await self._connect(peer, place.dial, way)
            self._silent.discard(peer)
            self._hindered = {case for case in self._hindered if case[0] != peer}
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

    async def _connect(self, peer: int, dial: Dial, way: DialPath) -> None:
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

    def _note_way(self, peer: int, way: DialPath, line: Line) -> None:
        """Record the way that has led to a session."""
        route = self.route(peer)
        route.relayed = isinstance(way, Relayed)
        if isinstance(way, Address):
            route.has_worked(way)
            self.transport.know(line.peer_address)

    async def _open(self, way: DialPath) -> Line:
        async with asyncio.timeout(self.shared.limits.connect_s):
            return await self.transport.dial(way)

    def _report_silence(self, peer: int, way: DialPath, error: Exception) -> None:
        place = self.table.places.get(peer)
        level = DEBUG if peer in self._silent or place is None or place.link else INFO
        case = (peer, error.remedy) if isinstance(error, UnreachedError) and error.kind in FOR_PEOPLE else None
        if case is not None and case not in self._hindered and way == self.route(peer).configured:
            self._hindered.add(case)
            level = WARNING
        self._silent.add(peer)
        name = self.shared.name_of(peer)
        self.refusals.mention(peer, "%s at %s does not answer yet: %s", name, way, reason_of(error), level=level)


def is_proven(fault: PeerFault) -> bool:
    """Return True if the peer itself, and nobody on the way, is the cause of the fault."""
    return isinstance(fault, SealedFault | FederationMismatch | UnlistedKey)


@dataclass(kw_only=True, eq=False, repr=False)
class Reception:
    """Receives lines that others have dialed."""

    greeter: Greeter
    table: SessionTable
    refusals: Refusals
    shared: Shared
    spawn: Spawn

    def meet(self, line: Line, arrival: Arrival) -> asyncio.Task[None] | None:
        return self.spawn(arrival.work(lambda: self._serve(line, arrival)))

    async def _serve(self, line: Line, arrival: Arrival) -> None:
        link: PeerLink | None = None
        try:
            async with asyncio.timeout_at(arrival.ends_at):
                link = await self.table.admit(await self.greeter.answer(line, arrival.advance))
        except TimeoutError:
            self.refusals.mention(line.peer, "%s took too long to become a session", arrival.address)
        except (GoneError, OSError) as gone:
            self.refusals.mention(line.peer, "%s left before the session: %s", arrival.address, gone)
        except PeerFault as fault:
            if line.relay is not None and not is_proven(fault):
                line.doubt(str(fault))
                self.refusals.mention(line.peer, "a line from %s: %s", arrival.address, fault)
                await line.close(self.shared.limits.close_s)
                return
            who = arrival.address if line.peer is None else f"{self.shared.name_of(line.peer)} from {arrival.address}"
            self.refusals.note(line.peer, who, fault)
        if link is None:
            await line.close(self.shared.limits.close_s)
            return
        arrival.admit()
        await link.finished.wait()


SEALING_THREADS = 2
HEAP_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """This node's identity and its peers.

    `members` maps public keys to node indices, `dial` maps indices to `host:port` or None. Both ends of a session must
    have the same `binding`.
    """

    identity: Identity
    own_index: int
    members: Mapping[bytes, int]
    neighbors: frozenset[int]
    dial: Mapping[int, str | None]
    binding: FederationBinding


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Receives messages for people. `on_alarm` gets alarms such as `federation-differs` and `session-churn`."""

    log: Logger = field(default_factory=lambda: getLogger("p2pfl.net"))
    name_of: Callable[[int], str] = "node {}".format
    name_of_key: Callable[[bytes], str | None] = lambda key: None  # noqa: ARG005 - whoever knows no former members
    on_alarm: OnAlarm = lambda kind, peer, text: None  # noqa: ARG005 - whoever does not listen


class Links:
    """The network layer: `async with` binds the socket and starts dialing; leaving it says goodbye to every neighbor.

    Raises UserError if an address is not valid or cannot be bound. `rng` supplies the jitter for dials.
    """

    def __init__(
        self,
        membership: Membership,
        callbacks: Callbacks,
        watcher: Watcher | None = None,
        *,
        listen: str,
        max_body_bytes: int,
        rng: Random,
        limits: Limits | None = None,
        transport: MakeTransport = WebSocketTransport,
    ) -> None:
        limits, watcher = limits or Limits(), watcher or Watcher()
        self.counters = Counters.of(index for index in membership.members.values() if index != membership.own_index)
        self.extensions = ExtensionChannels(name_of=watcher.name_of, on_alarm=watcher.on_alarm)
        """The extension channels; features add theirs before the socket is bound."""
        executor = ThreadPoolExecutor(SEALING_THREADS, thread_name_prefix="p2pfl-seal")
        shared = self._shared = Shared(
            limits=limits,
            budget=ByteBudget(0),
            executor=executor,
            counters=self.counters,
            log=watcher.log,
            max_body_bytes=max_body_bytes,
            name_of=watcher.name_of,
            on_alarm=watcher.on_alarm,
            extensions=self.extensions,
            rate=SendingRate(limits.max_kbit_s),
        )
        self._greeter = greeter = Greeter(
            identity=membership.identity,
            own_index=membership.own_index,
            members=membership.members,
            neighbors=membership.neighbors,
            binding=membership.binding,
            counters=self.counters,
        )
        self._table = SessionTable(
            own=membership.own_index,
            neighbors=membership.neighbors,
            boot=greeter.boot,
            callbacks=callbacks,
            shared=shared,
            spawn=self._run,
        )
        self.send = self._table.send
        self._refusals = refusals = Refusals(
            self.counters, watcher.log, watcher.on_alarm, watcher.name_of, watcher.name_of_key
        )
        self._transport = transport(limits, refusals, watcher.log)
        self._transport.expect(len(membership.neighbors))
        self._listen = parse_address(listen, "listen")
        self._reception = Reception(
            greeter=greeter, table=self._table, refusals=refusals, shared=shared, spawn=self._track_arrival
        )
        self._dialer = Dialer(
            greeter=greeter,
            table=self._table,
            refusals=refusals,
            shared=shared,
            rng=rng,
            transport=self._transport,
        )
        self._dialer.configure(_parse_addresses(membership.dial, watcher.name_of))
        self._set_memory_budget()
        self._is_open = False
        self._closing = False
        self._tasks = Tasks()

    def receive(self, charters: Charters) -> None:
        """Let visitors bring charters and ask for them. Call this before the socket is bound."""
        self._greeter.charters = charters

    @property
    def port(self) -> int:
        """The bound port."""
        return self._transport.port

    def session(self, peer: int) -> tuple[int, Line] | None:
        """Return the number of the session with a neighbor, and its line; None without a session."""
        link = self._table.current(peer)
        return None if link is None else (link.number, link.connection.line)

    @property
    def transport(self) -> Transport:
        """The transport that carries the sessions."""
        return self._transport

    @property
    def is_complete(self) -> bool:
        """True if there is a session with every neighbor."""
        return all(place.link is not None for place in self._table.places.values())

    def close(self, peer: int, session: int, reason: str, rest_s: float = 0.0) -> None:
        """End a session if it is open, calling `on_close` first. For `rest_s` no other is opened with that peer."""
        if rest_s > 0.0:
            self._table.rest(peer, rest_s)
        link = self._table.find(peer, session)
        if link is not None:
            link.end(reason)

    def pause(self, pause_s: float, reason: str) -> None:
        """End sessions for that reason, and open none for `pause_s`; 0 ends a pause."""
        self._table.pause(pause_s, reason)

    def spare(self, peer: int, rest_s: float) -> None:
        """Hardly dial a neighbor for `rest_s`: it will dial. 0 ends that."""
        self._table.spare(peer, rest_s)

    def amend(
        self,
        *,
        members: Mapping[bytes, int],
        dial: Mapping[int, str | None],
        neighbors: frozenset[int],
        binding: FederationBinding | None = None,
    ) -> None:
        """Adopt a change of the federation.

        Sessions with neighbors that stay are not touched, even if their address has changed: the new one is dialed when
        they end. Others end, and a peer that is not listed is a stranger. Raises UserError if an address is not valid;
        nothing has changed in that case.
        """
        addresses = _parse_addresses(dial, self._shared.name_of)
        greeter = self._greeter
        self.counters.include(index for index in members.values() if index != greeter.own_index)
        greeter.members, greeter.neighbors, greeter.binding = members, neighbors, binding or greeter.binding
        self._table.amend(neighbors)
        self._transport.expect(len(neighbors))
        self._set_memory_budget()
        self._dialer.configure(addresses)
        self._keep_dialing()

    def hint(self, index: int, addresses: Sequence[str]) -> None:
        """Add addresses where that member may also be, newest first. Invalid addresses and non-members are ignored."""
        known = [address for address in map(_parse_hint, addresses) if address is not None]
        if known and index != self._greeter.own_index and index in self._greeter.members.values():
            most = MOST_HINTS_KEPT if index in self._table.places else MOST_HINTS
            self._dialer.route(index).hint(known, most=most)
            self._keep_dialing()

    def _set_memory_budget(self) -> None:
        """Set the memory for messages being received: as configured, or else one message per neighbor."""
        most = (self._shared.max_body_bytes + 2**20) * max(1, len(self._greeter.neighbors))
        self._shared.budget.limit_bytes = self._shared.limits.partial_bytes or most

    def _keep_dialing(self) -> None:
        """Dial every neighbor to which a way is known, and nobody else."""
        if not self._is_open or self._closing:
            return
        targets = [peer for peer in self._table.places if self._dialer.is_dialed(peer)]
        for peer in [peer for peer in self._tasks.dials if peer not in targets]:
            self._tasks.dials.pop(peer).cancel()
        for peer in targets:
            if peer not in self._tasks.dials and (task := self._tasks.spawn(self._dialer.keep(peer))) is not None:
                self._tasks.dials[peer] = task

    async def __aenter__(self) -> Self:
        keep_heap()
        await self._transport.open(self._listen, self._reception.meet)
        self._is_open = True
        await self._tasks.group.__aenter__()
        self._tasks.track(self._refusals.begin_hours(), self._tasks.hours)
        self._keep_dialing()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send waiting messages, say goodbye, close everything.

        A bug in a task is raised here as an exception group.
        """
        cancelled = isinstance(error, asyncio.CancelledError)
        try:
            await self._wind_down()
        finally:
            await self._tasks.group.__aexit__(*((kind, error, trace) if cancelled else (None, None, None)))

    async def _wind_down(self) -> None:
        self._transport.stop_accepting()
        self._closing = True
        for task in (*self._tasks.dials.values(), *self._tasks.hours):
            task.cancel()
        try:
            await self._table.drain(self._shared.limits.close_s)
            self._table.close("the node stopped")
            if self._tasks.sessions:
                await asyncio.wait(self._tasks.sessions, timeout=2 * self._shared.limits.close_s)
        finally:  # a node may be cancelled while it closes
            for task in self._tasks.sessions | self._tasks.arrivals:
                task.cancel()
            self._shared.executor.shutdown(wait=False, cancel_futures=True)
            await self._transport.close()

    def _run(self, link: PeerLink) -> None:
        self._tasks.track(link.run(), self._tasks.sessions)

    def _track_arrival(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        return self._tasks.track(work, self._tasks.arrivals)


def _parse_addresses(dial: Mapping[int, str | None], name_of: Callable[[int], str]) -> dict[int, Address]:
    return {
        peer: parse_address(text, f"address of {name_of(peer)}")
        for peer, text in sorted(dial.items())
        if text is not None
    }


def _parse_hint(text: str) -> Address | None:
    """Return the address, or None if it is not valid; hints may come from anybody, so this is not an error."""
    try:
        return replace(parse_address(text, "hint"), direct=True)
    except UserError:
        return None


def keep_heap() -> None:
    """Make the C library keep blocks of up to 8 MiB in its heap, and up to 16 MiB of it idle.

    Sockets and sealing allocate and free blocks of 256 KiB all the time. Above one threshold the GNU C library maps
    every block anew, and above another it trims its heap, so that each block costs page faults and zeroing: a third of
    the CPU time of a large message. It raises both thresholds by itself, to one and two times the size, when such a
    block is freed. The block freed here is never touched.
    """
    bytes(HEAP_BYTES)
