"""The messages of a session, and the header of each: its fields in order as one msgpack array, and what they allow.

The body follows the header; a request's digest is not sent. The order of the fields is the format: changing it changes
the protocol. Any bytes give a message or a PeerFault; `frame` puts header and body together.

The messages outside gossip stand here, too; no core sees them. `Offer` is the first message of a session in both
directions; nodes that agree before there is a core exchange it as well. A long body of which a part has arrived goes on
in the next session: the end that has the part tells its size and a digest of it (`PartHeld`), and the other end sends
the rest if it is about to send a message with that head whose body begins with these bytes, and otherwise the whole
body. While a body is on its way, `Receipt` says how much has arrived.
"""

from __future__ import annotations

import mmap
import struct
import sys
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, Struct, structs
from xxhash import xxh3_128

from p2pfl.core import messages
from p2pfl.core.messages import DIGEST_BYTES, MOST_LIVES_TOLD, MOST_TERMS, Message
from p2pfl.errors import PeerFault
from p2pfl.foreign import UNREADABLE

MOST_OFFERS = 64
"""The maximum number of extension channels at one end."""
MOST_NAME_BYTES = 32
"""The maximum length of an extension channel's name, including its version."""
MOST_SIDE_BYTES = 60 * 1024
"""The maximum size of a message on an extension channel."""


class Offer(Struct, frozen=True, kw_only=True, gc=False):
    """The sender speaks protocol versions `least` to `most`, and has these extension channels, by name."""

    least: int
    most: int
    channels: tuple[str, ...]


class Side(Struct, frozen=True, kw_only=True, gc=False):
    """A message on the extension channel of that name."""

    channel: str
    body: bytes


class Unknown(Struct, frozen=True, kw_only=True, gc=False):
    """A message of a type unknown to this version; it is dropped and counted, but not blamed on the sender."""

    code: int


_ANNOUNCED = struct.Struct("<BQ")
_SEED = 2
"""A seed different from those of the other digests."""


class PartHeld(Struct, frozen=True, kw_only=True, gc=False):
    """The sender has the first `size` bytes of a long body, left over from an earlier session.

    `digest` is that of the message's type, the length of its body, its header, and these bytes.
    """

    size: int
    digest: bytes


class Receipt(Struct, frozen=True, kw_only=True, gc=False):
    """The sender has received `size` bytes of long bodies in this session."""

    size: int


class PartialBody:
    """The part of a long body that has arrived: the first `size` bytes of `buffer`, out of `body_bytes`."""

    __slots__ = ("body_bytes", "buffer", "code", "header", "size")

    def __init__(self, code: int, header: bytes, body_bytes: int, buffer: mmap.mmap, size: int) -> None:
        self.code, self.header, self.body_bytes = code, header, body_bytes
        self.buffer, self.size = buffer, size

    def announce(self) -> PartHeld:
        """Return what the other end is told; this takes a pass over the part."""
        with memoryview(self.buffer) as whole, whole[: self.size] as part:
            return PartHeld(size=self.size, digest=part_digest(self.code, self.header, self.body_bytes, part))


def part_digest(code: int, header: bytes | memoryview, body_bytes: int, part: memoryview) -> bytes:
    """Return a digest of the beginning of a message with a body, 16 bytes of XXH3.

    It withstands chance, not intent: both ends are authenticated, and one that lies about a part gets a body that does
    not decode, or sends one, as it can in any case.
    """
    digest = xxh3_128(_ANNOUNCED.pack(code, body_bytes), seed=_SEED)
    digest.update(header)
    digest.update(part)
    return digest.digest()


MAX_HEADER_BYTES = 64 * 1024
NO_BODY = memoryview(b"")
SessionMessage = Message | Offer | Side | PartHeld | Receipt
"""Everything that a session carries."""
MAX_RETRY_AFTER_S = 3600.0

