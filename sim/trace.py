"""The trace of a run's events as a hash: two runs with the same digest had the same events at the same nanoseconds.

An entry is 25 bytes, little-endian: time_ns 8 | kind 1 | a 4 | b 4 | n 8. The kinds are numbered below. A number is
never reused for another kind, so digests of different versions may differ but never agree by mistake. No floats enter,
so the digest is the same on any machine.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from enum import IntEnum, unique
from operator import attrgetter
from typing import Any

from p2pfl.core import messages

LAYOUT = struct.Struct("<qBiiq")
BLOCK_ENTRIES = 4096


@unique
class TraceKind(IntEnum):
    """The kind of an entry. `a` is the node, or the sender of a message; unused fields are 0.

    The code of the message is added to the last four.
    """

    SESSION_OPENED = 1
    """A session opens. `a`, `b`: its ends, lower first; `n`: its number."""
    SESSION_CUT = 2
    """A session ends. `a`, `b`: its ends, lower first; `n`: its number."""
    SEPARATED = 3
    """A partition begins. `n`: the number of partitions that exist now."""
    REJOINED = 4
    """A partition ends. `n`: the number of partitions that exist now."""
    STARTED = 8
    """The node starts. `n`: the number of the life that begins."""
    CRASHED = 9
    FORGOT = 10
    """The node's disk is lost."""
    ROUND_BEGUN = 11
    """A local round begins. `n`: the round."""
    ROUND_TRAINED = 12
    """A local round has trained. `n`: its steps."""
    ROUND_COMMITTED = 13
    """A local round is committed. `n`: the node's version."""
    FROZEN = 14
    """An exchange is frozen. `b`: the neighbor; `n`: the sequence number; the next three have the same fields."""
    REQUEST_APPLIED = 15
    REPLY_APPLIED = 16
    REFUSED = 17
    EDGE_RESET = 18
    """The node resets an edge. `b`: the neighbor; `n`: the incarnation."""
    BOOTSTRAPPED = 19
    """The node starts from the median of its neighbors. `n`: the number of these neighbors."""
    ALARM = 20
    """The node raises an alarm. `b`: the neighbor it is about, or -1."""
    FINISHED = 21
    """The node has finished. `n`: its rounds."""
    # 22 stays unused: an observer is not an event.
    MIXED = 23
    """The robust rule mixes. `n`: the number of neighbors."""
    LIFE_NOTED = 24
    """The node learns of a neighbor's new life. `n`: its generation."""
    EDGES_CHANGED = 25
    """A change of the graph takes effect; `n`: how many edges the node has now."""
    SENT = 32
    """A message is sent. `b`: the receiver; `n`: the bytes counted."""
    LOST = 64
    """A message is lost. `b`: the receiver; `n`: the message's own number; the next two have the same fields."""
    DUPLICATED = 96
    DELIVERED = 128


MESSAGE_CODES: dict[type[messages.Message], int] = {
    messages.Hello: 1,
    messages.Request: 2,
    messages.Reply: 3,
    messages.Ready: 4,
    messages.Resync: 5,
    messages.Ask: 6,
    messages.Busy: 7,
    messages.Done: 8,
    messages.LivesTold: 9,
    messages.Resign: 10,
}
_NUMBERS: dict[type[messages.Message], Callable[[Any], int]] = dict.fromkeys(MESSAGE_CODES, attrgetter("seq")) | {
    messages.Resync: attrgetter("incarnation"),
    messages.Ready: attrgetter("version"),
    messages.Done: attrgetter("version"),
    messages.LivesTold: lambda message: len(message.lives),
    messages.Resign: attrgetter("process"),
}


def message_number(message: messages.Message) -> int:
    """Return the sequence number, or if there is none the incarnation, the version or a count."""
    return _NUMBERS[type(message)](message)


class Trace:
    """Hashes entries in blocks."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=32, person=b"p2pfl-trace")
        self._pack = LAYOUT.pack
        self._block: list[bytes] = []
        self._hashed = 0

    @property
    def entries(self) -> int:
        return self._hashed + len(self._block)

    def add(self, time_ns: int, kind: int, a: int, b: int, n: int) -> None:
        block = self._block
        block.append(self._pack(time_ns, kind, a, b, n))
        if len(block) >= BLOCK_ENTRIES:
            self._turn()

    def _turn(self) -> None:
        self._hash.update(b"".join(self._block))
        self._hashed += len(self._block)
        self._block = []

    @property
    def digest(self) -> str:
        """Return the digest of everything added so far, in hexadecimal; more may be added afterwards."""
        state = self._hash.copy()
        state.update(b"".join(self._block))
        return state.hexdigest()
