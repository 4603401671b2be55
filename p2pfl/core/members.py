"""The progress of all members, as neighbors tell it: who has begun, has completed training, or has lost its memory.

`MemberProgress`: *begun* and *completed* are sets of members that only grow: members that have begun to train, and
members that have done all their own training. Nodes send both sets in Hello and Ready, and pass on what they learn.
With a robust rule a member counts if it says so itself or if more than b neighbors say so, because b of them may lie. A
node never believes others about whether it has completed training itself.

Members may be removed while the others train; they no longer count. If the number of rounds grows, no member has
completed training any longer, and a neighbor's word on that is ignored until it knows the new number too.

`Lifetimes`: how far back each member's memory reaches, as far as a node must know. A learning method may keep flows
that the two ends of an edge hold with opposite signs. A node that starts without its flows (an empty folder, a snapshot
without replicas) begins a new *lifetime*. Its neighbors must drop their halves, even if the edge to it never has a
session again; so nodes name their lifetimes in Hello and pass on news of them. When a node learns that a neighbor is in
a new lifetime, it restarts their edge at its own end.

A lifetime is (generation, name): the name is random, and the generation orders the lifetimes of one member. A node
without memory cannot know its own generation; nodes that remember an earlier lifetime of it tell it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple
from zlib import crc32

from p2pfl.core.limits import TokenBucket
from p2pfl.core.messages import EdgeRecord
from p2pfl.core.settings import NEVER, Best, Settings
from p2pfl.limits import (
    LARGEST_GENERATION,
    LARGEST_STEP,
    LEAST_NEWS,
    MOST_CLAIMS,
    MOST_PROCESSES,
    MOST_SENDS,
    NEWS_PER_S,
)


def digest_of(begun: bytes, completed: bytes) -> int:
    """Return a 32-bit digest of both sets; nodes that know the same have equal digests."""
    return crc32(b"|".join((begun, completed)))


NOTHING = digest_of(b"", b"")
SEND_WITHIN_S = 0.25
"""How long news may wait for a Ready to carry it, in seconds: a slow node's round must not delay it."""
SOON_S = 0.005
"""How long news may wait at a node that has completed training: for other news, not for the next round."""
SOON_FOR_S = 0.25
"""For how long after a node's completion its news wait only `SOON_S` (decision 0055: more costs more than it saves)."""


def may_wait_s(now: float, completed_at: float | None, *, complete: bool) -> float:
    """Return how long news may wait: during training (`completed_at` is None) for the next Ready.

    Nodes that have completed it train on until word has spread, so theirs is passed on sooner, and at once if it
    completes the picture. Where nodes complete training at different times, much news would be sent for itself: after a
    while only what completes the picture is.
    """
    if completed_at is None:
        return SEND_WITHIN_S
    if complete:
        return 0.0
    return SOON_S if now < completed_at + SOON_FOR_S else SEND_WITHIN_S


@dataclass(slots=True)
class Claims:
    """The sets that one neighbor has sent, as bitmaps, and the digest of its own sets in its latest message."""

    begun: int = 0
    completed: int = 0
    neighbor_digest: int = NOTHING
    sent_digest: int = NOTHING
    """The digest of the sets last sent to this neighbor, whether or not they arrived."""
    progress_at: float | None = None
    """When this neighbor last showed a new version."""
    round_s: float = 0.0
    """How long the neighbor took for that version, in seconds."""
    times_sent: int = 0
    """How often the current sets have been sent to this neighbor."""
    bound: int = 0
    """The number of rounds that this neighbor plans; 0 if it has not said, or if training is bounded by time."""

    def lags(self, bound: int) -> bool:
        """Return True if this neighbor plans fewer rounds than `bound`."""
        return 0 < self.bound < bound


