"""The core of a node: events in, effects out. No I/O, no clock, no threads, no vectors, no global randomness.

The same events at the same times produce the same effects, in the same order, on every machine. `Core` only routes:
edges decide about transactions; `rounds` decides about training, mixing rounds and the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, get_args

from p2pfl.core.edge import Amending, Edge, Neighbors
from p2pfl.core.events import (
    Alarm,
    Amended,
    Effect,
    EngineResult,
    Event,
    MemberEnded,
    MessageReceived,
    RoundEvent,
    SessionClosed,
    SessionEvent,
    SessionOpened,
    StorageFailed,
    StorageRestored,
)
from p2pfl.core.limits import View
from p2pfl.core.members import NO_MEMORY, NO_START, Lifetime, Lifetimes, MemberProgress, Memory, Start
from p2pfl.core.messages import EdgeRecord, LivesTold, Resign
from p2pfl.core.neighbor import EdgeLine, ToldLifetimes
from p2pfl.core.rounds import Mixing, Rounds
from p2pfl.core.settings import ALWAYS, NEVER, Facts, Phase, Settings, Turns, degree_of


class Algorithm:
    """Handles events and returns effects; it has no I/O and no clock of its own.

    The driver carries out the effects: it answers `StartRound` with RoundTrained or RoundRefused, and `CommitRound`
    with RoundCommitted; `Finish` ends the node. Other methods serve status and result. `facts`: what it has done.
    """

    facts: Facts
    settings: Settings
    edges: Mapping[int, Edge] = MappingProxyType({})
    """The edges on which models are mixed, by neighbor."""
    rounds: Rounds | None = None
    """The rounds of a node that mixes with its neighbors."""
    mixes = True
    """False if rounds are sums, and no model is mixed with a neighbor's."""
    resigned = False
    """True if this node has stopped because another process has its key."""
    retired = False
    """True if this node has stopped because it was removed."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event; `now` is monotonic, in seconds."""
        raise NotImplementedError

    def wake(self, now: float) -> list[Effect]:  # noqa: ARG002 - most need no clock
        """Run the timers that are due. The driver calls this at `deadline()` at the latest."""
        return []

    def deadline(self) -> float | None:
        """Return when `wake` must be called next; None for never."""
        return None

    @property
    def phase(self) -> Phase:
        if self.rounds is None:
            raise NotImplementedError
        return self.rounds.phase

    @property
    def lifetime(self) -> Lifetime:
        """The node's lifetime, which says how far back its memory reaches."""
        return NO_START.lifetime

    @property
    def mixing(self) -> Mixing | None:
        """The state of mixing by a rule; None if no rule mixes."""
        return None if self.rounds is None else self.rounds.mixing

    @property
    def peers(self) -> Collection[int]:
        """Return the neighbors that this node has sessions with, or should have."""
        return self.edges.keys()

    @property
    def connected(self) -> Collection[int]:
        """Return the neighbors with a session."""
        return [peer for peer, edge in self.edges.items() if edge.is_open]

    def may_miss(self, peer: int) -> bool:
        """Return True if the absence of a neighbor is nothing to report."""
        edge = self.edges[peer]
        return edge.progress.done or edge.line.reputation.is_out or edge.line.barred or self.facts.halted

    @property
    def exchanges(self) -> int:
        """Return the number of exchanges with neighbors, or of whatever takes their place."""
        return sum(edge.service.exchanges for edge in self.edges.values())

    @property
    def failed_rounds(self) -> int:
        return 0 if self.rounds is None else self.rounds.training.failed_rounds

    @property
    def has_completed(self) -> bool:
        """True if this node has done all its own training."""
        return self.facts.done if self.rounds is None else self.rounds.termination.has_completed

    @property
    def ended_by(self) -> str | None:
        """The reason why training has ended; None if it has not."""
        return None if self.rounds is None else self.rounds.termination.ended_by

    @property
    def unfinished(self) -> list[int]:
        """The other members for which this node waits, or that had not completed theirs when training ended."""
        return [] if self.rounds is None else self.rounds.termination.awaited

    def completed_by(self, now: float) -> str | None:
        """Return the reason why this node has trained enough; None if it has not."""
        return None if self.rounds is None or not self.has_completed else self.rounds.training.enough(now)

    def reputations(self, now: float) -> Mapping[int, View]:
        """Return the reputation of each neighbor: its proven faults and its quarantine."""
        return {peer: edge.line.reputation.view(now) for peer, edge in self.edges.items()}


