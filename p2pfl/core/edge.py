"""An edge to one neighbor: its line, its exchange, and what else they tell each other; all edges of a node.

The line and the exchange return effects. This module connects them to the neighbor's messages about rounds, ends and
lifetimes, and to what this node's rounds ask of the edge.

A change to the federation takes effect between two of this node's rounds (`Amending`). An edge that stays keeps its
state. An edge that is dropped starts nothing new, but an exchange under way may still complete. The node waits for it
as long as a round waits for a late exchange, and at least as long as a broken session needs to reconnect. If both ends
have carried out the same transactions by then, `sum n_i x_i` is unchanged. Otherwise one end may have applied its half
of one exchange on that edge: two ends that cannot reach each other cannot agree on whether it happened. A removed
member takes part in no exchange from the start.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from p2pfl.core.events import (
    Alarm,
    Amended,
    ChangeEdges,
    CloseSession,
    Effect,
    EngineResult,
    NoteLifetime,
    SessionClosed,
    SessionOpened,
)
from p2pfl.core.exchange import Exchange, ExchangeInitiator, ExchangeResponder
from p2pfl.core.limits import FIRST_PATIENCE_S, EngineTime, Fault, Patience, TokenBucket, UsualTime
from p2pfl.core.members import Lifetime, MemberProgress, News, Start, news_bucket
from p2pfl.core.messages import Done, EdgeRecord, Hello, LivesTold, Message, Ready, Resign, disagreement
from p2pfl.core.neighbor import EdgeLine, Progress, Service, ToldLifetimes
from p2pfl.core.settings import ALWAYS, NEVER, Facts, Phase, Settings, Turns, Weighing, degree_of
from p2pfl.limits import TELLS_PER_S

T = TypeVar("T")
_TELLING = (Ready, Done, LivesTold, Resign)
"""Messages handled at once, even while the engine works: the session may end before the engine answers."""
_BEFORE_JUDGEMENT = (Hello, LivesTold, Resign)
"""Messages handled before both greetings are judged: they say nothing about the edge."""


class Edge:
    """An edge of a node; it shares `common` with the node's other edges."""

    __slots__ = ("common", "exchange", "line", "memory_is_lost", "noted_at", "peer", "progress", "service", "telling")

    def __init__(self, peer: int, record: EdgeRecord, common: Neighbors, *, initiates: bool, turns: Turns) -> None:
        facts, settings = common.facts, common.settings
        self.peer = peer
        self.common = common
        self.line = EdgeLine(peer=peer, exchanges_per_s=settings.exchanges_per_s, news=news_bucket(settings.members))
        self.progress = Progress(peer=peer, facts=facts, members=common.members, turns=turns)
        patience = Patience(settings.max_wait_s)
        self.service = Service(peer=peer, facts=facts, turns=turns, usual=common.usual, patience=patience)
        parts: dict[str, Any] = {
            "line": self.line,
            "facts": facts,
            "settings": settings,
            "progress": self.progress,
            "service": self.service,
            "weighing": Weighing(facts=facts, turns=turns, weigh=settings.staleness),
            "bucket": TokenBucket(settings.exchanges_per_s),
            "engine_time": common.engine_time,
            "record": record,
        }
        self.exchange = (
            ExchangeInitiator(siblings=common.exchanges, **parts) if initiates else ExchangeResponder(**parts)
        )
        self.telling = TokenBucket(TELLS_PER_S)
        self.memory_is_lost = False
        """True if other members say that the neighbor has lost its state of this edge, which this end still has."""
        self.noted_at = NEVER
        """The value of `wakes_at` last registered with `timers`."""

    # -- session ------------------------------------------------------------------------------------------------

    def open_session(self, number: int, now: float) -> list[Effect]:
        """Replace the old session with a new one, and greet the neighbor."""
        self.exchange.pause()
        self.service.resume(now)
        effects = self.line.open(number, now, halted=self.common.facts.halted)
        return effects + self._greet(now)

    def close_session(self, number: int, malformed: str, now: float) -> list[Effect]:
        if self.is_open:
            self.line.left_at = now
        self.service.left_at = now
        if number == self.line.session:
            self.line.end()
            self.exchange.pause()
        return self.exchange.blame(Fault.MALFORMED, malformed, now) if malformed else []

    def _greet(self, now: float) -> list[Effect]:
        """Compose Hello once the engine has no work on this edge, so that Hello describes a settled state."""
        line = self.line
        if self.exchange.busy or line.session is None or line.mine is not None:
            return []
        facts, own = self.common.facts, self.common.told_lifetimes.lifetimes.own
        begun, completed = self.common.members.tell(self.peer)
        hello = self.exchange.record.hello(
            version=facts.version,
            closing=facts.closing,
            level=facts.level,
            done=facts.done,
            have_yours=line.theirs is not None,
            generation=own.generation,
            life=own.name,
            process=self.common.start.name,
            trained=facts.trained,
            bound=self.common.members.bound,
            begun=begun,
            through=completed,
        )
        return [*line.greet(hello, now), *self._judge(now)]

    def _judge(self, now: float) -> list[Effect]:
        """Open the edge once both greetings have arrived; resync it if they contradict each other."""
        line, exchange = self.line, self.exchange
        mine, theirs = line.mine, line.theirs
        if mine is None or theirs is None or line.is_open:
            return []
        effects: list[Effect] = []
        reason = disagreement(mine, theirs, initiates=exchange.initiates)
        if reason:
            blank = not (mine.has_replicas and theirs.has_replicas)
            effects += exchange.resync(max(mine.incarnation, theirs.incarnation) + 1, reason, now, notice=blank)
            if line.session is None:
                return effects
        line.is_open = True
        self.service.begin()
        exchange.engine_time.begin(self.peer)
        return effects + self._catch_up(mine) + exchange.resend(now) + exchange.begin_if_due(now)

    def _catch_up(self, mine: Hello) -> list[Effect]:
        """Send what has changed since the greeting was composed."""
        if self.common.facts.done and not mine.done:
            return self.line.send(Done(version=self.common.facts.version))
        facts = self.common.facts
        changed = (facts.version, facts.closing, facts.level) != (mine.version, mine.closing, mine.level)
        return self.announce() if changed or self.common.members.has_news_for(self.peer) else []

    # -- messages -------------------------------------------------------------------------------------------------

    def receive(self, session: int, message: Message, now: float) -> list[Effect]:
        """Handle a message: ignore it if it is from another session, or queue it while the engine works on the edge."""
        if session != self.line.session:
            return []
        if self.line.is_flooded(now):
            text = "more messages than an honest node sends"
            return [*self.exchange.blame(Fault.FLOOD, text, now), *self.exchange.drop(text)]
        if self.exchange.busy and not isinstance(message, _TELLING):
            self.line.defer(message)
            return []
        return self._take(message, now)

    def _take(self, message: Message, now: float) -> list[Effect]:
        if not self.line.is_open and not isinstance(message, _BEFORE_JUDGEMENT):
            return []
        match message:
            case Ready():
                self.progress.hear_ready(message, now)
                answer = self.announce(answer=True) if message.begun or message.through else []
                return answer + self.exchange.begin_if_due(now)
            case Hello():
                return self._hear_hello(message, now)
            case Done():
                self.progress.hear_done(message)
                return []
            case LivesTold():
                return self._hear_lifetimes(message, now)
            # the whole node acts on it: where neighbors may lie, one alone must not be able to stop the node
            case Resign():
                is_later = 1000 * (now - self.common.facts.started_at) < message.other_ms
                self.line.copies.resign_requested |= message.process == self.common.start.name and is_later
                return []
        return self.exchange.hear(message, now)

    def conclude(self, result: EngineResult, now: float) -> list[Effect]:
        """Handle an answer from the engine: update the record, answer the neighbor, then read the queued messages."""
        exchange, inbox = self.exchange, self.line.inbox
        exchange.busy = False
        exchange.engine_time.spend(self.peer, result.cost_s, now)
        effects = exchange.conclude(result, now)
        effects += self.renew(now)
        effects += self._greet(now)
        while inbox and not exchange.busy:
            effects += self._take(inbox.pop(0), now)
        return effects + exchange.begin_if_due(now)

    def _hear_hello(self, hello: Hello, now: float) -> list[Effect]:
        """Determine which process and lifetime is speaking, before the two greetings are judged."""
        line, peer = self.line, self.peer
        if line.theirs is not None:
            return line.hear_hello(hello, now)
        number, lifetimes, copies = line.session, self.common.told_lifetimes.lifetimes, line.copies
        lifetime, known = Lifetime(hello.generation, hello.life), lifetimes.latest.get(peer)
        news = lifetimes.judge_greeting(peer, lifetime)
        effects: list[Effect] = []
        if copies.note_greeting(hello.process, now):
            text = "one key speaks from two places: two running processes have its node.key; the later one must stop"
            effects.append(Alarm(kind="two-places", peer=peer, text=text))
        effects += line.hear_hello(hello, now)
        self.progress.hear_hello(hello, now)
        effects += self._judge(now)
        # After any new incarnation of the edge that it may have caused: the disk has both, or neither.
        if news is not News.KNOWN:
            effects.append(NoteLifetime(member=peer, lifetime=lifetime))
        if line.session != number:
            return effects
        if (other_s := copies.other_for_s(hello.process, now)) is not None:
            effects += line.say(Resign(process=hello.process, other_ms=int(1000 * other_s)))
        return effects + self.common.told_lifetimes.welcome(line, lifetime, known, news, now)

    def _hear_lifetimes(self, message: LivesTold, now: float) -> list[Effect]:
        """Handle a neighbor's report of lifetimes: this end restarts the edge to a neighbor in a new lifetime."""
        told_lifetimes = self.common.told_lifetimes
        if not told_lifetimes.settings.profile.keeps_flows:
            return []
        effects: list[Effect] = []
        lifetimes = {member: Lifetime(generation, name) for member, generation, name in message.lives}
        for member, lifetime in lifetimes.items():
            answers, is_over = told_lifetimes.hear(self.line, member, lifetime, now)
            effects += answers
            if is_over:
                own_edge = self.common.edges[member]
                own_edge.memory_is_lost = True
                effects += own_edge.renew(now)
        return effects + told_lifetimes.pass_on_due(now)

    def renew(self, now: float) -> list[Effect]:
        """Restart the edge if the neighbor has lost its memory of it, once the engine has no work on it."""
        exchange = self.exchange
        if not self.memory_is_lost or exchange.busy:
            return []
        self.memory_is_lost = False
        noted = NoteLifetime(member=self.peer, lifetime=self.common.told_lifetimes.lifetimes.latest[self.peer])
        if exchange.record.is_blank:
            return [noted]
        return [*exchange.resync(exchange.record.incarnation + 1, "the neighbor is in a new life", now), noted]

    # -- for the rounds of this node ---------------------------------------------------------------------------------

    def take_turns(self, turns: Turns) -> None:
        """Set the rounds in which this node uses the edge from now on."""
        self.progress.turns = self.service.turns = self.exchange.weighing.turns = turns

    @property
    def is_open(self) -> bool:
        return self.line.is_open

    @property
    def is_heard(self) -> bool:
        """True if this end's copy of the neighbor's model is current, or is its last one."""
        return self.progress.done or (self.is_open and not self.service.is_mute)

    def begin_round(self, now: float) -> list[Effect]:
        """Exchange the new version if it is the edge's turn (a responder asks for it); announce all closing rounds."""
        service = self.service
        tells = self.common.facts.closing is not None or self.common.members.has_news_for(self.peer)
        if self.exchange.initiates:
            return (self.announce() if tells else []) + self.exchange.begin_if_due(now)
        asks = service.has_turn
        if asks and self.is_open and service.asked_at is None:
            service.asked_at = now
        if not tells and (not asks or self.telling.take(now) > 0.0):
            return []
        return self.announce()

    def announce(self, *, answer: bool = False) -> list[Effect]:
        """Send a Ready. An `answer` carries no news: two nodes that cannot agree would answer each other forever."""
        if not self.is_open:
            return []
        facts, members = self.common.facts, self.common.members
        begun, completed = (b"", b"") if answer or not members.has_news_for(self.peer) else members.tell(self.peer)
        ready = Ready(
            version=facts.version,
            closing=facts.closing,
            level=facts.settled if facts.level is None else facts.level,
            trained=facts.trained,
            bound=members.bound,
            known=members.digest,
            begun=begun,
            through=completed,
        )
        return self.line.say(ready)

    def wake(self, now: float) -> list[Effect]:
        effects = self.line.repeat(now)
        if now >= self.exchange.resend_at:
            effects += self.exchange.resend(now)
        return effects

    @property
    def wakes_at(self) -> float:
        """When `wake` must be called next."""
        repeat_at, resend_at = self.line.repeat_at, self.exchange.resend_at
        return repeat_at if repeat_at < resend_at else resend_at  # noqa: FURB136 - min() is a call, after every event


