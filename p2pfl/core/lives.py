"""Incarnations of members (`Life`): how far back each member's memory reaches, as far as a node must know.

A learning method may keep flows that the two ends of an edge hold with opposite signs. A node that starts without its
flows (an empty folder, a snapshot without replicas) begins a new *life*. Its neighbors must drop their halves, even if
the edge to it never has a session again; so nodes name their lives in Hello and pass on news of them. When a node
learns that a neighbor is in a new life, it restarts their edge at its own end.

A life is (generation, name): the name is random, and the generation orders the lives of one member. A node without
memory cannot know its own generation, and learns it from a node that remembers one of its earlier lives.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from p2pfl.core.facts import NEVER
from p2pfl.core.limits import TokenBucket

LARGEST_GENERATION = 2**40
"""The largest generation: far above what any member can reach, and far below the largest that a message can hold."""
LARGEST_STEP = 2**20
"""How far others' reports may raise a generation in one step: a malicious peer must not exhaust all of them at once."""
PASS_ON_EVERY_S = 0.25
NEWS_PER_S = 8.0
LEAST_NEWS = 512.0
"""How many reports of lives a node accepts from a neighbor at once (or twice the number of members, if more); after
that, `NEWS_PER_S`.
"""
MOST_CLAIMS = 8
"""How often a process may raise its own generation: two copies of one key must not outbid each other forever."""
MOST_PROCESSES = 64
"""How many of a neighbor's processes a node remembers."""


class Life(NamedTuple):
    """One life of a member. Later lives are larger. `name` is a random number below 2**53, 0 for none."""

    generation: int
    name: int


FIRST_LIFE = Life(0, 0)


class Start(NamedTuple):
    """A running process of a member: its life, and a random name for the process."""

    life: Life
    name: int


NO_START = Start(FIRST_LIFE, 0)


class LifeNews(enum.Enum):
    """What a report of a member's life means to its receiver."""

    KNOWN = enum.auto()
    STALE = enum.auto()
    FIRST = enum.auto()
    """The first report of this member."""
    LATER = enum.auto()
    """The same life with a higher generation: its node has learned of earlier lives."""
    NEW = enum.auto()
    """A new life: the other end has lost its flows."""


class Lives:
    """The lives known to a node: its `own`, and the `latest` one of each other member, by index."""

    def __init__(self, index: int, own: Life, latest: dict[int, Life]) -> None:
        self.index = index
        self.own = own
        self.latest = latest
        self._claims = 0
        self._passed_at = float("-inf")
        self._news_sources: dict[int, int] = {}
        """The members with news to pass on, each with the neighbor that reported it (the member itself, if it is a
        neighbor).
        """
        self.due_at = NEVER
        """When news must be passed on: reports that arrive at about the same time share one message."""

    # -- news to pass on ---------------------------------------------------------------------------------------------

    def note_news(self, source: int, member: int) -> None:
        """Mark news to be passed on to all neighbors except the one that reported it and the one it is about."""
        self._news_sources[member] = source
        self.due_at = self._passed_at + PASS_ON_EVERY_S

    def take_news(self, now: float) -> list[tuple[int, int, Life]]:
        """Return the news to pass on, as (member, neighbor that reported it, life), and forget it."""
        self._passed_at, self.due_at = now, NEVER
        news, self._news_sources = self._news_sources, {}
        return [(member, source, self.latest[member]) for member, source in news.items()]

    # -- words of others ---------------------------------------------------------------------------------------------

    def judge(self, member: int, life: Life) -> LifeNews:
        """Judge a life reported by others."""
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
        """Raise the generation of a second life in generation 0: nobody knows which one is later, so the latest report
        counts.

        If the member is still in the life known before, its neighbors tell it so, and it claims a later generation.
        """
        known = self.latest.get(member)
        if known is None or known.generation or life.generation or known.name == life.name or not life.name:
            return life
        return Life(1, life.name)

    def judge_greeting(self, member: int, life: Life) -> LifeNews:
        """Judge the life in the member's own greeting, and remember it as the current one."""
        news = self.judge(member, life)
        if news is LifeNews.STALE:  # others have reported a later life that the member does not know of yet
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
        """Return the lives worth passing on, in member order; a member in generation 0 is left out."""
        rows = {self.index: self.own} | self.latest
        return [(member, rows[member]) for member in sorted(rows) if rows[member].generation]


def news_bucket(members: int) -> TokenBucket:
    burst = max(LEAST_NEWS, 2.0 * members)
    return TokenBucket(NEWS_PER_S, tokens=burst, burst=burst)


class Copies:
    """The processes that have used one neighbor's key. If one speaks again after another has, both are running.

    A restart alone never looks like that. `resign_requested` means that the neighbor calls this node the later of two
    processes.
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
        """Return the seconds since the first greeting of the process that runs beside this one; None if none is proven
        to run.
        """
        other = self._pairs.get(name)
        return None if other is None or other not in self._first_at else now - self._first_at[other]
