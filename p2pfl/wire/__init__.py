"""The messages of a session, and the header of each: its fields in order as one msgpack array, and what they allow.

The body follows the header; a request's digest is not sent. The order of the fields is the format: changing it changes
the protocol. Any bytes give a message or a PeerFault.

The messages outside gossip stand here, too; no core sees them. `Offer` is the first message of a session in both
directions; nodes that agree before there is a core exchange it as well. A long body of which a part has arrived goes on
in the next session: the end that has the part tells its size and a digest of it (`PartHeld`), and the other end sends
the rest if it is about to send a message with that head whose body begins with these bytes, and otherwise the whole
body. While a body is on its way, `Receipt` says how much has arrived.

Each message is one frame, and frames are split into the chunks of a session. All numbers are little-endian.

A frame is an 18-byte prefix, the header, the body:

    magic 2 | version 1 | type 1 | flags 2 | header length 4 | body length 8 | header | body

Lengths are judged from the prefix alone, before anything of that size is allocated. A node understands frames from
LEAST_VERSION on; a session begins with that version and continues with the highest that both ends offer. A message of
unknown type without a body is dropped, so that newer software may add types.

In version 9 flags are zero, and there is only one way to split a frame into chunks. From version 10 on the sender
chooses the size of chunks (`split`), and there are two flags: CONTINUED, if the body begins where the receiver has said
(`part`), and KNOWN, for a request that the receiver has applied, with its digest in place of its body.
"""

from __future__ import annotations

import mmap
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta, Struct, structs
from msgspec.structs import replace
from xxhash import xxh3_128

from p2pfl.core import messages
from p2pfl.core.messages import DIGEST_BYTES, LEAST_VERSION, PROTOCOL_VERSION, Message, Request
from p2pfl.errors import PeerFault
from p2pfl.foreign import UNREADABLE
from p2pfl.limits import (
    CHUNK_BYTES,
    LEAST_CHUNK_BYTES,
    MAX_HEADER_BYTES,
    MAX_RETRY_AFTER_S,
    MOST_LIVES_TOLD,
    MOST_NAME_BYTES,
    MOST_OFFERS,
    MOST_SIDE_BYTES,
    MOST_TERMS,
)


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


NO_BODY = memoryview(b"")
SessionMessage = Message | Offer | Side | PartHeld | Receipt
"""Everything that a session carries."""

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


MAGIC = b"p2"
LAYOUT = struct.Struct("<2sBBHIQ")
PREFIX_BYTES = LAYOUT.size
OWN_VERSIONS = "version " + " or ".join(str(each) for each in range(LEAST_VERSION, PROTOCOL_VERSION + 1))

FREE_SPLIT_VERSION = 10
"""The first version in which the sender chooses the size of chunks, and bodies go on."""
CONTINUED, KNOWN = 1, 2

