"""Who of a federation has begun to train, and who is through, by what this node knows itself and its neighbors tell.

*Begun* and *through* are sets of members that only grow: who has begun to train, and who has trained all that it had
to. Nodes tell them in Hello and Ready and pass them on. With a robust rule a member counts where it says so itself or
more than b neighbors do, for b of them may lie. Nobody is told by others that it is through itself.

Members may be removed while the others train: they count for nothing. Where the rounds to do become more, nobody is
through any more; until a neighbor has heard of that too, what it tells of *through* is void.
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
    """32 bits that tell whether two nodes know the same."""
    return crc32(b"|".join((begun, through)))


NOTHING = digest_of(b"", b"")
TELL_WITHIN_S = 0.25
"""News travel with the next Ready, or on their own after this long: a slow node's round must not hold them up."""
MOST_TELLS = 16
"""How often a neighbor is told the same sets in a row: under a robust rule two nodes may never agree on them."""


@dataclass(slots=True)
class Claims:
    """What one neighbor has told of everybody, as bitmaps, and the digest of what it knows by its latest word."""

    begun: int = 0
    through: int = 0
    known: int = NOTHING
    told: int = NOTHING
    """The digest of what it was told last, heard or not."""
    progress_at: float | None = None
    """When this neighbor, not yet through, last showed a new version."""
    round_s: float = 0.0
    """How long it took for that version."""
    tells: int = 0
    """How often it was told the sets as they are."""
    bound: int = 0
    """The rounds to do as this neighbor knows them; 0: it has not said, or time bounds training."""

    def lags(self, bound: int) -> bool:
        """Whether this neighbor knows of fewer rounds to do than that."""
        return 0 < self.bound < bound


class Census:
    """`begun` and `through` are what is believed. News must be told at `due_at`. `claims` are by neighbor."""

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
        """When it was last heard that somebody is through."""
        self.half_at: float | None = None
        """Since when half of those who have begun are through; None: they are not."""
        self.begun_at: float | None = None
        self.through_at: float | None = None
        """When this node began, and had trained all that it had to."""

    @property
    def is_through(self) -> bool:
        """Whether this node has trained all that it had to."""
        return bool(self.through & self.own)

    @property
    def bound(self) -> int:
        """The rounds to do, as they are told to others; 0 where time bounds training."""
        return self.settings.rounds or 0

    # -- a federation that changes ------------------------------------------------------------------------------------

    def amend(self, neighbors: Iterable[int], bound_before: int, now: float) -> None:
        """The settings are new ones, and these the neighbors."""
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
        """What a neighbor tells; what it has told before stays true, unless it has heard of more rounds to do."""
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
        """A session with this neighbor begins: it is there, whatever it has shown before."""
        self.claims[peer].progress_at, self.claims[peer].round_s = now, 0.0

    def progressed(self, peer: int, now: float) -> None:
        """A neighbor has shown a new version."""
        claims = self.claims[peer]
        if self.through >> peer & 1:
            return
        since = self.begun_at if claims.progress_at is None else claims.progress_at
        claims.round_s = 0.0 if since is None else now - since
        claims.progress_at = now

    def has_news_for(self, peer: int) -> bool:
        """Whether this neighbor may not know what this node does: it has not told it itself, nor shown its digest."""
        claims = self.claims[peer]
        lacks = self.begun & ~claims.begun or self.through & ~claims.through
        told_often = claims.told == self.digest and claims.tells >= MOST_TELLS
        return bool(lacks) and claims.known != self.digest and not told_often

    def tell(self, peer: int) -> tuple[bytes, bytes]:
        """Both sets, for this neighbor."""
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
        """The sets, or who counts, have changed."""
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
        # Whoever knows of fewer rounds to do may take for through who is not.
        counting = {
            peer: claims for peer, claims in self.claims.items() if which == "begun" or not claims.lags(self.bound)
        }
        believed = {peer: getattr(claims, which) & self._members for peer, claims in counting.items()}
        if needed == 1:
            return reduce(or_, believed.values(), 0)
        named = [0] * (needed + 1)
        themselves = 0
        for peer, told in believed.items():
            themselves |= told & 1 << peer
            for count in range(needed, 1, -1):
                named[count] |= named[count - 1] & told
            named[1] |= told
        return themselves | named[needed]

    def lags(self, peer: int) -> bool:
        """Whether this neighbor knows of fewer rounds to do: where it has stopped, it has not heard of all of them."""
        return self.claims[peer].lags(self.bound)


def bitmap(members: int) -> bytes:
    """The set as bytes, the lowest bit of the first for member 0."""
    return members.to_bytes((members.bit_length() + 7) // 8, "little")
