"""One simulated machine: the shipped core over an engine, under a virtual clock.

Only the clock, the link and the threads are replaced. The engine's answers arrive `engine_ns` after the operation, one
operation at a time, so that messages meet a busy edge as they do in a real node, and a crash can fall between an
operation and its answer.

`NodeEngine` is what a host needs of its data plane: the same core runs over either of two. `exact` is the shipped
engine, one operation at a time; `lazy` only remembers what is to be done and does it later, for many nodes at once.
Both answer the core alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from p2pfl.core.core import Core
from p2pfl.core.effects import (
    Alarm,
    ApplyReply,
    ApplyRequest,
    Bootstrap,
    ChangeEdges,
    CloseSession,
    CommitRound,
    Effect,
    Finish,
    Freeze,
    Mix,
    NoteLife,
    Operation,
    ResetEdge,
    Send,
    StartRound,
)
from p2pfl.core.events import Amended, Event, ReplyRefused, RequestRefused, RoundCommitted, RoundTrained, Started
from p2pfl.core.facts import Phase
from p2pfl.core.lives import Start
from p2pfl.core.memory import Memory
from p2pfl.core.messages import Message
from p2pfl.core.settings import Settings
from p2pfl.core.staleness import Turns
from p2pfl.reporting.status import MeanAndMax
from sim.kernel import NS, Kernel
from sim.privacy_budget import Purse
from sim.trace import Trace, TraceKind

NEVER = float("inf")
NAMES = 1 << 53
SPREAD = 5_570_811_853_244_947
"""Odd, so that each number below NAMES gets a different name, in no order."""
# What the trace says of an operation, and the number with it. An enumeration's members are slow to pack.
TRACED: dict[type, tuple[int, Callable[[Any], int]]] = {
    Freeze: (int(TraceKind.FROZEN), attrgetter("seq")),
    ApplyRequest: (int(TraceKind.REQUEST_APPLIED), attrgetter("request.seq")),
    ApplyReply: (int(TraceKind.REPLY_APPLIED), attrgetter("reply.seq")),
    ResetEdge: (int(TraceKind.EDGE_RESET), attrgetter("incarnation")),
    ChangeEdges: (int(TraceKind.EDGES_CHANGED), lambda operation: len(operation.added)),
    CommitRound: (int(TraceKind.ROUND_COMMITTED), attrgetter("version")),
    Bootstrap: (int(TraceKind.BOOTSTRAPPED), lambda operation: len(operation.peers)),
    Mix: (int(TraceKind.MIXED), lambda operation: len(operation.peers)),
    NoteLife: (int(TraceKind.LIFE_NOTED), lambda operation: operation.life.generation),
}
ANSWERS: dict[type, int] = {RequestRefused: int(TraceKind.REFUSED), ReplyRefused: int(TraceKind.REFUSED)}

E_co = TypeVar("E_co", bound="NodeEngine", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """`weighed` are the exchanges whose staleness was weighed; it is in own rounds in which the edge has its turn.

    `mixed` are the rounds that a robust rule had neighbors enough for, `alone` those that it had not.
    """

    exchanges: int = 0
    weighed: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    failed_rounds: int = 0
    mixed: int = 0
    alone: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            exchanges=self.exchanges + other.exchanges,
            weighed=self.weighed + other.weighed,
            staleness_sum=self.staleness_sum + other.staleness_sum,
            staleness_max=max(self.staleness_max, other.staleness_max),
            failed_rounds=self.failed_rounds + other.failed_rounds,
            mixed=self.mixed + other.mixed,
            alone=self.alone + other.alone,
        )

    @property
    def staleness(self) -> MeanAndMax:
        mean = self.staleness_sum / self.weighed if self.weighed else 0.0
        return MeanAndMax(mean=mean, max=self.staleness_max)


def counts_of(core: Core) -> Counts:
    edges = core.edges.values()
    weighing = [edge.exchange.weighing for edge in edges]
    return Counts(
        exchanges=sum(edge.service.exchanges for edge in edges),
        weighed=sum(one.weighed for one in weighing),
        staleness_sum=sum(one.staleness_sum for one in weighing),
        staleness_max=max((one.staleness_max for one in weighing), default=0),
        failed_rounds=core.rounds.training.failed_rounds,
        mixed=core.rounds.mixing.mixed,
        alone=core.rounds.mixing.alone,
    )


class HostPace(Protocol):
    """How fast one machine computes."""

    def round_ns(self, steps: int, time_ns: int) -> int:
        """How long a local round of so many steps takes that begins now; asked once for each."""

    def estimate_ns(self, steps: int) -> int:
        """How long one takes, about: nothing is drawn for it."""


class HostNetwork(Protocol):
    """What a host needs of the world around it."""

    def send(self, source: int, target: int, session: int, message: Message) -> None: ...
    def close(self, source: int, target: int, session: int) -> None: ...


class Watch(Protocol):
    """An observer that changes nothing: an oracle, or the figures of a report."""

    def before(self, index: int, operation: Operation) -> None:
        """The engine is about to carry it out."""

    def after(self, index: int, operation: Operation) -> None:
        """It has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """How a host is built each time it starts. `steps` are those of a local round; `purse` pays for each, if privacy is
    promised.
    """

    index: int
    neighbors: tuple[int, ...]
    turns: Mapping[int, Turns]
    settings: Settings
    pace: HostPace
    steps: int
    engine_ns: int
    purse: Purse | None = None


