"""Apply a change to the federation; it takes effect between two of this node's rounds.

An edge that stays keeps its state. An edge that is dropped starts nothing new, but an exchange under way may still
complete. The node waits for it as long as a round waits for a late exchange, and at least as long as a broken session
needs to reconnect. If both ends have carried out the same transactions by then, `sum n_i x_i` is unchanged. Otherwise
one end may have applied its half of one exchange on that edge: two ends that cannot reach each other cannot agree on
whether it happened. A removed member takes part in no exchange from the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from p2pfl.core.edge import Edge, Neighbors
from p2pfl.core.effects import ChangeEdges, CloseSession, Effect
from p2pfl.core.events import Amended, SessionClosed, SessionOpened
from p2pfl.core.facts import NEVER, Phase
from p2pfl.core.fragment_turns import degree_of
from p2pfl.core.limits import FIRST_PATIENCE_S
from p2pfl.core.records import EdgeRecord
from p2pfl.core.staleness import ALWAYS

OVER = (Phase.CLOSING, Phase.LINGERING, Phase.FINISHED)
"""The phases in which a node no longer trains, even if the federation has added rounds since."""


@dataclass(slots=True, eq=False, repr=False)
class Amending:
    """A change waiting to take effect, and the sessions of future neighbors.

    `early` maps each future neighbor that has already made the change to its session.
    """

    neighbors: Neighbors
    pending_change: Amended | None = None
    early: dict[int, int] = field(default_factory=dict)
    _until: float | None = None
    """The time until which the node waits for exchanges under way."""

    def ask(self, event: Amended) -> list[Effect]:
        """Store a change until it may take effect, in place of any earlier one."""
        self.pending_change, self._until = event, None
        effects: list[Effect] = []
        for peer, edge in self.neighbors.edges.items():
            edge.exchange.leaves = peer not in event.neighbors
            edge.line.barred = peer in event.settings.retired
            if edge.line.barred:
                effects += edge.exchange.drop("no longer a member")
                self.neighbors.timers.note(edge)
        for peer in [*self.early]:
            if peer not in event.neighbors:
                effects.append(_refusal(peer, self.early.pop(peer)))
        return effects

    def due_at(self, now: float) -> float:
        """Return when the change may take effect between two rounds; a value up to `now` means it may do so now."""
        leaving = [edge for edge in self.neighbors.edges.values() if edge.exchange.leaves]
        if any(edge.exchange.busy for edge in leaving):
            return NEVER  # the engine's answer is an event, which runs this again
        late = [edge for edge in leaving if not (edge.exchange.is_settled or edge.line.barred)]
        if not late:
            return now
        if self._until is None:
            self._until = now + max(_patience_s(edge) for edge in late)
        return self._until

    def take_effect(self, phase: Phase, now: float) -> list[Effect]:
        """Change edges and settings between two rounds. The engine must change its edges before the new ones are
        used.
        """
        event, neighbors = self.pending_change, self.neighbors
        if event is None:
            return []
        self.pending_change = None
        settings, bound_before = neighbors.settings, neighbors.census.bound
        effects: list[Effect] = []
        dropped = tuple(peer for peer in neighbors.edges if peer not in event.neighbors)
        for peer in dropped:
            effects += neighbors.edges[peer].exchange.drop("no longer a neighbor")
            neighbors.remove(peer)
        settings.adopt(replace(event.settings, rounds=settings.rounds) if phase in OVER else event.settings)
        turns = {peer: event.turns.get(peer, ALWAYS) for peer in event.neighbors}
        neighbors.facts.degree = degree_of(settings.profile, turns, settings.fragments)
        for peer, edge in neighbors.edges.items():
            edge.take_turns(turns[peer])
        added = tuple(peer for peer in event.neighbors if peer not in neighbors.edges)
        for peer in added:
            neighbors.add(peer, EdgeRecord(), turns[peer])
        neighbors.census.amend(event.neighbors, bound_before, now)
        effects.append(ChangeEdges(added=added, dropped=dropped))
        return effects + [effect for peer in added for effect in self._open(neighbors.edges[peer], now)]

    def _open(self, edge: Edge, now: float) -> list[Effect]:
        """Open the early session of a new edge, if there is one."""
        session = self.early.pop(edge.peer, None)
        effects = [] if session is None else edge.open_session(session, now)
        self.neighbors.timers.note(edge)
        return effects

    # -- future and former neighbors --------------------------------------------------------------------------------

    def meet(self, event: SessionOpened) -> list[Effect]:
        """Keep the session of a future neighbor, which repeats its greeting until the edge exists; refuse any other
        session.
        """
        if self.pending_change is None or event.peer not in self.pending_change.neighbors:
            return [_refusal(event.peer, event.session)]
        self.early[event.peer] = event.session
        return []

    def part(self, event: SessionClosed) -> list[Effect]:
        """Forget the session of a future neighbor, which has ended."""
        if self.early.get(event.peer) == event.session:
            del self.early[event.peer]
        return []


def _patience_s(edge: Edge) -> float:
    """Return how long to wait for an edge, in seconds.

    An edge without a session gets at least `FIRST_PATIENCE_S`, so that a new one can open.
    """
    patience = edge.service.patience
    return patience.wait_s() if edge.is_open else max(patience.wait_s(), min(FIRST_PATIENCE_S, patience.longest_s))


def _refusal(peer: int, session: int) -> CloseSession:
    return CloseSession(peer=peer, session=session, reason="no neighbor of this node")
