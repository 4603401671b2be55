"""What members sign about statistics: a question, and each member's answer whether it takes part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from p2pfl.config.federation_id import federation_id
from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.foreign import UNREADABLE, printable

DOMAIN = b"p2pfl statistics 1\0"
"""The prefix of the signed bytes, before the federation's id, so that no other signature can be used in their place."""
ID_BYTES, SIGNATURE_BYTES = 32, 64
MOST_COLUMNS, MOST_NAME = 64, 200
MOST_REASON = 300
MOST_STATEMENT_BYTES = 4 * MOST_NAME * (MOST_COLUMNS + 1) + 1000

Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Name = Annotated[str, Meta(min_length=1, max_length=MOST_NAME)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]


class Stated(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A statement."""


class Question(Stated, frozen=True, kw_only=True, tag=1):
    """The author asks for the statistics of these columns. Its serial is greater than all that it has used before."""

    serial: Count
    columns: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MOST_COLUMNS)]
    by: Name | None


class SiteAnswer(Stated, frozen=True, kw_only=True, tag=2):
    """The author takes part in a question, and shows nothing of fewer than `least_rows`; or says why it does not."""

    question: Id
    least_rows: Count
    refusal: Annotated[str, Meta(max_length=MOST_REASON)]
    """Empty: it takes part."""


Statement: TypeAlias = Question | SiteAnswer
_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Statement] = msgspec.msgpack.Decoder(Question | SiteAnswer).decode


def sign(federation: FederationConfig, identity: Identity, statement: Statement) -> tuple[bytes, bytes]:
    """Return the bytes of a statement, and their signature."""
    body = _encode(statement)
    return body, identity.sign(_domain(federation) + body)


def verified(federation: FederationConfig, author: int, body: bytes, signature: bytes) -> Statement:
    """Return a statement. Raises PeerFault: no such member has signed it, or it is none."""
    if author not in {member.index for member in federation.present}:
        raise PeerFault(f"a statement of member {author}, which is none")
    by = federation.members[author]
    try:
        VerifyKey(by.key).verify(_domain(federation) + body, signature)
        return _decode(body)
    except (BadSignatureError, *UNREADABLE) as error:
        raise PeerFault(f"a statement that {by.name} did not sign, or that is none: {error}") from None


def question_id(author: int, body: bytes) -> bytes:
    return hashlib.blake2b(author.to_bytes(4, "little") + body, digest_size=ID_BYTES, person=b"p2pfl-question").digest()


def in_words(columns: tuple[str, ...], by: str | None) -> str:
    return printable(", ".join(columns) + (f" by {by}" if by else ""))


def _domain(federation: FederationConfig) -> bytes:
    return DOMAIN + federation_id(federation)
