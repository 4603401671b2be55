"""The encrypted half of a handshake message: who I am, what I train, and the proof of both.

Plaintext: identity (32) | blinded federation (32 + 32 per section) | Ed25519 signature (64) | MAC (32). The signature
says that the identity took part in this very transcript and role; the MAC that it knows the shared secret, without
which a signature could be lifted into a session of somebody else (Krawczyk, SIGMA, CRYPTO 2003).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_ABYTES,
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_aead_chacha20poly1305_ietf_NPUBBYTES,
    sodium_memcmp,
)
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from p2pfl.crypto.binding import FederationBinding
from p2pfl.crypto.faults import HandshakeFault
from p2pfl.crypto.identity import PUBLIC_BYTES, SIGNATURE_BYTES, Identity
from p2pfl.crypto.transcript import KEY_BYTES, Secrets, digest, fields
from p2pfl.vocabulary import PROTOCOL

# A key that seals one message only needs no nonce.
NONCE = bytes(crypto_aead_chacha20poly1305_ietf_NPUBBYTES)


@dataclass(frozen=True, slots=True)
class Leg:
    """One of the two introductions: the role that speaks, the transcript so far, and the keys for just this."""

    role: Literal["initiator", "responder"]
    transcript: bytes
    seal_key: bytes = field(repr=False)
    mac_key: bytes = field(repr=False)

    @classmethod
    def of_responder(cls, secrets: Secrets) -> Leg:
        th1 = secrets.th1
        return cls("responder", th1, secrets.key("seal responder", th1), secrets.key("mac responder", th1))

    @classmethod
    def of_initiator(cls, secrets: Secrets, th2: bytes) -> Leg:
        th1 = secrets.th1
        return cls("initiator", th2, secrets.key("seal initiator", th1), secrets.key("mac initiator", th1))

    def statement(self, public: bytes, blinded: bytes) -> bytes:
        """What is signed and authenticated."""
        return fields(PROTOCOL.encode(), self.role.encode(), self.transcript, public, blinded)


@dataclass(frozen=True, slots=True)
class Introduction:
    """A proved identity, and where its federation differs from ours (empty if nowhere)."""

    public: bytes
    differences: tuple[str, ...]


def sealed_bytes(federation: FederationBinding) -> int:
    plain = PUBLIC_BYTES + federation.blinded_bytes + SIGNATURE_BYTES + KEY_BYTES
    return plain + crypto_aead_chacha20poly1305_ietf_ABYTES


def introduce(leg: Leg, identity: Identity, federation: FederationBinding) -> bytes:
    blinded = federation.blinded(leg.transcript)
    statement = leg.statement(identity.public, blinded)
    mac = digest("introduction", statement, key=leg.mac_key)
    plain = identity.public + blinded + identity.sign(statement) + mac
    return crypto_aead_chacha20poly1305_ietf_encrypt(plain, leg.transcript, NONCE, leg.seal_key)


def examine(leg: Leg, sealed: bytes, federation: FederationBinding) -> Introduction:
    """Decrypt and verify the peer's introduction; `sealed` has the right length already.

    Raises:
        HandshakeFault: any of it is not what `introduce` makes for this leg.
    """
    try:
        plain = crypto_aead_chacha20poly1305_ietf_decrypt(sealed, leg.transcript, NONCE, leg.seal_key)
    except CryptoError as error:
        raise HandshakeFault(f"the {leg.role}'s introduction was not sealed for this handshake") from error
    public, rest = plain[:PUBLIC_BYTES], plain[PUBLIC_BYTES:]
    blinded, proofs = rest[: federation.blinded_bytes], rest[federation.blinded_bytes :]
    signature, mac = proofs[:SIGNATURE_BYTES], proofs[SIGNATURE_BYTES:]
    statement = leg.statement(public, blinded)
    if not sodium_memcmp(mac, digest("introduction", statement, key=leg.mac_key)):
        raise HandshakeFault(f"the {leg.role}'s MAC is wrong")
    try:
        VerifyKey(public).verify(statement, signature)
    except CryptoError as error:
        raise HandshakeFault(f"the {leg.role}'s signature is wrong") from error
    return Introduction(public, federation.differences(leg.transcript, blinded))
