"""The standing of each member, signed and handed from neighbor to neighbor, and how one that is behind gets the state.

All members have the same state after as many sums, so its digest says whether two agree. What more than t members have
signed, an honest one has: a state with that digest may be taken over from anybody, piece by piece, each asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from p2pfl.config.model import FederationConfig
from p2pfl.core.limits import TokenBucket
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault
from p2pfl.features.sums.setup import SLOW_BYTES_PER_S
from p2pfl.limits import CHANNEL_AT_ONCE, CHANNEL_PER_S, MOST_KEPT_BYTES, STANDINGS_KEPT
from p2pfl.net.extensions import ExtensionChannel

DOMAIN = b"p2pfl standing after sums\x00"
PIECE_BYTES = 48 * 1024

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes of a packed state: a memoryview has items of one byte."""
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A number of sums that ended well, and the digest of the state after them."""

    sums: int
    digest: bytes


class StandingMessage(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message about where members stand."""


class SumStanding(StandingMessage, frozen=True, kw_only=True, tag=1):
    """`member` has the state with this digest, after so many sums. Of two, the larger `serial` is the later one."""

    member: Count
    serial: Count
    sums: Count
    digest: Digest
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]

    @property
    def place(self) -> Place:
        return Place(self.sums, self.digest)


class StateWanted(StandingMessage, frozen=True, kw_only=True, tag=2):
    """Asks for the state with this digest, from `offset` on."""

    digest: Digest
    offset: Count


class StatePiece(StandingMessage, frozen=True, kw_only=True, tag=3):
    """A piece of a state of `size` bytes; an empty one says that the sender does not have that state any longer."""

    digest: Digest
    size: Count
    offset: Count
    part: Annotated[bytes, Meta(max_length=PIECE_BYTES)]


def state_digest(state: Iterable[Buffer]) -> bytes:
    """Return the digest (32 bytes) of a packed state, from its pieces."""
    digest = hashlib.blake2b(digest_size=32, person=b"p2pfl-shared")
    for piece in state:
        digest.update(piece)
    return digest.digest()


def _part_of(state: Iterable[Buffer], offset: int) -> bytes:
    part = b""
    for piece in state:
        part += piece[offset : offset + PIECE_BYTES - len(part)]
        offset = max(0, offset - len(piece))
    return part


MOST_VAIN, LOST_S = 10, 30.0
"""After so many times in vain a state is not asked for during so many seconds."""


