"""The tick: after a new version, how long to wait for each exchange, and the mix that follows in the robust profile.

A dead neighbor costs nothing, a slow one next to nothing. In the robust profile exchanges only send each end the
other's model; after each round's exchanges one rule is applied to this node's model and the replicas of the connected
neighbors. With 2 b or fewer of them, the b liars could be half, so nothing is mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from p2pfl.core.edge import Edge
from p2pfl.core.events import Alarm, Effect, Mix
from p2pfl.core.limits import PATIENCE_MULTIPLE, UsualTime
from p2pfl.core.settings import Facts, Phase, Settings
from p2pfl.core.training import LEAST_JOIN_TICK_S

LEAST_USUAL_WAIT_S = 0.25


@dataclass(slots=True, eq=False, repr=False)
class Tick:
    """A node's latest tick. `usual` is the usual exchange time on its live edges."""

    edges: Mapping[int, Edge]
    usual: UsualTime
    settings: Settings
    is_waiting: bool = False
    """True while exchanges of the latest version are neither completed nor given up."""
    began_at: float = 0.0
    training_s: float = 0.0
    """How long the latest local round trained, in seconds."""
    awaited: Edge | None = None
    """The edge that the tick waits for longest."""

    def begin(self, now: float) -> list[Effect]:
        """Begin a tick: the node has a new version."""
        self.is_waiting = True
        self.began_at = now
        effects: list[Effect] = []
        for edge in self.edges.values():
            effects += edge.tick(now)
        return effects

    def ends_at(self, now: float, phase: Phase, phase_from: float) -> float:
        """Return when the wait ends, as far as is known now; a value up to `now` means it is over.

        One late edge with patience left is enough to keep waiting; the others are checked when it is served.
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
        """Return True if the tick waits for the edge; it does not wait for a neighbor that must itself wait for the
        engine.
        """
        if not edge.line.is_open or edge.service.is_served or edge.exchange.leaves:
            return False
        return edge.exchange.engine_time.wait_s(edge.peer, now) == 0.0

    def complain(self, now: float) -> list[Effect]:
        """Return the alarms about neighbors that never answer, or never answer a greeting."""
        effects: list[Effect] = []
        for edge in self.edges.values():
            if edge.line.session is None:
                continue
            if not edge.is_open and edge.service.has_turn:
                edge.service.go_without(self.began_at)
            effects += edge.service.complain(now)
        return effects

    def _book(self, end: float, phase: Phase, median_s: float) -> None:
        """Charge the last neighbor that the tick waited for with the time since the others finished.

        If several are late to the end, one of them is charged with it all; when its budget is used up, the next one is.
        """
        awaited, self.awaited = self.awaited, None
        if awaited is None or phase is not Phase.TRAINING:
            return
        others = (edge.service for edge in self.edges.values() if edge is not awaited)
        others_at = (service.served_at for service in others if service.is_served)
        alone_from = max(self.began_at, max(others_at, default=self.began_at))
        if end > alone_from:
            awaited.service.patience.book_wait(end - alone_from, end - self.began_at, median_s, end)

    def _patience_end(self, edge: Edge, phase: Phase, phase_from: float, median_s: float) -> float:
        """Return when the wait for this edge ends. `median_s` is the usual exchange time on all live edges."""
        patience = edge.service.patience
        wait_s = patience.wait_s()
        if wait_s > self.training_s:  # the usual wait is never shorter than the training time
            wait_s = min(wait_s, self._usual_wait_s(median_s))
        if phase is Phase.TRAINING:  # the other phases are short, and end in the same way for all nodes
            return self.began_at + min(wait_s, patience.afford_s(median_s, self.began_at))
        if phase is Phase.JOINING:
            return self.began_at + max(wait_s, LEAST_JOIN_TICK_S)
        progress = edge.progress
        if progress.keeps_step:  # the exchange begins when both ends are there; `Rounds` waits for the other as long
            both_from = max(self.began_at, progress.closing_heard_at)
            return phase_from + self.settings.linger_s if progress.is_awaited else both_from + wait_s
        return self.began_at + wait_s

    def _usual_wait_s(self, median_s: float) -> float:
        """Return the usual wait, in seconds: one edge that is much slower than the others must not set the pace for
        all.

        The tick waits for it as long as a round trains, as long as the (lower) median edge needs, or a quarter of a
        second.
        """
        return max(self.training_s, PATIENCE_MULTIPLE * median_s, LEAST_USUAL_WAIT_S)

    def _rest_end(self, phase: Phase) -> float:
        """Return the end of a round in which the schedule has none of this node's edges: it rests as long as an
        exchange takes.

        Otherwise the nodes that rest most would finish training first, and what the others learn later would have the
        most weight.
        """
        rests = not any(edge.service.has_turn for edge in self.edges.values())
        if phase is not Phase.TRAINING or not rests:
            return self.began_at
        return self.began_at + min(self.usual.median_s(0.0), self.settings.max_wait_s)


GRACE = 4
"""If there are enough sessions, a lack of replicas is reported only after this many rounds in a row: a new or restarted
edge takes two exchanges to fill its replicas.
"""


UNMOVED_ROUNDS = 10
"""Mixes without an effect are reported after this many in a row. Measured, with two digits per node and a rule that
takes something from most neighbors: up to 3 where nobody lies. Under the attack `mirror`, no mix has an effect.
"""


@dataclass(slots=True, eq=False, repr=False)
class Mixing:
    """Whether rounds mix with anybody; and mixing by a rule.

    `alone` counts the rounds mixed with no neighbor, `mixed` the others: with the mean, the local rounds at whose end a
    neighbor was connected. `too_few`, `nothing_kept` and `hardly_mixes` are the states that were last reported.
    """

    edges: Mapping[int, Edge]
    facts: Facts
    settings: Settings
    mixed: int = 0
    alone: int = 0
    too_few: bool = False
    nothing_kept: bool = False
    hardly_mixes: bool = False
    _exchanges: int = 0
    _in_a_row: int = 0
    _unmoved: int = 0

    def begin(self) -> list[Effect]:
        """Return the effects once a round's exchanges are done, including `Mix` if there is something to mix."""
        if not self.settings.profile.mixes_by_rule:
            return self._count_exchanged()
        shares = {peer: edge.exchange.share() for peer, edge in self.edges.items()}
        present = tuple(peer for peer, part in shares.items() if part > 0.0)
        if not self.is_safe(len(present)):
            self.alone += 1
            self._in_a_row += 1
            return [*self._miss(len(present)), *self._judge()]
        self._in_a_row = 0
        weights = tuple(shares[peer] for peer in present)
        effects = [*self._judge(), *self._find(len(present))]
        return [*effects, Mix(peers=present, weights=weights)]

    def _count_exchanged(self) -> list[Effect]:
        """Count a local round by whether any exchange was completed since the one before."""
        exchanges, before = sum(edge.service.exchanges for edge in self.edges.values()), self._exchanges
        self._exchanges = exchanges
        could = any(edge.is_open and edge.service.has_turn for edge in self.edges.values())
        if self.facts.closing is not None or not (could or exchanges != before):
            return []
        self.mixed += exchanges != before
        self.alone += exchanges == before
        return self._judge()

    def _judge(self) -> list[Effect]:
        """Report once that most rounds mixed with nobody; too few neighbors for a rule are reported as such."""
        if self.hardly_mixes or self.too_few or self.alone <= self.mixed or self.alone + self.mixed < UNMOVED_ROUNDS:
            return []
        self.hardly_mixes = True
        text = f"{self.alone} of {self.alone + self.mixed} rounds mixed with no neighbor's model"
        return [Alarm(kind="hardly-mixes", peer=None, text=text)]

    def end(self, *, failed: bool, moved: bool) -> list[Effect]:
        """Record the end of a mix; if `failed`, the rule gave no model, and the round mixed with no neighbor."""
        self.mixed += not failed
        self.alone += failed
        if not failed:
            return self._note(moved=moved)
        text = "the rule raised, or gave no finite model: nothing was mixed"
        return [Alarm(kind="mixing-failed", peer=None, text=text)]

    def _note(self, *, moved: bool) -> list[Effect]:
        """Report once that the rule keeps nothing from any neighbor, and once that it keeps something again."""
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
        """Return True if, among this many neighbors, the liars cannot choose the result."""
        return neighbors >= self.settings.profile.neighbors_needed

    def _miss(self, present: int) -> list[Effect]:
        """Report once that there are too few neighbors."""
        there = sum(edge.is_open for edge in self.edges.values())
        if self.too_few or (self.is_safe(there) and self._in_a_row < GRACE):
            return []
        self.too_few = True
        text = f"{there} neighbors are connected, with fresh models of {present}: {self.settings.profile.condition}"
        return [Alarm(kind="too-few-neighbors", peer=None, text=text)]

    def _find(self, present: int) -> list[Effect]:
        """Report once that there are enough neighbors again."""
        if not self.too_few:
            return []
        self.too_few = False
        text = f"there are fresh models of {present} neighbors again: mixing continues"
        return [Alarm(kind="enough-neighbors", peer=None, text=text)]
