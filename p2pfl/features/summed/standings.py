"""Where each member stands: signed, and handed from neighbor to neighbor.

All members have the same state after as many sums, so its digest says whether two agree. What more than t
members have signed, an honest one has: a state with that digest may be taken over from anybody.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import PeerFault

DOMAIN = b"p2pfl standing after sums\x00"
PIECE_BYTES = 48 * 1024

Count = Annotated[int, Meta(ge=0, lt=2**53)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class StandingTold(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A message about where members stand."""


class SumStanding(StandingTold, frozen=True, kw_only=True, tag=1):
    """`member` has the state with this digest, after so many sums. Of two, the one with the larger `serial` is the
    later one.
    """

    member: Count
    serial: Count
    sums: Count
    digest: Digest
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class StateWanted(StandingTold, frozen=True, kw_only=True, tag=2):
    """Asks for the state with this digest, from `offset` on."""

    digest: Digest
    offset: Count


class StatePiece(StandingTold, frozen=True, kw_only=True, tag=3):
    """A piece of a state of `size` bytes; an empty one says that the sender does not have that state any longer."""

    digest: Digest
    size: Count
    offset: Count
    part: Annotated[bytes, Meta(max_length=PIECE_BYTES)]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A number of sums that ended well, and the digest of the state after them."""

    sums: int
    digest: bytes


def state_digest(state: bytes) -> bytes:
    """Return the digest (32 bytes) of a packed state."""
    return hashlib.blake2b(state, digest_size=32, person=b"p2pfl-shared").digest()


class Standings:
    """The latest standings. `needed` is how many members must have signed for a state that is taken over."""

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

    def state(self, place: Place, least_serial: int) -> SumStanding:
        """Sign where this node stands, with a serial of at least that."""
        before = self.latest.get(self._own)
        serial = max(least_serial, self._least_serial, 0 if before is None else before.serial + 1)
        signed = self._signed(self._own, serial, place.sums, place.digest)
        signature = self._identity.sign(signed)
        standing = SumStanding(
            member=self._own, serial=serial, sums=place.sums, digest=place.digest, signature=signature
        )
        self.latest[self._own] = standing
        return standing

    def restated(self) -> SumStanding:
        """Sign once more where this node stands, later than all that it has signed before."""
        own = self.latest[self._own]
        return self.state(Place(own.sums, own.digest), 0)

    def hear(self, standing: SumStanding) -> bool:
        """Take a standing; return True if it is news. Raises PeerFault: its member has not signed it.

        One of an earlier life of this node is none, but `is_outdated` may be true afterwards.
        """
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
        """True if others have a standing of an earlier life of this node that counts as later: its folder is
        an old copy. Then it must state where it stands once more.
        """
        own = self.latest.get(self._own)
        return own is not None and own.serial < self._least_serial

    def place_of(self, member: int) -> Place | None:
        standing = self.latest.get(member)
        return None if standing is None else Place(standing.sums, standing.digest)

    def ahead_of(self, own: Place, but: Collection[Place] = ()) -> Place | None:
        """Return the state of the others that this node should take over, None if there is none; none of `but`.

        That is the latest one for which enough others have signed; of two after equally many sums, the one that more
        members have.
        """
        others = Counter(Place(one.sums, one.digest) for member, one in self.latest.items() if member != self._own)
        vouched = [place for place, count in others.items() if count >= self.needed and place not in but]
        best = max(vouched, key=lambda place: (place.sums, others[place], place.digest), default=None)
        if best is None or best.sums < own.sums or best == own:
            return None
        if best.sums > own.sums:
            return best
        return best if (others[best], best.digest) > (others[own] + 1, own.digest) else None

    def common_before(self, own: Place) -> Place | None:
        """Return the earlier state that a node ahead of all others should go back to, None if there is none.

        So few members have its own state that nobody will take it over, and enough have signed for the earlier one: a
        sum that few got, while the others cannot go on without them.
        """
        others = Counter(Place(one.sums, one.digest) for member, one in self.latest.items() if member != self._own)
        if others[own] + 1 >= self.needed:
            return None
        earlier = [place for place, count in others.items() if count >= self.needed and place.sums < own.sums]
        return max(earlier, key=lambda place: (place.sums, others[place], place.digest), default=None)

    def who(self, fits: Callable[[Place], bool]) -> set[int]:
        """Return the members, this one included, whose standing fits."""
        return {member for member, one in self.latest.items() if fits(Place(one.sums, one.digest))}

    def _signed(self, member: int, serial: int, sums: int, digest: bytes) -> bytes:
        numbers = b"".join(number.to_bytes(8, "little") for number in (member, serial, sums))
        return DOMAIN + self._id + numbers + digest
