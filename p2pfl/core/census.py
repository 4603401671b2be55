"""The members that have begun to train, and those that are *through*, as this node and its neighbors know them.

*Begun* and *through* are sets of members that only grow: those that have begun to train, and those that have done all
the training they had to. Nodes send both sets in Hello and Ready, and pass on what they learn. With a robust rule a
member counts if it says so itself or if more than b neighbors say so, because b of them may lie. A node never believes
others about itself being through.

Members may be removed while the others train: they no longer count. If the number of rounds grows, no member is through
any more; a neighbor's word on *through* is ignored until that neighbor knows the new number too.
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
    """Return a 32-bit digest of both sets; it is equal where two nodes know the same."""
    return crc32(b"|".join((begun, through)))


NOTHING = digest_of(b"", b"")
SEND_WITHIN_S = 0.25
"""The seconds after which news is sent on its own if no Ready has carried it: a slow node's round must not delay it."""
MOST_SENDS = 16
"""The most times in a row that the same sets are sent to a neighbor: with a robust rule two nodes may never agree."""


@dataclass(slots=True)
class Claims:
    """The sets that one neighbor has sent, as bitmaps, and the digest of its own sets in its latest message."""

    begun: int = 0
    through: int = 0
    neighbor_digest: int = NOTHING
    sent_digest: int = NOTHING
    """The digest of the sets that were last sent to this neighbor, whether they arrived or not."""
    progress_at: float | None = None
    """The time at which this neighbor, not yet through, last showed a new version."""
    round_s: float = 0.0
    """The seconds that the neighbor took for that version."""
    times_sent: int = 0
    """The number of times that the current sets were sent to this neighbor."""
    bound: int = 0
    """The number of rounds that this neighbor plans; 0: it has not said, or time bounds training."""

    def lags(self, bound: int) -> bool:
        """Return True if this neighbor plans fewer rounds than `bound`."""
        return 0 < self.bound < bound


