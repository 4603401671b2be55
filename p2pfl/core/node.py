"""The core of a node: events in, effects out. No I/O, no clock, no threads, no vectors, no global chance.

The same events at the same times give the same effects, in the same order, on every machine. `Node` only routes:
edges decide about transactions (`exchange`), `rounds` about training, mixing rounds and the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from p2pfl.core import exchange
from p2pfl.core.edge import Edge
from p2pfl.core.effects import Alarm, Effect
from p2pfl.core.events import (
    Bootstrapped,
    Event,
    MessageReceived,
    ReplyApplied,
    ReplyRefused,
    RequestApplied,
    RequestFrozen,
    RequestRefused,
    RoundCommitted,
    RoundTrained,
    SessionClosed,
    SessionOpened,
    Started,
    StopRequested,
    StorageFailed,
    StorageRestored,
)
from p2pfl.core.facts import Facts, Settings
from p2pfl.core.limits import UsualTime
from p2pfl.core.records import EdgeRecord
from p2pfl.core.rounds import Rounds
from p2pfl.core.session import NEVER
from p2pfl.core.timers import Timers
from p2pfl.core.turns import ALWAYS, Turns, most_at_once


class Node:
    """One node's decisions.

    `neighbors` are member indices; `turns` says in which rounds the edge to each is used, where that is not always;
    `records` is what the disk remembers of the edges; `fresh` says that the disk remembered nothing at all.
    """

    def __init__(
        self,
        *,
        index: int,
        neighbors: Iterable[int],
        settings: Settings,
        samples: float,
        turns: Mapping[int, Turns] | None = None,
        fresh: bool = True,
        version: int = 0,
        rounds: int = 0,
        elapsed_s: float = 0.0,
        records: Mapping[int, EdgeRecord] | None = None,
    ) -> None:
        peers = sorted(neighbors)
        known = records or {}
        given = {peer: (turns or {}).get(peer, ALWAYS) for peer in peers}
        self.index = index
        self.settings = settings
        self.facts = Facts(degree=most_at_once(given), samples=samples, version=version, rounds=rounds)
        self.edges: dict[int, Edge] = {}
        self.usual = UsualTime()
        for peer in peers:
            self.edges[peer] = Edge(
                peer=peer,
                initiator=index < peer,
                facts=self.facts,
                settings=settings,
                turns=given[peer],
                siblings=self.edges,
                usual=self.usual,
                record=known.get(peer) or EdgeRecord(),
            )
        self.timers = Timers(self.edges)
        self.rounds = Rounds(
            edges=self.edges,
            usual=self.usual,
            facts=self.facts,
            settings=settings,
            fresh=fresh,
            elapsed_before_s=elapsed_s,
        )

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; `now` is monotonic, in seconds. Also runs whatever timers are due."""
        effects = self._route(event, now)
        effects += self.wake(now)
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Run the timers that are due. Call at `deadline()` at the latest."""
        if now < self.timers.next_at:
            return self.rounds.advance(now)
        effects: list[Effect] = []
        for edge in self.timers.due(now):
            effects += edge.wake(now)
            self.timers.note(edge)
        effects += self.rounds.advance(now)
        return effects

    def deadline(self) -> float | None:
        """When `wake` must be called next, None for never."""
        next_at = min(self.timers.next_at, self.rounds.due)
        return None if next_at == NEVER else next_at

    def _route(self, event: Event, now: float) -> list[Effect]:
        """The most frequent first."""
        match event:
            case MessageReceived():
                edge = self.edges[event.peer]
                effects = exchange.receive(edge, event.session, event.message, now)
            case RequestFrozen() | RequestApplied() | ReplyApplied() | RequestRefused() | ReplyRefused():
                edge = self.edges[event.peer]
                effects = exchange.conclude(edge, event, now)
            case SessionOpened():
                edge = self.edges[event.peer]
                effects = edge.open_session(event.session, now)
            case SessionClosed():
                edge = self.edges[event.peer]
                effects = edge.close_session(event.session)
            case StorageFailed() | StorageRestored():
                return self._storage(event)
            case Started() | RoundTrained() | RoundCommitted() | Bootstrapped() | StopRequested():
                return self.rounds.take(event, now)
            case _:
                assert_never(event)
        self.timers.note(edge)
        return effects

    def _storage(self, event: StorageFailed | StorageRestored) -> list[Effect]:
        """What left must be on disk: without a disk a node stops exchanging, and goes on training."""
        if isinstance(event, StorageRestored):
            self.facts.halted = False
            return [Alarm(kind="storage-restored", peer=None, text="state is written to disk again")]
        if not self.settings.durable:
            return [Alarm(kind="storage", peer=None, text="no snapshot could be written; the old one stays")]
        if self.facts.halted:
            return []
        self.facts.halted = True
        text = "state cannot be written to disk: exchanging stops, training goes on"
        effects: list[Effect] = [Alarm(kind="storage", peer=None, text=text)]
        for edge in self.edges.values():
            effects += edge.drop_session("storage")
            self.timers.note(edge)
        return effects
