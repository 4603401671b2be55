"""The machine of a simulated node, under a virtual clock: its engine, and its local rounds.

The engine's answers arrive `engine_ns` after the operation, one operation at a time, so that messages meet a busy edge
as they do in a real node, and a crash can fall between an operation and its answer.

`NodeEngine` is a node's data plane: the same core runs over either of two. `exact` is the shipped engine, one operation
at a time; `lazy` only remembers operations and does them later, for many nodes at once. Both answer the core alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from p2pfl.core.effects import (
    ApplyReply,
    ApplyRequest,
    Bootstrap,
    ChangeEdges,
    CommitRound,
    Freeze,
    Mix,
    NoteLife,
    Operation,
    ResetEdge,
    StartRound,
)
from p2pfl.core.events import Event, ReplyRefused, RequestRefused, RoundRefused, RoundTrained
from p2pfl.core.lives import Start
from p2pfl.core.memory import Memory
from p2pfl.core.settings import Settings
from p2pfl.core.staleness import Turns
from sim.kernel import Kernel
from sim.privacy_budget import Purse
from sim.trace import Trace, TraceKind

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
    NoteLife: (int(TraceKind.LIFE_NOTED), lambda operation: operation.life.generation),
}
ANSWERS: dict[type, int] = {RequestRefused: int(TraceKind.REFUSED), ReplyRefused: int(TraceKind.REFUSED)}

E_co = TypeVar("E_co", bound="NodeEngine", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot(Memory):
    """The memory on disk at a start, and the identity with which the node starts."""

    samples: int
    start: Start


class HostPace(Protocol):
    """The speed of one machine."""

    def round_ns(self, steps: int, time_ns: int) -> int:
        """Return the duration of a local round of that many steps that begins now; call this once for each round."""

    def estimate_ns(self, steps: int) -> int:
        """Estimate the duration of a local round, without drawing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """The plan by which a host is built each time it starts. `steps` are those of a local round; `purse` pays for each,
    if privacy is promised.
    """

    index: int
    neighbors: tuple[int, ...]
    turns: Mapping[int, Turns]
    settings: Settings
    pace: HostPace
    steps: int
    engine_ns: int
    purse: Purse | None = None


class Watch(Protocol):
    """An observer that changes nothing: an oracle, or the figures of a report."""

    def before(self, index: int, operation: Operation) -> None:
        """Observe an operation that the engine is about to carry out."""

    def after(self, index: int, operation: Operation) -> None:
        """Observe an operation that the engine has carried out."""


class NodeEngine(Protocol):
    """One node's data plane as its host sees it.

    `figure` must improve for training to go on, as of the round that ended last; None: nothing must, or it is unknown.
    """

    figure: float | None

    def boot(self, name: int) -> Boot:
        """Start from the disk, or from nothing; `name` is a random one for the process, and for a life that begins."""

    def run(self, operation: Operation) -> Event | None:
        """Carry out an operation of the core; return the answer for the core, if there is one."""

    def begin_round(self, effect: StartRound) -> None:
        """Remember the start of the local round, as it is now."""

    def end_round(self) -> tuple[int, int]:
        """End the current local round; return its number of steps (0 if it failed), and n."""

    def amend(self, neighbors: tuple[int, ...]) -> None:
        """Set the neighbors at the next start; while the node runs, `ChangeEdges` changes them."""

    def sketch(self, tick: int) -> None:
        """Note the position of the model, in closing round `tick`."""

    def crash(self, kept: int = 0) -> None:
        """Power off: what was not flushed is lost, apart from the first `kept` changes, which reached the disk."""

    def forget(self) -> None:
        """Lose the disk: the node is as before its first start."""


class Machine(Generic[E_co]):
    """Runs the engine's operations one after the other, and local rounds beside them, each with its duration.

    The machine exists before a process and after it, and knows of none.
    """

    def __init__(
        self, plan: HostPlan, engine: E_co, *, kernel: Kernel, trace: Trace, watch: Watch | None = None
    ) -> None:
        self.index, self.engine = plan.index, engine
        self.pace, self.steps, self.engine_ns, self.purse = plan.pace, plan.steps, plan.engine_ns, plan.purse
        self.kernel = kernel
        self.trace = trace
        self.watch = watch
        self.moves = 0
        """The number of times that the model may have changed: starts, crashes, operations."""
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
        """Answer after the operations before it."""
        self.answers_ns = max(self.answers_ns, self.kernel.now_ns) + self.engine_ns
        self.kernel.at_ns(self.answers_ns, partial(answer, event))

    def begin_round(self, effect: StartRound, ended: Callable[[], None]) -> RoundRefused | None:
        """Begin a round; `ended` is called when it is over. A round that cannot be paid for does not begin."""
        refused = None if self.purse is None else self.purse.pay()
        if refused is not None:
            return refused
        self.note(TraceKind.ROUND_BEGUN, effect.index)
        self.engine.begin_round(effect)
        now_ns = self.kernel.now_ns
        self.kernel.at_ns(now_ns + self.pace.round_ns(self.steps, now_ns), ended)
        return None

    def end_round(self) -> RoundTrained:
        steps, samples = self.engine.end_round()
        self.note(TraceKind.ROUND_TRAINED, steps)
        return RoundTrained(steps=steps, samples=samples, figure=self.engine.figure)

    def note(self, kind: TraceKind, number: int, peer: int = 0) -> None:
        self.trace.add(self.kernel.now_ns, kind, self.index, peer, number)