class Timers:
    """When edges must wake. An outdated entry stays in the heap until it reaches the top."""

    __slots__ = ("_edges", "_heap", "next_at")

    def __init__(self, edges: Mapping[int, Edge]) -> None:
        self._edges = edges
        self._heap: list[tuple[float, int]] = []
        self.next_at = NEVER

    def note(self, edge: Edge) -> None:
        """Register the time at which `edge` must wake. Call this after anything that may have changed it."""
        at = edge.wakes_at
        if at == edge.noted_at:
            return
        edge.noted_at = at
        if at != NEVER:
            heapq.heappush(self._heap, (at, edge.peer))
        self._tidy()

    def due(self, now: float) -> list[Edge]:
        """Return the edges to wake now, in index order. Each must be registered again."""
        peers = set()
        while self.next_at <= now:
            peers.add(heapq.heappop(self._heap)[1])
            self._tidy()
        return [self._edges[peer] for peer in sorted(peers)]

    def forget(self, peer: int) -> None:
        """Forget an edge that is about to be removed."""
        self._heap = [entry for entry in self._heap if entry[1] != peer]
        heapq.heapify(self._heap)
        self._tidy()

    def _tidy(self) -> None:
        heap, edges = self._heap, self._edges
        while heap and edges[heap[0][1]].noted_at != heap[0][0]:
            heapq.heappop(heap)
        self.next_at = heap[0][0] if heap else NEVER


