"""Messages of the sums: statements, which their authors sign and all members get, and words between two neighbors.

A statement is signed together with a domain text and the federation's id. All but two name their set-up: `Keys` begins
with a number that only grows, and the digest of a `SetupOpening` is the id of the set-up that it opens. Sets of
members travel as bits, the lowest member in the lowest bit of the first byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct
from msgspec.msgpack import Decoder, Encoder

from p2pfl.features.sums.masks import COMMITMENT_BYTES, KEY_BYTES

ID_BYTES = 16
PAIR_BYTES, SEAL_BYTES = 2 * KEY_BYTES, 16
"""Two shares, and what sealing adds to a parcel of them."""
ROSTER = -1
"""The number of the slot about a set-up's roster; those of sums follow from 0."""
MOST_MEMBERS = 4096
MOST_SUMS = 512
MOST_ID_BYTES = 48_000
"""The most bytes of ids in one message."""

Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Bits = Annotated[bytes, Meta(max_length=MOST_MEMBERS // 8)]
Index = Annotated[int, Meta(ge=0, lt=MOST_MEMBERS)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Number = Annotated[int, Meta(ge=-1, lt=MOST_SUMS)]
"""The number of a sum in its set-up; -1: the roster."""
SumNumber = Annotated[int, Meta(ge=0, lt=MOST_SUMS)]
MOST_EPOCH = 2**32
Vector = Annotated[bytes, Meta(max_length=2**23)]


class Told(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message."""


class Keys(Told, frozen=True, kw_only=True, tag=1):
    """The public keys that the author has drawn for its next set-up: 97 bytes, and 48 for each sum.

    `life` grows with each start of the author, and `serial` with each set-up. `box` receives shares. `masks` has an
    X25519 key for each sum, `seeds` a commitment to each seed of the author's own mask.
    """

    life: Count
    serial: Count
    box: Digest
    masks: Annotated[bytes, Meta(min_length=32, max_length=32 * MOST_SUMS)]
    seeds: Annotated[bytes, Meta(min_length=16, max_length=16 * MOST_SUMS)]

    def fit(self, sums: int) -> bool:
        """True if these are keys for so many sums."""
        return len(self.masks) == sums * KEY_BYTES and len(self.seeds) == sums * COMMITMENT_BYTES


class SetupOpening(Told, frozen=True, kw_only=True, tag=2):
    """Opens a set-up of these members with these keys: for each member, in ascending order, the id of its `Keys`."""

    members: Bits
    keys: Annotated[bytes, Meta(max_length=ID_BYTES * MOST_MEMBERS)]

    def named(self) -> dict[int, bytes] | None:
        """The ids of the members' keys; None: the opening is not well formed."""
        members = members_of(self.members)
        if len(self.keys) != ID_BYTES * len(members):
            return None
        return {m: self.keys[at * ID_BYTES : (at + 1) * ID_BYTES] for at, m in enumerate(members)}


class Parcel(Told, frozen=True, kw_only=True, tag=3):
    """The author's shares for one partner, sealed: 64 bytes for each sum. `spread`: no route reached it, so all carry
    it.
    """

    setup: Id
    to: Index
    sealed: Annotated[bytes, Meta(max_length=64 * MOST_SUMS + 16)]
    spread: bool


class Ack(Told, frozen=True, kw_only=True, tag=4):
    """The author holds shares of these members."""

    setup: Id
    holds: Bits


class VectorReady(Told, frozen=True, kw_only=True, tag=5):
    """The author has its vector for this sum. `terms` say what is summed: names, shapes, bounds, label."""

    setup: Id
    number: SumNumber
    terms: Digest


class Wave(Told, frozen=True, kw_only=True, tag=6):
    """Asks for all masked vectors of these terms. A node's parent in its tree is who brought it the wave first."""

    setup: Id
    number: SumNumber
    epoch: Annotated[int, Meta(ge=0, le=MOST_EPOCH)]
    terms: Digest


class MemberList(Told, frozen=True, kw_only=True, tag=7):
    """Proposes who is in a sum of these terms, with the digest of the sum of their masked vectors; or the roster."""

    setup: Id
    number: Number
    members: Bits
    terms: Annotated[bytes, Meta(max_length=32)]
    total: Annotated[bytes, Meta(max_length=32)]


class SlotVote(Told, frozen=True, kw_only=True, tag=8):
    """The author's one vote in this slot, for the list with this id."""

    setup: Id
    number: Number
    chosen: Id


class SlotQuit(Told, frozen=True, kw_only=True, tag=9):
    """The author gives the slot up, and will sign no list in it."""

    setup: Id
    number: Number
    reason: Annotated[str, Meta(max_length=40)]


class Reveal(Told, frozen=True, kw_only=True, tag=10):
    """After a certificate: the author's own secret, and shares of others: one kind for each member, by who is in the
    list.
    """

    setup: Id
    number: SumNumber
    own: Annotated[bytes, Meta(max_length=32)]
    shares: Annotated[tuple[tuple[Index, Digest], ...], Meta(max_length=MOST_MEMBERS)]


Statement: TypeAlias = (
    Keys | SetupOpening | Parcel | Ack | VectorReady | Wave | MemberList | SlotVote | SlotQuit | Reveal
)
InSetup: TypeAlias = Parcel | Ack | VectorReady | Wave | MemberList | SlotVote | SlotQuit | Reveal
encode_statement = Encoder().encode
decode_statement = Decoder(Statement).decode


class Post(Told, frozen=True, kw_only=True, tag=20):
    """A signed statement on its way."""

    author: Index
    body: Annotated[bytes, Meta(max_length=50_000)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class Have(Told, frozen=True, kw_only=True, tag=21):
    """What the sender has: a digest of all ids; with `ids`, all of them. `asks`: it wants what it lacks."""

    digest: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    ids: Annotated[bytes, Meta(max_length=MOST_ID_BYTES)] = b""
    asks: bool = True


class Poll(Told, frozen=True, kw_only=True, tag=22):
    """The sender waits for the neighbor's part in a wave."""

    wave: Post


class Working(Told, frozen=True, kw_only=True, tag=23):
    """Answers a poll. `is_child`: the sender still waits for parts itself; else it is in another branch of the tree."""

    wave: Id
    is_child: bool


class BranchPart(Told, frozen=True, kw_only=True, tag=24):
    """The sum of the masked vectors of a branch of the tree, and whose they are: 8 bytes for each entry."""

    wave: Id
    members: Bits
    vector: Vector


class Total(Told, frozen=True, kw_only=True, tag=25):
    """The sum of the masked vectors of a list's members."""

    setup: Id
    number: SumNumber
    members: Bits
    vector: Vector


class Want(Told, frozen=True, kw_only=True, tag=26):
    """Asks for the total with this digest."""

    total: Digest


Message: TypeAlias = Post | Have | Poll | Working | BranchPart | Total | Want


def bits_of(members: Iterable[int]) -> bytes:
    number = 0
    for member in members:
        number |= 1 << member
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


@lru_cache(512)
def members_of(bits: bytes) -> tuple[int, ...]:
    """In ascending order."""
    number = int.from_bytes(bits, "little")
    return tuple(place for place in range(number.bit_length()) if number >> place & 1)


def id_of(author: int, body: bytes) -> bytes:
    """16 bytes that name a statement."""
    return hashlib.blake2b(author.to_bytes(4, "little") + body, digest_size=ID_BYTES, person=b"sums statement").digest()


def total_digest(setup: bytes, number: int, members: bytes, vector: bytes) -> bytes:
    """32 bytes that name the sum of the masked vectors of these members."""
    hashed = hashlib.blake2b(setup + number.to_bytes(4, "little"), digest_size=32, person=b"sums total")
    hashed.update(len(members).to_bytes(4, "little") + members)
    hashed.update(vector)
    return hashed.digest()
