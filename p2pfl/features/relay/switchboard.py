"""The work of a relay on frames, without sockets or clocks: seats, lines between two seats, credits, and fair turns.

A seat is a registered member. A line joins two seats of one federation once both want it. Each end may send so many
bytes as the other has given credit for, so what the relay holds for a line is bounded. What members send each other is
opaque.

Above `RELAY_HELD_BYTES` of one federation, only members of whom less than an equal share is held are still read. Above
twice that nobody is, and the member for which most waits is ended (`relieve`). So members that do not read what they
are sent cannot stop the others for long.

Each federation has the same share of what passes, however much the others send. Deficit round robin: Shreedhar and
Varghese, "Efficient fair queueing using deficit round robin", SIGCOMM 1995. A federation that has been idle gets its
turn after at most one quantum of each of the others.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.features.relay.frames import (
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
from p2pfl.limits import (
    MOST_PAIR_LINES,
    MOST_RELAY_LINES,
    MOST_SEATS,
    OPENS_BURST,
    OPENS_PER_S,
    PINGS_BURST,
    RELAY_HELD_BYTES,
)

QUANTUM_BYTES = 1 << 18
DATA = bytes([FrameKind.DATA])
FRAME_BYTES = 256
"""The memory of a frame beyond its content."""
TURN_BYTES = 1 << 14
"""The bytes that are passed on in the time that a small frame takes in addition to its bytes."""

EndSeat = Callable[[Refusal | None], None]
Place = tuple[str, bytes]
"""The relay's name as a member dialed it, and the member's key."""


@dataclass(eq=False, repr=False, slots=True)
class Tenant:
    """One federation at the relay: its registered members, and what is held for them."""

    name: str
    seats: dict[Place, Seat] = field(default_factory=dict)
    held_bytes: int = 0
    held_of: Counter[bytes] = field(default_factory=Counter)
    """The part of `held_bytes` that each member has caused, by its key."""


@dataclass(eq=False, repr=False, slots=True)
class Seat:
    """One registered member. `wake` is called when its outbox is no longer empty; `end` ends its connection."""

    tenant: Tenant
    place: Place
    wake: Callable[[Seat], None]
    end: EndSeat
    outbox: deque[_Parcel] = field(default_factory=deque)
    waiting_bytes: int = 0
    """The bytes held for this member, here and in the queue."""
    waiting_words: int = 0
    """The frames in the outbox that carry no data."""
    ends: dict[int, LineEnd] = field(default_factory=dict)
    opens: TokenBucket = field(default_factory=lambda: TokenBucket(OPENS_PER_S, tokens=OPENS_BURST, burst=OPENS_BURST))
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(PASSED_ON))

    @property
    def key(self) -> bytes:
        return self.place[1]

    def put(self, parcel: _Parcel) -> None:
        """Send a frame to this member; a member that does not read is ended."""
        if self.waiting_words > PINGS_BURST * MOST_RELAY_LINES:
            self.end(None)
            return
        self.outbox.append(parcel)
        self.waiting_words += not parcel.is_data
        self.hold(parcel)
        self.wake(self)

    def take(self) -> bytes | None:
        """Return the next frame for this member; None if there is none."""
        while self.outbox:
            parcel = self.outbox.popleft()
            self.release(parcel)
            self.waiting_words -= not parcel.is_data
            if (end := parcel.credit_of) is None:
                return parcel.frame
            more, end.credit_bytes = end.credit_bytes, 0
            if self.ends.get(end.number) is end:
                return pack_number(FrameKind.CREDIT, end.number, more)
        return None

    def hold(self, parcel: _Parcel) -> None:
        """Count a frame that waits for this member, here or in the queue."""
        self.waiting_bytes += parcel.size
        self.tenant.held_bytes += parcel.size
        self.tenant.held_of[parcel.sender] += parcel.size

    def release(self, parcel: _Parcel) -> None:
        self.waiting_bytes -= parcel.size
        self.tenant.held_bytes -= parcel.size
        self.tenant.held_of[parcel.sender] -= parcel.size
        if not self.tenant.held_of[parcel.sender]:
            del self.tenant.held_of[parcel.sender]


@dataclass(eq=False, repr=False, slots=True)
class LineEnd:
    """One end of a line: its number at its seat, and how much it may still send."""

    seat: Seat
    number: int
    other: LineEnd | None = None
    accepted: bool = False
    allowed_bytes: int = WINDOW_BYTES
    credit_bytes: int = 0
    """Credit that waits in the outbox: one frame tells of all."""

    def forget(self) -> None:
        """Let go of the number; frames for it are left out from now on."""
        if self.seat.ends.get(self.number) is self:
            del self.seat.ends[self.number]


@dataclass(slots=True)
class _Parcel:
    """A frame on its way. `sender` is the key of the member that caused it; with `credit_of`, it is made at the end."""

    frame: bytes
    sender: bytes
    credit_of: LineEnd | None = None

    @property
    def size(self) -> int:
        return len(self.frame) + FRAME_BYTES

    @property
    def is_data(self) -> bool:
        return self.frame[:1] == DATA


@dataclass(slots=True)
class _Turn:
    items: deque[tuple[LineEnd, _Parcel]] = field(default_factory=deque)
    deficit_bytes: int = 0
    begun: bool = False
    """True if the current turn has added its quantum."""


class FairQueue:
    """Frames with the ends to which they go, first in first out for each federation."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}
        """Federations with something in the queue; the first one's turn it is."""

    def __bool__(self) -> bool:
        return bool(self._turns)

    def put(self, owner: str, end: LineEnd, parcel: _Parcel) -> None:
        self._turns.setdefault(owner, _Turn()).items.append((end, parcel))

    def take(self) -> tuple[LineEnd, _Parcel] | None:
        """Return the next frame; None if there is none."""
        while self._turns:
            owner, turn = next(iter(self._turns.items()))
            if not turn.begun:
                turn.begun = True
                turn.deficit_bytes += QUANTUM_BYTES
            size_bytes = len(turn.items[0][1].frame) + TURN_BYTES
            if size_bytes > turn.deficit_bytes:
                turn.begun = False
                self._turns[owner] = self._turns.pop(owner)
                continue
            turn.deficit_bytes -= size_bytes
            frame = turn.items.popleft()
            if not turn.items:
                del self._turns[owner]
            return frame
        return None