class Core(Algorithm):
    """The decisions of one node.

    `turns` gives the rounds in which an edge is used, for each edge not used in all of them; `memory` is the state on
    disk. `start` identifies this process and its lifetime. `durable`: state is on disk before a message depends on it.
    """

    def __init__(
        self,
        *,
        index: int,
        neighbors: Iterable[int],
        settings: Settings,
        samples: float,
        turns: Mapping[int, Turns] | None = None,
        memory: Memory = NO_MEMORY,
        durable: bool = True,
        start: Start = NO_START,
    ) -> None:
        peers = sorted(neighbors)
        turns_by_peer = {peer: (turns or {}).get(peer, ALWAYS) for peer in peers}
        self.index = index
        self.settings = settings = replace(settings)
        self.durable = durable
        self.facts = Facts(
            degree=degree_of(settings.profile, turns_by_peer, settings.fragments),
            samples=samples,
            version=memory.version,
            rounds=memory.rounds,
            alone=memory.alone,
        )
        self.facts.trained = memory.rounds if settings.rounds is not None else int(memory.elapsed_s)
        # until the node begins, since the other members may have moved on from its model
        self.facts.joining = not memory.ended
        if memory.ended:
            self.facts.done, self.facts.level, self.facts.closing = True, None, settings.closing_rounds
        self.members = MemberProgress(index, peers, settings)
        self.lifetimes = Lifetimes(index, start.lifetime, dict(memory.lifetimes))
        lines: dict[int, EdgeLine] = {}
        self.told_lifetimes = ToldLifetimes(self.lifetimes, lines, self.facts, settings)
        self.neighbors = Neighbors(
            index=index,
            facts=self.facts,
            settings=settings,
            members=self.members,
            told_lifetimes=self.told_lifetimes,
            lines=lines,
            start=start,
        )
        for peer in peers:
            self.neighbors.add(peer, memory.records.get(peer) or EdgeRecord(), turns_by_peer[peer])
        self.edges: Mapping[int, Edge] = self.neighbors.edges
        self.timers = self.neighbors.timers
        self.amending = Amending(self.neighbors)
        self.rounds: Rounds = Rounds(self.amending, memory)
        self.termination = self.rounds.termination

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event, and run the timers that are due; `now` is monotonic, in seconds."""
        effects = self._route(event, now)
        effects += self.wake(now)
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Run the timers that are due. Call this at `deadline()` at the latest."""
        effects: list[Effect] = []
        if now >= self.timers.next_at:
            for edge in self.timers.due(now):
                effects += edge.wake(now)
                self.timers.note(edge)
        effects += self.rounds.advance(now)
        if now >= self.members.due_at:
            self.members.due_at = NEVER
            uninformed = self.members.uninformed_neighbors()
            effects += [effect for peer in uninformed for effect in self.edges[peer].announce()]
        if now >= self.lifetimes.due_at:
            effects += self.told_lifetimes.pass_on_due(now)
        return effects

    def deadline(self) -> float | None:
        """Return when `wake` must be called next; None for never."""
        next_at = min(self.rounds.due, self.timers.next_at, self.members.due_at, self.lifetimes.due_at)
        return None if next_at == NEVER else next_at

    @property
    def lifetime(self) -> Lifetime:
        return self.lifetimes.own

    def _route(self, event: Any, now: float) -> list[Effect]:
        happens = _ON_EDGES.get(type(event))
        if happens is None:
            return self.rounds.take(event, now) if isinstance(event, RoundEvent) else self._for_whole_node(event, now)
        edge = self.edges.get(event.peer)
        if edge is None:
            return self._from_stranger(event)
        effects = happens(edge, event, now)
        self.timers.note(edge)
        if type(event) is MessageReceived and type(event.message) in _CONCERNS_ALL_EDGES:
            effects += self._settle_all(now)
        return effects

    def _from_stranger(self, event: SessionEvent) -> list[Effect]:
        """Handle an event of a future or former neighbor; the engine never works for such a peer."""
        if isinstance(event, SessionOpened):
            return self.amending.meet(event)
        if isinstance(event, SessionClosed):
            return self.amending.part(event)
        if isinstance(event, MessageReceived):
            return []
        raise ValueError(f"the engine has worked on an edge to {event.peer}, who is no neighbor")

    def _for_whole_node(
        self, event: StorageFailed | StorageRestored | Amended | MemberEnded, now: float
    ) -> list[Effect]:
        if isinstance(event, MemberEnded):
            return self._give_up(event.member, now)
        if not isinstance(event, Amended):
            return self._storage(event)
        if self.index not in event.settings.retired:
            return self.amending.ask(event)
        effects = self.rounds.leave(REMOVED, now, retired=True)
        self.retired = self.retired or bool(effects)
        return effects

    def _give_up(self, member: int, now: float) -> list[Effect]:
        """Wait no longer for a member that has ended for good, neither at the start nor at the end."""
        edge = self.edges.get(member)
        if member == self.index or self.members.ended >> member & 1 or (edge is not None and edge.is_open):
            return []
        self.members.note_ended(member, now)
        if edge is not None:
            edge.line.has_ended = True
        text = "its process has ended for good, as the launcher of all nodes says: no node waits for it"
        return [Alarm(kind="member-ended", peer=member, text=text, notice=True)]

    def _settle_all(self, now: float) -> list[Effect]:
        """Act on what a message implies for other edges, or for the whole node."""
        for edge in self.edges.values():
            self.timers.note(edge)
        votes = sum(edge.line.copies.resign_requested for edge in self.edges.values())
        # Connected or not: else one neighbor could stop the node at each start, before the others are there.
        there = sum(not edge.line.has_ended for edge in self.edges.values())
        needed = max(self.settings.profile.words_needed, min(2, there))
        effects = self.rounds.leave(_TWO_PLACES, now, resigned=True) if votes >= needed else []
        self.resigned = self.resigned or bool(effects)
        return effects

    def _storage(self, event: StorageFailed | StorageRestored) -> list[Effect]:
        """Suspend exchanges while the disk fails, because state must be on disk before it is sent; training goes on."""
        if isinstance(event, StorageRestored):
            self.facts.halted = False
            return [Alarm(kind="storage-restored", peer=None, text="state is written to disk again")]
        if not self.durable:
            return [Alarm(kind="storage", peer=None, text="no snapshot could be written; the old one stays")]
        if self.facts.halted:
            return []
        self.facts.halted = True
        text = "state cannot be written to disk: exchanging stops, training goes on"
        effects: list[Effect] = [Alarm(kind="storage", peer=None, text=text)]
        for edge in self.edges.values():
            effects += edge.exchange.drop("storage")
            self.timers.note(edge)
        return effects


REMOVED = Alarm(
    kind="removed",
    peer=None,
    text="this node was removed from the federation: no member exchanges with it any more, and it stops",
)
_TWO_PLACES = Alarm(
    kind="two-places",
    peer=None,
    text="one key speaks from two places: another process has this node's key and began earlier; this one stops",
)
_CONCERNS_ALL_EDGES = (LivesTold, Resign)
_ON_EDGES: Mapping[type[Event], Callable[[Edge, Any, float], list[Effect]]] = {
    MessageReceived: lambda edge, event, now: edge.receive(event.session, event.message, now),
    SessionOpened: lambda edge, event, now: edge.open_session(event.session, now),
    SessionClosed: lambda edge, event, now: edge.close_session(event.session, event.malformed, now),
    **dict.fromkeys(get_args(EngineResult), Edge.conclude),
}
