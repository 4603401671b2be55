"""The byte layout of a log and the chain of digests that runs through it and on into the next log.

    log     = magic (8), digest the chain had before (32), salt (16), check of these (8), records
    record  = length of body (8), check of the length (8), digest (32), body
    body    = length of head (4), head, blobs;   head = msgpack (kind, header, length of each blob)

A record's digest and check cover the digest before it, a log's first one its salt: bytes left over from another
file, or from another place in this one, never pass. Integers are little-endian.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from p2pfl.storage.disk import Piece

MAGIC = b"p2pfll1\n"
DIGEST_BYTES = 32
SALT_BYTES = 16
CHECK_BYTES = 8
LOG_HEAD = struct.Struct(f"<8s{DIGEST_BYTES}s{SALT_BYTES}s{CHECK_BYTES}s")
RECORD_HEAD = struct.Struct(f"<Q{CHECK_BYTES}s{DIGEST_BYTES}s")
BODY_HEAD = struct.Struct("<I")


def log_head(previous: bytes, salt: bytes) -> bytes:
    return LOG_HEAD.pack(MAGIC, previous, salt, log_check(previous, salt))


def log_check(previous: bytes, salt: bytes) -> bytes:
    return _hash(b"p2pfl log check", CHECK_BYTES, previous, [salt])


def first_link(previous: bytes, salt: bytes) -> bytes:
    """What the chain is before a log's first record."""
    return _hash(b"p2pfl log begin", DIGEST_BYTES, previous, [salt])


def length_check(link: bytes, length: int) -> bytes:
    return _hash(b"p2pfl log length", CHECK_BYTES, link, [length.to_bytes(8, "little")])


def next_link(link: bytes, body: Sequence[Piece]) -> bytes:
    return _hash(b"p2pfl log record", DIGEST_BYTES, link, body)


def _hash(person: bytes, size: int, link: bytes, pieces: Sequence[Piece]) -> bytes:
    digest = hashlib.blake2b(link, digest_size=size, person=person)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
