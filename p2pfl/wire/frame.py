"""Frames: a message as one frame, and frames cut into the chunks of a session. All numbers are little-endian.

A frame is an 18-byte prefix, the header, the body:

    magic 2 | version 1 | type 1 | flags 2 | header length 4 | body length 8 | header | body

Lengths are judged from the prefix alone, before anything of that size is allocated. Flags are zero in this version.
There is one way to cut a frame into chunks (`split`). A node understands frames of the versions from LEAST_VERSION on;
a session begins with that one and goes on with the highest that both ends offer. A message of unknown type without a
body is dropped, so that newer software may add types.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from p2pfl.core.messages import CHUNK_BYTES, LEAST_VERSION, PROTOCOL_VERSION
from p2pfl.errors import PeerFault
from p2pfl.wire.headers import (
    BY_CODE,
    BY_MESSAGE,
    MAX_HEADER_BYTES,
    MessageKind,
    SessionMessage,
    from_header,
    to_header,
)
from p2pfl.wire.side import Unknown

MAGIC = b"p2"
LAYOUT = struct.Struct("<2sBBHIQ")
PREFIX_BYTES = LAYOUT.size
NO_BODY = memoryview(b"")
OWN_VERSIONS = "version " + " or ".join(str(each) for each in range(LEAST_VERSION, PROTOCOL_VERSION + 1))

PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
"""Private pages cost half of what shared ones do when first touched."""


class Prefix(Struct, frozen=True, kw_only=True, gc=False):
    """The checked prefix of a frame. `kind` is None if its type is not known."""

    code: int
    kind: MessageKind | None
    header_bytes: int
    body_bytes: int

    @property
    def name(self) -> str:
        return f"a message of unknown type {self.code}" if self.kind is None else self.kind.message.__name__

    @property
    def frame_bytes(self) -> int:
        return PREFIX_BYTES + self.header_bytes + self.body_bytes


def encode(message: SessionMessage, version: int = PROTOCOL_VERSION) -> tuple[bytes, memoryview]:
    """Return prefix and header, and the body as flat bytes, not copied; it is empty if the message has none.

    Raises ValueError: our own message holds a value that no peer would accept.
    """
    kind = BY_MESSAGE[type(message)]
    header = to_header(message)
    body = NO_BODY
    if kind.has_body:
        view = memoryview(message.body)  # type: ignore[union-attr] # as the kind says
        # A buffer with no elements cannot be cast.
        body = view.cast("B") if view.nbytes else NO_BODY
    return LAYOUT.pack(MAGIC, version, kind.code, 0, len(header), body.nbytes) + header, body


class OtherVersionError(PeerFault):
    """The peer runs older or newer software, and does nothing wrong."""


def decode_prefix(raw: bytes | memoryview, *, max_body_bytes: int) -> Prefix:
    """Judge the first PREFIX_BYTES of a frame; `max_body_bytes` limits the types that may have a body.

    Raises PeerFault: not a frame of this protocol, or too long.
    """
    if len(raw) != PREFIX_BYTES:
        raise PeerFault(f"a frame's prefix of {len(raw)} bytes instead of {PREFIX_BYTES}")
    magic, version, code, flags, header_bytes, body_bytes = LAYOUT.unpack(raw)
    if magic != MAGIC:
        raise PeerFault(f"a frame begins with {magic!r} instead of {MAGIC!r}")
    if not LEAST_VERSION <= version <= PROTOCOL_VERSION:
        raise OtherVersionError(f"the peer speaks protocol version {version}, this node {OWN_VERSIONS}")
    if flags:
        raise PeerFault(f"a frame with unknown flags {flags:#x}")
    kind = BY_CODE.get(code)
    limit = max_body_bytes if kind is not None and kind.has_body else 0
    prefix = Prefix(code=code, kind=kind, header_bytes=header_bytes, body_bytes=body_bytes)
    if header_bytes > MAX_HEADER_BYTES or body_bytes > limit:
        raise PeerFault(
            f"{prefix.name} with {header_bytes} bytes of header and {body_bytes} of body; "
            f"limit {MAX_HEADER_BYTES}, {limit}"
        )
    return prefix


def decode(prefix: Prefix, header: bytes | memoryview, body: bytes | memoryview) -> SessionMessage | Unknown:
    """Return the message; its body is a read-only view of `body`. A request's digest costs one pass over the body.

    Raises PeerFault: header or body is not what the prefix announced, or the header breaks the schema.
    """
    if len(header) != prefix.header_bytes or len(body) != prefix.body_bytes:
        raise PeerFault(f"{prefix.name} is not as long as its prefix says")
    if prefix.kind is None:
        return Unknown(code=prefix.code)
    return from_header(prefix.kind, header, memoryview(body).toreadonly())


def split(message: SessionMessage, version: int = PROTOCOL_VERSION) -> Iterator[bytes | memoryview]:
    """Yield the message's chunks in order; those of a long body are views of it, so it must not change before they are
    sent.

    There is one way to cut: a frame of at most CHUNK_BYTES is one chunk; a longer one is a chunk with prefix and
    header, then the body in full chunks and a last one that is not empty. Messages do not interleave. Any other cut is
    a fault, so a peer cannot make a message expensive by sending it in crumbs.

    Raises ValueError: our own message holds a value that no peer would accept.
    """
    head, body = encode(message, version)
    if len(head) + body.nbytes <= CHUNK_BYTES:
        yield head + body
        return
    yield head
    for start in range(0, body.nbytes, CHUNK_BYTES):
        yield body[start : start + CHUNK_BYTES]


class UnfinishedFrame(NamedTuple):
    """The head of a long message whose body is incomplete."""

    prefix: Prefix
    header: bytes


class Assembler:
    """The receiving side of one session, which gets one chunk after the other.

    A message owns its body for as long as anybody holds it: a short body is a view of the chunk it came in, a long one
    of a buffer. That buffer serves the next long body once nobody uses it any more, because touching fresh memory costs
    more than the copy. It has room for any body, and takes as much memory as the longest so far.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._buffer: mmap.mmap | None = None
        self._pending: UnfinishedFrame | None = None
        self._filled = 0
        self._dead = False

    @property
    def pending_bytes(self) -> int:
        """The size of the incomplete body, 0 between messages; any thread may ask."""
        pending = self._pending  # another thread may be about to clear it
        return pending.prefix.body_bytes if pending else 0

    def feed(self, chunk: bytes) -> list[SessionMessage | Unknown]:
        """Return the message that this chunk completes, if it does.

        A chunk that completes a long request also pays for its digest: call this in the thread that opened the chunk.
        Raises PeerFault: the chunk is not what may come next; nothing can be fed after that.
        """
        if self._dead:
            raise PeerFault("a chunk after one that broke the protocol")
        self._dead = True
        if len(chunk) > CHUNK_BYTES:
            raise PeerFault(f"a chunk of {len(chunk)} bytes; limit {CHUNK_BYTES}")
        message = self._begin(chunk) if self._pending is None else self._continue(*self._pending, chunk)
        self._dead = False
        return [] if message is None else [message]

    def _begin(self, chunk: bytes) -> SessionMessage | Unknown | None:
        view = memoryview(chunk)
        prefix = decode_prefix(view[:PREFIX_BYTES], max_body_bytes=self._max_body_bytes)
        header, body = view[PREFIX_BYTES:][: prefix.header_bytes], view[PREFIX_BYTES + prefix.header_bytes :]
        if prefix.frame_bytes <= CHUNK_BYTES:
            return decode(prefix, header, body)
        if len(header) != prefix.header_bytes or body.nbytes:
            raise PeerFault("a long message begins with a chunk that is not its prefix and header")
        self._take_buffer()
        self._pending, self._filled = UnfinishedFrame(prefix, bytes(header)), 0
        return None

    def _continue(self, prefix: Prefix, header: bytes, chunk: bytes) -> SessionMessage | Unknown | None:
        expected = min(CHUNK_BYTES, prefix.body_bytes - self._filled)
        if len(chunk) != expected:
            raise PeerFault(f"a body continues with {len(chunk)} bytes instead of {expected}")
        # Assign through a view: a bytearray would copy the chunk once more first.
        self._memory(prefix.body_bytes)[self._filled : self._filled + expected] = chunk
        self._filled += expected
        if self._filled < prefix.body_bytes:
            return None
        self._pending = None
        return decode(prefix, header, self._memory(prefix.body_bytes))

    def _memory(self, size: int) -> memoryview:
        if self._buffer is None:
            raise AssertionError("a long body without a buffer")
        return memoryview(self._buffer)[:size]

    def _take_buffer(self) -> None:
        """Reuse the buffer if no message holds it any more; otherwise map a new one.

        Mapped memory is zeroed page by page as it is touched, where a bytearray would stop all threads for it. A map
        refuses to be resized, even to its own size, while a view of it lives: this shows whether it is free.
        """
        try:
            if self._buffer is not None:
                self._buffer.resize(len(self._buffer))
                return
        except (BufferError, SystemError):
            # SystemError: this system cannot resize maps.
            pass
        self._buffer = mmap.mmap(-1, self._max_body_bytes, **PRIVATE)