class Standings:
    """The latest standings, and the state to take over: that of most, signed by `needed`, unless nobody gives it."""

    def __init__(
        self, federation: FederationConfig, federation_id: bytes, identity: Identity, own: int, needed: int
    ) -> None:
        self._keys = [VerifyKey(member.key) for member in federation.members]
        self._retired = federation.retired
        self._id, self._identity, self._own = federation_id, identity, own
        self.needed = needed
        self.latest: dict[int, SumStanding] = {}
        self._least_serial = 0
        """Above the serials that this node has signed in earlier lives, as far as they are known."""
        self.place = Place(0, b"")
        """This node's own state."""
        self.was_refused = False
        """True once a sum from this state was refused: then the node may go back to an earlier one."""
        self._vain = 0
        self._lost: dict[Place, float] = {}
        """Until when which state is not asked for."""

    def state(self, place: Place, least_serial: int) -> SumStanding:
        """Sign where this node stands, with a serial of at least that."""
        if place != self.place:
            self.place, self.was_refused, self._vain = place, False, 0
        before = self.latest.get(self._own)
        serial = max(least_serial, self._least_serial, 0 if before is None else before.serial + 1)
        signature = self._identity.sign(self._signed(self._own, serial, place.sums, place.digest))
        standing = self.latest[self._own] = SumStanding(
            member=self._own, serial=serial, sums=place.sums, digest=place.digest, signature=signature
        )
        return standing

    def hear(self, standing: SumStanding) -> bool:
        """Return True if a standing is news; none of this node is. Raises PeerFault: its member has not signed it."""
        member = standing.member
        if member >= len(self._keys):
            raise PeerFault(f"a standing of member {member} of {len(self._keys)}")
        known = self.latest.get(member)
        if known is not None and known.serial >= standing.serial:
            return False
        signed = self._signed(member, standing.serial, standing.sums, standing.digest)
        try:
            self._keys[member].verify(signed, standing.signature)
        except BadSignatureError:
            raise PeerFault(f"a standing that member {member} did not sign") from None
        if member == self._own:
            self._least_serial = max(self._least_serial, standing.serial + 1)
            return False
        if member in self._retired:
            return False
        self.latest[member] = standing
        return True

    @property
    def is_outdated(self) -> bool:
        """True if a standing of an earlier life counts as later, as this folder is an old copy: state it once more."""
        own = self.latest.get(self._own)
        return own is not None and own.serial < self._least_serial

    def place_of(self, member: int) -> Place | None:
        standing = self.latest.get(member)
        return None if standing is None else standing.place

    def next_place(self, now: float) -> Place | None:
        """Return the state that this node should take over, None if its own is right."""
        lost = [place for place, until in self._lost.items() if now < until]
        ahead = self.ahead_of(self.place, but=lost)
        return self.common_before(self.place) if ahead is None and self.was_refused else ahead

    def asked_in_vain(self, place: Place, now: float) -> None:
        """Note that no neighbor gave that state. After some times in a row all who had it count as gone for a while."""
        self._vain += 1
        if self._vain >= MOST_VAIN:
            self._vain, self._lost[place] = 0, now + LOST_S

    def ahead_of(self, own: Place, but: Collection[Place] = ()) -> Place | None:
        """Return the latest state that enough others signed, of two the commoner; None: there is none to take over."""
        others = Counter(said.place for member, said in self.latest.items() if member != self._own)
        vouched = [place for place, count in others.items() if count >= self.needed and place not in but]
        best = max(vouched, key=lambda place: (place.sums, others[place], place.digest), default=None)
        if best is None or best.sums < own.sums or best == own:
            return None
        if best.sums > own.sums:
            return best
        return best if (others[best], best.digest) > (others[own] + 1, own.digest) else None

    def common_before(self, own: Place) -> Place | None:
        """Return the earlier state that a node ahead of all others should go back to, None if there is none.

        So few got its last sum that nobody will take its state over, and the others cannot go on without them.
        """
        others = Counter(said.place for member, said in self.latest.items() if member != self._own)
        if others[own] + 1 >= self.needed:
            return None
        earlier = [place for place, count in others.items() if count >= self.needed and place.sums < own.sums]
        return max(earlier, key=lambda place: (place.sums, others[place], place.digest), default=None)

    def who(self, fits: Callable[[Place], bool]) -> set[int]:
        """Return the members, this one included, whose standing fits."""
        return {member for member, said in self.latest.items() if fits(said.place)}

    def _signed(self, member: int, serial: int, sums: int, digest: bytes) -> bytes:
        numbers = b"".join(number.to_bytes(8, "little") for number in (member, serial, sums))
        return DOMAIN + self._id + numbers + digest


PATIENCE_S = 5.0
"""The longest time of a neighbor for a piece."""


CHANNEL = ExtensionChannel(
    "standings",
    SumStanding,
    StateWanted,
    StatePiece,
    most_bytes=PIECE_BYTES + 256,
    per_s=CHANNEL_PER_S["standings"],
    at_once=CHANNEL_AT_ONCE["standings"],
    most_waiting=4096,
)


SPREAD_PER_S, SPREAD_AT_ONCE = 20.0, 400.0
"""The limit on passing on a member's standings: it states one after each sum."""


