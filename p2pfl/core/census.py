"""The members that have begun to train, and those that are *through*: from own knowledge and from neighbors' words.

*Begun* and *through* are sets of members that only grow: those that have begun to train, and those that have done all
the training they had to. Nodes tell them in Hello and Ready and pass them on. With a robust rule a member counts if it
says so itself or more than b neighbors do, for b of them may lie. A node never believes from others that it is through.

Members may be removed while the others train: they no longer count. If the number of rounds to do grows, nobody is
through any more; until a neighbor knows of that too, its word on *through* is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from zlib import crc32

from p2pfl.core.facts import NEVER
from p2pfl.core.settings import Settings


def digest_of(begun: bytes, through: bytes) -> int:
    """A 32-bit digest of both sets: equal where two nodes know the same."""
    return crc32(b"|".join((begun, through)))


NOTHING = digest_of(b"", b"")
TELL_WITHIN_S = 0.25
"""News travel with the next Ready, or on their own after this long: a slow node's round must not hold them up."""
MOST_TELLS = 16
"""The most times in a row that a neighbor is told the same sets: with a robust rule two nodes may never agree."""


@dataclass(slots=True)
class Claims:
    """The sets that one neighbor has told, as bitmaps, and the digest of its knowledge by its latest word."""

    begun: int = 0
    through: int = 0
    known: int = NOTHING
    told: int = NOTHING
    """The digest of the sets that it was told last, received or not."""
    progress_at: float | None = None
    """The time at which this neighbor, not yet through, last showed a new version."""
    round_s: float = 0.0
    """The seconds that it took for that version."""
    tells: int = 0
    """The number of times it was told the current sets."""
    bound: int = 0
    """The rounds to do as this neighbor knows them; 0: it has not said, or time bounds training."""

    def lags(self, bound: int) -> bool:
        """True if this neighbor knows of fewer rounds to do than that."""
        return 0 < self.bound < bound


