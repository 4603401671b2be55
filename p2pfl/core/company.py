"""Decide, near the end, which neighbors no longer take part, and how far from this node all others are through.

A member that is gone, or that keeps a session but exchanges nothing, is no reason to keep training. Only its neighbors
can see that. So a node that is through sends a *level*, as it does before its first round: at level h, every member
within h hops is either through or not taking part. A neighbor that sees an unfinished member at work sends no level,
which holds back the level of every node around it. When the level reaches the farthest member, this node *rests*: it
answers and does not train, until some member takes part again or the federation ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from p2pfl.core.census import Census
from p2pfl.core.edge import Edge, announce
from p2pfl.core.effects import Alarm, Effect
from p2pfl.core.ending import ROUNDS_OF_SILENCE
from p2pfl.core.facts import NEVER, Facts
from p2pfl.core.settings import Settings

AWAY_S = 3.0
"""After this many seconds without taking part, a neighbor no longer keeps any node training. The end waits longer for
it: see `Ending.wait_s`.
"""


@dataclass(slots=True, eq=False, repr=False)
class Company:
    """How this node sees its neighbors near the end.

    `unfinished` is the bitmap of members that kept the federation from ending at the latest `look`.
    """

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    census: Census
    unfinished: int = field(default_factory=int, init=False)
    rests: bool = field(default_factory=bool, init=False)
    """True if every member that takes part is through, as far as this node can tell."""
    _reported: int = field(default_factory=int, init=False)
    """The bitmap of neighbors whose absence has been reported to the user."""

    def look(self, unfinished: int, now: float) -> list[Effect]:
        """Judge the members that are not through, after a round or at rest; return what to send and what to report."""
        self.unfinished = unfinished
        level_before, level = self.facts.settled, self._level(now)
        self.facts.settled = level
        self.rests = level is not None and level >= self.settings.hops
        effects = announce(self.edges) if level != level_before else []
        return effects + self._name(now) if self.rests else effects

    def is_over(self, wait_s: float, now: float) -> bool:
        """Return True if the wait for absent members is over, by this node's own view or because enough neighbors have
        stopped.
        """
        if not self.rests:
            return False
        stopped = sum(edge.is_open and edge.progress.has_stopped for edge in self.edges.values())
        return not self.unfinished & ~self.away_members(wait_s, now) or stopped >= self.settings.profile.words_needed

    def away_members(self, limit_s: float, now: float) -> int:
        """Return the bitmap of unfinished neighbors that have not taken part for `limit_s` seconds."""
        return _bits(peer for peer, edge in self.edges.items() if self._is_away(edge, limit_s, now))

    def is_mute(self, edge: Edge, limit_s: float, now: float) -> bool:
        """Return True if this neighbor has a session but has not taken part for `limit_s` seconds."""
        return edge.is_open and self._is_away(edge, limit_s, now)

    def absent_neighbors(self, now: float) -> tuple[int, ...]:
        """Return the neighbors without a session, or silent for `AWAY_S`; mixing with them is not balanced."""
        return tuple(peer for peer, edge in self.edges.items() if not edge.is_open or self._is_silent(edge, now))

    def _is_silent(self, edge: Edge, now: float) -> bool:
        service = edge.service
        return service.is_mute and now - service.unanswered_from >= self._limit_s(edge, AWAY_S)

    def _is_away(self, edge: Edge, limit_s: float, now: float) -> bool:
        return now - self._idle_from(edge) >= self._limit_s(edge, limit_s)

    def _limit_s(self, edge: Edge, least_s: float) -> float:
        """Return how long a neighbor may be silent, in seconds; one with long rounds or a slow line gets more time."""
        usual_s = max(self.census.claims[edge.peer].round_s, edge.service.patience.exchange_s or 0.0)
        return max(least_s, ROUNDS_OF_SILENCE * usual_s)

    def _idle_from(self, edge: Edge) -> float:
        """Return when an unfinished neighbor last showed a new version, or last exchanged one if that was earlier.

        NEVER if it has had no session since this node started: such a neighbor is not judged.
        """
        service, since = edge.service, self.census.claims[edge.peer].progress_at
        if since is None or not self.unfinished >> edge.peer & 1:
            return NEVER
        return min(since, service.unanswered_from) if service.is_mute else since

    def _level(self, now: float) -> int | None:
        """Return the level to send; None if there is none, or if a neighbor is still working on its rounds."""
        if not (self.unfinished and self.census.half_at is not None and self.census.is_through):
            return None
        away, near = self.away_members(AWAY_S, now), [edge for edge in self.edges.values() if not edge.line.is_shut]
        met = _bits(edge.peer for edge in near if self.census.claims[edge.peer].progress_at is not None)
        if self.unfinished & met & ~away:
            return None
        there = [edge.progress for edge in near if edge.is_open and not away >> edge.peer & 1]
        if not away and all(progress.settled is None for progress in there):
            return None  # no neighbor is absent: the unfinished members are at work elsewhere
        levels = (-1 if each.settled is None else each.settled for each in there if not each.has_stopped)
        return min(self.settings.hops, 1 + min(levels, default=self.settings.hops))

    def _name(self, now: float) -> list[Effect]:
        """Report to the user, once each, the neighbors that do not take part."""
        away = self.away_members(AWAY_S, now) & ~self._reported
        self._reported |= away
        named = [edge for peer, edge in self.edges.items() if away >> peer & 1]
        return [_alarm(edge.peer, now - self._idle_from(edge)) for edge in named]


def _alarm(peer: int, idle_s: float) -> Alarm:
    text = f"all others are through; it has taken no part for {idle_s:.0f} s, so no node trains on for it"
    return Alarm(kind="takes-no-part", peer=peer, text=text)


def _bits(members: Iterable[int]) -> int:
    return sum(1 << member for member in members)