PRIVATE: dict[str, Any] = {}
if sys.platform != "win32":
    PRIVATE["flags"] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""Private pages cost half as much as shared ones when first touched."""


class Prefix(Struct, frozen=True, kw_only=True, gc=False):
    """The checked prefix of a frame. `kind` is None if its type is not known."""

    code: int
    kind: MessageKind | None
    header_bytes: int
    body_bytes: int
    version: int = PROTOCOL_VERSION
    flags: int = 0

    @property
    def name(self) -> str:
        return f"a message of unknown type {self.code}" if self.kind is None else self.kind.message.__name__

    @property
    def frame_bytes(self) -> int:
        return PREFIX_BYTES + self.header_bytes + self.body_bytes


def encode(message: SessionMessage, version: int = PROTOCOL_VERSION, flags: int = 0) -> tuple[bytes, memoryview]:
    """Return prefix and header, and the body as flat bytes without copying; it is empty if the message has none.

    Raises ValueError if our own message holds a value that no peer would accept.
    """
    kind = BY_MESSAGE[type(message)]
    header = to_header(message)
    body = NO_BODY
    if kind.has_body:
        view = memoryview(message.body)  # type: ignore[union-attr] # as the kind says
        # A buffer with no elements cannot be cast.
        body = view.cast("B") if view.nbytes else NO_BODY
    return LAYOUT.pack(MAGIC, version, kind.code, flags, len(header), body.nbytes) + header, body


def encode_known(request: Request, version: int) -> bytes:
    """Return the frame of a request that the receiver has applied: the digest stands in place of the body."""
    head, body = encode(replace(request, body=request.digest), version, KNOWN)
    return head + body


class OtherVersionError(PeerFault):
    """The peer runs older or newer software, which is not a fault."""


def decode_prefix(raw: bytes | memoryview, *, max_body_bytes: int) -> Prefix:
    """Check the first PREFIX_BYTES of a frame; `max_body_bytes` applies to the types that may have a body.

    Raises PeerFault if this is not a frame of the protocol, or is too long.
    """
    if len(raw) != PREFIX_BYTES:
        raise PeerFault(f"a frame's prefix of {len(raw)} bytes instead of {PREFIX_BYTES}")
    magic, version, code, flags, header_bytes, body_bytes = LAYOUT.unpack(raw)
    if magic != MAGIC:
        raise PeerFault(f"a frame begins with {magic!r} instead of {MAGIC!r}")
    if not LEAST_VERSION <= version <= PROTOCOL_VERSION:
        raise OtherVersionError(f"the peer speaks protocol version {version}, this node {OWN_VERSIONS}")
    kind = BY_CODE.get(code)
    limit = max_body_bytes if kind is not None and kind.has_body else 0
    if flags and not (version >= FREE_SPLIT_VERSION and _is_flagged_well(kind, flags)):
        raise PeerFault(f"a frame with unknown flags {flags:#x}")
    if flags == KNOWN:
        limit = DIGEST_BYTES
    prefix = Prefix(
        code=code, kind=kind, header_bytes=header_bytes, body_bytes=body_bytes, version=version, flags=flags
    )
    if header_bytes > MAX_HEADER_BYTES or body_bytes > limit:
        raise PeerFault(
            f"{prefix.name} with {header_bytes} bytes of header and {body_bytes} of body; "
            f"limit {MAX_HEADER_BYTES}, {limit}"
        )
    return prefix


def _is_flagged_well(kind: MessageKind | None, flags: int) -> bool:
    has_body = kind is not None and kind.has_body
    return (flags == CONTINUED and has_body) or (flags == KNOWN and kind is BY_MESSAGE[Request])


def decode(prefix: Prefix, header: bytes | memoryview, body: bytes | memoryview) -> SessionMessage | Unknown:
    """Return the message; its body is a read-only view of `body`. A request's digest costs one pass over the body.

    Raises PeerFault if header or body is not what the prefix announced, or the header violates the schema.
    """
    if len(header) != prefix.header_bytes or len(body) != prefix.body_bytes:
        raise PeerFault(f"{prefix.name} is not as long as its prefix says")
    if prefix.kind is None:
        return Unknown(code=prefix.code)
    if prefix.flags == KNOWN:
        if len(body) != DIGEST_BYTES:
            raise PeerFault(f"a known request with a digest of {len(body)} bytes instead of {DIGEST_BYTES}")
        return from_header(prefix.kind, header, NO_BODY, known=bytes(body))
    return from_header(prefix.kind, header, memoryview(body).toreadonly())


def split(
    message: SessionMessage,
    version: int = PROTOCOL_VERSION,
    *,
    start: int = 0,
    chunk_bytes: Callable[[], int] = lambda: CHUNK_BYTES,
) -> Iterator[bytes | memoryview]:
    """Yield the message's chunks in order; the chunks of a long body are views of it, so it must not change before they
    are sent.

    A frame of at most `chunk_bytes()`, or without a body, is one chunk; a longer one is a chunk with prefix and header,
    then the body, from `start` on, in chunks of that size and a last one that is not empty. Messages do not interleave.
    Chunks have at most CHUNK_BYTES and, except the last, at least LEAST_CHUNK_BYTES; version 9 has only full ones, and
    no `start`.

    Raises ValueError if our own message holds a value that no peer would accept.
    """
    if version < FREE_SPLIT_VERSION:
        start, chunk_bytes = 0, lambda: CHUNK_BYTES
    head, body = encode(message, version, CONTINUED if start else 0)
    if not start and (not body.nbytes or len(head) + body.nbytes <= chunk_bytes()):
        yield head + body
        return
    yield head
    while start < body.nbytes:
        size = chunk_bytes()
        yield body[start : start + size]
        start += size


def begins_with(message: SessionMessage, part: PartHeld) -> bool:
    """Return True if the message's body begins with the part that the other end has, and goes on after it."""
    head, body = encode(message)
    code, header = BY_MESSAGE[type(message)].code, head[PREFIX_BYTES:]
    return 0 < part.size < body.nbytes and part_digest(code, header, body.nbytes, body[: part.size]) == part.digest


class UnfinishedFrame(NamedTuple):
    """The head of a long message, whose body is still coming."""

    prefix: Prefix
    kind: MessageKind
    header: bytes


