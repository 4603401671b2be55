"""The process that people run as `p2pfl relay`: it registers members, and moves frames between connection and
switchboard.

Until a member has registered, its connection is a stranger's, and costs at most what a stranger may cost a node
(`net.doorway`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from p2pfl.console.wall_clock import seconds_now
from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.features.relay.admissions import Admissions, ListedFederation, RefusedError
from p2pfl.features.relay.fair_queue import QUANTUM_BYTES
from p2pfl.features.relay.month_file import month_of
from p2pfl.features.relay.relay_frames import (
    SEEN_BYTES,
    SILENCE_S,
    VERSION,
    WINDOW_BYTES,
    Challenge,
    FrameKind,
    Refusal,
    Registration,
    pack_number,
    pack_struct,
    struct_in,
    unpack,
)
from p2pfl.features.relay.switchboard import TURN_BYTES, Seat, Switchboard
from p2pfl.net.doorway import ConnectionStage
from p2pfl.net.line import GoneError, Line
from p2pfl.net.refusals import Refusals
from p2pfl.net.transport import Visit

log = logging.getLogger("p2pfl.relay")

CLOSE_S = 1.0
DRAIN_S = 30.0
"""The longest wait for a member to read a frame."""
SWEEP_S = 10.0
BURST_S = 0.5
"""An idle relay passes on at once what the rate allows in this time."""
COMES_PER_S, COMES_BURST = 0.2, 30.0
"""The limit on registrations of one member: a refused one waits 30 s, and one whose line is cut up to 15 s."""
MOST_COMERS = 4096
"""The most members whose registrations are counted."""
TWO_NAMES = (
    "a member of %s has dialed this relay as %s, and by another name: if both are this relay, start it with --name for "
    "each; if not, another relay passes on what the member signs, and gains nothing by it"
)


@dataclass(eq=False, slots=True)
class _Guest:
    """The connection of one registered member."""

    line: Line
    federation: ListedFederation
    heard_at: float
    """When the last frame came, on the loop's clock."""
    until: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    why: Refusal | None = None
    writer: asyncio.Task[None] | None = None