class MemberProgress:
    """The sets that this node believes, `begun` and `completed`, and the claims of each neighbor.

    News must be sent by `due_at`.
    """

    def __init__(self, index: int, neighbors: Iterable[int], settings: Settings) -> None:
        self.own = 1 << index
        self.settings = settings
        self._members = self.counted = 0
        """Bitmaps of all members, past and present, and of those that were not removed and have not ended for good."""
        self.ended = 0
        """The bitmap of members whose processes have ended for good."""
        self._count_members()
        self.claims = {peer: Claims() for peer in neighbors}
        self._all_anew = False
        """True if some neighbor's earlier claims may count now that did not before."""
        self.begun = self.completed = 0
        self._bitmaps = b"", b""
        """Both sets, as bytes."""
        self.due_at = NEVER
        self.digest = NOTHING
        """The digest of the sets that this node believes; nodes that know the same have equal digests."""
        self.new_at = float("-inf")
        """When the set of members that have completed training last grew."""
        self.half_at: float | None = None
        """When half of the members that have begun had completed training; None until then."""
        self.begun_at: float | None = None
        self.completed_at: float | None = None
        """When this node began to train (`begun_at`), and when it completed that (`completed_at`)."""

    @property
    def has_completed(self) -> bool:
        """True if this node has done all its own training."""
        return bool(self.completed & self.own)

    @property
    def bound(self) -> int:
        """The number of rounds that this node plans and announces; 0 if training is bounded by time."""
        return self.settings.rounds or 0

    # -- a federation that changes ------------------------------------------------------------------------------------

    def amend(self, neighbors: Iterable[int], bound_before: int, now: float) -> None:
        """Adopt new settings and neighbors."""
        self._count_members()
        self.claims = {peer: self.claims.get(peer) or Claims() for peer in sorted(neighbors)}
        if self.bound > bound_before:
            self.completed_at = None
            self.completed = 0
        self.completed |= self._believed_members("completed") & ~self.own
        self.begun |= self._believed_members("begun") | self.completed
        self._tell_anew(now)

    def note_ended(self, member: int, now: float, *, ended: bool = True) -> None:
        """Record that a member has ended for good, or that it is there after all."""
        self.ended = self.ended | 1 << member if ended else self.ended & ~(1 << member)
        self._count_members()
        self._tell_anew(now)

    def _count_members(self) -> None:
        self._members, counted = _members_of(self.settings.members, self.settings.retired)
        self.counted = counted & ~self.ended if self.ended else counted

    # -- claims that arrive, and claims to send --------------------------------------------------------------------

    def begin(self, now: float) -> None:
        self.begun_at = now if self.begun_at is None else self.begun_at
        self._take(self.own, 0, now)

    def complete(self, now: float) -> None:
        """Record that this node has done all its own training."""
        self.completed_at = now if self.completed_at is None else self.completed_at
        self._take(self.own, self.own, now)

    def remember(self, members: Iterable[int], now: float) -> None:
        """Add members that had begun before this node's restart, so that it does not leave them behind."""
        self._take(sum(1 << member for member in members), 0, now)

    def hear(self, peer: int, digest: int, begun: bytes, completed: bytes, now: float, *, bound: int = 0) -> None:
        """Merge the sets of a neighbor. Earlier claims stay true, unless it has learned of more rounds to do."""
        claims = self.claims[peer]
        claims.neighbor_digest = digest
        if bound != claims.bound:
            claims.completed = claims.completed if bound < claims.bound else 0
            claims.bound = bound
            self._all_anew = True
        if not begun and not completed:
            return
        before = claims.begun, claims.completed
        claims.begun |= int.from_bytes(begun, "little")  # includes members that this node does not know yet
        claims.completed |= int.from_bytes(completed, "little") & ~self.own
        claims.begun |= claims.completed
        if (claims.begun, claims.completed) == before:
            claims.begun, claims.completed = before
            return
        if self._all_anew or self.settings.profile.words_needed > 1:
            self._all_anew = False
            self._take(self._believed_members("begun"), self._believed_members("completed"), now)
        else:
            # The sets only grow, and have what the other neighbors have said.
            counts = not claims.lags(self.bound)
            self._take(claims.begun & self._members, claims.completed & self._members if counts else 0, now)
        # Equal sets are kept once.
        claims.begun = self.begun if claims.begun == self.begun else claims.begun
        claims.completed = self.completed if claims.completed == self.completed else claims.completed

    def note_session(self, peer: int, now: float) -> None:
        """Record a new session with this neighbor, which counts as active from now on."""
        self.claims[peer].progress_at, self.claims[peer].round_s = now, 0.0
        if self.ended >> peer & 1:
            self.note_ended(peer, now, ended=False)

    def note_progress(self, peer: int, now: float) -> None:
        """Record that a neighbor has shown a new version."""
        claims = self.claims[peer]
        if self.completed >> peer & 1:
            return
        since = self.begun_at if claims.progress_at is None else claims.progress_at
        claims.round_s = 0.0 if since is None else now - since
        claims.progress_at = now

    def has_news_for(self, peer: int) -> bool:
        """Return True if this neighbor may lack something: it sent neither these members nor this digest."""
        claims = self.claims[peer]
        lacks = self.begun & ~claims.begun or self.completed & ~claims.completed
        sent_often = claims.sent_digest == self.digest and claims.times_sent >= MOST_SENDS
        return bool(lacks) and claims.neighbor_digest != self.digest and not sent_often

    def tell(self, peer: int) -> tuple[bytes, bytes]:
        """Return both sets as bytes, and count one more transmission to this neighbor."""
        claims = self.claims[peer]
        claims.times_sent = claims.times_sent + 1 if claims.sent_digest == self.digest else 1
        claims.sent_digest = self.digest
        return self._bitmaps

    def uninformed_neighbors(self) -> list[int]:
        """Return the neighbors that may not know the latest news and have not been sent it."""
        untold = [peer for peer, claims in self.claims.items() if claims.sent_digest != self.digest]
        return [peer for peer in untold if self.has_news_for(peer)]

    def _take(self, begun: int, completed: int, now: float) -> None:
        begun, completed = self.begun | begun | completed, self.completed | completed
        if (begun, completed) == (self.begun, self.completed):
            return  # as they are: a complete set is kept once in a process
        if completed != self.completed:
            self.new_at = now
        self.begun, self.completed = begun, completed
        self._tell_anew(now)

    def _tell_anew(self, now: float) -> None:
        """Record that the sets, or the members that count, have changed."""
        complete = not self.begun & self.counted & ~self.completed
        completed_at = self.completed_at if self.has_completed else None
        self.due_at = min(self.due_at, now + may_wait_s(now, completed_at, complete=complete))
        if self.begun == self._members:
            self.begun = self._members
        if self.completed == self._members:
            self.completed = self._members
        self._bitmaps = bitmap(self.begun), bitmap(self.completed)
        self.digest = digest_of(*self._bitmaps)
        begun, completed = (members & self.counted for members in (self.begun, self.completed))
        whole = self.settings.profile.whole(begun.bit_count(), self.counted.bit_count())
        is_half = completed and 2 * completed.bit_count() >= whole
        if not is_half:
            self.half_at = None
        elif self.half_at is None:
            self.half_at = now

    def _believed_members(self, which: str) -> int:
        """Return the members that enough neighbors name, or that name themselves."""
        needed = self.settings.profile.words_needed
        # A neighbor that plans fewer rounds may take a member to have completed training that has not.
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


