"""The shipped engine on an in-memory disk: one operation at a time, with exactly the bytes that a real node would send.

The engine of a liar shows lies (`Liars`). In a simulation liars know every model as shown at that instant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import Rule
from p2pfl.compress import Payload
from p2pfl.core.events import Event, Operation, RoundCommitted, StartRound
from p2pfl.core.members import Lifetime, Memory, Start
from p2pfl.engine.changes import Entry, Image, change, entry, image, redo, restore
from p2pfl.engine.engine import Engine, Forgery, Occasion, as_weighed
from p2pfl.engine.state import Codecs, NodeState
from p2pfl.errors import LearningError
from p2pfl.learn.figures import Gauge
from p2pfl.learn.interface import Learner, RoundStart, Score, Vector
from p2pfl.methods import Method
from sim.attacks import boast, passable
from sim.learning.nodes import Learners

ShowLie = Callable[[Vector, int], Vector]
"""Maps (model (d,), peer) to what a liar shows that neighbor: (d,), not always finite, or of another length."""


LOG_ENTRIES = 64
"""The log entries, plus one per neighbor, before a snapshot replaces the log; long runs would fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPlan:
    """The plan of one engine. If not `durable`, the node never crashes, so nothing need be stored for it.

    `show` is set for a liar. `rounds` trains in place of the `learner`, with the same bits.
    """

    index: int
    neighbors: tuple[int, ...]
    learner: Learner
    codecs: Codecs
    method: Method = field(default_factory=Method)
    rule: Rule | None = None
    dtype: type[np.floating[Any]] = np.float32
    durable: bool = True
    show: ShowLie | None = None
    rounds: Learners | None = None
    sketch: Callable[[Vector], NDArray[np.float64]] | None = None
    gauge: Gauge | None = None
    evaluate_every: int = 1
    """The number of rounds between two tests, for the `gauge`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot(Memory):
    """The disk at a start, and the identity with which the node starts."""

    samples: int
    start: Start


class MemoryStore:
    """An in-memory disk with one node's snapshot and log: what was flushed survives a crash, the rest may not."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._flushed: list[Entry] = []
        self._buffered: list[Entry] = []

    def append(self, kind: str, header: dict[str, Any], blobs: Sequence[Payload]) -> None:
        self._buffered.append((kind, header, list(blobs)))

    def flush(self) -> None:
        self._flushed += self._buffered
        self._buffered.clear()

    def checkpoint(self, state: NodeState) -> None:
        self._image = image(state, with_replicas=True)
        self._flushed.clear()
        self._buffered.clear()

    def crash(self, kept: int) -> None:
        """Lose what was not flushed, except for the first `kept` entries, which happened to reach the disk."""
        self._flushed += self._buffered[:kept]
        self._buffered.clear()

    @property
    def logged(self) -> int:
        """The number of flushed entries since the last checkpoint."""
        return len(self._flushed)

    @property
    def buffered(self) -> int:
        return len(self._buffered)

    def recover(self, codecs: Codecs, method: Method) -> NodeState | None:
        """Restore the state from the disk: snapshot, then log."""
        if self._image is None:
            return None
        state = restore(self._image.header, self._image.arrays, self._image.blobs)
        for kind, header, blobs in self._flushed:
            step = change(kind, header, blobs, np.dtype(state.model.dtype))
            redo(state, step, codecs=codecs, method=method)
        return state