class StandingsTalk:
    """Passes standings on, gives this node's latest states, of at most `most_bytes`, to neighbors, and gets theirs."""

    def __init__(
        self, standings: Standings, say: Callable[[int, ExtensionChannel, StandingMessage], bool], most_bytes: int
    ) -> None:
        self._standings, self._say = standings, say
        self._most_bytes = most_bytes
        self._kept: dict[bytes, Sequence[Buffer]] = {}
        """The pieces of states, by digest."""
        self._wanted = b""
        self._from: int | None = None
        self._body, self._size = bytearray(), 0
        self._slow: Counter[int] = Counter()
        """How often each neighbor was given up as too slow: it is asked last, and has twice as long each time."""
        self._came = asyncio.Event()
        self.news = asyncio.Event()
        self.peers: list[int] = []
        self._spread: defaultdict[int, TokenBucket] = defaultdict(
            lambda: TokenBucket(SPREAD_PER_S, tokens=SPREAD_AT_ONCE, burst=SPREAD_AT_ONCE)
        )
        """The limits by member."""

    def opened(self, peer: int) -> None:
        self.peers.append(peer)
        for standing in self._standings.latest.values():
            self._say(peer, CHANNEL, standing)

    def closed(self, peer: int) -> None:
        if peer in self.peers:
            self.peers.remove(peer)

    def hear(self, peer: int, message: StandingMessage) -> None:
        """Raises PeerFault."""
        if isinstance(message, StateWanted):
            state = self._kept.get(message.digest, ())
            part, size = _part_of(state, message.offset), sum(map(len, state))
            piece = StatePiece(digest=message.digest, size=size, offset=message.offset, part=part)
            self._say(peer, CHANNEL, piece)
        elif isinstance(message, StatePiece):
            self.hear_piece(peer, message)
        elif isinstance(message, SumStanding) and self._standings.hear(message):
            if self._spread[message.member].take(asyncio.get_running_loop().time()) == 0.0:
                self.spread(message, but=peer)
            self.news.set()
        if self._standings.is_outdated:
            self.spread(self._standings.state(self._standings.place, 0))

    def spread(self, standing: SumStanding, but: int | None = None) -> None:
        for peer in self.peers:
            if peer != but:
                self._say(peer, CHANNEL, standing)

    async def fetch(self, place: Place) -> bytearray | None:
        """Return the state of that place from a neighbor, None if none gives it; those that say to have it first."""
        clock = asyncio.get_running_loop().time
        for peer in sorted(self.peers, key=lambda peer: (self._slow[peer], self._standings.place_of(peer) != place)):
            self._wanted, self._from, self._body, self._size = place.digest, peer, bytearray(), 0
            began = clock()
            while await self._next_piece():
                most_s = (PATIENCE_S + self._size / SLOW_BYTES_PER_S) * 2 ** self._slow[peer]
                if len(self._body) < self._size and clock() > began + most_s:
                    self._slow[peer] += 1
                    break
                if self._body and len(self._body) == self._size:
                    state, self._body, self._from = self._body, bytearray(), None
                    if state_digest([state]) == place.digest:
                        del self._slow[peer]
                        return state
                    break
        self._from = None
        return None

    def keep(self, state: Sequence[Buffer], digest: bytes) -> None:
        """Keep a state for others. The memory of a large one stays its owner's, who calls `release` to write to it."""
        self.release()
        self._kept.pop(digest, None)
        is_small = sum(map(len, state)) * STANDINGS_KEPT <= MOST_KEPT_BYTES
        self._kept[digest] = [b"".join(state)] if is_small else state
        while len(self._kept) > (STANDINGS_KEPT if is_small else 1):
            del self._kept[next(iter(self._kept))]

    def release(self) -> None:
        """Keep no longer what is in others' memory."""
        self._kept = {digest: state for digest, state in self._kept.items() if len(state) == 1}

    def hear_piece(self, peer: int, piece: StatePiece) -> None:
        """Raises PeerFault: the piece is none of the state that was asked for."""
        if peer != self._from or piece.digest != self._wanted or piece.offset != len(self._body):
            return  # an answer that came too late
        if piece.size > self._most_bytes:
            raise PeerFault(f"a state of {piece.size} bytes; at most {self._most_bytes}")
        if piece.size == 0 and not piece.part:
            self._came.set()  # it does not have the state any longer
            return
        if len(piece.part) != min(PIECE_BYTES, piece.size - piece.offset) or self._size not in (0, piece.size):
            raise PeerFault("a piece of a state that is not as long as it should be")
        self._size = piece.size
        self._body += piece.part
        self._came.set()

    async def _next_piece(self) -> bool:
        before, self._came = len(self._body), asyncio.Event()
        if self._from is None or not self._say(self._from, CHANNEL, StateWanted(digest=self._wanted, offset=before)):
            return False
        try:
            await asyncio.wait_for(self._came.wait(), PATIENCE_S)
        except TimeoutError:
            return False
        return len(self._body) > before
