"""Messages of the sums: statements, which their authors sign and all members get, and words between two neighbors.

A statement is signed together with a domain text and the federation's id. All but two name their set-up: `Keys` begins
with a number that only grows, and the digest of a `SetupOpening` is the id of the set-up that it opens. Sets of
members travel as bits, the lowest member in the lowest bit of the first byte. Here are also the settings, which all
members have in common, and the effects: what the caller is to do, in this order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct, msgpack
from msgspec.msgpack import Decoder, Encoder

from p2pfl.errors import PeerFault
from p2pfl.features.sums.arithmetic import COMMITMENT_BYTES, KEY_BYTES, Words, commitment, degree
from p2pfl.limits import MOST_ID_BYTES, MOST_SUM_STATEMENT_BYTES, MOST_SUMS

ID_BYTES = 16
PAIR_BYTES, SEAL_BYTES = 2 * KEY_BYTES, 16
"""Two shares, and what sealing adds to a parcel of them."""
ROSTER = -1
"""The number of the slot about a set-up's roster; those of sums follow from 0."""
MOST_MEMBERS = 4096
PLAIN = 2**52
"""The serials of who understands reveals without a signature begin there."""

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


class SumMessage(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message."""


class Keys(SumMessage, frozen=True, kw_only=True, tag=1):
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

    def has_seed(self, number: int, seed: bytes) -> bool:
        """True if the author has committed to this seed."""
        committed = self.seeds[number * COMMITMENT_BYTES : (number + 1) * COMMITMENT_BYTES]
        return len(seed) == KEY_BYTES and commitment(seed, self.box, number) == committed


class SetupOpening(SumMessage, frozen=True, kw_only=True, tag=2):
    """Opens a set-up of these members with these keys: for each member, in ascending order, the id of its `Keys`."""

    members: Bits
    keys: Annotated[bytes, Meta(max_length=ID_BYTES * MOST_MEMBERS)]

    def named(self) -> dict[int, bytes] | None:
        """The ids of the members' keys; None: the opening is not well formed."""
        members = members_of(self.members)
        if len(self.keys) != ID_BYTES * len(members):
            return None
        return {m: self.keys[at * ID_BYTES : (at + 1) * ID_BYTES] for at, m in enumerate(members)}


class InSetup(SumMessage, frozen=True, kw_only=True):
    """A statement about a set-up."""

    setup: Id


class Parcel(InSetup, frozen=True, kw_only=True, tag=3):
    """The author's shares for a partner, sealed: 64 bytes for each sum. `spread`: no route reached it; all carry it."""

    to: Index
    sealed: Annotated[bytes, Meta(max_length=64 * MOST_SUMS + 16)]
    spread: bool


class Ack(InSetup, frozen=True, kw_only=True, tag=4):
    """The author holds shares of these members."""

    holds: Bits


class VectorReady(InSetup, frozen=True, kw_only=True, tag=5):
    """The author has its vector for this sum. `terms` say what is summed: names, shapes, bounds, label."""

    number: SumNumber
    terms: Digest


class Wave(InSetup, frozen=True, kw_only=True, tag=6):
    """Asks for all masked vectors of these terms. A node's parent in its tree is who brought it the wave first."""

    number: SumNumber
    epoch: Annotated[int, Meta(ge=0, le=MOST_EPOCH)]
    terms: Digest


class GroupWave(Wave, frozen=True, kw_only=True, tag=11):
    """A wave of sums that differ by whole groups: asks for the masked vectors of these members only."""

    members: Bits


class MemberList(InSetup, frozen=True, kw_only=True, tag=7):
    """Proposes who is in a sum of these terms, with the digest of the sum of their masked vectors; or the roster."""

    number: Number
    members: Bits
    terms: Annotated[bytes, Meta(max_length=32)]
    total: Annotated[bytes, Meta(max_length=32)]


class SlotVote(InSetup, frozen=True, kw_only=True, tag=8):
    """The author's one vote in this slot, for the list with this id."""

    number: Number
    chosen: Id


class SlotQuit(InSetup, frozen=True, kw_only=True, tag=9):
    """The author gives the slot up, and will sign no list in it."""

    number: Number
    reason: Annotated[str, Meta(max_length=40)]


class Reveal(InSetup, frozen=True, kw_only=True, tag=10):
    """After a certificate: the author's own secret, and shares of others: of one kind each, by who is in the list."""

    number: SumNumber
    own: Annotated[bytes, Meta(max_length=32)]
    shares: Annotated[tuple[tuple[Index, Digest], ...], Meta(max_length=MOST_MEMBERS)]


Statement: TypeAlias = Keys | SetupOpening | InSetup
encode_statement = Encoder().encode
decode_statement: Callable[[bytes], Statement] = Decoder(
    Keys | SetupOpening | Parcel | Ack | VectorReady | Wave | GroupWave | MemberList | SlotVote | SlotQuit | Reveal
).decode


class Post(SumMessage, frozen=True, kw_only=True, tag=20):
    """A statement on its way, signed; a seed that is revealed may prove itself (`Records.proves`)."""

    author: Index
    body: Annotated[bytes, Meta(max_length=MOST_SUM_STATEMENT_BYTES)]
    signature: Annotated[bytes, Meta(max_length=64)]


class Have(SumMessage, frozen=True, kw_only=True, tag=21):
    """Says which statements one has: a digest of all ids; with `ids`, all of them. `asks`: it wants what it lacks."""

    digest: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    ids: Annotated[bytes, Meta(max_length=MOST_ID_BYTES)] = b""
    asks: bool = True


class WideHave(SumMessage, frozen=True, kw_only=True, tag=34):
    """A Have of whole ids, with a digest for which nobody finds another set of them; empty where there are none."""

    digest: Annotated[bytes, Meta(max_length=ID_BYTES)]
    ids: Annotated[bytes, Meta(max_length=MOST_ID_BYTES)] = b""
    asks: bool = True


class Poll(SumMessage, frozen=True, kw_only=True, tag=22):
    """The sender waits for the neighbor's part in a wave."""

    wave: Post


class Working(SumMessage, frozen=True, kw_only=True, tag=23):
    """Answers a poll. `is_child`: the sender still waits for parts itself; else it is in another branch of the tree."""

    wave: Id
    is_child: bool


class BranchPart(SumMessage, frozen=True, kw_only=True, tag=24):
    """The sum of the masked vectors of a branch of the tree, and whose they are: 8 bytes for each entry."""

    wave: Id
    members: Bits
    vector: Vector


class Total(SumMessage, frozen=True, kw_only=True, tag=25):
    """The sum of the masked vectors of a list's members."""

    setup: Id
    number: SumNumber
    members: Bits
    vector: Vector


class Want(SumMessage, frozen=True, kw_only=True, tag=26):
    """Asks for the total with this digest."""

    total: Digest


Message: TypeAlias = Post | Have | WideHave | Poll | Working | BranchPart | Total | Want


class ThinPost(SumMessage, frozen=True, kw_only=True, tag=33):
    """A post; in its statement's array the place of a known value has that one's number."""

    author: Index
    statement: list[Any]
    signature: Annotated[bytes, Meta(max_length=64)]


NAMED = {4: (1,), 5: (1, 3), 6: (1, 4), 7: (1, 4), 8: (1, 3), 9: (1,), 10: (1,), 11: (1, 4)}
"""Where a statement of that tag names its set-up, terms or list."""
LIST_TAG, MOST_KNOWN = 7, 64


class Shorthand:
    """What the posts on one way of a session have named, numbered alike by both ends: the latest `MOST_KNOWN`."""

    def __init__(self) -> None:
        self._values: dict[int, bytes] = {}
        self._numbers: dict[bytes, int] = {}
        self._count = 0

    def thin(self, post: Post) -> ThinPost | None:
        """Return a post in short; None: it goes as it is. Once it is sent, `whole` is to be called here, too."""
        fields = msgpack.decode(post.body)
        if fields[0] not in NAMED or encode_statement(fields) != post.body:
            return None
        for place in NAMED[fields[0]]:
            fields[place] = self._numbers.get(fields[place], fields[place])
        return ThinPost(author=post.author, statement=fields, signature=post.signature)

    def whole(self, thin: ThinPost) -> Post:
        """Raises PeerFault: no honest neighbor sends that."""
        fields = [*thin.statement]
        try:
            for place in NAMED[fields[0]]:
                if isinstance(fields[place], int):
                    fields[place] = self._values[fields[place]]
                self._learn(fields[place])
        except (LookupError, TypeError, ValueError) as error:
            raise PeerFault(f"a short post that nobody can read: {error!r}") from None
        body = encode_statement(fields)
        if len(body) > MOST_SUM_STATEMENT_BYTES:
            raise PeerFault(f"a statement of {len(body)} bytes")
        if fields[0] == LIST_TAG:
            self._learn(id_of(thin.author, body))
        return Post(author=thin.author, body=body, signature=thin.signature)

    def _learn(self, value: bytes) -> None:
        if not isinstance(value, bytes) or len(value) > 2 * ID_BYTES:
            raise ValueError("no id and no terms")
        if value not in self._numbers:
            number, self._count = self._count % MOST_KNOWN, self._count + 1
            if number in self._values:
                del self._numbers[self._values[number]]
            self._values[number], self._numbers[value] = value, number


def bits_of(members: Iterable[int]) -> bytes:
    number = 0
    for member in members:
        number |= 1 << member
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


@lru_cache(512)
def members_of(bits: bytes) -> tuple[int, ...]:
    """Return the members of a set, in ascending order."""
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


def quorum(members: int, colluders: int) -> int:
    """The least number of signers that is more than (n + t) / 2."""
    return (members + colluders) // 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSettings:
    """`members` are the Ed25519 keys, `index` is this node's own. Raises ValueError: no sum is private with these."""

    federation: bytes
    members: tuple[bytes, ...]
    index: int
    life: int
    """It orders the starts of this member; one without memory takes 0, and learns a later one from the others."""
    colluders: int = 1
    least: int = 3
    sums: int = 64
    """The sums that one set-up serves."""
    is_plain: bool = False
    """True: seeds are revealed without a signature in set-ups where all members understand that."""
    groups: tuple[frozenset[int], ...] = ()
    """With groups, a sum is of whole ones only: so no two sums differ by fewer members."""

    def __post_init__(self) -> None:
        count, t = len(self.members), self.colluders
        if not 3 <= count <= MOST_MEMBERS:
            raise ValueError(
                f"{count} members: a secure sum has 3 to {MOST_MEMBERS}; of two, each knows the other's part"
            )
        if not 1 <= t <= self.least - 2 <= count - 2:
            why = "at least 1, for a member that is curious by itself is one, and two of least must be honest"
            raise ValueError(f"least = {self.least} of {count} members, colluders = {t}: {why}")
        if not (1 <= self.sums <= MOST_SUMS and 0 <= self.index < count):
            raise ValueError(f"member {self.index} of {count}, {self.sums} sums of a set-up: at most {MOST_SUMS}")
        grouped = [member for group in self.groups for member in group]
        if len(set(grouped)) < len(grouped) or any(len(group) < t + 2 for group in self.groups):
            raise ValueError(f"groups: each has at least {t + 2} members, and no member is in two")

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def quorum(self) -> int:
        return quorum(self.count, self.colluders)

    def whole(self, members: Collection[int]) -> frozenset[int]:
        """Return the members whose groups are among these as a whole; without groups, all of these."""
        there = frozenset(members)
        return frozenset().union(*(group for group in self.groups if group <= there)) if self.groups else there

    def are_enough(self, members: Collection[int]) -> bool:
        """Return True if a set-up of these members can have a sum."""
        return len(members) >= max(self.quorum, self.least) and len(self.whole(members)) >= self.least

    @property
    def threshold(self) -> int:
        """Shares that give a secret: t + 1, as one honest holder must have agreed, and it follows one certificate.

        More would hold without certificates too (above (holders + t) / 2 no two kinds can be told of one member), at
        the price of as many more holders that must live.
        """
        return self.colluders + 1

    def reach(self, members: int) -> int:
        """The number of partners of each of so many members of a set-up."""
        return degree(members, self.colluders)

    def acks_needed(self, members: int) -> int:
        """Partners who hold a member's shares, so that t of them may refuse: all, where there are no 2 t + 1."""
        return min(self.reach(members), 2 * self.colluders + 1)

    def are_members(self, bits: bytes) -> bool:
        """Return True if a set has members of this federation alone."""
        return int.from_bytes(bits, "little") >> self.count == 0 and len(bits) <= (self.count + 7) // 8

    def domain(self) -> bytes:
        """The text that each signature covers: nothing signed here counts elsewhere, or under other settings."""
        numbers = f"{self.count} {self.colluders} {self.least} {self.sums}"
        numbers += "".join(f" {','.join(map(str, sorted(group)))}" for group in self.groups)
        return (
            b"p2pfl secure sums 1\0" + len(self.federation).to_bytes(4, "little") + self.federation + numbers.encode()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToNeighbor:
    """Send a message to a neighbor. It may be lost, if the session ends; it may come late."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Write down durably, before the effects after it: data with this digest are in a sum of these members."""

    data: bytes
    members: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumDone:
    """The sum of these members' vectors, modulo 2^64. All who get the sum of this set-up and number get this one."""

    label: str
    setup: bytes
    number: int
    members: tuple[int, ...]
    total: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """There is no sum at this node. Others may have one; it is then that of the members who are named there."""

    label: str
    reason: str
    differ: tuple[int, ...] = ()
    """The members who sum other things than this one."""
    is_out: bool = False
    """This member's masked vector has left it, and others may still get a sum with it."""
    missing: tuple[int, ...] = ()
    """The members that have not said that they have a vector, or have no keys for a set-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """This member holds sums up."""

    member: int
    why: str


Effect: TypeAlias = SendToNeighbor | Keep | SumDone | Refused | HeldUp


class Effects(list[Effect]):
    """Collects the effects of one event."""

    def say(self, peer: int, message: Message) -> None:
        self.append(SendToNeighbor(peer=peer, message=message))
