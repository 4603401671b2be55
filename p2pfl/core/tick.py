"""The wait after a new version: for which exchanges, how long, and who has cost the time.

A dead neighbor costs nothing, a slow one next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.core.edge import Edge
from p2pfl.core.effects import Effect
from p2pfl.core.facts import Phase
from p2pfl.core.joining import LEAST_JOIN_TICK_S
from p2pfl.core.limits import PATIENCE_MULTIPLE, UsualTime
from p2pfl.core.settings import Settings

LEAST_USUAL_WAIT_S = 0.25


class Tick:
    """The latest of a node; `usual` is how long an exchange takes on each of its live edges."""

    def __init__(self, edges: Mapping[int, Edge], usual: UsualTime, settings: Settings) -> None:
        self.edges = edges
        self.usual = usual
        self.settings = settings
        self.is_waiting = False
        """Whether the exchanges of the latest version are not through yet, nor given up."""
        self.began_at = 0.0
        self.training_s = 0.0
        """How long the latest local round has trained."""
        self.awaited: Edge | None = None
        """The edge that is waited for longest."""

    def begin(self, now: float) -> list[Effect]:
        """The node has a new version."""
        self.is_waiting = True
        self.began_at = now
        effects: list[Effect] = []
        for edge in self.edges.values():
            effects += edge.tick(now)
        return effects

    def ends_at(self, now: float, phase: Phase, phase_from: float) -> float:
        """When the wait is over, as far as is known now; not later than `now`: it is.

        One late edge with patience left is answer enough: the others are looked at when it is served.
        """
        median_s, awaited = self.usual.median_s(self.settings.max_wait_s), self.awaited
        if awaited is not None and awaited.line.greeting.is_open and not awaited.service.served:
            end = self._patience_end(awaited, phase, phase_from, median_s)
            if now < end:
                return end
        late = [edge for edge in self.edges.values() if edge.line.greeting.is_open and not edge.service.served]
        if not late:
            self._book(now, phase, median_s)
            return self._rest_end(phase)
        end, last = max((self._patience_end(edge, phase, phase_from, median_s), edge.peer) for edge in late)
        self.awaited = self.edges[last]
        if now >= end:
            for edge in late:
                edge.service.patience.missed()
            self._book(end, phase, median_s)
        return end

    def _book(self, end: float, phase: Phase, median_s: float) -> None:
        """The one that the tick waited for last has cost the time since the others were through.

        Where several are late to the end, one of them has cost it all; when it can afford no more, the next.
        """
        awaited, self.awaited = self.awaited, None
        if awaited is None or phase is not Phase.TRAINING:
            return
        others = (edge.service for edge in self.edges.values() if edge is not awaited)
        others_at = (service.served_at for service in others if service.served)
        alone_from = max(self.began_at, max(others_at, default=self.began_at))
        if end > alone_from:
            awaited.service.patience.cost(end - alone_from, end - self.began_at, median_s, end)

    def _patience_end(self, edge: Edge, phase: Phase, phase_from: float, median_s: float) -> float:
        """When this edge is waited for no longer. `median_s` is what an exchange usually takes; with one neighbor
        alone, what it takes with that one.
        """
        patience, progress = edge.service.patience, edge.progress
        wait_s = patience.wait_s()
        if wait_s > self.training_s:  # the usual wait is never shorter than that
            wait_s = min(wait_s, self._usual_wait_s(median_s))
        if phase is Phase.JOINING:
            return self.began_at + max(wait_s, LEAST_JOIN_TICK_S)
        if progress.keeps_step:  # the exchange begins when both ends are there; `Rounds` waits for the other as long
            both_from = max(self.began_at, progress.closing_heard_at)
            return phase_from + self.settings.linger_s if progress.is_awaited else both_from + wait_s
        if phase is Phase.TRAINING:  # the other phases are short, and end for all nodes alike
            wait_s = min(wait_s, patience.afford_s(median_s, self.began_at))
        return self.began_at + wait_s

    def _usual_wait_s(self, median_s: float) -> float:
        """One edge that is much slower than the others must not set the pace of all.

        It is waited for as long as a round trains, as the (lower) median edge would be, or a quarter of a second.
        """
        return max(self.training_s, PATIENCE_MULTIPLE * median_s, LEAST_USUAL_WAIT_S)

    def _rest_end(self, phase: Phase) -> float:
        """Where a schedule has no edge for this node's round, the round rests for as long as an exchange takes.

        Otherwise the nodes that rest most would be done with training first, and what the others learn later would
        weigh most.
        """
        rests = not any(edge.service.has_turn for edge in self.edges.values())
        if phase is not Phase.TRAINING or not rests:
            return self.began_at
        return self.began_at + min(self.usual.median_s(0.0), self.settings.max_wait_s)
