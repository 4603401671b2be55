"""The digests over the files of a state, which show that what was read is what was written.

They withstand chance, not intent: who may write to the folder may also write the digests. So where a state is large
XXH3 reads it, and BLAKE2b only the result; over the whole it takes twelve times as long (1.5 against .12 CPU-seconds
for a GB), more than sending a model and applying it. The bodies of others are in the log, too: the seed, which they
cannot know, keeps them from making two contents of one digest.

Small states keep the digest of earlier versions, which can read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from xxhash import xxh3_128

from p2pfl.storage.disk import Piece

LARGE_BYTES = 16 << 20
"""The size from which on a snapshot is large; the log beside it counts as the snapshot does."""


class FileFormat(NamedTuple):
    """How a log and a snapshot begin, and whether the digest over their contents is the fast one."""

    log_magic: bytes
    snapshot_magic: bytes
    is_fast: bool

    def digest(self, person: bytes, begin: bytes, pieces: Iterable[Piece]) -> bytes:
        """Return a digest of `begin` and of the pieces one after the other, 32 bytes. `begin` is short."""
        if not self.is_fast:
            return blake2b(person, 32, begin, pieces)
        seed = int.from_bytes(blake2b(b"p2pfl seed", 8, begin, []), "little")
        fast = xxh3_128(seed=seed)
        for piece in pieces:
            fast.update(piece)
        return blake2b(person, 32, begin, [fast.digest()])


PLAIN = FileFormat(b"p2pfll1\n", b"p2pfls1\n", is_fast=False)
FAST = FileFormat(b"p2pfll2\n", b"p2pfls2\n", is_fast=True)


def format_for(size_bytes: int) -> FileFormat:
    """Return the format for a snapshot of that size."""
    return FAST if size_bytes >= LARGE_BYTES else PLAIN


def blake2b(person: bytes, size: int, begin: bytes, pieces: Iterable[Piece]) -> bytes:
    """Return BLAKE2b of `begin` and of the pieces, `size` bytes."""
    digest = hashlib.blake2b(begin, digest_size=size, person=person)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