class Census:
    """The sets that this node believes, `begun` and `through`, and the claims of each neighbor.

    News must be sent by `due_at`.
    """

    def __init__(self, index: int, neighbors: Iterable[int], settings: Settings) -> None:
        self.own = 1 << index
        self.settings = settings
        self._members = self.counted = 0
        """The bits of all members that ever were, and of those that were not removed."""
        self._count_members()
        self.claims = {peer: Claims() for peer in neighbors}
        self.begun = self.through = 0
        self._bitmaps = b"", b""
        """Both sets, as bytes."""
        self.due_at = NEVER
        self.digest = NOTHING
        """The digest of the sets that this node believes; it is equal where two nodes know the same."""
        self.new_at = float("-inf")
        """The time at which the set of members that are through last grew."""
        self.half_at: float | None = None
        """The time since which half of the members that have begun are through; None: they are not."""
        self.begun_at: float | None = None
        self.through_at: float | None = None
        """The times at which this node began to train (`begun_at`) and was through (`through_at`)."""

    @property
    def is_through(self) -> bool:
        """True if this node has done all the training it had to."""
        return bool(self.through & self.own)

    @property
    def bound(self) -> int:
        """The number of rounds that this node plans and tells others; 0 where time bounds training."""
        return self.settings.rounds or 0

    # -- a federation that changes ------------------------------------------------------------------------------------

    def amend(self, neighbors: Iterable[int], bound_before: int, now: float) -> None:
        """Adopt new settings and neighbors."""
        self._count_members()
        self.claims = {peer: self.claims.get(peer) or Claims() for peer in sorted(neighbors)}
        if self.bound > bound_before:
            self.through_at = None
            self.through = 0
        self.through |= self._believed_members("through") & ~self.own
        self.begun |= self._believed_members("begun") | self.through
        self._tell_anew(now)

    def _count_members(self) -> None:
        self._members = (1 << self.settings.members) - 1
        self.counted = self._members & ~sum(1 << member for member in self.settings.retired)

    # -- claims that arrive, and claims to send --------------------------------------------------------------------

    def begin(self, now: float) -> None:
        self.begun_at = now if self.begun_at is None else self.begun_at
        self._take(self.own, 0, now)

    def complete(self, now: float) -> None:
        """Note that this node has trained all that it had to."""
        self.through_at = now if self.through_at is None else self.through_at
        self._take(self.own, self.own, now)

    def remember(self, members: Iterable[int], now: float) -> None:
        """Add members that had begun before this node's restart, so that it does not leave them behind."""
        self._take(sum(1 << member for member in members), 0, now)

    def hear(self, peer: int, digest: int, begun: bytes, through: bytes, now: float, *, bound: int = 0) -> None:
        """Add the sets of a neighbor. Earlier claims stay true, unless it has learned of more rounds to do."""
        claims = self.claims[peer]
        claims.neighbor_digest = digest
        if bound != claims.bound:
            claims.through = claims.through if bound < claims.bound else 0
            claims.bound = bound
        if not begun and not through:
            return
        before = claims.begun, claims.through
        claims.begun |= int.from_bytes(begun, "little")  # also of members that this node does not know yet
        claims.through |= int.from_bytes(through, "little") & ~self.own
        claims.begun |= claims.through
        if (claims.begun, claims.through) != before:
            self._take(self._believed_members("begun"), self._believed_members("through"), now)

    def note_session(self, peer: int, now: float) -> None:
        """Note a new session with this neighbor: it counts as active from now on."""
        self.claims[peer].progress_at, self.claims[peer].round_s = now, 0.0

    def note_progress(self, peer: int, now: float) -> None:
        """Note that a neighbor has shown a new version."""
        claims = self.claims[peer]
        if self.through >> peer & 1:
            return
        since = self.begun_at if claims.progress_at is None else claims.progress_at
        claims.round_s = 0.0 if since is None else now - since
        claims.progress_at = now

    def has_news_for(self, peer: int) -> bool:
        """Return True if this neighbor may lack what this node knows: it sent neither these members nor this digest."""
        claims = self.claims[peer]
        lacks = self.begun & ~claims.begun or self.through & ~claims.through
        sent_often = claims.sent_digest == self.digest and claims.times_sent >= MOST_SENDS
        return bool(lacks) and claims.neighbor_digest != self.digest and not sent_often

    def tell(self, peer: int) -> tuple[bytes, bytes]:
        """Return both sets as bytes, and count them as sent to this neighbor."""
        claims = self.claims[peer]
        claims.times_sent = claims.times_sent + 1 if claims.sent_digest == self.digest else 1
        claims.sent_digest = self.digest
        return self._bitmaps

    def uninformed_neighbors(self) -> list[int]:
        """Return the neighbors to which the latest news has not been sent, and which may not know it."""
        return [
            peer
            for peer, claims in self.claims.items()
            if claims.sent_digest != self.digest and self.has_news_for(peer)
        ]

    def _take(self, begun: int, through: int, now: float) -> None:
        before = self.begun, self.through
        self.begun |= begun | through
        self.through |= through
        if (self.begun, self.through) == before:
            return
        if self.through != before[1]:
            self.new_at = now
        self._tell_anew(now)

    def _tell_anew(self, now: float) -> None:
        """Note that the sets, or the members that count, have changed."""
        self.due_at = min(self.due_at, now + SEND_WITHIN_S)
        self._bitmaps = bitmap(self.begun), bitmap(self.through)
        self.digest = digest_of(*self._bitmaps)
        begun, through = (members & self.counted for members in (self.begun, self.through))
        whole = self.settings.profile.whole(begun.bit_count(), self.counted.bit_count())
        is_half = through and 2 * through.bit_count() >= whole
        if not is_half:
            self.half_at = None
        elif self.half_at is None:
            self.half_at = now

    def _believed_members(self, which: str) -> int:
        """Return the members that enough neighbors name, or that name themselves."""
        needed = self.settings.profile.words_needed
        # A neighbor that plans fewer rounds may take a member for through that is not.
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
        """Return True if this neighbor plans fewer rounds: if it has stopped, it did so without knowing them all."""
        return self.claims[peer].lags(self.bound)


def bitmap(members: int) -> bytes:
    """Return the set as bytes; the lowest bit of the first byte stands for member 0."""
    return members.to_bytes((members.bit_length() + 7) // 8, "little")
