"""The time before the first round: wait until all members are connected, or join a federation that has moved on.

A federation that has yet to begin and one that is over look alike, so a node whose federation has not ended waits
forever. Joining means finding out whether the others have moved on, and which models to start from. Where b neighbors
may lie, more than b must say that they have moved on, and the median is taken over more than 2 b replicas; with fewer,
the liars could choose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from p2pfl.core.edge import Edge, announce, is_accompanied
from p2pfl.core.effects import Alarm, Effect
from p2pfl.core.facts import Facts
from p2pfl.core.hearsay import Hearsay
from p2pfl.core.limits import Repeats
from p2pfl.core.settings import Settings

JOIN_TICKS = 3
JOIN_WAIT_S = 10.0
LONGEST_JOIN_S = 60.0
"""How long a node keeps joining while no replica is filled, in seconds: large models take long on slow lines."""
LEAST_JOIN_TICK_S = 0.1
MOVED_ON = 2


@dataclass(slots=True, eq=False, repr=False)
class Joining:
    """One node's attempt to join a federation that has moved on.

    `fresh` means that the disk is empty. `ticks` counts the ticks that filled replicas. `resume_point` is the progress
    from which the node continues, in rounds or seconds.
    """

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    hearsay: Hearsay
    fresh: bool
    ticks: int = 0
    resume_point: tuple[int | None, float | None] = (None, None)

    def moved_on(self) -> bool:
        """Return True if the others have moved on: they remember this node, or have trained without it.

        An edge beyond its first incarnation is a sign of a lost disk, even after a crash while joining. The others have
        also moved on if this node comes back in the middle of its rounds when all connected neighbors have finished:
        its old model would only set back their final ones.
        """
        if self.facts.rounds:
            return self._is_last()
        late = MOVED_ON if self.fresh else float("inf")
        telling = sum(
            edge.is_open and (edge.exchange.record.incarnation > 0 or (edge.progress.first_heard or 0) >= late)
            for edge in self.edges.values()
        )
        return telling >= self.settings.profile.words_needed

    def begin(self) -> list[Effect]:
        self.facts.joining = True
        return [] if self.facts.rounds else self.hearsay.claim_another()

    def _is_last(self) -> bool:
        settings = self.settings
        if settings.rounds is not None and self.facts.rounds >= settings.rounds:
            return False
        there = [edge for edge in self.edges.values() if edge.is_open]
        return len(there) >= settings.profile.words_needed and all(edge.progress.done for edge in there)

    def find_resume_point(self, sources: tuple[int, ...]) -> tuple[int | None, float | None]:
        """Return the rounds or seconds from which a node that never trained continues: the lower median over
        `sources`.
        """
        if self.facts.rounds:
            return None, None
        trained = median_low(self.edges[peer].progress.trained for peer in sources)
        settings = self.settings
        if not trained:
            return self.resume_point
        if settings.rounds is not None:
            self.resume_point = min(trained, settings.rounds), None
        else:
            self.resume_point = None, min(float(trained), settings.time_s or 0.0)
        return self.resume_point

    def sources(self, *, late: bool) -> tuple[int, ...]:
        """Return the neighbors whose replicas this process has filled, for it to start from their median; none while
        more may come.
        """
        live = [edge for edge in self.edges.values() if edge.is_open]
        filled = tuple(
            edge.peer
            for edge in live
            if min(edge.exchange.record.seq, edge.service.exchanges)
            >= self.settings.fragments.get(edge.peer, JOIN_TICKS)
        )
        enough = (late or len(filled) == len(live)) and len(filled) >= self.settings.profile.neighbors_needed
        return filled if enough else ()


RESUME_WAIT_S = 3.0


@dataclass(slots=True, eq=False, repr=False)
class Gathering:
    """The wait for all neighbors. `repeats` says when to tell them again where this node stands."""

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    joining: Joining
    repeats: Repeats
    awaited: Edge | None = None
    """An edge that keeps this node on its level; the next `wait` looks at it first."""
    alone_is_reported: bool = False

    def wait(self, now: float, since: float) -> list[Effect] | None:
        """Return what to send to the neighbors, awaited since `since`; None if it is time to begin.

        The level is 0 until all neighbors are connected, then one more than the lowest level among them: at level h,
        every node within h - 1 hops has all its neighbors. Otherwise a node whose neighbors came early would be many
        rounds ahead of the others before they start.
        """
        if now >= since + self._patience_s(now, since):
            return None if is_accompanied(self.edges) else self._wait_alone(now)
        if self._is_held_back():
            return announce(self.edges) if self.repeats.due(now) else []
        levels = (edge.progress.level for edge in self.edges.values() if not edge.line.is_shut)
        level = 1 + min(levels, default=self.settings.hops)
        if level >= self.settings.hops:
            return None
        self.facts.level = int(level)
        self.repeats.restart(now)
        return announce(self.edges)

    def due_at(self, now: float, since: float) -> float:
        """Return when `wait` must be called next."""
        ends_at = since + self._patience_s(now, since)
        return self.repeats.next_at if now >= ends_at else min(ends_at, self.repeats.next_at)

    def end(self) -> None:
        self.facts.level = None
        self.awaited = None

    def _patience_s(self, now: float, since: float) -> float:
        """Return how long to wait for all neighbors, in seconds; not long if the federation is already under way."""
        wait_s = self.settings.start_wait_s
        short_s = min(wait_s, RESUME_WAIT_S)
        if now < since + short_s:
            return short_s
        if self.facts.rounds == 0:
            return short_s if self.joining.moved_on() else wait_s
        # Even if all connected neighbors have finished, one that has not may still come; finished ones linger.
        return min(wait_s, max(short_s, self.settings.linger_s / 2)) if self.joining.moved_on() else short_s

    def _wait_alone(self, now: float) -> list[Effect]:
        self.repeats.due(now)
        if self.alone_is_reported:
            return []
        self.alone_is_reported = True
        text = "no neighbor is connected: training starts once one is, and dialing continues"
        return [Alarm(kind="waiting-alone", peer=None, text=text)]

    def _is_held_back(self) -> bool:
        """Return True if some neighbor keeps this node on its level."""
        level = self.facts.level or 0
        if self.awaited is not None and is_behind(self.awaited, level):
            return True
        self.awaited = next((edge for edge in self.edges.values() if is_behind(edge, level)), None)
        return self.awaited is not None


def is_behind(edge: Edge, level: int) -> bool:
    """Return True if the neighbor is not connected, or has not reached that level."""
    return not edge.line.is_shut and (not edge.is_open or edge.progress.level < level)
