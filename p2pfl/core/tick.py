"""After a new version: how long to wait for which exchanges, and then, in the robust profile, with whom to mix.

A dead neighbor costs nothing, a slow one next to nothing. In the robust profile exchanges only tell each end the
other's model; after each round's exchanges one rule is applied to the own model and the replicas of the neighbors that
are present. With no more than 2 b of them the b liars could be half: then nothing is mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2pfl.core.edge import Edge
from p2pfl.core.effects import Alarm, Effect, Mix
from p2pfl.core.facts import Facts, Phase
from p2pfl.core.joining import LEAST_JOIN_TICK_S
from p2pfl.core.limits import PATIENCE_MULTIPLE, UsualTime
from p2pfl.core.settings import Settings

LEAST_USUAL_WAIT_S = 0.25


@dataclass(slots=True, eq=False, repr=False)
class Tick:
    """The latest of a node; `usual` is how long an exchange takes on each of its live edges."""

    edges: Mapping[int, Edge]
    usual: UsualTime
    settings: Settings
    is_waiting: bool = False
    """Whether the exchanges of the latest version are not through yet, nor given up."""
    began_at: float = 0.0
    training_s: float = 0.0
    """How long the latest local round has trained."""
    awaited: Edge | None = None
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
        if awaited is not None and self._is_late(awaited, now):
            end = self._patience_end(awaited, phase, phase_from, median_s)
            if now < end:
                return end
        late = [edge for edge in self.edges.values() if self._is_late(edge, now)]
        if not late:
            self._book(now, phase, median_s)
            return self._rest_end(phase)
        end, last = max((self._patience_end(edge, phase, phase_from, median_s), edge.peer) for edge in late)
        self.awaited = self.edges[last]
        if now >= end:
            for edge in late:
                edge.service.miss(self.began_at)
            self._book(end, phase, median_s)
        return end

    def _is_late(self, edge: Edge, now: float) -> bool:
        """Whether the tick waits for it. Who is put off for what it has cost the engine is not waited for as well."""
        if not edge.line.greeting.is_open or edge.service.served or edge.exchange.leaves:
            return False
        return edge.exchange.engine_time.wait_s(edge.peer, now) == 0.0

    def complain(self, now: float) -> list[Effect]:
        """What the user should know of neighbors that never answer, be it to a greeting."""
        effects: list[Effect] = []
        for edge in self.edges.values():
            if edge.line.greeting.number is None:
                continue
            if not edge.is_open and edge.service.has_turn:
                edge.service.go_without(self.began_at)
            effects += edge.service.complain(now)
        return effects

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
        """When the wait for this edge ends. `median_s` is the usual time of an exchange, over all live edges."""
        patience = edge.service.patience
        wait_s = patience.wait_s()
        if wait_s > self.training_s:  # the usual wait is never shorter than that
            wait_s = min(wait_s, self._usual_wait_s(median_s))
        if phase is Phase.TRAINING:  # the other phases are short, and end for all nodes alike
            return self.began_at + min(wait_s, patience.afford_s(median_s, self.began_at))
        if phase is Phase.JOINING:
            return self.began_at + max(wait_s, LEAST_JOIN_TICK_S)
        progress = edge.progress
        if progress.keeps_step:  # the exchange begins when both ends are there; `Rounds` waits for the other as long
            both_from = max(self.began_at, progress.closing_heard_at)
            return phase_from + self.settings.linger_s if progress.is_awaited else both_from + wait_s
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


GRACE = 4
"""Rounds in a row without enough replicas before it is reported although the sessions are there: an edge that begins,
or begins anew, takes two exchanges to fill them."""


UNMOVED_ROUNDS = 10
"""Mixes in a row of which nothing came before it is reported. Measured: up to 3 where nobody lies and two digits are
known to each node, under a rule that takes something of most; all of them under the attack `mirror`."""


@dataclass(slots=True, eq=False, repr=False)
class Mixing:
    """`alone` counts the rounds that mixed with nobody, `mixed` the others; `too_few` and `nothing_kept` are what was
    told last.
    """

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    mixed: int = 0
    alone: int = 0
    too_few: bool = False
    nothing_kept: bool = False
    _in_a_row: int = 0
    _unmoved: int = 0

    def begin(self, elapsed_s: float) -> list[Effect]:
        """What to do once a round's exchanges are through: `Mix` is among it if there is something to mix."""
        if not self.settings.profile.mixes_by_rule:
            return []
        shares = {peer: edge.exchange.share() for peer, edge in self.edges.items()}
        present = tuple(peer for peer, part in shares.items() if part > 0.0)
        if not self.is_safe(len(present)):
            self.alone += 1
            self._in_a_row += 1
            return self._miss(len(present))
        self._in_a_row = 0
        weights = tuple(shares[peer] for peer in present)
        return [*self._find(len(present)), Mix(peers=present, weights=weights, progress=self._progress(elapsed_s))]

    def end(self, *, failed: bool, moved: bool) -> list[Effect]:
        """What was begun is done, or (`failed`) the rule gave no model: then the round has mixed with nobody."""
        self.mixed += not failed
        self.alone += failed
        if not failed:
            return self._note(moved=moved)
        text = "the rule raised, or gave no finite model: nothing was mixed"
        return [Alarm(kind="mixing-failed", peer=None, text=text)]

    def _note(self, *, moved: bool) -> list[Effect]:
        """Tell once that nothing is kept of any neighbor, and once that something is again."""
        self._unmoved = 0 if moved else self._unmoved + 1
        nothing = self._unmoved >= UNMOVED_ROUNDS
        if self.nothing_kept == nothing:
            return []
        self.nothing_kept = nothing
        text = f"in {UNMOVED_ROUNDS} rounds in a row the rule kept next to nothing of any neighbor's model"
        if nothing:
            return [Alarm(kind="nothing-kept", peer=None, text=text)]
        return [Alarm(kind="kept-again", peer=None, text="the rule keeps something of the neighbors' models again")]

    def is_safe(self, neighbors: int) -> bool:
        """Whether liars among so many cannot choose what comes out."""
        return neighbors >= self.settings.profile.neighbors_needed

    def _progress(self, elapsed_s: float) -> float:
        rounds = self.settings.rounds
        done = self.facts.rounds / rounds if rounds is not None else elapsed_s / (self.settings.time_s or 1.0)
        return min(1.0, done)

    def _miss(self, present: int) -> list[Effect]:
        """Tell once that there are too few."""
        there = sum(edge.is_open for edge in self.edges.values())
        if self.too_few or (self.is_safe(there) and self._in_a_row < GRACE):
            return []
        self.too_few = True
        text = f"{there} neighbors are there, with fresh models of {present}: {self.settings.profile.condition}"
        return [Alarm(kind="too-few-neighbors", peer=None, text=text)]

    def _find(self, present: int) -> list[Effect]:
        """Tell once that there are enough again."""
        if not self.too_few:
            return []
        self.too_few = False
        text = f"there are fresh models of {present} neighbors: mixing goes on"
        return [Alarm(kind="enough-neighbors", peer=None, text=text)]