class Assembler:
    """The receiving side of one session, fed one chunk at a time.

    A body stays valid as long as anything refers to it: a short one is a view of the chunk it came in, a long one a
    view of a buffer. That buffer is reused for the next long body once nothing refers to it, because touching fresh
    memory costs more than the copy. It has room for any body, and uses as much memory as the longest so far.

    `part` is left over from the session before. It is kept until another long body begins, or it is continued.
    """

    def __init__(self, max_body_bytes: int, part: PartialBody | None = None) -> None:
        self._max_body_bytes = max_body_bytes
        self._part = part
        self._buffer: mmap.mmap | None = None if part is None else part.buffer
        self._pending: UnfinishedFrame | None = None
        self._filled = 0
        self._dead = False
        self._lock = threading.Lock()
        self.came = 0
        """The bytes received so far of long bodies, in versions in which the sender hears of it."""

    @property
    def pending_bytes(self) -> int:
        """The size of the incomplete body, 0 between messages; safe to read from any thread."""
        pending = self._pending  # another thread may be about to clear it
        return pending.prefix.body_bytes if pending else 0

    @property
    def kept_bytes(self) -> int:
        """The size of the incomplete body, or of the one that the session before has left; safe as above."""
        part = self._part
        return self.pending_bytes or (part.body_bytes if part else 0)

    def detach(self) -> PartialBody | None:
        """End; return the part of a long body that is here, unless a fault has spoiled it."""
        with self._lock:
            dead, self._dead = self._dead, True
            pending, part = self._pending, self._part
            if dead or pending is None or self._buffer is None:
                return None if dead else part
            if not self._filled:
                return None
            prefix = pending.prefix
            return PartialBody(prefix.code, pending.header, prefix.body_bytes, self._buffer, self._filled)

    def feed(self, chunk: bytes) -> list[SessionMessage | Unknown]:
        """Return the message that this chunk completes, if any.

        The last chunk of a long request pays for its digest: call this in the thread that opened the chunk. Raises
        PeerFault if the chunk may not come next; nothing can be fed after that.
        """
        with self._lock:
            if self._dead:
                raise PeerFault("a chunk after one that broke the protocol")
            self._dead = True
            if len(chunk) > CHUNK_BYTES:
                raise PeerFault(f"a chunk of {len(chunk)} bytes; limit {CHUNK_BYTES}")
            message = self._begin(chunk) if self._pending is None else self._continue(self._pending, chunk)
            self._dead = False
            return [] if message is None else [message]

    def _begin(self, chunk: bytes) -> SessionMessage | Unknown | None:
        view = memoryview(chunk)
        prefix = decode_prefix(view[:PREFIX_BYTES], max_body_bytes=self._max_body_bytes)
        header, body = view[PREFIX_BYTES:][: prefix.header_bytes], view[PREFIX_BYTES + prefix.header_bytes :]
        if self._is_whole(prefix, len(chunk)):
            return decode(prefix, header, body)
        if len(header) != prefix.header_bytes or body.nbytes or not prefix.body_bytes:
            raise PeerFault("a long message begins with a chunk that is not its prefix and header")
        if prefix.kind is None:
            raise AssertionError("a long message of unknown type")
        unfinished = UnfinishedFrame(prefix, prefix.kind, bytes(header))
        before_body(unfinished.kind, header)
        part, self._part = self._part, None
        filled = 0
        if prefix.flags != CONTINUED:
            self._take_buffer()
        elif part is None or (part.code, part.header, part.body_bytes) != (
            prefix.code,
            unfinished.header,
            prefix.body_bytes,
        ):
            raise PeerFault("a message goes on with a body of which nothing is here")
        else:
            filled = part.size
        self._pending, self._filled = unfinished, filled
        return None

    @staticmethod
    def _is_whole(prefix: Prefix, size: int) -> bool:
        """Return True if a first chunk of that size must be the whole message."""
        if prefix.version < FREE_SPLIT_VERSION:
            return prefix.frame_bytes <= CHUNK_BYTES
        if prefix.flags == CONTINUED:
            return False
        return prefix.flags == KNOWN or prefix.frame_bytes <= max(LEAST_CHUNK_BYTES, size)

    def _continue(self, frame: UnfinishedFrame, chunk: bytes) -> SessionMessage | None:
        prefix = frame.prefix
        most = min(CHUNK_BYTES, prefix.body_bytes - self._filled)
        least = min(LEAST_CHUNK_BYTES, most) if prefix.version >= FREE_SPLIT_VERSION else most
        if not least <= len(chunk) <= most:
            raise PeerFault(f"a body continues with {len(chunk)} bytes instead of {least} to {most}")
        if self._buffer is None:
            raise AssertionError("a long body without a buffer")
        # Assign through a view: a bytearray would copy the chunk once more first.
        whole = memoryview(self._buffer)[: prefix.body_bytes]
        whole[self._filled : self._filled + len(chunk)] = chunk
        self._filled += len(chunk)
        if prefix.version >= FREE_SPLIT_VERSION:
            self.came += len(chunk)
        if self._filled < prefix.body_bytes:
            return None
        self._pending = None
        return from_header(frame.kind, frame.header, whole.toreadonly())

    def _take_buffer(self) -> None:
        """Reuse the buffer if no message holds it any more; otherwise map a new one.

        Mapped memory is zeroed page by page as it is touched, where a bytearray would stall all threads. A map refuses
        to be resized, even to its own size, while a view of it exists: this shows whether it is free.
        """
        try:
            if self._buffer is not None:
                self._buffer.resize(len(self._buffer))
                return
        except (BufferError, SystemError):
            # SystemError: this system cannot resize maps.
            pass
        self._buffer = mmap.mmap(-1, self._max_body_bytes, **PRIVATE)
