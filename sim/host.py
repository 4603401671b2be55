"""One simulated machine: the shipped core and the shipped engine under a virtual clock.

Only the clock, the link and the threads are replaced. The engine's answers arrive `engine_s` after the operation, so
that messages meet a busy edge as they do in a real node, and a crash can fall between an operation and its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from p2pfl.compress import Compressor
from p2pfl.core.effects import (
    Alarm,
    ApplyReply,
    ApplyRequest,
    Bootstrap,
    CloseSession,
    CommitRound,
    Effect,
    Finish,
    Freeze,
    Operation,
    ResetEdge,
    Send,
    StartRound,
)
from p2pfl.core.events import Event, RoundTrained, Started
from p2pfl.core.facts import Settings
from p2pfl.core.messages import Message
from p2pfl.core.node import Node
from p2pfl.core.rounds import Phase
from p2pfl.core.turns import Turns
from p2pfl.engine.durable import entry
from p2pfl.engine.engine import Engine
from p2pfl.engine.state import NodeState
from p2pfl.errors import LearningError
from p2pfl.learn.interface import Learner
from sim.kernel import Kernel
from sim.memory_store import MemoryStore


class Network(Protocol):
    """What a host needs of the world around it."""

    def send(self, source: int, target: int, session: int, message: Message) -> None: ...
    def close(self, source: int, target: int, session: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """How a host is built each time it starts. `round_s` is the virtual duration of a local round."""

    index: int
    neighbors: tuple[int, ...]
    turns: Mapping[int, Turns]
    settings: Settings
    compressor: Compressor
    beta: float
    learner: Learner
    dtype: type[np.floating]
    round_s: float
    engine_s: float


class Host:
    """`alive` is False between a crash and the restart; meanwhile `engine.state` is what the disk holds."""

    def __init__(
        self, plan: HostPlan, kernel: Kernel, network: Network, on_operation: Callable[[int, Operation], None]
    ) -> None:
        self.plan = plan
        self.kernel = kernel
        self.network = network
        self.on_operation = on_operation
        self.store = MemoryStore()
        self.life = 0
        self.alive = False
        self.alarms: list[Alarm] = []
        self.answers_at = 0.0
        self.wakes_at = float("inf")
        self.core: Node
        state = self._new_state()
        self.engine = Engine(index=plan.index, state=state, compressor=plan.compressor, beta=plan.beta)

    # -- life and death ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot from the store, or from nothing."""
        plan = self.plan
        state = self.store.recover(plan.compressor, plan.beta)
        fresh = state is None
        if state is None:
            state = self._new_state()
            self.store.checkpoint(state)
        self.life += 1
        self.alive = True
        self.wakes_at = float("inf")
        self.engine = Engine(index=plan.index, state=state, compressor=plan.compressor, beta=plan.beta)
        # The core must not share its records with the engine: copies, as a restart would make them.
        twin = self.store.recover(plan.compressor, plan.beta) or state
        self.core = Node(
            index=plan.index,
            neighbors=plan.neighbors,
            turns=plan.turns,
            settings=plan.settings,
            samples=state.samples,
            fresh=fresh,
            version=state.version,
            rounds=state.rounds,
            elapsed_s=state.elapsed_s,
            records={peer: edge.record for peer, edge in twin.edges.items()},
        )
        self.take(Started())

    def crash(self, kept: int = 0) -> None:
        """Power off: memory is gone, the disk keeps what was flushed (and `kept` entries more)."""
        self.alive = False
        self.life += 1
        self.store.crash(min(kept, self.store.buffered))
        state = self.store.recover(self.plan.compressor, self.plan.beta)
        if state is None:
            raise RuntimeError("a host crashed before its first start")
        self.engine.state = state

    def forget(self) -> None:
        """Lose the disk too: the host will start as if new."""
        self.store = MemoryStore()
        self.engine.state = self._new_state()

    def _new_state(self) -> NodeState:
        plan = self.plan
        return NodeState.new(plan.learner.initial().astype(plan.dtype), plan.learner.samples, plan.neighbors)

    # -- the driver ---------------------------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Hand one event to the core and carry out its effects."""
        if self.alive:
            self._run(self.core.handle(event, self.kernel.now))
            self._schedule()

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(peer=peer, session=session, message=message):
                    self.network.send(self.plan.index, peer, session, message)
                case CloseSession(peer=peer, session=session):
                    self.network.close(self.plan.index, peer, session)
                case StartRound(index=index, corrected=corrected):
                    self._train(index, corrected=corrected)
                case Alarm():
                    self.alarms.append(effect)
                case Finish():
                    pass
                case Freeze() | ApplyRequest() | ApplyReply() | ResetEdge() | CommitRound() | Bootstrap():
                    self._operate(effect)

    def _operate(self, operation: Operation) -> None:
        self.on_operation(self.plan.index, operation)
        outcome = self.engine.run(operation)
        if outcome.change is not None:
            self.store.append(*entry(outcome.change))
        if outcome.urgent:
            self.store.flush()
        if outcome.event is not None:
            self.answers_at = max(self.answers_at, self.kernel.now) + self.plan.engine_s
            self._later(self.answers_at, outcome.event)

    def _train(self, index: int, *, corrected: bool) -> None:
        start, correction = self.engine.snapshot(corrected=corrected)
        life = self.life

        def finish() -> None:
            if not self.alive or life != self.life:
                return
            self.engine.trained = None
            steps, samples = 0, self.engine.state.samples
            try:
                local = self.plan.learner.train(start, correction, index)
            except LearningError as error:
                self.alarms.append(Alarm(kind="learning", peer=None, text=str(error)))
            else:
                self.engine.trained = (start, local)
                steps, samples = local.steps, local.samples
            self.take(RoundTrained(steps=steps, samples=samples))

        self.kernel.after(self.plan.round_s, finish)

    def _later(self, time_s: float, event: Event) -> None:
        life = self.life
        self.kernel.at(time_s, lambda: self.take(event) if life == self.life else None)

    def _schedule(self) -> None:
        """Wake the core at its next deadline; one timer in the heap is enough."""
        deadline = self.core.deadline()
        if deadline is None or deadline >= self.wakes_at:
            return
        self.wakes_at = deadline
        life = self.life

        def wake() -> None:
            if self.alive and life == self.life:
                self.wakes_at = float("inf")
                self._run(self.core.wake(self.kernel.now))
                self._schedule()

        self.kernel.at(deadline, wake)

    @property
    def finished(self) -> bool:
        return self.alive and self.core.rounds.phase is Phase.FINISHED
