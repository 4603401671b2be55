"""The side channel of the sums, and how what is too large for it travels on it: in pieces, with credit.

A neighbor may send `AHEAD` pieces more than it has credit for, so that little waits at either end and small messages
go between the pieces. It sends one large message after the other. The receiver makes room only for one of the size of
its own sum; it takes the pieces of any other one and drops them, for that is a message lost, which the protocol bears.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from p2pfl.errors import PeerFault
from p2pfl.features.sums.masks import WORD_BYTES
from p2pfl.features.sums.messages import (
    MOST_MEMBERS,
    Count,
    Have,
    Message,
    Part,
    Poll,
    Post,
    Told,
    Total,
    Want,
    Working,
)
from p2pfl.net.side import SideChannel
from p2pfl.wire.side import MOST_SIDE_BYTES

PIECE_BYTES = 48 * 1024
AHEAD = 8
"""The pieces on their way to one neighbor."""
MOST_QUEUED = 4
"""The large messages that wait for one neighbor; the oldest is dropped."""
HEAD_BYTES = MOST_MEMBERS // 8 + 64
"""The most that a large message has beside its vector."""
MOST_LARGE_BYTES = 2**23 + HEAD_BYTES

Large: TypeAlias = Part | Total


class Piece(Told, frozen=True, kw_only=True, tag=30):
    """A piece of a large message of `size` bytes: those from `offset` on."""

    size: Annotated[int, Meta(ge=1, le=MOST_LARGE_BYTES)]
    offset: Count
    part: Annotated[bytes, Meta(min_length=1, max_length=PIECE_BYTES)]


class Credit(Told, frozen=True, kw_only=True, tag=31):
    """The sender has taken so many pieces since the session began."""

    taken: Count


CHANNEL = SideChannel(
    "sums",
    Post,
    Have,
    Poll,
    Working,
    Part,
    Total,
    Want,
    Piece,
    Credit,
    most_bytes=MOST_SIDE_BYTES,
    per_s=4000.0,
    at_once=20_000.0,
    most_waiting=1024,
)
Carried: TypeAlias = Message | Piece | Credit
Say = Callable[[int, SideChannel, Carried], bool]
_encode = msgspec.msgpack.Encoder().encode
_decode_large: Callable[[bytearray], Large] = msgspec.msgpack.Decoder(Part | Total).decode


def is_large(message: Message) -> bool:
    return isinstance(message, Part | Total) and len(message.vector) > PIECE_BYTES


class Outgoing:
    """Large messages to one neighbor, in pieces. `say` returns False where too much waits."""

    def __init__(self, say: Callable[[Carried], bool]) -> None:
        self._say = say
        self._queue: deque[Large] = deque()
        self._body = b""
        self._offset = self._sent = self._taken = 0

    def put(self, message: Large) -> None:
        """Queue a message, unless it waits already or is on its way."""
        if message not in self._queue:
            self._queue.append(message)
            if len(self._queue) > MOST_QUEUED:
                del self._queue[1 if self._body else 0]
        self.push()

    def credit(self, credit: Credit) -> None:
        """Raises PeerFault: more pieces than were sent, or fewer than before."""
        if not self._taken <= credit.taken <= self._sent:
            raise PeerFault(f"credit for {credit.taken} pieces; {self._sent} were sent")
        self._taken = credit.taken
        self.push()

    def push(self) -> None:
        """Send as many pieces as may be on their way."""
        while self._queue and self._sent - self._taken < AHEAD:
            self._body = self._body or _encode(self._queue[0])
            part = self._body[self._offset : self._offset + PIECE_BYTES]
            if not self._say(Piece(size=len(self._body), offset=self._offset, part=part)):
                return
            self._sent += 1
            self._offset += len(part)
            if self._offset == len(self._body):
                self._queue.popleft()
                self._body, self._offset = b"", 0


class Incoming:
    """The large message that comes from one neighbor."""

    def __init__(self) -> None:
        self._size = self._came = self._taken = self._said = 0
        self._body: bytearray | None = None

    def take(self, piece: Piece, entries: int | None) -> Large | None:
        """Returns a message at its last piece. `entries` are those of the own sum; None: there is none.

        Raises PeerFault: the piece has no credit, does not follow the one before it, or makes no message.
        """
        if self._taken - self._said >= AHEAD:
            raise PeerFault("a piece without credit")
        if (piece.offset, piece.size) != (self._came, self._size if self._came else piece.size):
            raise PeerFault("a piece without those before it")
        if piece.offset + len(piece.part) > piece.size:
            raise PeerFault("a piece beyond its message's end")
        if not self._came:
            fits = entries is not None and 0 <= piece.size - entries * WORD_BYTES <= HEAD_BYTES
            self._size, self._body = piece.size, bytearray() if fits else None
        self._taken += 1
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
        except msgspec.MsgspecError as error:
            raise PeerFault(f"pieces that make no message: {error}") from error

    def due(self) -> Credit | None:
        """The credit to give now: after each second piece, and at the end of a message."""
        if self._taken - self._said >= AHEAD // 4 or (self._taken > self._said and not self._came):
            return Credit(taken=self._taken)
        return None

    def said(self, credit: Credit) -> None:
        self._said = credit.taken
