"""One message as one frame: an 18-byte prefix, the header, the body. All numbers are little-endian.

    magic 2 | version 1 | type 1 | flags 2 | header length 4 | body length 8 | header | body

Lengths are judged from the prefix alone, before anything of that size is allocated. Flags are zero in this version.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from p2pfl.core.messages import Message
from p2pfl.errors import PeerFault
from p2pfl.vocabulary import PROTOCOL_VERSION
from p2pfl.wire.schema import BY_CODE, BY_MESSAGE, MAX_HEADER_BYTES, Kind, from_header, to_header

MAGIC = b"p2"
LAYOUT = struct.Struct("<2sBBHIQ")
PREFIX_BYTES = LAYOUT.size
NO_BODY = memoryview(b"")


class Prefix(Struct, frozen=True, kw_only=True, gc=False):
    """What a frame announces, found acceptable."""

    kind: Kind
    header_bytes: int
    body_bytes: int

    @property
    def frame_bytes(self) -> int:
        return PREFIX_BYTES + self.header_bytes + self.body_bytes


def encode(message: Message) -> tuple[bytes, memoryview]:
    """Prefix and header, and the body as flat bytes, not copied; it is empty where the message has none.

    Raises:
        ValueError: our own message holds a value that no peer would accept.
    """
    kind = BY_MESSAGE[type(message)]
    header = to_header(message)
    body = NO_BODY
    if kind.has_body:
        view = memoryview(message.body)  # type: ignore[union-attr] # as the kind says
        # A buffer with no elements cannot be cast.
        body = view.cast("B") if view.nbytes else NO_BODY
    return LAYOUT.pack(MAGIC, PROTOCOL_VERSION, kind.code, 0, len(header), body.nbytes) + header, body


class OtherVersionError(PeerFault):
    """The peer runs older or newer software, and does nothing wrong."""


def decode_prefix(raw: bytes | memoryview, *, max_body_bytes: int) -> Prefix:
    """Judge the first PREFIX_BYTES of a frame; `max_body_bytes` binds the types that may have a body.

    Raises:
        PeerFault: not a frame of this protocol, or too long.
    """
    if len(raw) != PREFIX_BYTES:
        raise PeerFault(f"a frame's prefix of {len(raw)} bytes instead of {PREFIX_BYTES}")
    magic, version, code, flags, header_bytes, body_bytes = LAYOUT.unpack(raw)
    if magic != MAGIC:
        raise PeerFault(f"a frame begins with {magic!r} instead of {MAGIC!r}")
    if version != PROTOCOL_VERSION:
        raise OtherVersionError(f"the peer speaks protocol version {version}, this node version {PROTOCOL_VERSION}")
    kind = BY_CODE.get(code)
    if kind is None or flags:
        raise PeerFault(f"a frame of unknown type {code} or with unknown flags {flags:#x}")
    limit = max_body_bytes if kind.has_body else 0
    if header_bytes > MAX_HEADER_BYTES or body_bytes > limit:
        name = kind.message.__name__
        raise PeerFault(
            f"{name} with {header_bytes} bytes of header and {body_bytes} of body; limit {MAX_HEADER_BYTES}, {limit}"
        )
    return Prefix(kind=kind, header_bytes=header_bytes, body_bytes=body_bytes)


def decode(prefix: Prefix, header: bytes | memoryview, body: bytes | memoryview) -> Message:
    """The message; its body is a read-only view of `body`. A request's digest costs one pass over the body.

    Raises:
        PeerFault: header or body is not what the prefix announced, or the header breaks the schema.
    """
    if len(header) != prefix.header_bytes or len(body) != prefix.body_bytes:
        raise PeerFault(f"{prefix.kind.message.__name__} is not as long as its prefix says")
    return from_header(prefix.kind, header, memoryview(body).toreadonly())