class Census:
    """The sets that this node believes, `begun` and `through`. News must be told at `due_at`; `claims`: by neighbor."""

    def __init__(self, index: int, neighbors: Iterable[int], settings: Settings) -> None:
        self.own = 1 << index
        self.settings = settings
        self._members = self.counted = 0
        """Bits of all members ever, and of those that were not removed."""
        self._count_members()
        self.claims = {peer: Claims() for peer in neighbors}
        self.begun = self.through = 0
        self._told = b"", b""
        """Both sets, as bytes."""
        self.due_at = NEVER
        self.digest = NOTHING
        """The digest of what this node believes; equal where two nodes know the same."""
        self.new_at = float("-inf")
        """The time at which the set of members that are through last grew."""
        self.half_at: float | None = None
        """The time since which half of those who have begun are through; None: they are not."""
        self.begun_at: float | None = None
        self.through_at: float | None = None
        """The times at which this node began to train (`begun_at`), and was through (`through_at`)."""

    @property
    def is_through(self) -> bool:
        """True if this node has done all the training it had to."""
        return bool(self.through & self.own)

    @property
    def bound(self) -> int:
        """The rounds to do, as they are told to others; 0 where time bounds training."""
        return self.settings.rounds or 0

    # -- a federation that changes ------------------------------------------------------------------------------------

    def amend(self, neighbors: Iterable[int], bound_before: int, now: float) -> None:
        """Take up new settings and neighbors."""
        self._count_members()
        self.claims = {peer: self.claims.get(peer) or Claims() for peer in sorted(neighbors)}
        if self.bound > bound_before:
            self.through_at = None
            self.through = 0
        self.through |= self._accepted("through") & ~self.own
        self.begun |= self._accepted("begun") | self.through
        self._tell_anew(now)

    def _count_members(self) -> None:
        self._members = (1 << self.settings.members) - 1
        self.counted = self._members & ~sum(1 << member for member in self.settings.retired)

    # -- what is heard and told -------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        self.begun_at = now if self.begun_at is None else self.begun_at
        self._take(self.own, 0, now)

    def complete(self, now: float) -> None:
        """This node has trained all that it had to."""
        self.through_at = now if self.through_at is None else self.through_at
        self._take(self.own, self.own, now)

    def remember(self, members: Iterable[int], now: float) -> None:
        """Members who had begun before this node was started again: none of them is left behind unasked."""
        self._take(sum(1 << member for member in members), 0, now)

    def hear(self, peer: int, known: int, begun: bytes, through: bytes, now: float, *, bound: int = 0) -> None:
        """Take a neighbor's sets; earlier ones stay true, unless it has learned of more rounds to do."""
        claims = self.claims[peer]
        claims.known = known
        if bound != claims.bound:
            claims.through = claims.through if bound < claims.bound else 0
            claims.bound = bound
        if not begun and not through:
            return
        before = claims.begun, claims.through
        claims.begun |= int.from_bytes(begun, "little")  # also of members that this node has yet to hear of
        claims.through |= int.from_bytes(through, "little") & ~self.own
        claims.begun |= claims.through
        if (claims.begun, claims.through) != before:
            self._take(self._accepted("begun"), self._accepted("through"), now)

    def met(self, peer: int, now: float) -> None:
        """Note a new session with this neighbor: it counts as active from now."""
        self.claims[peer].progress_at, self.claims[peer].round_s = now, 0.0

    def progressed(self, peer: int, now: float) -> None:
        """Note that a neighbor has shown a new version."""
        claims = self.claims[peer]
        if self.through >> peer & 1:
            return
        since = self.begun_at if claims.progress_at is None else claims.progress_at
        claims.round_s = 0.0 if since is None else now - since
        claims.progress_at = now

    def has_news_for(self, peer: int) -> bool:
        """True if this neighbor may lack what this node knows: it has neither told it itself nor shown its digest."""
        claims = self.claims[peer]
        lacks = self.begun & ~claims.begun or self.through & ~claims.through
        told_often = claims.told == self.digest and claims.tells >= MOST_TELLS
        return bool(lacks) and claims.known != self.digest and not told_often

    def tell(self, peer: int) -> tuple[bytes, bytes]:
        """Both sets as bytes, counted as told to this neighbor."""
        claims = self.claims[peer]
        claims.tells = claims.tells + 1 if claims.told == self.digest else 1
        claims.told = self.digest
        return self._told

    def untold(self) -> list[int]:
        """The neighbors that have not been told what is new, whether they have heard it or not."""
        return [peer for peer, claims in self.claims.items() if claims.told != self.digest and self.has_news_for(peer)]

    def _take(self, begun: int, through: int, now: float) -> None:
        known = self.begun, self.through
        self.begun |= begun | through
        self.through |= through
        if (self.begun, self.through) == known:
            return
        if self.through != known[1]:
            self.new_at = now
        self._tell_anew(now)

    def _tell_anew(self, now: float) -> None:
        """Note that the sets, or the members that count, have changed."""
        self.due_at = min(self.due_at, now + TELL_WITHIN_S)
        self._told = bitmap(self.begun), bitmap(self.through)
        self.digest = digest_of(*self._told)
        begun, through = (members & self.counted for members in (self.begun, self.through))
        whole = self.settings.profile.whole(begun.bit_count(), self.counted.bit_count())
        is_half = through and 2 * through.bit_count() >= whole
        if not is_half:
            self.half_at = None
        elif self.half_at is None:
            self.half_at = now

    def _accepted(self, which: str) -> int:
        """The members that enough neighbors name, or that name themselves."""
        needed = self.settings.profile.words_needed
        # A neighbor that knows of fewer rounds to do may believe a member to be through that is not.
        counting = {
            peer: claims for peer, claims in self.claims.items() if which == "begun" or not claims.lags(self.bound)
        }
        believed = {peer: getattr(claims, which) & self._members for peer, claims in counting.items()}
        if needed == 1:
            return reduce(or_, believed.values(), 0)
        named = [0] * (needed + 1)
        themselves = 0
        for peer, members in believed.items():
            themselves |= members & 1 << peer
            for count in range(needed, 1, -1):
                named[count] |= named[count - 1] & members
            named[1] |= members
        return themselves | named[needed]

    def lags(self, peer: int) -> bool:
        """True if this neighbor knows of fewer rounds to do: if it has stopped, it does not know of all of them."""
        return self.claims[peer].lags(self.bound)


def bitmap(members: int) -> bytes:
    """The set as bytes, the lowest bit of the first for member 0."""
    return members.to_bytes((members.bit_length() + 7) // 8, "little")
