"""The side channel of the sums, and the flow of its messages: with credit, and what is too large for one in pieces.

A sender may be `WINDOW` units ahead of what the receiver has taken; a piece counts as several units, and what is more
waits here, where the same statement never waits twice. Without that, neighbors that are slow to hear each other would
send all they have again and again. Small messages go between the pieces. The receiver makes room only for a large
message of the size of its own sum; it takes the pieces of any other one and drops them, for that is a message lost,
which the protocol bears.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from p2pfl.errors import PeerFault
from p2pfl.features.sums.masks import WORD_BYTES
from p2pfl.features.sums.sum_messages import (
    MOST_MEMBERS,
    BranchPart,
    Count,
    Have,
    Message,
    Poll,
    Post,
    Told,
    Total,
    Want,
    Working,
)
from p2pfl.foreign import UNREADABLE
from p2pfl.net.side import SideChannel
from p2pfl.wire.side import MOST_SIDE_BYTES

PIECE_BYTES = 48 * 1024
WINDOW, PIECE_UNITS = 64, 8
"""The units on their way to one neighbor, and those of a piece; any other message is one."""
MOST_QUEUED, MOST_SMALL_BYTES = 4, 2**22
"""The large messages that wait for one neighbor, of which the oldest is dropped, and the bytes of the small ones."""
HEAD_BYTES = MOST_MEMBERS // 8 + 64
"""The most that a large message has beside its vector."""
MOST_LARGE_BYTES = 2**23 + HEAD_BYTES

Large: TypeAlias = BranchPart | Total


class Piece(Told, frozen=True, kw_only=True, tag=30):
    """A piece of a large message of `size` bytes: those from `offset` on."""

    size: Annotated[int, Meta(ge=1, le=MOST_LARGE_BYTES)]
    offset: Count
    part: Annotated[bytes, Meta(min_length=1, max_length=PIECE_BYTES)]


class Credit(Told, frozen=True, kw_only=True, tag=31):
    """The sender has taken so many units since the session began."""

    taken: Count


class Farewell(Told, frozen=True, kw_only=True, tag=32):
    """The sender has all that it came for: its neighbors may leave."""


CHANNEL = SideChannel(
    "sums",
    Post,
    Have,
    Poll,
    Working,
    BranchPart,
    Total,
    Want,
    Piece,
    Credit,
    Farewell,
    most_bytes=MOST_SIDE_BYTES,
    per_s=4000.0,
    at_once=20_000.0,
    most_waiting=2 * WINDOW,
)
Carried: TypeAlias = Message | Piece | Credit | Farewell
SendMessage = Callable[[int, SideChannel, Carried], bool]
_encode = msgspec.msgpack.Encoder().encode
_decode_large: Callable[[bytearray], Large] = msgspec.msgpack.Decoder(BranchPart | Total).decode


def is_large(message: Message) -> bool:
    return isinstance(message, BranchPart | Total) and len(message.vector) > PIECE_BYTES


class Outgoing:
    """All that goes to one neighbor. `say` returns False once the session is over."""

    def __init__(self, say: Callable[[Carried], bool]) -> None:
        self._say = say
        self._small: dict[Message, int] = {}
        """The small messages that wait, in order, with their bytes."""
        self._small_bytes = 0
        self._large: deque[Large] = deque()
        self._body, self._offset = b"", 0
        self._flight: deque[tuple[int, Message | None]] = deque()
        """The count of units at the end of each message on its way; a piece is None."""
        self._sent = self._taken = 0

    def put(self, message: Message) -> None:
        """Queue a message, unless it waits already or is on its way. What finds no room is dropped."""
        if isinstance(message, Large) and is_large(message):
            if message not in self._large:
                self._large.append(message)
            if len(self._large) > MOST_QUEUED:
                del self._large[1 if self._body else 0]
        elif message not in self._small and not any(message == other for _, other in self._flight):
            size = _bytes_of(message)
            if self._small_bytes + size <= MOST_SMALL_BYTES:
                self._small[message] = size
                self._small_bytes += size
        self.push()

    def credit(self, credit: Credit) -> None:
        """Raises PeerFault: more units than were sent, or fewer than before."""
        if not self._taken <= credit.taken <= self._sent:
            raise PeerFault(f"credit for {credit.taken} units; {self._sent} were sent")
        self._taken = credit.taken
        while self._flight and self._flight[0][0] <= self._taken:
            self._flight.popleft()
        self.push()

    def push(self) -> None:
        """Send what may be on its way, the small messages first."""
        while self._small and self._has_room(1):
            message = next(iter(self._small))
            if not self._say(message):
                return
            self._small_bytes -= self._small.pop(message)
            self._count(1, message)
        while self._large and self._has_room(PIECE_UNITS):
            self._body = self._body or _encode(self._large[0])
            part = self._body[self._offset : self._offset + PIECE_BYTES]
            if not self._say(Piece(size=len(self._body), offset=self._offset, part=part)):
                return
            self._count(PIECE_UNITS, None)
            self._offset += len(part)
            if self._offset == len(self._body):
                self._large.popleft()
                self._body, self._offset = b"", 0

    def _has_room(self, units: int) -> bool:
        return self._sent + units - self._taken <= WINDOW

    def _count(self, units: int, message: Message | None) -> None:
        self._sent += units
        self._flight.append((self._sent, message))


def _bytes_of(message: Message) -> int:
    """About the bytes that a small message takes."""
    match message:
        case Post():
            return 200 + len(message.body)
        case Poll():
            return 200 + len(message.wave.body)
        case Have():
            return 200 + len(message.ids)
        case BranchPart() | Total():
            return 200 + len(message.vector)
    return 200


class Incoming:
    """What comes from one neighbor, and the large message in it."""

    def __init__(self) -> None:
        self._size = self._came = self._taken = self._credited = 0
        self._is_due = False
        self._body: bytearray | None = None

    def take(self, piece: Piece, entries: int | None) -> Large | None:
        """Returns a message at its last piece. `entries` are those of the own sum; None: there is none.

        Raises PeerFault: the piece does not follow the one before it, or makes no message.
        """
        if (piece.offset, piece.size) != (self._came, self._size if self._came else piece.size):
            raise PeerFault("a piece without those before it")
        if piece.offset + len(piece.part) > piece.size:
            raise PeerFault("a piece beyond its message's end")
        if not self._came:
            fits = entries is not None and 0 <= piece.size - entries * WORD_BYTES <= HEAD_BYTES
            self._size, self._body = piece.size, bytearray() if fits else None
        self._came += len(piece.part)
        if self._body is not None:
            self._body += piece.part
        return self._whole() if self._came == self._size else None

    def _whole(self) -> Large | None:
        body, self._body, self._came = self._body, None, 0
        if body is None:
            return None
        try:
            return _decode_large(body)
        except UNREADABLE as error:
            raise PeerFault(f"pieces that make no message: {error}") from error

    def count(self, message: Message | Piece) -> bool:
        """Count a message; return True if it is time to give credit for it and those before it: once, until it is
        given.

        Raises PeerFault: there was no credit for it.
        """
        self._taken += PIECE_UNITS if isinstance(message, Piece) else 1
        if self._taken - self._credited > WINDOW:
            raise PeerFault("a message of the sums for which there was no credit")
        was_due, self._is_due = self._is_due, self._taken - self._credited >= WINDOW // 4
        return self._is_due and not was_due

    def credit(self) -> Credit:
        self._credited, self._is_due = self._taken, False
        return Credit(taken=self._taken)