@dataclass(slots=True, kw_only=True)
class Neighbors:
    """The edges of node `index`, and what all its edges and its rounds share.

    All maps are in neighbor order and stay the same objects; `lines` is that of `told_lifetimes`.
    """

    index: int
    facts: Facts
    settings: Settings
    members: MemberProgress
    told_lifetimes: ToldLifetimes
    lines: dict[int, EdgeLine]
    start: Start
    """This node's own process, as named in its Hello."""
    edges: dict[int, Edge] = field(default_factory=dict)
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    usual: UsualTime = field(default_factory=UsualTime)
    engine_time: EngineTime = field(default_factory=EngineTime)
    timers: Timers = field(init=False)

    def __post_init__(self) -> None:
        self.timers = Timers(self.edges)

    def add(self, peer: int, record: EdgeRecord, turns: Turns) -> None:
        """Add an edge without a session."""
        edge = Edge(peer, record, self, initiates=self.index < peer, turns=turns)
        _put(self.edges, peer, edge)
        _put(self.lines, peer, edge.line)
        _put(self.exchanges, peer, edge.exchange)

    def remove(self, peer: int) -> None:
        """Remove an edge that has no session and no work in the engine."""
        self.timers.forget(peer)
        self.engine_time.forget(peer)
        del self.edges[peer], self.lines[peer], self.exchanges[peer]


