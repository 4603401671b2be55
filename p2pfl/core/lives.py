"""Lives: what a node must know of how long the memory of each member reaches back.

The control variate is made of flows that the two ends of an edge hold with opposite signs. A node that starts without
them (an empty folder, a snapshot without replicas) begins a new *life*. Its neighbors must drop their halves, even
where the edge to it never has a session again: so lives are told in Hello and passed on from node to node. Where a
neighbor is heard to be in a new life, its edge begins anew at this end.

A life is (generation, name): the name is random, the generation orders the lives of one member. A node without memory
cannot know its own generation, and learns it from who remembers an earlier life of it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

LARGEST_GENERATION = 2**40
"""Far above what any member can reach, and far below what the wire can hold."""
MOST_CLAIMS = 8
"""A process raises its own generation so often at most: two copies of one key must not outbid each other for ever."""
MOST_PROCESSES = 64
"""Processes of one neighbor that are remembered."""


class Life(NamedTuple):
    """Later lives of one member are larger. `name` is a random number below 2**53, 0 for none."""

    generation: int
    name: int


FIRST_LIFE = Life(0, 0)


class Start(NamedTuple):
    """One running process of a member: its life, and a random name of its own."""

    life: Life
    name: int


NO_START = Start(FIRST_LIFE, 0)


class News(enum.Enum):
    """What a word about a member's life is, to who hears it."""

    KNOWN = enum.auto()
    STALE = enum.auto()
    FIRST = enum.auto()
    """The first that is heard of this member."""
    LATER = enum.auto()
    """The same life with a higher generation: its node has learned of earlier ones."""
    NEW = enum.auto()
    """A new life: what flowed before is gone at the other end."""


class Lives:
    """`own` is this node's; `known` has the latest that was heard of other members, by index."""

    def __init__(self, index: int, own: Life, known: dict[int, Life]) -> None:
        self.index = index
        self.own = own
        self.known = known
        self._claims = 0

    def judge(self, member: int, life: Life) -> News:
        """What a word passed on from others means."""
        if life.generation > LARGEST_GENERATION:
            return News.STALE
        if not life.name:
            return News.KNOWN
        known = self.known.get(member)
        if known is None:
            return News.FIRST
        if known.name == life.name:
            return News.LATER if life > known else News.KNOWN
        return News.NEW if life > known else News.STALE

    def greeted(self, member: int, life: Life) -> News:
        """What the member's own greeting means: whatever it says is its life now, and is kept as such."""
        news = self.judge(member, life)
        if news is News.STALE:  # it does not know yet of a later life of its own that others have told of
            news = News.NEW
        if news is not News.KNOWN:
            self.known[member] = life
        return news

    def claim(self, told: Life) -> bool:
        """Somebody remembers another life of this node, not earlier than its own: whether the own one became later."""
        other = told.name != self.own.name and told.generation >= self.own.generation
        if not other or told.generation >= LARGEST_GENERATION or self._claims >= MOST_CLAIMS:
            return False
        self._claims += 1
        self.own = Life(told.generation + 1, self.own.name)
        return True

    def claim_another(self) -> bool:
        """This node finds that it has had an earlier life, which nobody has told it of."""
        return self.own.generation == 0 and self.claim(Life(0, 0))

    def told(self) -> list[tuple[int, Life]]:
        """Everything worth passing on: of a member in its first life there is nothing to say. In order of members."""
        rows = {self.index: self.own} | self.known
        return [(member, rows[member]) for member in sorted(rows) if rows[member].generation]


class Copies:
    """Which processes have spoken with one neighbor's key. One that speaks again after another has: both run.

    A restart alone never looks so. `told_to_resign`: this neighbor says that this node is the later of two.
    """

    __slots__ = ("_first_at", "_latest", "_pairs", "told_to_resign")

    def __init__(self) -> None:
        self._latest: int | None = None
        self._first_at: dict[int, float] = {}
        self._pairs: dict[int, int] = {}
        """Of each process that is proven to run beside another one, which that is."""
        self.told_to_resign = False

    def heard(self, name: int, now: float) -> bool:
        """Whether this greeting proves, for the first time, that two processes speak with one key."""
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
        """How long ago the process was first heard that runs beside this one; None where none is proven to."""
        other = self._pairs.get(name)
        return None if other is None or other not in self._first_at else now - self._first_at[other]
