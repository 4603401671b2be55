"""Hashes of the handshake: what was said so far, and the keys that follow from it.

Every field is preceded by its length and every use has a BLAKE2b `person` of its own, so that no two different
inputs, nor the same input for two purposes, can meet in one hash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from nacl.bindings import crypto_scalarmult
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey

from p2pfl.crypto.faults import HandshakeFault
from p2pfl.vocabulary import PROTOCOL

KEY_BYTES = 32
TAG_BYTES = 16


def fields(*parts: bytes) -> bytes:
    """The parts, each preceded by its length as an unsigned 64-bit little-endian number."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def digest(use: str, *parts: bytes, key: bytes = b"", size: int = KEY_BYTES) -> bytes:
    """BLAKE2b over the length-prefixed parts, `use` (at most 16 characters) as its person string."""
    return hashlib.blake2b(fields(*parts), digest_size=size, key=key, person=use.encode()).digest()


def opening_tag(responder_public: bytes, ephemeral: bytes) -> bytes:
    """mac1, 16 bytes: shows that the dialer knows whom it dials, and costs the responder two hashes to check."""
    key = digest("mac1 key", PROTOCOL.encode(), responder_public)
    return digest("mac1", ephemeral, key=key, size=TAG_BYTES)


@dataclass(frozen=True, slots=True)
class Secrets:
    """What both ends know once the ephemeral keys have met: th1 (public) and prk (secret), 32 bytes each."""

    th1: bytes
    prk: bytes = field(repr=False)

    def key(self, label: str, transcript: bytes) -> bytes:
        """The 32-byte key for one purpose; each one seals or authenticates a single message or stream."""
        return digest(label, transcript, key=self.prk)


def agree(ephemeral: PrivateKey, peer_ephemeral: bytes, m1: bytes, responder_ephemeral: bytes) -> Secrets:
    """Run X25519 and derive the session's root secret from it and from everything said so far.

    Raises:
        HandshakeFault: the peer's point has low order, so that the secret would be known to everybody.
    """
    try:
        shared = crypto_scalarmult(bytes(ephemeral), peer_ephemeral)
    except CryptoError as error:
        raise HandshakeFault("the peer's ephemeral key is a point of low order") from error
    th0 = digest("th0", PROTOCOL.encode())
    th1 = digest("th1", th0, m1, responder_ephemeral)
    return Secrets(th1, digest("prk", th1, key=shared))