def _put(by_peer: dict[int, T], peer: int, value: T) -> None:
    """Insert an entry so that the keys stay in ascending order."""
    later = {other: by_peer.pop(other) for other in [*by_peer] if other > peer}
    by_peer[peer] = value
    by_peer.update(later)


def announce(edges: Mapping[int, Edge]) -> list[Effect]:
    """Tell every neighbor where this node stands."""
    return [effect for edge in edges.values() for effect in edge.announce()]


def is_accompanied(edges: Mapping[int, Edge]) -> bool:
    """Return True if an edge is open."""
    return any(edge.is_open for edge in edges.values())


def say_done(edges: Mapping[int, Edge]) -> list[Effect]:
    """Tell every neighbor that this node only answers from now on."""
    return [effect for edge in edges.values() for effect in edge.line.send(Done(version=edge.common.facts.version))]


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
        """Change edges and settings between two rounds. The engine changes its edges before the new ones are used."""
        event, neighbors = self.pending_change, self.neighbors
        if event is None:
            return []
        self.pending_change = None
        settings, bound_before = neighbors.settings, neighbors.members.bound
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
        neighbors.members.amend(event.neighbors, bound_before, now)
        effects += [ChangeEdges(added=added, dropped=dropped), *neighbors.told_lifetimes.forget_removed()]
        return effects + [effect for peer in added for effect in self._open(neighbors.edges[peer], now)]

    def _open(self, edge: Edge, now: float) -> list[Effect]:
        """Open the early session of a new edge, if there is one."""
        session = self.early.pop(edge.peer, None)
        effects = [] if session is None else edge.open_session(session, now)
        self.neighbors.timers.note(edge)
        return effects

    # -- future and former neighbors --------------------------------------------------------------------------------

    def meet(self, event: SessionOpened) -> list[Effect]:
        """Keep the session of a future neighbor, which repeats its greeting until there is an edge; refuse others."""
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
