"""What opens a relay to a member: a ticket signed by an admin key, or a token that all members and the relay share.

A ticket is no secret: it serves only who holds the member's key. A token is a secret, in a file that only its owner can
read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from p2pfl.crypto.identity import Identity, read_private
from p2pfl.errors import UserError
from p2pfl.features.relay.relay_frames import VERSION, Challenge, Registration
from p2pfl.foreign import UNREADABLE

PREFIX = "p2pfl-ticket-1:"
TOKEN_PREFIX = "p2pfl-relay-token-1:"  # noqa: S105 - the beginning of the file, not a secret
KEY_BYTES, SIGNATURE_BYTES, TOKEN_BYTES, TOKEN_ID_BYTES = 32, 64, 32, 8
SIGNED = b"p2pfl-relay-ticket-1\n"
PROVEN = b"p2pfl-relay-member-1\n"
"""Prefixes of what is signed, so that no signature made for another purpose opens a relay."""
ALLOWED_TOKEN = "a file that `p2pfl relay --make-token` has made"  # noqa: S105 - a sentence


class TicketError(ValueError):
    """Raised for bytes that are no ticket."""


class _Rights(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The order of the fields is the format."""

    realm: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    until: Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The right of one member of one federation to use relays that list it."""

    realm: bytes
    """The federation: the 32 bytes of `realm_of`."""
    key: bytes
    """The member's public key."""
    until: int
    """When it expires, in seconds since 1970."""
    signer: bytes
    """The public key of the admin who signed it."""
    signature: bytes = field(repr=False)

    @classmethod
    def sign(cls, admin: Identity, *, realm: bytes, key: bytes, until: int) -> Self:
        signature = admin.sign(_signed(realm, key, until))
        return cls(realm=realm, key=key, until=until, signer=admin.public, signature=signature)

    @classmethod
    def unpack(cls, raw: bytes) -> Self:
        """Read a ticket; nothing is verified. Raises TicketError: these bytes are none."""
        head = KEY_BYTES + SIGNATURE_BYTES
        try:
            rights = msgspec.msgpack.decode(raw[head:], type=_Rights)
        except UNREADABLE as error:
            raise TicketError(f"not a ticket: {error}") from None
        return cls(
            realm=rights.realm,
            key=rights.key,
            until=rights.until,
            signer=raw[:KEY_BYTES],
            signature=raw[KEY_BYTES:head],
        )

    def packed(self) -> bytes:
        rights = _Rights(realm=self.realm, key=self.key, until=self.until)
        return self.signer + self.signature + msgspec.msgpack.encode(rights)

    def is_genuine(self) -> bool:
        """Return True if the signer has signed it; whether that key is an admin's is another question."""
        try:
            VerifyKey(self.signer).verify(_signed(self.realm, self.key, self.until), self.signature)
        except (CryptoError, ValueError):
            return False
        return True


def _signed(realm: bytes, key: bytes, until: int) -> bytes:
    return SIGNED + msgspec.msgpack.encode(_Rights(realm=realm, key=key, until=until))


def ticket_of(tickets: Iterable[Ticket], *, realm: bytes, key: bytes) -> Ticket | None:
    """Return the ticket of that member that holds longest."""
    fitting = [one for one in tickets if one.realm == realm and one.key == key]
    return max(fitting, key=lambda one: one.until, default=None)


def make_token(path: Path) -> None:
    """Write a new token, for its owner alone. Raises UserError: there is such a file, or it cannot be made."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        text = f"cannot be created: {error.strerror}"
        raise UserError(text, file=path, allowed="a new file in a folder that exists") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{TOKEN_PREFIX}{to_text(os.urandom(TOKEN_BYTES))}\n")


def read_token(path: Path) -> bytes:
    """Return the 32 bytes of a token. Raises UserError: it is none, or others may read it."""
    line = read_private(path, "token").strip()
    try:
        token = from_text(line.removeprefix(TOKEN_PREFIX))
    except ValueError:
        token = b""
    if not line.startswith(TOKEN_PREFIX) or len(token) != TOKEN_BYTES:
        raise UserError("not a token", file=path, allowed=ALLOWED_TOKEN)
    return token


def token_id(token: bytes) -> bytes:
    """Return the public name of a token, which says nothing of it."""
    return hashlib.blake2b(token, digest_size=TOKEN_ID_BYTES, person=b"p2pfl-relay-tok").digest()


def register(
    identity: Identity,
    challenge: Challenge,
    *,
    relay: str,
    ticket: bytes = b"",
    token: bytes = b"",
    visiting: bool = False,
) -> Registration:
    """Answer a relay's challenge."""
    named = token_id(token) if token else b""
    proven = _proven(relay, challenge.nonce, identity.public, ticket, named, visiting=visiting)
    return Registration(
        version=VERSION,
        relay=relay,
        key=identity.public,
        signature=identity.sign(proven),
        ticket=ticket,
        token_id=named,
        token_proof=_token_proof(token, proven) if token else b"",
        visiting=visiting,
    )


def holds_key(registration: Registration, nonce: bytes) -> bool:
    """Return True if the member has signed this relay's nonce with its key."""
    try:
        VerifyKey(registration.key).verify(_proven_by(registration, nonce), registration.signature)
    except (CryptoError, ValueError):
        return False
    return True


def holds_token(registration: Registration, nonce: bytes, token: bytes) -> bool:
    """Return True if the member knows the token."""
    return hmac.compare_digest(registration.token_proof, _token_proof(token, _proven_by(registration, nonce)))


def _proven_by(registration: Registration, nonce: bytes) -> bytes:
    told = registration
    return _proven(told.relay, nonce, told.key, told.ticket, told.token_id, visiting=told.visiting)


def _proven(relay: str, nonce: bytes, key: bytes, ticket: bytes, named: bytes, *, visiting: bool) -> bytes:
    """Return what is signed. A relay that knows no visits finds a visit forged, and leaves the member's own seat."""
    content = msgspec.msgpack.encode((relay, nonce, key, ticket, named, *([True] if visiting else [])))
    return PROVEN + hashlib.blake2b(content, digest_size=32, person=b"p2pfl-relay-reg").digest()


def _token_proof(token: bytes, proven: bytes) -> bytes:
    return hashlib.blake2b(proven, key=token, digest_size=32, person=b"p2pfl-relay-mac").digest()


def to_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def from_text(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
