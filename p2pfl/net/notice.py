"""The few sealed words that turn an authenticated connection into the one session of its two ends.

Both ends greet with the random name of their running process (`boot`). Then the end with the lower index, and it
alone, decides whether this connection becomes the session, and numbers its decisions: the other end follows the
highest number of one boot. So both always agree, whoever dialed and in whatever order the words arrive.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from p2pfl.errors import PeerFault

BOOT_BYTES = 16
LAYOUT = struct.Struct(f"<B{BOOT_BYTES}sQ")


class Word(IntEnum):
    GREETING = 1
    OPEN = 2
    DUPLICATE = 3
    """another connection is the session."""
    NO_EDGE = 4
    """the sender's topology joins no edge between the two."""


@dataclass(frozen=True, slots=True)
class Notice:
    word: Word
    boot: bytes
    number: int = 0
    """the decider's session number, with OPEN."""

    def pack(self) -> bytes:
        return LAYOUT.pack(self.word, self.boot, self.number)


def unpack(data: bytes) -> Notice:
    if len(data) != LAYOUT.size:
        raise PeerFault(f"a notice of {len(data)} bytes")
    word, boot, number = LAYOUT.unpack(data)
    try:
        return Notice(Word(word), boot, number)
    except ValueError:
        raise PeerFault(f"unknown notice {word}") from None
