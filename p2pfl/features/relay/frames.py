"""The frames between a member and a relay: one kind, one line, and a payload. The relay looks no further.

A line has a number at each of its two ends, chosen by the end that opens it: a member numbers the lines that it opens
from 1, a relay those that it passes on from `PASSED_ON`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Meta, Struct

from p2pfl.crypto.session import MAX_SEALED_BYTES
from p2pfl.errors import PeerFault
from p2pfl.foreign import UNREADABLE
from p2pfl.limits import RELAY_SMALL_BYTES, REMOVED_BYTES
from p2pfl.net.address import Address

VERSION = 1
"""The version of this protocol; a relay refuses others by name."""
HEAD = struct.Struct("<BI")
PASSED_ON = 1 << 31
"""The first number of lines that a relay opens."""
WINDOW_BYTES = 3 * MAX_SEALED_BYTES
"""The bytes of a line that may be under way to its other end: a sender waits for more credit beyond that."""
BEAT_S = 20.0
"""The time between two pings of a member."""
SEEN_BYTES = 64
"""The longest text of an address without its port."""

T = TypeVar("T", bound=Struct)
_Key = Annotated[bytes, Meta(min_length=32, max_length=32)]


class FrameKind(IntEnum):
    CHALLENGE = 1
    REGISTER = 2
    WELCOME = 3
    REFUSED = 4
    """The payload is a `Refusal`."""
    OPEN = 5
    """To the relay: open a line to the member with this key. From it: the member with this key opens one."""
    ACCEPT = 6
    DATA = 7
    CREDIT = 8
    """The payload is the number of bytes that the other end may send in addition."""
    CLOSE = 9
    """The payload is a `Closing`."""
    PING = 10
    PONG = 11
    """The payload is that of the ping."""
    REMOVED = 12
    """The payload is the head of credentials, which names removed members."""


class _Reason(IntEnum):
    """A number on the wire, and `text` for people."""

    text: str

    def __new__(cls, number: int, text: str = "") -> Self:
        reason = int.__new__(cls, number)
        reason._value_, reason.text = number, text
        return reason


class Refusal(_Reason):
    """Reasons for which a relay does not register a member."""

    VERSION = 1, "it speaks another version of the relay's protocol: install the same p2pfl on both"
    UNLISTED = 2, "it does not list this federation: start it with --federation or --token for it"
    NO_TICKET = 3, "it wants a ticket: `p2pfl member hand` makes tickets.toml, beside federation.toml"
    EXPIRED = 4, "the ticket has expired: `p2pfl member hand` makes new ones"
    FORGED = 5, "ticket or token do not fit this key: `p2pfl member hand` makes new tickets"
    ANOTHER_NAME = 6, "it does not call itself by the name in [network] relays: correct that, or its --name"
    """From relays of earlier versions."""
    FULL = 7, "it has as many members as it may"
    REPLACED = 8, "another process registered with this node's key: stop one of them"
    REMOVED = 9, "this member was removed: an admin has signed it"
    TOO_OFTEN = (
        10,
        "this node registers again and again: is its line to the relay cut, or do two copies of it run?",
    )


class Closing(_Reason):
    """Reasons for which a line ends or does not open."""

    DONE = 1, "closed by the peer"
    NOT_HERE = 2, "it is not registered there"
    NOT_WANTED = 3, "it does not take this line"
    GONE = 4, "its connection to the relay was lost"
    TOO_MANY = 5, "the relay passes on no more lines for now"
    OVERRUN = 6, "more was sent than the other end allows"


class Challenge(Struct, array_like=True, frozen=True):
    """The first message of a relay. `clock_s` is its clock, in seconds since 1970."""

    version: int
    nonce: Annotated[bytes, Meta(min_length=32, max_length=32)]
    clock_s: Annotated[int, Meta(ge=0, lt=2**37)]
    seen: Annotated[str, Meta(max_length=SEEN_BYTES)] = ""
    """The address from which a relay of earlier versions sees the one that it asks; nobody needs it any more."""
    takes_removals: bool = False
    """True if members may show it credentials, so that it refuses removed members."""


class Registration(Struct, array_like=True, frozen=True):
    """A member's answer: who it is, that it holds the key, and why the relay should serve it."""

    version: int
    relay: Annotated[str, Meta(max_length=300)]
    """The name of the relay as the member dialed it, without scheme."""
    key: _Key
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]
    ticket: Annotated[bytes, Meta(max_length=400)] = b""
    token_id: Annotated[bytes, Meta(max_length=8)] = b""
    token_proof: Annotated[bytes, Meta(max_length=32)] = b""


class Frame(NamedTuple):
    kind: FrameKind
    line: int
    payload: bytes


def pack(kind: FrameKind, line: int = 0, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, line) + payload


def pack_number(kind: FrameKind, line: int, number: int) -> bytes:
    return pack(kind, line, number.to_bytes(8, "little"))


def pack_struct(kind: FrameKind, content: Struct) -> bytes:
    return pack(kind, 0, msgspec.msgpack.encode(content))


def unpack(raw: bytes) -> Frame:
    """Raises PeerFault if it is no frame."""
    if len(raw) < HEAD.size:
        raise PeerFault(f"a frame of {len(raw)} bytes")
    code, line = HEAD.unpack_from(raw)
    try:
        kind = FrameKind(code)
    except ValueError:
        raise PeerFault(f"a frame of the unknown kind {code}") from None
    if kind is not FrameKind.DATA and len(raw) > (REMOVED_BYTES if kind is FrameKind.REMOVED else RELAY_SMALL_BYTES):
        raise PeerFault(f"a frame of kind {kind.name} with {len(raw)} bytes")
    return Frame(kind, line, raw[HEAD.size :])


def number_in(frame: Frame) -> int:
    """Raises PeerFault if the payload is not a number."""
    if len(frame.payload) != 8:
        raise PeerFault(f"{frame.kind.name} without a number")
    return int.from_bytes(frame.payload, "little")


def struct_in(frame: Frame, kind: FrameKind, shape: type[T]) -> T:
    """Raises PeerFault if the frame is of another kind, or its content of another shape."""
    if frame.kind is not kind:
        raise PeerFault(f"{frame.kind.name} in place of {kind.name}")
    try:
        return msgspec.msgpack.decode(frame.payload, type=shape)
    except UNREADABLE as error:
        raise PeerFault(f"{kind.name} that cannot be read: {type(error).__name__}") from None


def closing_in(frame: Frame) -> Closing:
    """An unknown reason, of a newer relay, counts as the end of the connection."""
    try:
        return Closing(number_in(frame))
    except ValueError:
        return Closing.GONE


def refusal_in(frame: Frame) -> Refusal | None:
    """Return the reason; None for one that this version does not know."""
    try:
        return Refusal(number_in(frame))
    except ValueError:
        return None


def name_dialed(address: Address) -> str:
    """Return the name under which a member dials a relay: host, port and path, whatever the scheme and the pin.

    A member signs it, so that no relay can use that signature at another.
    """
    return f"{address.place.lower()}{address.path}"
