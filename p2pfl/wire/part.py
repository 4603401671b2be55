"""A long body of which a part has arrived: it goes on from there in the next session.

The end that has the part tells its size and a digest of it (`PartHeld`). The other end sends the rest if it is about to
send a message with that head whose body begins with these bytes, and otherwise the whole body. While a body is on its
way, `Receipt` says how much has arrived.
"""

from __future__ import annotations

import mmap
import struct

from msgspec import Struct
from xxhash import xxh3_128

PART_DIGEST_BYTES = 16
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