class ExactEngine:
    """One node's data plane. Between a crash and the restart `state` is what the disk holds."""

    def __init__(self, plan: ExactPlan) -> None:
        self.plan = plan
        self.store = MemoryStore()
        self.loss: float | None = None
        self.figure: float | None = None
        """The one watched by early stopping, after the latest round; None if there is none or it is unknown."""
        self._score: Score | None = None
        self.sketches: dict[int, NDArray[np.float64]] = {}
        self._unlearned = plan.learner.local_state()
        """The learner's state outside the model before the first round."""
        self.begun: Vector | None = None
        """The model at the start of the latest local round."""
        self._round: tuple[RoundStart, int] | None = None
        self._engine = self._engine_of(self._new_state())

    @property
    def state(self) -> NodeState:
        return self._engine.state

    def look(self, use: Callable[[Engine], None]) -> None:
        """Let the algorithm use the engine."""
        use(self._engine)

    def boot(self, name: int) -> Boot:
        """Start from the disk, or from nothing; `name` is a random name for the process, and for a new lifetime."""
        plan = self.plan
        state = self._recovered()
        fresh = state is None
        if state is None:
            state = self._new_state()
            state.lifetime = Lifetime(0, name)
        else:
            state.fit_edges(plan.neighbors)
        state.fit_replicas(plan.codecs.need_replicas)
        if plan.durable:
            self.store.checkpoint(state)
        self._engine = self._engine_of(state)
        # The core must not share its records with the engine; these are new ones, as after a restart.
        twin = self._recovered()
        records = {} if twin is None else {peer: edge.record for peer, edge in twin.edges.items()}
        return Boot(
            fresh=fresh,
            samples=state.samples,
            version=state.version,
            rounds=state.rounds,
            elapsed_s=state.elapsed_s,
            alone=state.alone,
            best=state.best,
            start=Start(state.lifetime, name),
            lifetimes=dict(state.lifetimes),
            records=records,
        )

    def run(self, operation: Operation) -> Event | None:
        """Carry out an operation of the core; return the answer for the core, if there is one."""
        outcome = self._engine.run(operation)
        if isinstance(outcome.event, RoundCommitted) and outcome.event.failed:
            self._go_on_from(self.state)
        if self.plan.durable:
            if outcome.change is not None:
                self.store.append(*entry(outcome.change))
            if outcome.urgent:
                self.store.flush()
                if self.store.logged > LOG_ENTRIES + len(self.plan.neighbors):
                    self.store.checkpoint(self.state)
        return outcome.event

    def amend(self, neighbors: tuple[int, ...]) -> None:
        """Set the neighbors at the next start; while the node runs, `ChangeEdges` changes them."""
        self.plan = replace(self.plan, neighbors=neighbors)

    def begin_round(self, effect: StartRound) -> None:
        index = effect.index
        self._round = (self._engine.begin_round(effect), index)
        self.begun = self._round[0].model.copy()  # the engine turns the other one into the trained model
        plan = self.plan
        if plan.gauge is not None and plan.gauge.is_tested and index % plan.evaluate_every == 0:
            self._score = plan.learner.evaluate(self.begun, "test")
        if plan.rounds is not None:
            plan.rounds.begin(plan.index, *self._round)

    def end_round(self) -> tuple[int, int]:
        """End the current local round; return its number of steps (0 if it failed), and n."""
        if self._round is None:
            raise AssertionError("a round ended that had not begun")
        (start, index), self._round = self._round, None
        self.figure = None
        try:
            if self.plan.rounds is not None:
                local = self.plan.rounds.end(self.plan.index)
            else:
                local = self.plan.learner.train(start, index)
        except LearningError:
            self._engine.outcomes.put(None)
            return 0, self.state.samples
        self.loss = local.loss
        if self.plan.gauge is not None:
            self.figure = self.plan.gauge.read(local.loss, self._score)
        self._engine.outcomes.put((start.model, replace(local, local=self.plan.learner.local_state())))
        return local.steps, local.samples

    def sketch(self, tick: int) -> None:
        """Record the position of the model in closing round `tick`."""
        if self.plan.sketch is not None:
            self.sketches[tick] = self.plan.sketch(self.state.model)

    def crash(self, kept: int = 0) -> None:
        """Lose the round in progress and what was not flushed, except `kept` entries of it; continue from the disk."""
        self._round = None
        if self.plan.rounds is not None:
            self.plan.rounds.drop(self.plan.index)
        self.store.crash(min(kept, self.store.buffered))
        state = self._recovered()
        if state is None:
            raise RuntimeError("a node crashed before its first start, or its plan says that it never will")
        self._go_on_from(state)

    def _recovered(self) -> NodeState | None:
        plan = self.plan
        return self.store.recover(plan.codecs, plan.method) if plan.durable else None

    def forget(self) -> None:
        """Lose the disk, which leaves the node as before its first start."""
        self.store = MemoryStore()
        self._go_on_from(self._new_state())

    def _go_on_from(self, state: NodeState) -> None:
        self._engine.state = state
        self.plan.learner.load_local_state(state.local)

    def _new_state(self) -> NodeState:
        plan = self.plan
        model = plan.learner.initial().astype(plan.dtype)
        return NodeState.new(model, plan.learner.samples, plan.neighbors, self._unlearned, plan.method)

    def _engine_of(self, state: NodeState) -> Engine:
        plan = self.plan
        engine = Engine(index=plan.index, state=state, codecs=plan.codecs, method=plan.method, rule=plan.rule)
        if plan.show is not None:
            engine.show = partial(self._lie, plan.show)
            engine.claim = as_weighed if plan.rule is None else boast
        return engine

    def _lie(self, show: ShowLie, model: Vector, peer: int, occasion: Occasion) -> Vector | Forgery:
        del occasion
        return passable(show(model, peer), model.size, self.plan.codecs.of(peer))
