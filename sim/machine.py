"""The machine of a simulated node, under a virtual clock: its engine, and its local rounds.

The engine's answers arrive `engine_ns` after the operation, one operation at a time, so that messages find a busy edge
as they do in a real node, and a crash can fall between an operation and its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Protocol

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
from p2pfl.core.settings import Settings
from p2pfl.core.staleness import Turns
from sim.exact import Boot, ExactEngine
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


class HostPace(Protocol):
    """The speed of one machine."""

    def round_ns(self, steps: int, time_ns: int) -> int:
        """Return the duration of a local round with that many steps that begins now; call this once per round."""

    def estimate_ns(self, steps: int) -> int:
        """Estimate the duration of a local round, without drawing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """The plan by which a host is built each time it starts. `steps` is the number in a local round; `purse` pays for
    each round, if privacy is promised.
    """

    index: int
    neighbors: tuple[int, ...]
    turns: Mapping[int, Turns]
    settings: Settings
    pace: HostPace
    steps: int
    engine_ns: int
    purse: Purse | None = None


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
        self.pace, self.steps, self.engine_ns, self.purse = plan.pace, plan.steps, plan.engine_ns, plan.purse
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
