"""When a federation ends: together, by a rule that each node can apply to what it has heard.

*Begun* and *through* are sets of members that only grow: who has begun to train, and who has trained all that it had
to. Nodes tell them in Hello and Ready and pass them on. A node that is through goes on as a full member, or those that
still train would drag the common model to their own data. All stop training, each at the end of a round,

- when everybody who has begun is through, and the neighbors that are there are;
- or, once half of those are through, after `linger_s` or a quarter of the own training time, whichever is longer;
- or, where less than half are, when a node that is through has heard of nobody else's progress for that long, or has
  gone on for fifty times as long as it had trained;
- or when every neighbor that is there has stopped; a node that is not through does not count those who know of fewer
  rounds to do.

A node that was stopped by this is not through, or one early end would run around a ring. With a robust rule a member
counts where it says so itself or more than b neighbors do, for b of them may lie. On a sparse graph little is known so
of those far away: there half of all members is meant. Nobody is told by others that it is through itself.

Members may be removed while the others train: nobody waits for them, and they count for nothing. Where the rounds to do
become more, nobody is through any more; until a neighbor has heard of that too, what it tells of *through* is void.
"""

from __future__ import annotations

import enum
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
TRAINING_SHARE = 0.25
"""The share of its own training time for which a node waits for members that are slower or gone."""

MOST_TELLS = 16
"""How often a neighbor is told the same sets in a row: under a robust rule two nodes may never agree on them."""
LONGEST_MULTIPLE = 50.0
"""A node that is through goes on for this many times its own training time: enough for fiftyfold speeds."""
ROUNDS_OF_SILENCE = 3.0
"""A neighbor whose rounds are long is not silent before it has let so many of them pass."""


class Reason(enum.StrEnum):
    """Why training has ended."""

    ALL = "everybody who had begun was through"
    COMPANY = "everybody who took part was through"
    HALF = "half of those who had begun were through, and had waited for the others"
    SILENCE = "nobody else made progress any longer"
    LONG = "it had gone on for fifty times as long as it had trained"
    NEIGHBORS = "every neighbor that was there had stopped training"


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


class Ending:
    """`begun` and `through` are what is believed. News must be told at `due_at`. `claims` are by neighbor."""

    def __init__(self, index: int, neighbors: Iterable[int], settings: Settings) -> None:
        self.own = 1 << index
        self.settings = settings
        self._members = self._counted = 0
        """Bits of all members ever, and of those that were not removed."""
        self._count_members()
        self.claims = {peer: Claims() for peer in neighbors}
        self.begun = self.through = 0
        self._told = b"", b""
        """Both sets, as bytes."""
        self.due_at = NEVER
        self.digest = NOTHING
        """The digest of what this node believes; equal where two nodes know the same."""
        self.ended_by: Reason | None = None
        """Why this node has stopped training; None: it has not."""
        self._new_at = float("-inf")
        self._half_at: float | None = None
        self._begun_at: float | None = None
        self._through_at: float | None = None

    @property
    def is_through(self) -> bool:
        """Whether this node has trained all that it had to."""
        return bool(self.through & self.own)

    @property
    def is_half_through(self) -> bool:
        """Whether half of those who have begun are through, by what this node has heard."""
        return self._half_at is not None

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
            self._through_at = None
            self.through = 0
        self.through |= self._accepted("through") & ~self.own
        self.begun |= self._accepted("begun") | self.through
        self._tell_anew(now)

    def _count_members(self) -> None:
        self._members = (1 << self.settings.members) - 1
        self._counted = self._members & ~sum(1 << member for member in self.settings.retired)

    # -- what is heard and told -------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        self._begun_at = now if self._begun_at is None else self._begun_at
        self._take(self.own, 0, now)

    def complete(self, now: float) -> None:
        """This node has trained all that it had to."""
        self._through_at = now if self._through_at is None else self._through_at
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
        since = self._begun_at if claims.progress_at is None else claims.progress_at
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
            self._new_at = now
        self._tell_anew(now)

    def _tell_anew(self, now: float) -> None:
        """The sets, or who counts, have changed."""
        self.due_at = min(self.due_at, now + TELL_WITHIN_S)
        self._told = bitmap(self.begun), bitmap(self.through)
        self.digest = digest_of(*self._told)
        begun, through = (members & self._counted for members in (self.begun, self.through))
        whole = self.settings.profile.whole(begun.bit_count(), self._counted.bit_count())
        is_half = through and 2 * through.bit_count() >= whole
        if not is_half:
            self._half_at = None
        elif self._half_at is None:
            self._half_at = now

    def _accepted(self, which: str) -> int:
        """The members that enough neighbors name, or that name themselves."""
        needed = self.settings.profile.words_needed
        counting = {peer: claims for peer, claims in self.claims.items() if self._counts(which, claims)}
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

    def _counts(self, which: str, claims: Claims) -> bool:
        """Whoever knows of fewer rounds to do may take for through who is not."""
        return which == "begun" or not self._lags(claims)

    def _lags(self, claims: Claims) -> bool:
        return 0 < claims.bound < self.bound

    def lags(self, peer: int) -> bool:
        """Whether this neighbor knows of fewer rounds to do: where it has stopped, it has not heard of all of them."""
        return self._lags(self.claims[peer])

    # -- the rule -----------------------------------------------------------------------------------------------------

    def unfinished(self, training: int, out: int) -> int:
        """The members, as a set of bits, that have yet to be through.

        `training` are the neighbors that are there and have not stopped: who has yet to begin is waited for as well.
        `out` are those in quarantine, for which nobody waits.
        """
        return (self.begun | training) & self._counted & ~self.through & ~out

    def over(self, now: float, *, trained_s: float, unfinished: int, stopped: bool) -> Reason | None:
        """Why a node that has trained for so long stops now, at the end of a round; None: it goes on.

        `stopped`: there are neighbors, and none of them still trains.
        """
        if self.through & self._counted and not unfinished:
            return Reason.ALL
        if stopped:
            return Reason.NEIGHBORS
        wait_s = self.wait_s(trained_s)
        if self._half_at is not None and now >= self._half_at + wait_s:
            return Reason.HALF
        if not self.is_through or self._through_at is None:
            return None
        if now >= self._new_at + wait_s and not self._is_progress(now, wait_s):
            return Reason.SILENCE
        since_s = now - self._through_at
        return Reason.LONG if since_s >= max(wait_s, LONGEST_MULTIPLE * (trained_s - since_s)) else None

    def wait_s(self, trained_s: float) -> float:
        return max(self.settings.linger_s, TRAINING_SHARE * trained_s)

    def _is_progress(self, now: float, wait_s: float) -> bool:
        """Whether enough neighbors go on to be believed: by a new version in that time, or in a few own rounds."""
        moving = sum(
            claims.progress_at is not None
            and now < claims.progress_at + max(wait_s, ROUNDS_OF_SILENCE * claims.round_s)
            for claims in self.claims.values()
        )
        return moving >= self.settings.profile.words_needed


def bitmap(members: int) -> bytes:
    """The set as bytes, the lowest bit of the first for member 0."""
    return members.to_bytes((members.bit_length() + 7) // 8, "little")