# Exact in a float64, and within the numbers of any language.
Counter = Annotated[int, Meta(ge=0, lt=2**53)]
# The upper bound refuses infinity; NaN fails every comparison.
Amount = Annotated[float, Meta(ge=0.0, le=sys.float_info.max)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Delay = Annotated[float, Meta(ge=0.0, le=MAX_RETRY_AFTER_S)]
Terms = Annotated[tuple[Amount, ...], Meta(max_length=MOST_TERMS)]
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
# Room for 131,072 members; two of them fit into a header.
Bitmap = Annotated[bytes, Meta(max_length=16_384)]
# Empty or complete; msgspec cannot say that, so `_check_digests` does.
DigestOrEmpty = Annotated[bytes, Meta(max_length=DIGEST_BYTES)]
Version = Annotated[int, Meta(ge=0, lt=256)]
ChannelName = Annotated[str, Meta(min_length=1, max_length=MOST_NAME_BYTES, pattern=r"^[a-z0-9./-]+\Z")]


ALLOWED: dict[str, Any] = {
    "staleness": Fraction,
    "retry_after_s": Delay,
    "terms": Terms,
    "request_digest": Digest,
    "chain": Digest,
    "chain_before": Digest,
    "audit": DigestOrEmpty,
    "begun": Bitmap,
    "through": Bitmap,
    "lives": Annotated[tuple[tuple[Counter, Counter, Counter], ...], Meta(max_length=MOST_LIVES_TOLD)],
    "least": Version,
    "most": Version,
    "channels": Annotated[tuple[ChannelName, ...], Meta(max_length=MOST_OFFERS)],
    "channel": ChannelName,
    "body": Annotated[bytes, Meta(max_length=MOST_SIDE_BYTES)],
    "digest": Digest,
}
"""The values that a field of that name may have on the wire, where `USUAL` does not say it by its type."""
USUAL = {int: Counter, int | None: Counter | None, float: Amount, bool: bool}


class MessageKind:
    """One kind of message. `code` is the type byte of the frame; `allowed` are fields that differ from `ALLOWED`."""

    def __init__(self, code: int, message: type[SessionMessage], **allowed: Any) -> None:
        self.code = code
        self.message = message
        self.has_body = message in (messages.Request, messages.Reply)
        unsent = ("body", "digest") if self.has_body else ()
        hints = {name: hint for name, hint in get_type_hints(message).items() if name not in unsent}
        sent = {name: allowed.get(name) or ALLOWED.get(name) or USUAL[hint] for name, hint in hints.items()}
        self.header = msgspec.defstruct(
            message.__name__, list(sent.items()), array_like=True, forbid_unknown_fields=True, frozen=True
        )
        """The message without body and digest, its last fields, which are not sent in a header."""
        self.decode = msgspec.msgpack.Decoder(self.header).decode
        self.digests_or_empty = tuple(name for name, hint in sent.items() if hint == DigestOrEmpty)


KINDS = (
    MessageKind(1, messages.Hello, request_digest=DigestOrEmpty),
    MessageKind(2, messages.Request),
    MessageKind(3, messages.Reply),
    MessageKind(4, messages.Ready),
    MessageKind(5, messages.Resync),
    MessageKind(6, messages.Ask),
    MessageKind(7, messages.Busy),
    MessageKind(8, messages.Done),
    MessageKind(9, messages.LivesTold),
    MessageKind(10, messages.Resign),
    MessageKind(11, Offer),
    MessageKind(12, Side),
    MessageKind(13, PartHeld),
    MessageKind(14, Receipt),
)
BY_CODE = {kind.code: kind for kind in KINDS}
BY_MESSAGE = {kind.message: kind for kind in KINDS}


def to_header(message: SessionMessage) -> bytes:
    """Return the header's bytes. Raises ValueError if our own message holds a value that no peer would accept."""
    kind = BY_MESSAGE[type(message)]
    try:
        header = _header(kind, message)
        _check_digests(kind, header)
    except (msgspec.ValidationError, PeerFault) as error:
        raise ValueError(f"{kind.message.__name__} cannot be sent: {error}") from error
    return msgspec.msgpack.encode(header)


def from_header(kind: MessageKind, raw: bytes | memoryview, body: memoryview, *, known: bytes = b"") -> SessionMessage:
    """Return the message of that kind, with a request's digest filled in: `known`, or that of its fields. `body` is
    empty if the kind has none.

    Raises PeerFault if the header is anything but what `to_header` could have written.
    """
    message = before_body(kind, raw)
    if kind.has_body:
        # No other code has seen it yet.
        structs.force_setattr(message, "body", body)
    if isinstance(message, messages.Request):
        structs.force_setattr(message, "digest", known or messages.request_digest(message))
    return message


def before_body(kind: MessageKind, raw: bytes | memoryview) -> SessionMessage:
    """Return the message of that kind as its header has it: its body, if it has one, and a request's digest are empty.

    Raises PeerFault as `from_header` does.
    """
    try:
        header = kind.decode(raw)
    except UNREADABLE as error:
        raise PeerFault(f"{kind.message.__name__} with a malformed header: {error}") from error
    _check_digests(kind, header)
    values = structs.asdict(header)
    if kind.has_body:
        values["body"] = NO_BODY
    return kind.message(**values)


def _header(kind: MessageKind, message: SessionMessage) -> Struct:
    """Return the checked header: reading it back takes a third of the time of a conversion."""
    values = structs.astuple(message)[: len(kind.header.__struct_fields__)]
    try:
        return kind.decode(msgspec.msgpack.encode(values))
    except (msgspec.MsgspecError, UnicodeError, TypeError, OverflowError):
        # Numpy's float64 is a float to everything except msgspec.
        return msgspec.convert([_plain(value) for value in values], kind.header)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, float) else value


def _check_digests(kind: MessageKind, header: Struct) -> None:
    for name in kind.digests_or_empty:
        value = getattr(header, name)
        if len(value) not in (0, DIGEST_BYTES):
            raise PeerFault(f"{name} has {len(value)} bytes instead of {DIGEST_BYTES} or none")
