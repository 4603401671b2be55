"""At most one session per neighbor: opens connections, ends what they replace, tells the node in that order.

The lower index of two nodes decides which of several connections becomes the session; the other follows the highest
number that it receives from one boot. If two dials cross, the lower index's dial wins. Of two from the same dialer the
newer wins, because a node with a session does not dial. Another `boot` means another process: the previous process's
session is dead. One case remains: the higher index dials while a session dialed by the lower one is open. Either the
dials crossed, or the session is dead at the other end. If they crossed, that end drops the newcomer as soon as it
learns of the session, so holding the newcomer back for a moment distinguishes the two cases.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from p2pfl.core.limits import TokenBucket
from p2pfl.core.messages import Message
from p2pfl.errors import PeerFault
from p2pfl.net.greeting import Connection, Notice, Word
from p2pfl.net.link import PeerLink, Shared

CHURN = "session-churn"
"""The kind of alarm about a neighbor that opens one session after another."""
CHURN_ALARM_S = 3600.0
"""The shortest time between two such alarms about one neighbor."""

MOST_SLEEP_S = 30.0
"""A rest may be over earlier than was known when it began."""
SPARED_TRY_S = 900.0
"""The time between two dials to a neighbor that is spared: it may be back early, and unable to dial."""


class Admission(Enum):
    OPEN = auto()
    REFUSE = auto()
    WAIT = auto()


def decide(newcomer: Connection, current: Connection | None, *, own: int, own_dial: bool, overdue: bool) -> Admission:
    """Decide about a newcomer.

    `own_dial` says that one of our dials has reached the same peer, `overdue` that the newcomer was held back long
    enough.
    """
    dialed_by_peer = newcomer.dialer != own
    if current is None:
        contested = dialed_by_peer and own_dial
    elif newcomer.ticket < current.ticket:
        return Admission.REFUSE
    elif newcomer.boot != current.boot:
        return Admission.OPEN
    elif not dialed_by_peer:
        # We began to dial when there was no session, so this one has opened since and is no older than our dial.
        return Admission.REFUSE
    else:
        contested = current.dialer == own
    return Admission.WAIT if contested and not overdue else Admission.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Called with a neighbor and the number of its session, on the event loop."""

    on_open: Callable[[int, int], Any]
    on_message: Callable[[int, int, Message], Any]
    on_close: Callable[[int, int, str], Any]


@dataclass(slots=True)
class Dial:
    """A dial in progress. Moving the deadline of `scope` to now cancels it."""

    scope: asyncio.Timeout
    reached: bool = False
    """True if the peer has proven its identity."""


@dataclass(slots=True)
class NeighborPlace:
    """One neighbor's session, dial and limits."""

    sessions: TokenBucket
    """The limit on new sessions: one token for each that may open now."""
    link: PeerLink | None = None
    dial: Dial | None = None
    held_back: set[asyncio.Timeout] = field(default_factory=set)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    settled: bool = False
    """True if the last session lasted long enough to dial again at once."""
    rests_until: float = 0.0
    """When the rest ends, on the loop's clock."""
    paused_until: float = 0.0
    """When a pause of this node ends, on the loop's clock."""
    spared_until: float = 0.0
    """Until when the neighbor is hardly dialed, on the loop's clock; it may dial."""
    try_at: float = 0.0
    """When the neighbor is dialed next although it is spared, on the loop's clock."""
    churn_alarm_at: float = float("-inf")
    """When the last alarm about too many sessions was raised, on the loop's clock."""

    @property
    def rest_s(self) -> float:
        """Seconds until a session may open again."""
        return max(0.0, max(self.rests_until, self.paused_until) - asyncio.get_running_loop().time())

    @property
    def is_relayed(self) -> bool:
        """True if there is a session, and it goes through a relay."""
        return self.link is not None and self.link.connection.line.relay is not None

    async def vacancy(self) -> None:
        """Wait, without a deadline, until there is no session and a new one may be dialed."""
        clock = asyncio.get_running_loop().time
        while (
            self.link is not None or (wait_s := max(self.rest_s, min(self.spared_until, self.try_at) - clock())) > 0.0
        ):
            await (asyncio.sleep(min(wait_s, MOST_SLEEP_S)) if self.link is None else self.free.wait())

    def wake(self) -> None:
        for scope in self.held_back:
            expire(scope)


