"""Hashes of the handshake: what was said so far, the keys that follow from it, and which federation it is for.

Every field is preceded by its length and every use has a BLAKE2b `person` of its own, so that no two different inputs,
nor the same input for two purposes, can meet in one hash. The federation's hashes can be compared without being shown:
each travels encrypted, and hashed once more together with the handshake's transcript, so that it is worth nothing in
another session. An eavesdropper learns nothing. Whoever knows the responder's public key can dial it and then test
guesses at a section, which is all that a comparison by section can hide.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from nacl.bindings import crypto_scalarmult
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey

from p2pfl.crypto import HandshakeFault
from p2pfl.vocabulary import PROTOCOL

KEY_BYTES = 32
TAG_BYTES = 16

MAX_SECTIONS = 64


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

    Raises HandshakeFault: the peer's point has low order, so that the secret would be known to everybody.
    """
    try:
        shared = crypto_scalarmult(bytes(ephemeral), peer_ephemeral)
    except CryptoError as error:
        raise HandshakeFault("the peer's ephemeral key is a point of low order") from error
    th0 = digest("th0", PROTOCOL.encode())
    th1 = digest("th1", th0, m1, responder_ephemeral)
    return Secrets(th1, digest("prk", th1, key=shared))


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationBinding:
    """The hash of the whole federation and of each of its named sections, 32 bytes each."""

    federation_id: bytes
    sections: tuple[tuple[str, bytes], ...]

    def __post_init__(self) -> None:
        hashes = [self.federation_id, *(value for _, value in self.sections)]
        if any(len(value) != KEY_BYTES for value in hashes):
            raise ValueError(f"every hash of a federation has {KEY_BYTES} bytes")
        if len({name for name, _ in self.sections}) != len(self.sections) or len(hashes) > MAX_SECTIONS:
            raise ValueError(f"section names are distinct and fewer than {MAX_SECTIONS}")

    @property
    def blinded_bytes(self) -> int:
        return KEY_BYTES * (1 + len(self.sections))

    def blinded(self, transcript: bytes) -> bytes:
        """The id and then every section in order, each hashed with its name and with `transcript` (32 bytes)."""
        sections = [digest("section", transcript, name.encode(), value) for name, value in self.sections]
        return b"".join([digest("federation", transcript, self.federation_id), *sections])

    def differences(self, transcript: bytes, theirs: bytes) -> tuple[str, ...]:
        """Names of the sections in which a peer's blinded binding differs; "federation" if only the id does."""
        ours = self.blinded(transcript)
        if ours == theirs:
            return ()
        names = []
        for place, (name, _) in enumerate(self.sections, start=1):
            here = slice(place * KEY_BYTES, (place + 1) * KEY_BYTES)
            if ours[here] != theirs[here]:
                names.append(name)
        return tuple(names) or ("federation",)
