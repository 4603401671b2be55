"""The notices that two ends exchange on an authenticated connection before it is a session: byte, name, number."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from p2pfl.crypto.session import Session
from p2pfl.errors import PeerFault
from p2pfl.net.line import Line

BOOT_BYTES = 16
LAYOUT = struct.Struct(f"<B{BOOT_BYTES}sQ")


class SealedFault(PeerFault):
    """A fault that the peer itself has sealed or signed."""


class NoEdgeFault(SealedFault):
    """The other end has no edge to this node; it may not know of a change of the graph yet."""


class LeftBehindFault(SealedFault):
    """The other end's newer charter does not list this node; `Charters.left_behind` was called already."""


class Word(IntEnum):
    GREETING = 1
    OPEN = 2
    DUPLICATE = 3
    """Another connection is the session."""
    NO_EDGE = 4
    """The sender's topology has no edge between the two."""
    STRANGER = 5
    """The sender does not list the other end."""
    CHARTER = 6
    """A charter of `number` bytes follows."""
    ASK = 7
    """The sender asks for a charter newer than its own, which is version `number`."""
    HELD = 8
    """The sender has this charter or a newer one: version `number`."""


@dataclass(frozen=True, slots=True)
class Notice:
    word: Word
    boot: bytes
    number: int = 0
    """The decider's session number with OPEN, the version of the sender's charter with GREETING and NO_EDGE."""

    def pack(self) -> bytes:
        return LAYOUT.pack(self.word, self.boot, self.number)


def unpack_notice(data: bytes) -> Notice:
    if len(data) != LAYOUT.size:
        raise SealedFault(f"a notice of {len(data)} bytes")
    word, boot, number = LAYOUT.unpack(data)
    try:
        return Notice(Word(word), boot, number)
    except ValueError:
        raise SealedFault(f"unknown notice {word}") from None


async def hear(line: Line, session: Session) -> Notice:
    data, final = session.open(await line.receive())
    if final:
        raise SealedFault("goodbye in place of a notice")
    return unpack_notice(bytes(data))
