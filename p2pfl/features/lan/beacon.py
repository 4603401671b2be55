"""The announcement of a node on the LAN, and how to recognize listed members in it.

A name under `_p2pfl._tcp.local.` is a hash of the federation's name and the member's public key, with a random suffix
that changes whenever the node starts to announce itself, so that two nodes with the same key do not conflict. A reader
without the key learns neither the key nor the federation. The text record is encrypted with a key derived from the same
two values; `p2pfl doctor` can read it on any machine that lists the member. An announcement is only a hint: anyone who
knows a member's public key can forge it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Container
from functools import lru_cache

import msgspec
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from p2pfl.core.messages import PROTOCOL
from p2pfl.foreign import UNREADABLE
from p2pfl.software import software

SERVICE = "_p2pfl._tcp.local."
TTL_S = 120
"""The time for which others may cache a record: short, so that no machine seems present long after it has left."""
PREFIX_BYTES = 16
ENDING_BYTES = 4
ABOUT = b"about"
"""The key of the encrypted entry in the text record."""
MOST_ABOUT_BYTES = 200


class About(msgspec.Struct, frozen=True, array_like=True):
    """The facts that a node announces besides its address."""

    protocol: str
    version: str
    """The software version."""
    federation: bytes
    """The first bytes of the federation id."""


FEDERATION_BYTES = 8


@lru_cache(maxsize=4096)
def prefix_of(federation: str, key: bytes) -> str:
    """Return the prefix of a member's instance names: 32 letters."""
    return _hash(federation, key, b"p2pfl-lan-name", PREFIX_BYTES).hex()


def instance_of(prefix: str) -> str:
    """Return a new instance name for a member, as it appears in records."""
    return f"{prefix}-{secrets.token_hex(ENDING_BYTES)}.{SERVICE}"


def member_of(instance: str, prefixes: Container[str]) -> str | None:
    """Return the prefix of an instance's name, or None if it is none of `prefixes`."""
    prefix = instance.partition("-")[0].lower()
    return prefix if prefix in prefixes else None


def seal(about: About, federation: str, key: bytes) -> bytes:
    return bytes(_box(federation, key).encrypt(msgspec.msgpack.encode(about)))


def unseal(sealed: bytes | None, federation: str, key: bytes) -> About | None:
    """Decrypt a text record; return None if it was not encrypted for that member, or cannot be read."""
    if not sealed or len(sealed) > MOST_ABOUT_BYTES:
        return None
    try:
        return msgspec.msgpack.decode(_box(federation, key).decrypt(sealed), type=About)
    except (CryptoError, *UNREADABLE):
        return None


def own_about(federation_id: bytes) -> About:
    """Return the facts that this software announces for a node in that federation."""
    return About(protocol=PROTOCOL, version=software()[:40], federation=federation_id[:FEDERATION_BYTES])


def _box(federation: str, key: bytes) -> SecretBox:
    return SecretBox(_hash(federation, key, b"p2pfl-lan-text", SecretBox.KEY_SIZE))


def _hash(federation: str, key: bytes, person: bytes, size: int) -> bytes:
    name = federation.encode()
    return hashlib.blake2b(len(name).to_bytes(8, "little") + name + key, digest_size=size, person=person).digest()
