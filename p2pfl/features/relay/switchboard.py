"""What a relay does with frames, without sockets or clocks: seats, lines between two seats, credits, and fair turns.

A seat is a registered member. A line joins two seats of one federation once both want it. Each end may send so many
bytes as the other has given credit for, so what the relay holds is bounded. What members send each other is opaque.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.features.relay.fair_queue import FairQueue
from p2pfl.features.relay.relay_frames import (
    MOST_LINES,
    PASSED_ON,
    WINDOW_BYTES,
    Closing,
    Frame,
    FrameKind,
    Refusal,
    closing_in,
    number_in,
    pack,
    pack_number,
)

OPENS_PER_S, OPENS_BURST = 4.0, 2.0 * MOST_LINES
"""The limit on lines that one member opens."""
HELD_BYTES = 128 << 20
"""The bytes held for one federation, above which nothing more is read from its members."""
PINGS_BURST = 8
"""The most small frames that wait for a member that does not read its connection, in multiples of its lines."""


EndSeat = Callable[[Refusal | None], None]


@dataclass(eq=False, slots=True)
class Tenant:
    """One federation at the relay: its registered members, and what it has used."""

    name: str
    seats: dict[bytes, Seat] = field(default_factory=dict)
    visitors: dict[bytes, Seat] = field(default_factory=dict)
    """Second seats of members, on which they only open lines."""
    lines: int = 0
    held_bytes: int = 0
    passed_bytes: int = 0
    """All bytes passed on since the relay started."""
    month_bytes: int = 0
    refused: int = 0
    """Lines that were not opened."""


@dataclass(eq=False, slots=True)
class Seat:
    """One registered member. `wake` is called when its outbox is no longer empty; `end` ends its connection."""

    tenant: Tenant
    key: bytes
    wake: Callable[[Seat], None]
    end: EndSeat
    outbox: deque[bytes] = field(default_factory=deque)
    ends: dict[int, LineEnd] = field(default_factory=dict)
    opens: TokenBucket = field(default_factory=lambda: TokenBucket(OPENS_PER_S, tokens=OPENS_BURST, burst=OPENS_BURST))
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(PASSED_ON))


@dataclass(eq=False, slots=True)
class LineEnd:
    """One end of a line: its number at its seat, and how much it may still send."""

    seat: Seat
    number: int
    other: LineEnd | None = None
    accepted: bool = False
    allowed_bytes: int = WINDOW_BYTES


class Switchboard:
    """All seats and lines. `month_bytes` bounds what is passed on for each federation in a month; None: no bound."""

    def __init__(self, *, month_bytes: int | None = None, most_members: int = 2000) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.most_members = most_members
        self._month_bytes = month_bytes
        self._month = 0
        self._queue: FairQueue[tuple[LineEnd, bytes]] = FairQueue()

    def tenant(self, name: str) -> Tenant:
        return self.tenants.setdefault(name, Tenant(name))

    def begin_month(self, month: int) -> None:
        """Forget what was passed on if this is another month than before."""
        if month != self._month:
            self._month = month
            for tenant in self.tenants.values():
                tenant.month_bytes = 0

    def seat(
        self, tenant: Tenant, key: bytes, wake: Callable[[Seat], None], end: EndSeat, *, visiting: bool = False
    ) -> Seat | None:
        """Register a member; None if there is no room. A member that is registered already loses its old seat; if
        `visiting`, only an old one of this kind.
        """
        seats = tenant.visitors if visiting else tenant.seats
        before = seats.get(key)
        if before is not None:
            self.leave(before, Refusal.REPLACED)
        if len(seats) >= self.most_members:
            return None
        found = seats[key] = Seat(tenant, key, wake, end)
        return found

    def leave(self, seat: Seat, why: Refusal | None = None) -> None:
        """End a seat, its lines and its connection; `why` is told to the member."""
        for seats in (seat.tenant.seats, seat.tenant.visitors):
            if seats.get(seat.key) is seat:
                del seats[seat.key]
        for end in list(seat.ends.values()):
            self._close(end, Closing.GONE)
        for frame in seat.outbox:
            seat.tenant.held_bytes -= len(frame)
        seat.outbox.clear()
        seat.end(why)

    def is_full(self, tenant: Tenant) -> bool:
        """Return True if nothing more may be read from the federation's members for now."""
        return tenant.held_bytes > HELD_BYTES

    def receive(self, seat: Seat, frame: Frame, now: float) -> None:
        """Act on a member's frame. Raises PeerFault if no member sends it; the caller then ends the connection."""
        match frame.kind:
            case FrameKind.DATA:
                self._pass_on(seat, frame)
            case FrameKind.CREDIT:
                self._credit(seat, frame)
            case FrameKind.OPEN:
                self._open(seat, frame, now)
            case FrameKind.ACCEPT:
                self._accept(seat, frame)
            case FrameKind.CLOSE:
                end = seat.ends.get(frame.line)
                if end is not None:
                    self._close(end, closing_in(frame))
            case FrameKind.PING:
                self._say(seat, pack_number(FrameKind.PONG, 0, number_in(frame)))
            case _:
                raise PeerFault(f"{frame.kind.name}, which only a relay says")

    @property
    def is_waiting(self) -> bool:
        """True if `deliver` has something to do."""
        return bool(self._queue)

    def deliver(self) -> int:
        """Put the next frame, in fair turns, into the outbox of its receiver; return its size, at least 1 byte."""
        taken = self._queue.take()
        if taken is None:
            return 0
        (end, frame), _ = taken
        end.seat.tenant.held_bytes -= len(frame)
        if end.seat.ends.get(end.number) is end:
            if frame[0] == FrameKind.CLOSE:
                self._forget(end)
            self._say(end.seat, frame)
        return len(frame)

    def take(self, seat: Seat) -> bytes | None:
        """Return the next frame for a member's connection; None if there is none."""
        if not seat.outbox:
            return None
        frame = seat.outbox.popleft()
        seat.tenant.held_bytes -= len(frame)
        return frame

    def _say(self, seat: Seat, frame: bytes) -> None:
        if len(seat.outbox) > PINGS_BURST * MOST_LINES:
            seat.end(None)
            return
        seat.outbox.append(frame)
        seat.tenant.held_bytes += len(frame)
        seat.wake(seat)

    def _open(self, seat: Seat, frame: Frame, now: float) -> None:
        tenant, number = seat.tenant, frame.line
        if number in seat.ends or not 0 < number < PASSED_ON:
            raise PeerFault(f"a line with the number {number}")
        reason = self._objection(seat, frame.payload, now)
        if reason is not None:
            tenant.refused += 1
            self._say(seat, pack_number(FrameKind.CLOSE, number, reason))
            return
        callee = tenant.seats[frame.payload]
        here, there = LineEnd(seat, number), LineEnd(callee, next(callee.numbers))
        here.other, there.other = there, here
        seat.ends[number], callee.ends[there.number] = here, there
        tenant.lines += 1
        self._say(callee, pack(FrameKind.OPEN, there.number, seat.key))

    def _objection(self, seat: Seat, key: bytes, now: float) -> Closing | None:
        if self._is_used_up(seat.tenant):
            return Closing.USED_UP
        if len(seat.ends) >= MOST_LINES or seat.opens.take(now) > 0.0:
            return Closing.TOO_MANY
        callee = seat.tenant.seats.get(key)
        if callee is None or callee is seat:
            return Closing.NOT_HERE
        return Closing.TOO_MANY if len(callee.ends) >= MOST_LINES else None

    def _accept(self, seat: Seat, frame: Frame) -> None:
        end = seat.ends.get(frame.line)
        if end is None or end.other is None:
            return  # the other end has closed it meanwhile
        if end.number < PASSED_ON or end.accepted:
            raise PeerFault("a line accepted by the end that opened it, or twice")
        end.accepted = end.other.accepted = True
        self._say(end.other.seat, pack(FrameKind.ACCEPT, end.other.number))

    def _pass_on(self, seat: Seat, frame: Frame) -> None:
        end, size = seat.ends.get(frame.line), len(frame.payload)
        if end is None or end.other is None:
            return
        if not end.accepted:
            raise PeerFault("data before the line was accepted")
        if size > end.allowed_bytes or self._is_used_up(seat.tenant):
            self._close(end, Closing.OVERRUN if size > end.allowed_bytes else Closing.USED_UP, both=True)
            return
        end.allowed_bytes -= size
        seat.tenant.passed_bytes += size
        seat.tenant.month_bytes += size
        self._enqueue(end.other, pack(FrameKind.DATA, end.other.number, frame.payload))

    def _credit(self, seat: Seat, frame: Frame) -> None:
        end, more = seat.ends.get(frame.line), number_in(frame)
        if end is None or end.other is None:
            return
        if end.other.allowed_bytes + more > WINDOW_BYTES:
            raise PeerFault("more credit than there were bytes")
        end.other.allowed_bytes += more
        self._say(end.other.seat, pack_number(FrameKind.CREDIT, end.other.number, more))

    def _close(self, end: LineEnd, reason: Closing, *, both: bool = False) -> None:
        """End a line: this end at once, the other one behind the data that are under way to it."""
        other = end.other
        self._forget(end)
        if both:
            self._say(end.seat, pack_number(FrameKind.CLOSE, end.number, reason))
        if other is not None:
            end.other = other.other = None
            end.seat.tenant.lines -= 1
            self._enqueue(other, pack_number(FrameKind.CLOSE, other.number, reason))

    def _enqueue(self, end: LineEnd, frame: bytes) -> None:
        end.seat.tenant.held_bytes += len(frame)
        self._queue.put(end.seat.tenant.name, (end, frame), len(frame))

    def _forget(self, end: LineEnd) -> None:
        if end.seat.ends.get(end.number) is end:
            del end.seat.ends[end.number]

    def _is_used_up(self, tenant: Tenant) -> bool:
        return self._month_bytes is not None and tenant.month_bytes >= self._month_bytes
