"""One simulated node: the shipped core, and what `node/driver.py` does around it, from one start to the next.

Only the clock, the link and the threads are replaced. The computing part is a `Machine` under a virtual clock: its
engine and its local rounds. The engine's answers arrive `engine_ns` after the operation, one operation at a time, so
that messages find a busy edge as they do in a real node, and a crash can fall between an operation and its answer.

A `RoundBudget` is what a node has left for its privacy, in rounds. A real node pays for each round before it trains, in
its log. Here, too, a round counts when it begins: a round interrupted by a crash is paid for, and a node that has lost
its disk does not know what it has spent, so it only mixes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from p2pfl.core.core import Algorithm, Core
from p2pfl.core.events import (
    Alarm,
    Amended,
    ApplyReply,
    ApplyRequest,
    Bootstrap,
    ChangeEdges,
    CloseSession,
    CommitRound,
    Effect,
    Event,
    Finish,
    Freeze,
    Mix,
    NoteLifetime,
    Operation,
    Refused,
    ResetEdge,
    RoundCommitted,
    RoundRefused,
    RoundTrained,
    Send,
    Started,
    StartRound,
)
from p2pfl.core.settings import Phase, Settings, Turns
from p2pfl.reporting.status import MeanAndMax
from sim.exact import Boot, ExactEngine
from sim.kernel import NS, Kernel, Trace, TraceKind
from sim.network import Network
from sim.worlds.timeline import NodeSpeed


@dataclass(slots=True)
class RoundBudget:
    """The remaining budget of a node, in `rounds`."""

    rounds: int
    is_lost: bool = False

    def pay(self) -> RoundRefused | None:
        """Pay for one round; None means that it may begin."""
        if self.is_lost:
            why = "what was spent of its privacy budget is not known, which counts as all"
            return RoundRefused(why=why, for_good=True)
        if self.rounds <= 0:
            return RoundRefused(why="its privacy budget is spent", for_good=True, planned=True)
        self.rounds -= 1
        return None


# The kind of trace entry for an operation, and its number. An enumeration's members are slow to pack.
TRACED: dict[type, tuple[int, Callable[[Any], int]]] = {
    Freeze: (int(TraceKind.FROZEN), attrgetter("seq")),
    ApplyRequest: (int(TraceKind.REQUEST_APPLIED), attrgetter("request.seq")),
    ApplyReply: (int(TraceKind.REPLY_APPLIED), attrgetter("reply.seq")),
    ResetEdge: (int(TraceKind.EDGE_RESET), attrgetter("incarnation")),
    ChangeEdges: (int(TraceKind.EDGES_CHANGED), lambda operation: len(operation.added)),
    CommitRound: (int(TraceKind.ROUND_COMMITTED), attrgetter("version")),
    Bootstrap: (int(TraceKind.BOOTSTRAPPED), lambda operation: len(operation.peers)),
    Mix: (int(TraceKind.MIXED), lambda operation: len(operation.peers)),
    NoteLifetime: (int(TraceKind.LIFE_NOTED), lambda operation: operation.lifetime.generation),
}
ANSWERS: dict[type, int] = {Refused: int(TraceKind.REFUSED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """The plan by which a host is built at each start: `steps` of a local round; `budget` for each, if private."""

    index: int
    neighbors: tuple[int, ...]
    turns: Mapping[int, Turns]
    settings: Settings
    pace: NodeSpeed
    steps: int
    engine_ns: int
    budget: RoundBudget | None = None


class Watch:
    """An observer that changes nothing. This one looks at nothing: audits and tests watch what they need."""

    def before(self, index: int, operation: Operation) -> None:
        """Observe an operation that the engine is about to carry out."""

    def after(self, index: int, operation: Operation) -> None:
        """Observe an operation that the engine has carried out."""

    def crashes(self, index: int, kept: int) -> None:
        """Observe a node that is about to lose what its disk has not yet, but for `kept` entries of its log."""

    def forgets(self, index: int, forget: Callable[[int], None]) -> None:
        """Let a node that is down lose its disk."""
        forget(index)

    def look(self) -> bool:
        """Look at the world after an event; True ends the run."""
        return False


class Machine:
    """Runs the engine's operations one after the other, and local rounds beside them, each with its duration.

    The machine exists before and after a process, and is unaware of any.
    """

    def __init__(self, plan: HostPlan, engine: ExactEngine, *, kernel: Kernel, trace: Trace) -> None:
        self.index, self.engine = plan.index, engine
        self.pace, self.steps, self.engine_ns, self.budget = plan.pace, plan.steps, plan.engine_ns, plan.budget
        self.kernel = kernel
        self.trace = trace
        self.watch: Watch | None = None
        self.moves = 0
        """How many times the model may have changed: starts, crashes, operations."""
        self.answers_ns = 0
        """The time of the engine's latest answer."""

    def boot(self, name: int) -> Boot:
        """Start from the disk, or from nothing."""
        self.moves += 1
        return self.engine.boot(name)

    def crash(self, kept: int) -> None:
        self.moves += 1
        self.engine.crash(kept)

    def operate(self, operation: Operation, answer: Callable[[Event], None]) -> None:
        """Run an operation; `answer` is called with the engine's event, if there is one."""
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
            self.answer_later(event, answer)
        self.trace.add(now_ns, kind, self.index, getattr(operation, "peer", 0), number(operation))

    def answer_later(self, event: Event, answer: Callable[[Event], None]) -> None:
        """Answer after the operations queued before it."""
        self.answers_ns = max(self.answers_ns, self.kernel.now_ns) + self.engine_ns
        self.kernel.at_ns(self.answers_ns, partial(answer, event))

    def begin_round(self, effect: StartRound, ended: Callable[[], None]) -> RoundRefused | None:
        """Begin a round; `ended` is called when it is over. A round that cannot be paid for does not begin."""
        refused = None if self.budget is None else self.budget.pay()
        if refused is not None:
            return refused
        self.note(TraceKind.ROUND_BEGUN, effect.index)
        self.engine.begin_round(effect)
        now_ns = self.kernel.now_ns
        self.kernel.at_ns(now_ns + self.pace.round_ns(self.steps), ended)
        return None

    def end_round(self) -> RoundTrained:
        steps, samples = self.engine.end_round()
        self.note(TraceKind.ROUND_TRAINED, steps)
        return RoundTrained(steps=steps, samples=samples, figure=self.engine.figure)

    def note(self, kind: TraceKind, number: int, peer: int = 0) -> None:
        self.trace.add(self.kernel.now_ns, kind, self.index, peer, number)