class Switchboard:
    """All seats and lines."""

    def __init__(self, *, most_members: int = 2000) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.most_members = most_members
        self._queue = FairQueue()

    def tenant(self, name: str) -> Tenant:
        return self.tenants.setdefault(name, Tenant(name))

    def seat(
        self, tenant: Tenant, key: bytes, wake: Callable[[Seat], None], end: EndSeat, *, dialed: str = ""
    ) -> Seat | None:
        """Register a member; None if there is no room, or it has too many names. The old seat of that name ends.

        Members meet only those that have dialed the relay by the same name: whoever passes on what members sign for
        another relay gains nothing here, and takes nobody's seat.
        """
        place = (dialed, key)
        before = tenant.seats.get(place)
        if before is not None:
            self.leave(before, Refusal.REPLACED)
        names = sum(seat.key == key for seat in tenant.seats.values())
        if len(tenant.seats) >= self.most_members or names >= MOST_SEATS:
            return None
        made = tenant.seats[place] = Seat(tenant, place, wake, end)
        return made

    def leave(self, seat: Seat, why: Refusal | None = None) -> None:
        """End a seat, its lines and its connection; `why` is told to the member."""
        if seat.tenant.seats.get(seat.place) is seat:
            del seat.tenant.seats[seat.place]
        for end in list(seat.ends.values()):
            self._close(end, Closing.GONE)
        while seat.take() is not None:
            pass
        seat.end(why)

    def is_full(self, seat: Seat) -> bool:
        """Return True if nothing more may be read from a member for now."""
        tenant = seat.tenant
        share = RELAY_HELD_BYTES / max(1, len(tenant.seats))
        return tenant.held_bytes > (RELAY_HELD_BYTES if tenant.held_of[seat.key] > share else 2 * RELAY_HELD_BYTES)

    def relieve(self) -> None:
        """End the member for which most waits, in each federation for which too much is held."""
        for tenant in self.tenants.values():
            if tenant.held_bytes > 2 * RELAY_HELD_BYTES and tenant.seats:
                self.leave(max(tenant.seats.values(), key=lambda seat: seat.waiting_bytes))

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
                self._say(seat, pack_number(FrameKind.PONG, 0, number_in(frame)), seat)
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
        end, parcel = taken
        end.seat.release(parcel)
        if end.seat.ends.get(end.number) is end:
            if not parcel.is_data:
                end.forget()
            end.seat.put(parcel)
        return len(parcel.frame)

    def _say(self, seat: Seat, frame: bytes, by: Seat, credit_of: LineEnd | None = None) -> None:
        seat.put(_Parcel(frame, by.key, credit_of))

    def _open(self, seat: Seat, frame: Frame, now: float) -> None:
        tenant, number = seat.tenant, frame.line
        if number in seat.ends or not 0 < number < PASSED_ON:
            raise PeerFault(f"a line with the number {number}")
        reason = self._objection(seat, frame.payload, now)
        if reason is not None:
            self._say(seat, pack_number(FrameKind.CLOSE, number, reason), seat)
            return
        callee = tenant.seats[seat.place[0], frame.payload]
        here, there = LineEnd(seat, number), LineEnd(callee, next(callee.numbers))
        here.other, there.other = there, here
        seat.ends[number], callee.ends[there.number] = here, there
        self._say(callee, pack(FrameKind.OPEN, there.number, seat.key), seat)

    def _objection(self, seat: Seat, key: bytes, now: float) -> Closing | None:
        if len(seat.ends) >= MOST_RELAY_LINES or seat.opens.take(now) > 0.0:
            return Closing.TOO_MANY
        callee = seat.tenant.seats.get((seat.place[0], key))
        if callee is None or callee is seat:
            return Closing.NOT_HERE
        between = sum(1 for end in seat.ends.values() if end.other is not None and end.other.seat is callee)
        return Closing.TOO_MANY if len(callee.ends) >= MOST_RELAY_LINES or between >= MOST_PAIR_LINES else None

    def _accept(self, seat: Seat, frame: Frame) -> None:
        end = seat.ends.get(frame.line)
        if end is None or end.other is None:
            return  # the other end has closed it meanwhile
        if end.number < PASSED_ON or end.accepted:
            raise PeerFault("a line accepted by the end that opened it, or twice")
        end.accepted = end.other.accepted = True
        self._say(end.other.seat, pack(FrameKind.ACCEPT, end.other.number), seat)

    def _pass_on(self, seat: Seat, frame: Frame) -> None:
        end, size = seat.ends.get(frame.line), len(frame.payload)
        if end is None or end.other is None:
            return
        if not end.accepted:
            raise PeerFault("data before the line was accepted")
        if size > end.allowed_bytes:
            self._close(end, Closing.OVERRUN, both=True)
            return
        end.allowed_bytes -= size
        self._enqueue(end.other, pack(FrameKind.DATA, end.other.number, frame.payload), seat)

    def _credit(self, seat: Seat, frame: Frame) -> None:
        end, more = seat.ends.get(frame.line), number_in(frame)
        if end is None or end.other is None:
            return
        if not 0 < more <= WINDOW_BYTES - end.other.allowed_bytes:
            raise PeerFault("no credit, or more than there were bytes")
        end.other.allowed_bytes += more
        end.other.credit_bytes += more
        if end.other.credit_bytes == more:
            self._say(end.other.seat, b"", seat, credit_of=end.other)

    def _close(self, end: LineEnd, reason: Closing, *, both: bool = False) -> None:
        """End a line: this end at once, the other one behind the data that are under way to it."""
        other = end.other
        end.forget()
        if both:
            self._say(end.seat, pack_number(FrameKind.CLOSE, end.number, reason), end.seat)
        if other is not None:
            end.other = other.other = None
            self._enqueue(other, pack_number(FrameKind.CLOSE, other.number, reason), end.seat)

    def _enqueue(self, end: LineEnd, frame: bytes, by: Seat) -> None:
        parcel = _Parcel(frame, by.key)
        self._queue.put(end.seat.tenant.name, end, parcel)
        end.seat.hold(parcel)