@lru_cache(maxsize=8)
def _members_of(members: int, retired: frozenset[int]) -> tuple[int, int]:
    """Return the bitmaps of all members and of those that have not been removed; all nodes of a process share them."""
    everyone = (1 << members) - 1
    return everyone, everyone & ~sum(1 << member for member in retired)


@lru_cache(maxsize=4)
def _bytes_of_all(count: int) -> bytes:
    """Return the set of the first `count` members as bytes; all nodes of a process share it."""
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")


def bitmap(members: int) -> bytes:
    """Return the set as bytes; the lowest bit of the first byte is member 0."""
    count = members.bit_length()
    if members.bit_count() == count:
        return _bytes_of_all(count)
    return members.to_bytes((count + 7) // 8, "little")


PASS_ON_EVERY_S = 0.25


class Lifetime(NamedTuple):
    """One lifetime of a member. Later lifetimes are larger. `name` is a random number below 2**53, 0 for none."""

    generation: int
    name: int


FIRST_LIFETIME = Lifetime(0, 0)


class Start(NamedTuple):
    """A running process of a member: its lifetime, and a random name for the process."""

    lifetime: Lifetime
    name: int


NO_START = Start(FIRST_LIFETIME, 0)


class News(enum.Enum):
    """The meaning of a report of a member's lifetime to its receiver."""

    KNOWN = enum.auto()
    STALE = enum.auto()
    LATER = enum.auto()
    """The first report of this member, or its same lifetime with a higher generation."""
    NEW = enum.auto()
    """A new lifetime: the other end has lost its flows."""


class Lifetimes:
    """The lifetimes known to a node: its `own`, and the `latest` one of each other member, by index."""

    def __init__(self, index: int, own: Lifetime, latest: dict[int, Lifetime]) -> None:
        self.index = index
        self.own = own
        self.latest = latest
        self._claims = 0
        self._passed_at = float("-inf")
        self._news_sources: dict[int, int] = {}
        """The members with news to pass on, each with the neighbor that reported it, which may be itself."""
        self.due_at = NEVER
        """When news must be passed on: reports that arrive at about the same time share one message."""

    def note_news(self, source: int, member: int) -> None:
        """Mark news to be passed on to all neighbors except the one that reported it and the one it is about."""
        self._news_sources[member] = source
        self.due_at = self._passed_at + PASS_ON_EVERY_S

    def take_news(self, now: float) -> list[tuple[int, int, Lifetime]]:
        """Return the news to pass on, as (member, neighbor that reported it, lifetime), and forget it."""
        self._passed_at, self.due_at = now, NEVER
        news, self._news_sources = self._news_sources, {}
        return [(member, source, self.latest[member]) for member, source in news.items()]

    def forget(self, members: Iterable[int]) -> list[int]:
        """Forget members that were removed, to which nobody has an edge any more; return those that were known."""
        gone = [member for member in sorted(members) if self.latest.pop(member, None)]
        for member in gone:
            self._news_sources.pop(member, None)
        return gone

    def judge(self, member: int, lifetime: Lifetime) -> News:
        """Judge a lifetime reported by others."""
        known = self.latest.get(member)
        least = 0 if known is None else known.generation
        if lifetime.generation > min(LARGEST_GENERATION, least + LARGEST_STEP):
            return News.STALE
        if not lifetime.name:
            return News.KNOWN
        if known is None:
            return News.LATER
        if known.name == lifetime.name:
            return News.LATER if lifetime > known else News.KNOWN
        return News.NEW if lifetime > known else News.STALE

    def raise_generation(self, member: int, lifetime: Lifetime) -> Lifetime:
        """Raise the generation of a second lifetime in generation 0: nobody knows which is later; the last report wins.

        If the member is still in the lifetime known before, its neighbors tell it so, and it claims a later generation.
        """
        known = self.latest.get(member)
        if known is None or known.generation or lifetime.generation or known.name == lifetime.name or not lifetime.name:
            return lifetime
        return Lifetime(1, lifetime.name)

    def judge_greeting(self, member: int, lifetime: Lifetime) -> News:
        """Judge the lifetime in the member's own greeting, and remember it as the current one."""
        news = self.judge(member, lifetime)
        if news is News.STALE:  # others have reported a later lifetime that the member does not know of yet
            news = News.NEW
        if news is not News.KNOWN:
            self.latest[member] = lifetime
        return news

    def claim(self, remembered: Lifetime) -> bool:
        """Make this node's lifetime later than another of its own that somebody remembers; True if that was needed."""
        other = remembered.name != self.own.name and remembered.generation >= self.own.generation
        if not other or remembered.generation >= LARGEST_GENERATION or self._claims >= MOST_CLAIMS:
            return False
        self._claims += 1
        self.own = Lifetime(remembered.generation + 1, self.own.name)
        return True

    def claim_another(self) -> bool:
        """Claim a later lifetime, as this node has had an earlier one that nobody has named; True if it did."""
        return self.own.generation == 0 and self.claim(Lifetime(0, 0))

    def lifetimes_to_send(self) -> list[tuple[int, Lifetime]]:
        """Return the lifetimes worth passing on, in member order; a member in generation 0 is left out."""
        rows = {self.index: self.own} | self.latest
        return [(member, rows[member]) for member in sorted(rows) if rows[member].generation]


def news_bucket(members: int) -> TokenBucket:
    burst = max(LEAST_NEWS, 2.0 * members)
    return TokenBucket(NEWS_PER_S, tokens=burst, burst=burst)


class Copies:
    """The processes that have used one neighbor's key. If one speaks again after another has, both are running.

    A restart alone never looks like that. `resign_requested`: the neighbor calls this node the later of two processes.
    """

    __slots__ = ("_first_at", "_latest", "_pairs", "resign_requested")

    def __init__(self) -> None:
        self._latest: int | None = None
        self._first_at: dict[int, float] = {}
        self._pairs: dict[int, int] = {}
        """Maps each process proven to run beside another one to that other process."""
        self.resign_requested = False

    def note_greeting(self, name: int, now: float) -> bool:
        """Record a greeting; return True if it proves, for the first time, that two processes use one key."""
        before, self._latest = self._latest, name
        returned = before is not None and before != name and name in self._first_at
        self._first_at.setdefault(name, now)
        if len(self._first_at) > MOST_PROCESSES:
            self._pairs.pop(oldest := next(iter(self._first_at)), None)
            del self._first_at[oldest]
        if not returned or before is None:
            return False
        known = self._pairs.get(name) == before
        self._pairs[name], self._pairs[before] = before, name
        return not known

    def other_for_s(self, name: int, now: float) -> float | None:
        """Return the seconds since the process that runs beside this one first greeted; None if none is proven to."""
        other = self._pairs.get(name)
        return None if other is None or other not in self._first_at else now - self._first_at[other]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The state from which a core starts. `fresh`: the disk is empty. The counts are those of `Facts` and `Training`.

    `records` and `lives` are by peer; the core changes the records, which belong to it alone.
    """

    fresh: bool = True
    version: int = 0
    rounds: int = 0
    elapsed_s: float = 0.0
    """The time that the node has trained, in seconds."""
    alone: int = 0
    best: Best | None = None
    ended: bool = False
    """True if the federation is over for this node, which now only answers late neighbors."""
    records: Mapping[int, EdgeRecord] = field(default_factory=dict)
    lifetimes: Mapping[int, Lifetime] = field(default_factory=dict)


NO_MEMORY = Memory()
"""The memory of a node that starts for the first time."""
