"""Lives: how far back the memory of each member reaches, as far as a node must know.

A learning method may keep flows that the two ends of an edge hold with opposite signs. A node that starts without its
flows (an empty folder, a snapshot without replicas) begins a new *life*. Its neighbors must drop their halves, even
where the edge to it never has a session again: so nodes name their lives in Hello and pass news of them on. When a node
learns that a neighbor is in a new life, it begins their edge anew at its own end.

A life is (generation, name): the name is random, the generation orders the lives of one member. A node without memory
cannot know its own generation, and learns it from a node that remembers one of its earlier lives.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from p2pfl.core.facts import NEVER
from p2pfl.core.limits import TokenBucket

LARGEST_GENERATION = 2**40
"""The largest generation: far above what any member can reach, and far below what the wire can hold."""
LARGEST_STEP = 2**20
"""The largest step of a generation that others may report: a malicious peer must not use up all generations at once."""
PASS_ON_EVERY_S = 0.25
NEWS_PER_S = 8.0
LEAST_NEWS = 512.0
"""The number of words about lives that a node believes from a neighbor at once, or twice the members if more; then
`NEWS_PER_S`.
"""
MOST_CLAIMS = 8
"""The most times that a process raises its own generation: two copies of one key must not outbid each other for ever.
"""
MOST_PROCESSES = 64
"""The number of a neighbor's processes that a node remembers."""


class Life(NamedTuple):
    """One life of a member. Later lives are larger. `name` is a random number below 2**53, 0 for none."""

    generation: int
    name: int


FIRST_LIFE = Life(0, 0)


class Start(NamedTuple):
    """A running process of a member: its life, and a random name of the process."""

    life: Life
    name: int


NO_START = Start(FIRST_LIFE, 0)


class LifeNews(enum.Enum):
    """The kind of news that a word about a member's life is to its receiver."""

    KNOWN = enum.auto()
    STALE = enum.auto()
    FIRST = enum.auto()
    """The first word about this member."""
    LATER = enum.auto()
    """The same life with a higher generation: its node has learned of earlier lives."""
    NEW = enum.auto()
    """A new life: the other end has lost its flows."""


class Lives:
    """The lives that a node knows: its `own`, and the `latest` one of each other member, by index."""

    def __init__(self, index: int, own: Life, latest: dict[int, Life]) -> None:
        self.index = index
        self.own = own
        self.latest = latest
        self._claims = 0
        self._passed_at = float("-inf")
        self._news_sources: dict[int, int] = {}
        """The members with news to pass on, and the neighbor that reported each (the member itself, if it is a
        neighbor).
        """
        self.due_at = NEVER
        """The time at which news must be passed on: words that arrive at about the same time go in one message."""

    # -- news to pass on ---------------------------------------------------------------------------------------------

    def note_news(self, source: int, member: int) -> None:
        """Mark news to be passed on to all neighbors but the one that reported it and the one that it is about."""
        self._news_sources[member] = source
        self.due_at = self._passed_at + PASS_ON_EVERY_S

    def take_news(self, now: float) -> list[tuple[int, int, Life]]:
        """Return the news to pass on, as (member, neighbor that reported it, life), and forget it."""
        self._passed_at, self.due_at = now, NEVER
        news, self._news_sources = self._news_sources, {}
        return [(member, source, self.latest[member]) for member, source in news.items()]

    # -- words of others ---------------------------------------------------------------------------------------------

    def judge(self, member: int, life: Life) -> LifeNews:
        """Judge a word about a life that others pass on."""
        known = self.latest.get(member)
        least = 0 if known is None else known.generation
        if life.generation > min(LARGEST_GENERATION, least + LARGEST_STEP):
            return LifeNews.STALE
        if not life.name:
            return LifeNews.KNOWN
        if known is None:
            return LifeNews.FIRST
        if known.name == life.name:
            return LifeNews.LATER if life > known else LifeNews.KNOWN
        return LifeNews.NEW if life > known else LifeNews.STALE

    def raise_generation(self, member: int, life: Life) -> Life:
        """Raise the generation of a second life in generation 0: nobody knows which one is later, so the latest word
        counts.

        If the member is still in the life known before, its neighbors tell it so, and it claims a later generation.
        """
        known = self.latest.get(member)
        if known is None or known.generation or life.generation or known.name == life.name or not life.name:
            return life
        return Life(1, life.name)

    def judge_greeting(self, member: int, life: Life) -> LifeNews:
        """Judge the life in the member's own greeting, and remember it: the member is in that life now."""
        news = self.judge(member, life)
        if news is LifeNews.STALE:  # others have reported a later life of it, of which it does not know yet
            news = LifeNews.NEW
        if news is not LifeNews.KNOWN:
            self.latest[member] = life
        return news

    def claim(self, remembered: Life) -> bool:
        """Make this node's life later than another of its lives that somebody remembers; return True if that was
        needed.
        """
        other = remembered.name != self.own.name and remembered.generation >= self.own.generation
        if not other or remembered.generation >= LARGEST_GENERATION or self._claims >= MOST_CLAIMS:
            return False
        self._claims += 1
        self.own = Life(remembered.generation + 1, self.own.name)
        return True

    def claim_another(self) -> bool:
        """Claim a later life because this node has had an earlier one that nobody has named; return True if it did."""
        return self.own.generation == 0 and self.claim(Life(0, 0))

    def lives_to_send(self) -> list[tuple[int, Life]]:
        """Return the lives worth passing on, in order of members; a member in generation 0 is left out."""
        rows = {self.index: self.own} | self.latest
        return [(member, rows[member]) for member in sorted(rows) if rows[member].generation]


def news_bucket(members: int) -> TokenBucket:
    burst = max(LEAST_NEWS, 2.0 * members)
    return TokenBucket(NEWS_PER_S, tokens=burst, burst=burst)


class Copies:
    """The processes that have spoken with one neighbor's key. If one speaks again after another has, both run.

    A restart alone never looks like that. `resign_requested`: the neighbor says that this node is the later of two
    processes.
    """

    __slots__ = ("_first_at", "_latest", "_pairs", "resign_requested")

    def __init__(self) -> None:
        self._latest: int | None = None
        self._first_at: dict[int, float] = {}
        self._pairs: dict[int, int] = {}
        """For each process that provably runs beside another one, that other process."""
        self.resign_requested = False

    def note_greeting(self, name: int, now: float) -> bool:
        """Note a greeting; return True if it proves, for the first time, that two processes speak with one key."""
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
        """Return the seconds since the first greeting of the process that runs beside this one; None: none is proven to
        run.
        """
        other = self._pairs.get(name)
        return None if other is None or other not in self._first_at else now - self._first_at[other]