class Host(Generic[E_co]):
    """`alive` is False between a crash and the restart."""

    def __init__(
        self,
        plan: HostPlan,
        engine: E_co,
        *,
        kernel: Kernel,
        network: HostNetwork,
        trace: Trace,
        watch: Watch | None = None,
        on_commit: Callable[[int], None] | None = None,
        on_finish: Callable[[int], None] | None = None,
    ) -> None:
        self.plan = plan
        self.index, self.engine_ns = plan.index, plan.engine_ns
        self.engine = engine
        self.kernel = kernel
        self.network = network
        self.trace = trace
        self.watch = watch
        self.on_commit = on_commit
        self.on_finish = on_finish
        self.life = self.starts = 0
        self.moves = 0
        """How often the model may have changed: starts, crashes, operations."""
        self.alive = False
        self.has_begun = False
        """Whether a local round has begun in this life."""
        self.alarms: list[Alarm] = []
        self._earlier = Counts()
        self.answers_ns = 0
        self.wakes_at = NEVER
        self.core: Core
        own: dict[type, Callable[[Any], None]] = {
            Send: self._send,
            CloseSession: self._close,
            StartRound: self._train,
            Alarm: self._alarm,
            Finish: self._finish,
        }
        operations: dict[type, Callable[[Any], None]] = dict.fromkeys(TRACED, self._operate)
        self._carry_out = own | operations

    # -- life and death ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot from the disk, or from nothing."""
        self.life += 1
        self.starts += 1
        boot = self.engine.boot(self._name())
        self.moves += 1
        self.alive = True
        self.has_begun = False
        self.wakes_at = NEVER
        self.core = Core(
            index=self.plan.index,
            neighbors=self.plan.neighbors,
            turns=self.plan.turns,
            settings=self.plan.settings,
            samples=boot.samples,
            memory=boot,
            start=boot.start,
        )
        self._note(TraceKind.STARTED, self.life)
        self.take(Started())

    def _name(self) -> int:
        """In place of a random one: nobody else has it, it is the same in each run, and follows no order."""
        return ((self.index + 1 << 20) + self.starts) * SPREAD % NAMES

    def crash(self, kept: int = 0) -> None:
        """Power off: memory is gone, the disk keeps what was flushed (and `kept` changes more)."""
        self._earlier = self.counts
        self.alive = False
        self.life += 1
        self.moves += 1
        self._note(TraceKind.CRASHED, 0)
        self.engine.crash(kept)

    def amend(self, plan: HostPlan) -> None:
        """The federation has changed. Where the node is down, it will know when it starts."""
        self.plan = plan
        self.engine.amend(plan.neighbors)
        self.take(Amended(neighbors=plan.neighbors, turns=plan.turns, settings=plan.settings))

    def accepts(self, peer: int) -> bool:
        """Whether it lets a session with that neighbor in: one that is to be included, and one that is about to go."""
        leaving = self.alive and peer in self.core.edges and peer not in self.plan.settings.retired
        return peer in self.plan.neighbors or leaving

    # -- the driver ---------------------------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Hand one event to the core and carry out its effects."""
        if self.alive:
            self.act(self.core.handle(event, self.kernel.now_ns / NS))

    def act(self, effects: list[Effect]) -> None:
        carry_out = self._carry_out
        for effect in effects:
            carry_out[type(effect)](effect)
        deadline = self.core.deadline()
        if deadline is not None and deadline < self.wakes_at:
            self._wake_at(deadline)

    def _send(self, effect: Send) -> None:
        self.network.send(self.index, effect.peer, effect.session, effect.message)

    def _close(self, effect: CloseSession) -> None:
        self.network.close(self.index, effect.peer, effect.session)

    def _finish(self, _: Finish) -> None:
        self._note(TraceKind.FINISHED, self.core.facts.rounds)
        if self.on_finish is not None:
            self.on_finish(self.index)

    def _operate(self, operation: Operation) -> None:
        self.moves += 1
        watch, now_ns = self.watch, self.kernel.now_ns
        if watch is not None:
            watch.before(self.index, operation)
        event = self.engine.run(operation)
        if watch is not None:
            watch.after(self.index, operation)
        kind, number = TRACED[type(operation)]
        if event is not None:
            kind = ANSWERS.get(type(event), kind)
            self._answer_later(event)
        self.trace.add(now_ns, kind, self.index, getattr(operation, "peer", 0), number(operation))

    def _answer_later(self, event: Event) -> None:
        """One operation after the other."""
        self.answers_ns = max(self.answers_ns, self.kernel.now_ns) + self.engine_ns
        self.kernel.at_ns(self.answers_ns, partial(self._answer, self.life, event))

    def _answer(self, life: int, event: Event) -> None:
        if life == self.life:
            self.take(event)
            if type(event) is RoundCommitted and self.on_commit is not None:
                self.on_commit(self.index)

    def _train(self, effect: StartRound) -> None:
        refused = None if self.plan.purse is None else self.plan.purse.pay()
        if refused is not None:
            self._answer_later(refused)
            return
        self.has_begun = True
        self._note(TraceKind.ROUND_BEGUN, effect.index)
        self.engine.begin_round(effect)
        now_ns = self.kernel.now_ns
        ends_ns = now_ns + self.plan.pace.round_ns(self.plan.steps, now_ns)
        self.kernel.at_ns(ends_ns, partial(self._trained, self.life))

    def _trained(self, life: int) -> None:
        if life == self.life:
            steps, samples = self.engine.end_round()
            self._note(TraceKind.ROUND_TRAINED, steps)
            self.take(RoundTrained(steps=steps, samples=samples, figure=self.engine.figure))

    def _wake_at(self, deadline: float) -> None:
        """One timer in the heap is enough."""
        self.wakes_at = deadline
        self.kernel.at(deadline, partial(self._wake, self.life, deadline))

    def _wake(self, life: int, deadline: float) -> None:
        """A timer that an earlier one has replaced does nothing: what it was for is in the later deadline."""
        if life == self.life and deadline == self.wakes_at:
            self.wakes_at = NEVER
            self.act(self.core.wake(self.kernel.now))

    def _alarm(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)
        self._note(TraceKind.ALARM, 0, -1 if alarm.peer is None else alarm.peer)

    def _note(self, kind: TraceKind, number: int, peer: int = 0) -> None:
        self.trace.add(self.kernel.now_ns, kind, self.index, peer, number)

    @property
    def counts(self) -> Counts:
        """Of all its lives."""
        return self._earlier + counts_of(self.core) if self.alive else self._earlier

    @property
    def in_round(self) -> bool:
        """Whether it is between the beginning of a local round and that of the next, or the end of the last."""
        return self.alive and self.has_begun and self.core.rounds.phase is Phase.TRAINING

    @property
    def finished(self) -> bool:
        return self.alive and self.core.rounds.phase is Phase.FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot(Memory):
    """What the disk says at a start, and as whom the node starts."""

    samples: int
    start: Start


class NodeEngine(Protocol):
    """One node's data plane as its host sees it. `figure` is what must improve for training to go on, as of the round
    that ended last; None: nothing must, or it is not known.
    """

    figure: float | None

    def boot(self, name: int) -> Boot:
        """Start, from the disk or from nothing; `name` is a random one for the process, and for a life that begins."""

    def run(self, operation: Operation) -> Event | None:
        """Carry out what the core asks; the answer for the core, if there is one."""

    def begin_round(self, effect: StartRound) -> None:
        """Remember what the local round starts with, as it is now."""

    def end_round(self) -> tuple[int, int]:
        """The local round that began is over: its number of steps (0 if it failed), and n."""

    def amend(self, neighbors: tuple[int, ...]) -> None:
        """These are the neighbors at the next start; while the node runs, `ChangeEdges` says when."""

    def sketch(self, tick: int) -> None:
        """Note where the model is, in closing round `tick`."""

    def crash(self, kept: int = 0) -> None:
        """Power off: what was not flushed is lost, apart from the first `kept` changes, which reached the disk."""

    def forget(self) -> None:
        """The disk is lost: the node is as before its first start."""