class RelayServer:
    """Serves the members that `admissions` admits. `rate` bounds what is passed on, in bytes per second.

    `wall_clock` returns seconds since 1970: tickets and months depend on it, nothing else.
    """

    def __init__(
        self,
        admissions: Admissions,
        board: Switchboard,
        refusals: Refusals,
        *,
        rate: float | None = None,
        wall_clock: Callable[[], float] = seconds_now,
    ) -> None:
        self.board = board
        self.refused: Counter[str] = Counter()
        """Registrations that were refused, by reason."""
        self.faults = 0
        """Connections ended for what no member sends."""
        self._admissions, self._refusals, self._clock = admissions, refusals, wall_clock
        self._rate, self._free_at = rate, 0.0
        self._guests: dict[Seat, _Guest] = {}
        self._comes: dict[bytes, TokenBucket] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Who holds the lock of its federation is read next: members of one federation take turns."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._queued, self._room = asyncio.Event(), asyncio.Event()

    def meet(self, line: Line, visit: Visit) -> asyncio.Task[None] | None:
        """Serve a connection: what a transport's `open` is given."""
        return self._spawn(visit.work(self._serve(line, visit)))

    async def run(self) -> None:
        """Deliver frames, and end what is silent or has expired, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._deliver())
                tasks.create_task(self._sweep())
        finally:
            for task in self._tasks:
                task.cancel()

    def _spawn(self, work: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, line: Line, visit: Visit) -> None:
        try:
            async with asyncio.timeout_at(visit.ends_at):
                seat = await self._register(line, visit)
            if seat is not None:
                visit.admit()
                await self._host(seat)
        except TimeoutError:
            self._refusals.mention(None, "%s did not register in time", visit.address)
        except GoneError as gone:
            self._refusals.mention(None, "%s left: %s", visit.address, gone)
        except PeerFault as fault:
            self.faults += 1
            self._refusals.mention(None, "%s: %s", visit.address, fault, level=logging.INFO)
        finally:
            await line.close(CLOSE_S)

    async def _register(self, line: Line, visit: Visit) -> Seat | None:
        """Return the member's seat; None if it is refused, and told why."""
        now_s, nonce = self._clock(), os.urandom(32)
        challenge = Challenge(
            version=VERSION, nonce=nonce, clock_s=int(now_s), seen=line.seen_as[:SEEN_BYTES], takes_removals=True
        )
        await line.send(pack_struct(FrameKind.CHALLENGE, challenge))
        registration = struct_in(unpack(await line.receive()), FrameKind.REGISTER, Registration)
        visit.advance(ConnectionStage.ADDRESSED)
        try:
            seat = self._seat(registration, nonce, now_s, line)
        except RefusedError as refused:
            self.refused[refused.reason.name.lower()] += 1
            self._refusals.mention(None, "refused %s: %s", visit.address, refused.reason.name, level=logging.INFO)
            await line.send(pack_number(FrameKind.REFUSED, 0, refused.reason))
            return None
        try:
            visit.advance(ConnectionStage.PROVEN)
            await line.send(pack_number(FrameKind.WELCOME, 0, WINDOW_BYTES))
        except BaseException:
            self._leave(seat)
            raise
        return seat

    def _seat(self, registration: Registration, nonce: bytes, now_s: float, line: Line) -> Seat:
        admitted, now = self._admissions.admit(registration, nonce, now_s), asyncio.get_running_loop().time()
        if not self._may_come(registration.key, now):
            raise RefusedError(Refusal.TOO_OFTEN)
        guest = _Guest(line, admitted.federation, now, admitted.until)

        def end(why: Refusal | None) -> None:
            guest.why = guest.why or why
            guest.ended.set()

        tenant = self.board.tenant(admitted.federation.name)
        visiting, dialed = registration.visiting, admitted.dialed
        seat = self.board.seat(tenant, registration.key, self._wake, end, dialed=dialed, visiting=visiting)
        if seat is None:
            raise RefusedError(Refusal.FULL)
        self._guests[seat] = guest
        if any(key == seat.key and name != admitted.dialed for name, key in tenant.seats):
            self._refusals.mention(None, TWO_NAMES, tenant.name, admitted.dialed, level=logging.WARNING)
        return seat

    def _may_come(self, key: bytes, now: float) -> bool:
        """Count a registration of a member that has proven its key; return True if it registers rarely enough."""
        bucket = self._comes.pop(key, None) or TokenBucket(COMES_PER_S, tokens=COMES_BURST, burst=COMES_BURST)
        self._comes[key] = bucket
        if len(self._comes) > MOST_COMERS:
            del self._comes[next(iter(self._comes))]
        return bucket.take(now) == 0.0

    async def _host(self, seat: Seat) -> None:
        """Read a member's frames until its connection ends."""
        guest = self._guests[seat]
        reader = self._spawn(self._read(seat, guest))
        ended = self._spawn(_wait(guest.ended))
        try:
            await asyncio.wait((reader, ended), return_when=asyncio.FIRST_COMPLETED)
            if guest.why is not None:
                with suppress(GoneError, TimeoutError):
                    async with asyncio.timeout(CLOSE_S):
                        await guest.line.send(pack_number(FrameKind.REFUSED, 0, guest.why))
        finally:
            self._leave(seat)
            for task in (reader, ended, guest.writer):
                if task is not None:
                    task.cancel()
        if reader.done() and not reader.cancelled():
            reader.result()

    async def _read(self, seat: Seat, guest: _Guest) -> None:
        loop, taken = asyncio.get_running_loop(), 0
        while True:
            frame = unpack(await guest.line.receive())
            guest.heard_at = loop.time()
            if frame.kind is FrameKind.REMOVED:
                self._remove(seat, self._admissions.learn(guest.federation, frame.payload))
            else:
                self.board.receive(seat, frame, guest.heard_at)
            if self.board.is_waiting:
                self._queued.set()
            while self.board.is_full(seat):
                self._room.clear()
                await self._room.wait()
            taken += len(frame.payload) + TURN_BYTES
            if taken >= QUANTUM_BYTES:
                taken = 0
                async with self._turns[seat.tenant.name]:
                    await asyncio.sleep(0)

    def _remove(self, teller: Seat, keys: frozenset[bytes]) -> None:
        """End the seats of removed members."""
        for seats in (teller.tenant.seats, teller.tenant.visitors):
            for seat in [seat for seat in seats.values() if seat.key in keys]:
                self.board.leave(seat, Refusal.REMOVED)

    def _wake(self, seat: Seat) -> None:
        guest = self._guests.get(seat)
        if guest is not None and guest.writer is None:
            guest.writer = self._spawn(self._write(seat, guest))

    async def _write(self, seat: Seat, guest: _Guest) -> None:
        """Send what waits for a member; there is no such task while nothing does."""
        sent = 0
        try:
            while (frame := self.board.take(seat)) is not None:
                self._room.set()
                async with asyncio.timeout(DRAIN_S):
                    await guest.line.send(frame)
                sent += len(frame) + TURN_BYTES
                if sent >= QUANTUM_BYTES:
                    sent = 0
                    await asyncio.sleep(0)
        except (GoneError, TimeoutError):
            guest.ended.set()
        finally:
            guest.writer = None

    def _leave(self, seat: Seat) -> None:
        if self._guests.pop(seat, None) is not None:
            self.board.leave(seat)
            self._queued.set()
            self._room.set()

    async def _deliver(self) -> None:
        """Move frames to their receivers in fair turns."""
        loop, served = asyncio.get_running_loop(), 0
        while True:
            await self._queued.wait()
            while size := self.board.deliver():
                served += size + TURN_BYTES
                self._room.set()
                if (wait_s := self._busy_s(size, loop.time())) > 0.0:
                    await asyncio.sleep(wait_s)
                if served >= QUANTUM_BYTES:
                    served = 0
                    await asyncio.sleep(0)
            self._queued.clear()

    def _busy_s(self, size: int, now: float) -> float:
        """Return how long the next frame must wait after one of `size` bytes, at the rate that is allowed."""
        if self._rate is None:
            return 0.0
        self._free_at = max(self._free_at, now - BURST_S) + size / self._rate
        return self._free_at - now

    async def _sweep(self) -> None:
        while True:
            self.end_expired()
            self.board.relieve()
            await asyncio.sleep(SWEEP_S)

    def end_expired(self) -> None:
        """End members that are silent or whose tickets have expired, and begin a new month."""
        now, now_s = asyncio.get_running_loop().time(), self._clock()
        self.board.begin_month(month_of(now_s))
        for guest in self._guests.values():
            if now - guest.heard_at > SILENCE_S:
                guest.ended.set()
            elif now_s > guest.until:
                guest.why = Refusal.EXPIRED
                guest.ended.set()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
