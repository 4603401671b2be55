"""Before the first round: wait until everybody is there, as far as the graph reaches, or until patience ends.

Nobody there yet and nobody there any more look alike: a node for which the federation has not ended waits for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.core.edge import Edge, announce, is_accompanied
from p2pfl.core.effects import Alarm, Effect
from p2pfl.core.facts import Facts
from p2pfl.core.joining import Joining
from p2pfl.core.limits import Repeats
from p2pfl.core.settings import Settings

RESUME_WAIT_S = 3.0


class Gathering:
    """`repeats` says when to tell the neighbors again where this node stands."""

    def __init__(
        self, edges: Mapping[int, Edge], facts: Facts, settings: Settings, joining: Joining, repeats: Repeats
    ) -> None:
        self.edges = edges
        self.facts = facts
        self.settings = settings
        self.joining = joining
        self.repeats = repeats
        self.awaited: Edge | None = None
        """An edge that keeps this node on its level: it is asked first the next time."""
        self.is_told_alone = False

    def wait(self, now: float, since: float) -> list[Effect] | None:
        """What to say to the neighbors, who are waited for since then. None: it is time to begin.

        The level is 0 until all own neighbors are connected, then one more than the least level among them: at level h
        everyone within h - 1 hops has all neighbors. Without this a node whose neighbors came early would be many
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
        self.repeats.said(now)
        return announce(self.edges)

    def due_at(self, now: float, since: float) -> float:
        """When `wait` must be called next."""
        ends_at = since + self._patience_s(now, since)
        return self.repeats.next_at if now >= ends_at else min(ends_at, self.repeats.next_at)

    def end(self) -> None:
        self.facts.level = None
        self.awaited = None

    def _patience_s(self, now: float, since: float) -> float:
        """For all neighbors to appear; short where the federation is under way already."""
        wait_s = self.settings.start_wait_s
        short_s = min(wait_s, RESUME_WAIT_S)
        if now < since + short_s:
            return short_s
        if self.facts.rounds == 0:
            return short_s if self.joining.moved_on() else wait_s
        # Where all that are there have finished, another neighbor may yet come that has not, and who finished lingers.
        return min(wait_s, max(short_s, self.settings.linger_s / 2)) if self.joining.moved_on() else short_s

    def _wait_alone(self, now: float) -> list[Effect]:
        self.repeats.due(now)
        if self.is_told_alone:
            return []
        self.is_told_alone = True
        text = "no neighbor is there: nothing is trained until one is, and dialing goes on"
        return [Alarm(kind="waiting-alone", peer=None, text=text)]

    def _is_held_back(self) -> bool:
        """Whether a neighbor keeps this node on its level. One is answer enough."""
        level = self.facts.level or 0
        if self.awaited is not None and is_behind(self.awaited, level):
            return True
        self.awaited = next((edge for edge in self.edges.values() if is_behind(edge, level)), None)
        return self.awaited is not None


def is_behind(edge: Edge, level: int) -> bool:
    """Whether the neighbor is not there, or has not told of that level."""
    return not edge.line.is_shut and (not edge.is_open or edge.progress.level < level)