NEVER = float("inf")
NAMES = 1 << 53
SPREAD = 5_570_811_853_244_947
"""An odd factor that gives each number below NAMES a different name, in no particular order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A node's counts. `weighed` counts exchanges whose staleness was measured, in own rounds in which the edge has its
    turn.

    `mixed` counts rounds in which a robust rule had enough neighbors, `alone` rounds in which it had not.
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


def counts_of(core: Algorithm) -> Counts:
    edges = core.edges.values()
    weighing, mixing = [edge.exchange.weighing for edge in edges], core.mixing
    return Counts(
        exchanges=core.exchanges,
        weighed=sum(each.weighed for each in weighing),
        staleness_sum=sum(each.staleness_sum for each in weighing),
        staleness_max=max((each.staleness_max for each in weighing), default=0),
        failed_rounds=core.failed_rounds,
        mixed=mixing.mixed if mixing else 0,
        alone=mixing.alone if mixing else 0,
    )


class HostProcess:
    """A node from a start to a crash: the core, its timer, and the execution of its effects.

    `alive` is False afterwards: whatever returns to it then has no effect. Alarms are added to `alarms`.
    """

    def __init__(
        self,
        core: Algorithm,
        machine: Machine,
        network: Network,
        alarms: list[Alarm],
        *,
        on_commit: Callable[[int], None] | None,
        on_finish: Callable[[int], None] | None,
    ) -> None:
        self.core, self.machine, self.network, self.alarms = core, machine, network, alarms
        self.on_commit, self.on_finish = on_commit, on_finish
        self.alive = True
        self.has_begun = False
        """True if a local round has begun."""
        self.wakes_at = NEVER

    def take(self, event: Event) -> None:
        """Hand one event to the core and carry out its effects."""
        if self.alive:
            self.act(self.core.handle(event, self.machine.kernel.now_ns / NS))

    def act(self, effects: list[Effect]) -> None:
        for effect in effects:
            CARRIED_OUT[type(effect)](self, effect)
        deadline = self.core.deadline()
        if deadline is not None and deadline < self.wakes_at:
            self._wake_at(deadline)

    def send(self, effect: Send) -> None:
        self.network.send(self.machine.index, effect.peer, effect.session, effect.message)

    def close(self, effect: CloseSession) -> None:
        self.network.close(self.machine.index, effect.peer, effect.session)

    def finish(self, _: Finish) -> None:
        self.machine.note(TraceKind.FINISHED, self.core.facts.rounds)
        if self.on_finish is not None:
            self.on_finish(self.machine.index)

    def raise_alarm(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)
        self.machine.note(TraceKind.ALARM, 0, -1 if alarm.peer is None else alarm.peer)

    def operate(self, operation: Operation) -> None:
        self.machine.operate(operation, self._answer)

    def _answer(self, event: Event) -> None:
        if self.alive:
            self.take(event)
            if type(event) is RoundCommitted and self.on_commit is not None:
                self.on_commit(self.machine.index)

    def train(self, effect: StartRound) -> None:
        refused = self.machine.begin_round(effect, self._end_training)
        if refused is None:
            self.has_begun = True
        else:
            self.machine.answer_later(refused, self._answer)

    def _end_training(self) -> None:
        if self.alive:
            self.take(self.machine.end_round())

    def _wake_at(self, deadline: float) -> None:
        """Set the timer; one in the heap is enough."""
        self.wakes_at = deadline
        self.machine.kernel.at(deadline, partial(self._wake, deadline))

    def _wake(self, deadline: float) -> None:
        """Wake the core. A timer that an earlier one has replaced does nothing; the later deadline serves its turn."""
        if self.alive and deadline == self.wakes_at:
            self.wakes_at = NEVER
            self.act(self.core.wake(self.machine.kernel.now))

    @property
    def in_round(self) -> bool:
        """True from the beginning of a local round to the beginning of the next, or to the end of the last."""
        return self.alive and self.has_begun and self.core.phase is Phase.TRAINING

    @property
    def finished(self) -> bool:
        return self.alive and self.core.phase is Phase.FINISHED


CARRIED_OUT: dict[type, Callable[[HostProcess, Any], None]] = {
    Send: HostProcess.send,
    CloseSession: HostProcess.close,
    StartRound: HostProcess.train,
    Alarm: HostProcess.raise_alarm,
    Finish: HostProcess.finish,
    **dict.fromkeys(TRACED, HostProcess.operate),
}
"""How each effect is carried out; once for all nodes."""


class Host:
    """A node of a simulation, over all its lifetimes: its machine, and the `process` that runs there or ran last."""

    def __init__(
        self,
        plan: HostPlan,
        engine: ExactEngine,
        *,
        kernel: Kernel,
        network: Network,
        trace: Trace,
        on_commit: Callable[[int], None] | None = None,
        on_finish: Callable[[int], None] | None = None,
    ) -> None:
        self.plan = plan
        self.index = plan.index
        self.engine = engine
        self.machine = Machine(plan, engine, kernel=kernel, trace=trace)
        self.network = network
        self.hooks: dict[str, Any] = {"on_commit": on_commit, "on_finish": on_finish}
        self.starts = 0
        self.alarms: list[Alarm] = []
        self._earlier = Counts()
        self.process: HostProcess | None = None
        self.core: Algorithm
        """That of the current process."""

    def start(self) -> None:
        """Boot from the disk, or from nothing."""
        self.starts += 1
        self.process = self._process(self.machine.boot(self._name()))
        self.core = self.process.core
        starts_and_crashes = 2 * self.starts - 1
        self.machine.note(TraceKind.STARTED, starts_and_crashes)
        self.process.take(Started())

    def _process(self, boot: Boot) -> HostProcess:
        plan = self.plan
        core = Core(
            index=plan.index,
            neighbors=plan.neighbors,
            turns=plan.turns,
            settings=plan.settings,
            samples=boot.samples,
            memory=boot,
            start=boot.start,
        )
        return HostProcess(core, self.machine, self.network, self.alarms, **self.hooks)

    def _name(self) -> int:
        """Name the process without randomness: the name is unique, the same in each run, and follows no order."""
        return ((self.index + 1 << 20) + self.starts) * SPREAD % NAMES

    def crash(self, kept: int = 0) -> None:
        """Power off: memory is gone, the disk keeps what was flushed (and `kept` more changes)."""
        self._earlier = self.counts
        if self.process is not None:
            self.process.alive = False
        self.machine.note(TraceKind.CRASHED, 0)
        self.machine.crash(kept)

    def forget(self) -> None:
        """Lose the disk of a node that is down."""
        self.engine.forget()
        if self.plan.budget is not None:
            self.plan.budget.is_lost = True

    def is_stranded(self, unfinished: Collection[int], liars: Collection[int]) -> bool:
        """Return True if the node waits, and none of these nodes that can be believed is a neighbor."""
        if not (self.alive and self.core.phase is Phase.WAITING):
            return False
        return all(self.index in liars or peer in liars for peer in self.plan.neighbors if peer in unfinished)

    def amend(self, plan: HostPlan) -> None:
        """Tell the node that the federation has changed; a node that is down learns about it when it starts."""
        self.plan = plan
        self.engine.amend(plan.neighbors)
        self.take(Amended(neighbors=plan.neighbors, turns=plan.turns, settings=plan.settings))

    def accepts(self, peer: int) -> bool:
        """Return True if the node lets that neighbor open a session, even one that is about to be added or removed."""
        leaving = self.alive and peer in self.core.edges and peer not in self.plan.settings.retired
        return peer in self.plan.neighbors or leaving

    def take(self, event: Event) -> None:
        """Hand an event from the surroundings to the node; a node that is down receives none."""
        if self.process is not None:
            self.process.take(event)

    @property
    def alive(self) -> bool:
        """False before the first start, and between a crash and the restart."""
        return self.process is not None and self.process.alive

    @property
    def counts(self) -> Counts:
        """Return the sum of the counts over all its lifetimes."""
        return self._earlier + counts_of(self.core) if self.alive else self._earlier

    @property
    def in_round(self) -> bool:
        """True if its process is in a local round."""
        return self.process is not None and self.process.in_round

    @property
    def finished(self) -> bool:
        return self.process is not None and self.process.finished
