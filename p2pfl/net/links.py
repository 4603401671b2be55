"""A node's whole network layer for gossip: a listening socket, dials, and one session with each neighbor.

It does not look into messages: they pass through, and callbacks tell the node what happened, on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from logging import Logger, getLogger
from random import Random
from types import TracebackType
from typing import Any, Self

from p2pfl.core.messages import Message
from p2pfl.crypto.handshake import FederationBinding
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.net.address import Address, parse_address
from p2pfl.net.dialing import Dialer, Reception
from p2pfl.net.greeting import Greeter
from p2pfl.net.limits import ByteBudget, Limits
from p2pfl.net.line import Counters, Line, OnAlarm
from p2pfl.net.link import PeerLink, Shared
from p2pfl.net.rate import SendingRates
from p2pfl.net.refusals import Refusals
from p2pfl.net.route import MOST_HINTS, MOST_KEPT
from p2pfl.net.session_table import Callbacks, SessionTable
from p2pfl.net.side import Sides
from p2pfl.net.tasks import Tasks
from p2pfl.net.transport import MakeTransport, Transport
from p2pfl.net.visits import Charters
from p2pfl.net.websocket import WebSocketTransport

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
        self.sides = Sides(name_of=watcher.name_of, on_alarm=watcher.on_alarm)
        """The side channels; features add theirs before the socket is bound."""
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
            sides=self.sides,
            rates=SendingRates(limits.max_kbit_s, limits.neighbor_kbit_s),
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
        self._refusals = refusals = Refusals(
            self.counters, watcher.log, watcher.on_alarm, watcher.name_of, watcher.name_of_key
        )
        self._transport = transport(limits, refusals, watcher.log)
        self._transport.expect(len(membership.neighbors))
        self._listen = parse_address(listen, "listen")
        self._reception = Reception(
            greeter=greeter, table=self._table, refusals=refusals, shared=shared, spawn=self._visit
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

    def send(self, peer: int, session: int, message: Message) -> None:
        """Queue a message. It is dropped silently if that session is no longer the open one."""
        link = self._table.find(peer, session)
        if link is not None:
            link.send(message)

    def session(self, peer: int) -> tuple[int, Line] | None:
        """Return the number of the session with a neighbor, and its line; None without a session."""
        link = self._table.current(peer)
        return None if link is None else (link.number, link.connection.line)

    def end_stale(self, is_own: Callable[[str], bool]) -> None:
        """End sessions on addresses that this machine has lost: they are dead, though nothing else shows it."""
        for place in self._table.places.values():
            address = None if place.link is None else place.link.connection.line.own_address
            if place.link is not None and address is not None and not is_own(address):
                place.link.end(f"{address} is no longer an address of this machine")

    @property
    def transport(self) -> Transport:
        """What carries the sessions."""
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

    def hint(self, index: int, addresses: Sequence[str], instead_of: Sequence[str] = ()) -> None:
        """Add addresses where that member may also be, newest first, and take back others.

        Invalid addresses and non-members are ignored.
        """
        known = [address for address in map(_parse_hint, addresses) if address is not None]
        if instead_of:
            self._dialer.route(index).forget(map(_parse_hint, instead_of))
        if known and index != self._greeter.own_index and index in self._greeter.members.values():
            most = MOST_KEPT if index in self._table.places else MOST_HINTS
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
            for task in self._tasks.sessions | self._tasks.visits:
                task.cancel()
            self._shared.executor.shutdown(wait=False, cancel_futures=True)
            await self._transport.close()

    def _run(self, link: PeerLink) -> None:
        self._tasks.track(link.run(), self._tasks.sessions)

    def _visit(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        return self._tasks.track(work, self._tasks.visits)


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