def expire(scope: asyncio.Timeout) -> None:
    if not scope.expired():
        scope.reschedule(asyncio.get_running_loop().time())


def _is_move(newcomer: Connection, current: Connection, own: int) -> bool:
    """Return True if the newcomer needs no relay for what now goes through one, or this end moves it to another one."""
    before, after = current.line.relay, newcomer.line.relay
    is_other = after is None or (after != before and newcomer.dialer == own)
    return newcomer.boot == current.boot and before is not None and is_other


@dataclass(kw_only=True, eq=False, repr=False)
class SessionTable:
    own: int
    neighbors: Iterable[int]
    boot: bytes
    callbacks: Callbacks
    shared: Shared
    spawn: Callable[[PeerLink], None]

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._closed = False
        self.places: dict[int, NeighborPlace] = {}
        self.amend(self.neighbors)

    def amend(self, neighbors: Iterable[int]) -> None:
        """Adopt new neighbors: sessions with all others end; sessions with these are not touched."""
        self.neighbors = sorted(neighbors)
        for peer in [peer for peer in self.places if peer not in self.neighbors]:
            self._remove(peer)
        rate, burst = self.shared.limits.sessions_per_s, self.shared.limits.session_burst
        for peer in self.neighbors:
            if peer not in self.places:
                place = self.places[peer] = NeighborPlace(TokenBucket(rate, tokens=burst, burst=burst))
                place.free.set()

    def _remove(self, peer: int) -> None:
        place = self.places[peer]
        if place.link is not None:
            place.link.end("no longer a neighbor")
        if place.dial is not None:
            expire(place.dial.scope)
        self.shared.parts.take(peer)
        del self.places[peer]
        place.wake()

    def send(self, peer: int, session: int, message: Message) -> None:
        """Queue a message. It is dropped silently if that session is no longer the open one."""
        link = self.find(peer, session)
        if link is not None:
            link.send(message)

    def find(self, peer: int, number: int) -> PeerLink | None:
        link = self.places[peer].link if peer in self.places else None
        return link if link is not None and link.number == number else None

    def current(self, peer: int) -> PeerLink | None:
        """Return the open session with that peer."""
        return self.places[peer].link if peer in self.places else None

    def rest(self, peer: int, rest_s: float) -> None:
        """Open no session with that peer for `rest_s` seconds."""
        if peer in self.places:
            self.places[peer].rests_until = asyncio.get_running_loop().time() + rest_s

    def pause(self, pause_s: float, reason: str) -> None:
        """End sessions for that reason, and open none for `pause_s`; 0 ends a pause."""
        for place in self.places.values():
            place.paused_until = asyncio.get_running_loop().time() + pause_s
            if pause_s and place.link is not None:
                place.link.end(reason)

    def spare(self, peer: int, rest_s: float) -> None:
        """Hardly dial that peer for `rest_s` seconds; 0 ends that."""
        if peer in self.places:
            now = asyncio.get_running_loop().time()
            self.places[peer].spared_until = now + rest_s
            self.places[peer].try_at = now + SPARED_TRY_S

    async def admit(self, candidate: Connection) -> PeerLink | None:
        """Return the session that the candidate becomes; None if another one, or none, is preferred."""
        place = self.places.get(candidate.peer)
        if place is None or place.rest_s:
            return None
        if self.own < candidate.peer:
            return await self._decide(candidate)
        return await self._follow(candidate)

    async def _decide(self, candidate: Connection) -> PeerLink | None:
        place = self.places[candidate.peer]
        deadline = asyncio.get_running_loop().time() + self.shared.limits.contest_s
        heard: PeerLink | None = None
        while True:
            overdue = asyncio.get_running_loop().time() >= deadline
            own_dial = place.dial is not None and place.dial.reached
            current = None if place.link is None else place.link.connection
            if self.places.get(candidate.peer) is not place:
                return None
            moves = current is not None and _is_move(candidate, current, self.own)
            verdict = decide(candidate, current, own=self.own, own_dial=own_dial, overdue=overdue)
            match Admission.OPEN if moves else verdict:
                case Admission.OPEN if place.link is not heard:
                    if (heard := place.link) is not None:
                        await heard.hear_out()
                case Admission.OPEN:
                    return self._open(candidate, None)
                case Admission.REFUSE:
                    await candidate.say(Notice(Word.DUPLICATE, self.boot))
                    return None
                case Admission.WAIT:
                    await self._hold_back(place, candidate, deadline)

    async def _hold_back(self, place: NeighborPlace, candidate: Connection, deadline: float) -> None:
        """Wait until something about the peer changes.

        Raises GoneError if the other end drops the candidate in the meantime.
        """
        scope = asyncio.timeout_at(deadline)
        place.held_back.add(scope)
        try:
            async with scope:
                await candidate.hear()
                raise PeerFault("spoke before it was admitted")
        except TimeoutError:
            return
        finally:
            place.held_back.discard(scope)

    async def _follow(self, candidate: Connection) -> PeerLink | None:
        verdict = await candidate.hear()
        if verdict.word is Word.DUPLICATE:
            return None
        if verdict.word is not Word.OPEN or verdict.boot != candidate.boot:
            raise PeerFault(f"{verdict.word.name} in place of a verdict")
        heard: PeerLink | None = None
        while (link := self.current(candidate.peer)) is not heard and link is not None:
            heard = link
            await link.hear_out()
        if link is not None and link.connection.boot == candidate.boot and link.remote_number > verdict.number:
            return None
        return self._open(candidate, verdict.number)

    def _open(self, candidate: Connection, remote_number: int | None) -> PeerLink | None:
        place = self.places.get(candidate.peer)
        if self._closed or place is None or place.rest_s or self._churns(candidate.peer, place):
            return None
        if place.link is not None:
            place.link.end("replaced by a newer session")
        number = next(self._numbers)
        link = PeerLink(
            candidate,
            self.shared,
            self,
            number=number,
            remote_number=number if remote_number is None else remote_number,
            opening=Notice(Word.OPEN, self.boot, number) if remote_number is None else None,
        )
        place.link = link
        place.free.clear()
        if place.dial is not None and link.connection.dialer != self.own:
            expire(place.dial.scope)
        place.wake()
        self.shared.counters.peers[link.peer].sessions += 1
        self.spawn(link)
        self.callbacks.on_open(link.peer, number)
        return link

    def _churns(self, peer: int, place: NeighborPlace) -> bool:
        """Count a new session; return True if it exceeds the limit, in which case there is none for a while.

        No honest neighbor exceeds it.
        """
        limits, now = self.shared.limits, asyncio.get_running_loop().time()
        if place.sessions.take(now) == 0.0:
            return False
        self.rest(peer, limits.churn_rest_s)
        if now - place.churn_alarm_at >= CHURN_ALARM_S:
            place.churn_alarm_at = now
            often = f"{limits.session_burst:g} sessions and then one every {1 / limits.sessions_per_s:g} s"
            self.shared.on_alarm(CHURN, peer, f"opens more than {often}: none for {limits.churn_rest_s:g} s")
        return True

    def deliver(self, link: PeerLink, message: Message) -> None:
        self.callbacks.on_message(link.peer, link.number, message)

    def ended(self, link: PeerLink, reason: str) -> None:
        place = self.places[link.peer]
        place.link = None
        place.free.set()
        place.settled = link.age_s >= self.shared.limits.settled_s
        place.wake()
        self.callbacks.on_close(link.peer, link.number, reason)

    async def drain(self, timeout_s: float) -> None:
        """Send the queued messages, as far as `timeout_s` allows."""
        links = [place.link for place in self.places.values() if place.link is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(link.drain() for link in links))

    def close(self, reason: str) -> None:
        """End every session and open no more."""
        self._closed = True
        for place in self.places.values():
            if place.link is not None:
                place.link.end(reason)
