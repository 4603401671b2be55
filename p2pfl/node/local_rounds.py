"""One node's local rounds and tests, run in the thread that trains; they are started from the event loop and report to
it. A gate is asked before each round whether it may begin: yes, no, or at a cost to be paid first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.tables import AUTO
from p2pfl.core.events import Event, RoundRefused, RoundTrained, StartRound
from p2pfl.engine.engine import Engine
from p2pfl.errors import LearningError
from p2pfl.learn.interface import LocalRound, RoundStart, Vector
from p2pfl.learn.privacy import Spend
from p2pfl.learn.privacy.accounting import Ledger
from p2pfl.node.engine_thread import EngineThread, Look, Pay
from p2pfl.node.learner_runner import LearnerRunner, Moment
from p2pfl.reporting.status import ClosedRound


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """A planned local round: its number, from 0, its number of samples, and the ledger of earlier payments."""

    index: int
    samples: int
    ledger: Ledger | None


@dataclass(frozen=True, slots=True)
class Wait:
    """The round begins a little later: ask again after `wait_s` seconds. Until then the node decides nothing."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Payment:
    """The round may begin once `spend` is on disk. `wrong` is asked once more with the ledger at that point.

    A second ledger gets `reserved` rounds at once.
    """

    spend: Spend
    wrong: Callable[[Ledger | None], RoundRefused | None]
    reserved: int = 1


Answer = RoundRefused | Wait | Payment | None
"""None means that the round may begin.

After a refusal that is not `for_good`, the node first checks whether the federation has ended; half a second later it
asks again.
"""


class Gate(Protocol):
    """Asked before each round, in the thread that trains or on the event loop."""

    @property
    def is_kept(self) -> bool:
        """True if a feature must be asked."""

    def before_round(self, plan: RoundPlan) -> Answer: ...


log = logging.getLogger("p2pfl")

WAITING_BYTES = 64 << 20
"""Memory for models that wait for their test; testing a large one may take longer than the interval between tests."""
TRAINING_NICE = 10
"""The niceness of training: it takes only the time that nothing else needs."""


def _yield_to_gossip() -> None:
    """Lower the priority of this thread, and of those that torch starts from it, below that of the loop and the engine.

    Only Linux gives each thread its own priority. Without it, a loop thread that wakes up waits for its turn behind
    training, or for the interpreter lock held by a thread that does.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            nice = os.getpriority(os.PRIO_PROCESS, 0) + TRAINING_NICE
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def compute_thread() -> ThreadPoolExecutor:
    """Return an executor with one thread for training and testing, because torch has one generator per process."""
    return ThreadPoolExecutor(1, thread_name_prefix="train", initializer=_yield_to_gossip)


class Reports(Protocol):
    """Receives reports on rounds. `fail` may be called from any thread, the others on the event loop."""

    finished: asyncio.Event

    def take(self, event: Event) -> None: ...
    def alarm(self, kind: str, peer: int | None, text: str) -> None: ...
    def fail(self, error: BaseException) -> None: ...


class LocalRounds:
    """Runs a node's local rounds and tests.

    `on_measure` is called after each evaluation, `on_closed` after each closing round. `compute` is the thread in which
    nodes of one process learn in turn; None if this node has its own.
    """

    def __init__(
        self,
        engine_thread: EngineThread,
        workshop: LearnerRunner,
        *,
        on_measure: Callable[[], None],
        on_closed: Callable[[ClosedRound], None] = lambda _: None,
        compute: ThreadPoolExecutor | None = None,
    ) -> None:
        self.engine_thread = engine_thread
        self.workshop = workshop
        self.on_measure = on_measure
        self.on_closed = on_closed
        self.gate: Gate | None = None
        """Asked before each round, if there is one."""
        self.loop = asyncio.get_running_loop()
        self.under_way = ""
        """The learner's current work: "round", "test", or empty."""
        self.closed = False
        self.node: Reports
        """Receives reports; set before a round starts."""
        self._shares_compute = compute is not None
        self._trainer = compute or compute_thread()
        self._learning = threading.Lock()
        self._untested = 0

    def start(self, effect: StartRound) -> None:
        """Copy the model between two operations, then train in the other thread."""

        def begin(engine: Engine) -> None:
            start = engine.begin_round(accompanied=effect.accompanied, away=effect.away)
            self._submit(self._train, start, effect.index, _now(engine), time.monotonic())

        if self.gate is None or not self.gate.is_kept:
            self.engine_thread.jobs.put(Look(begin))
        else:
            self._submit(self._ask, self.gate, effect.index, begin)

    def _ask(self, gate: Gate, index: int, begin: Callable[[Engine], None]) -> None:
        """Ask the gate."""
        try:
            ledger = self.engine_thread.engine.state.ledger
            answer = gate.before_round(RoundPlan(index, self.workshop.learner.samples, ledger))
        except BaseException as error:  # noqa: BLE001 - as below
            self.node.fail(error)
            return
        match answer:
            case None:
                self.engine_thread.jobs.put(Look(begin))
            case RoundRefused():
                self.loop.call_soon_threadsafe(self.node.take, answer)
            case Wait(wait_s=wait_s):
                self.loop.call_soon_threadsafe(
                    self.loop.call_later, wait_s, self._submit, self._ask, gate, index, begin
                )
            case Payment(spend=spend, wrong=wrong, reserved=reserved):
                self.engine_thread.jobs.put(Pay(spend, wrong, begin, reserved))

    def _submit(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            self._trainer.submit(self._learn, work, *arguments)
        except RuntimeError:
            log.debug("nothing is trained while the node stops")

    def _learn(self, work: Callable[..., None], *arguments: object) -> None:
        with self._learning:
            if not self.closed:
                work(*arguments)
            self.under_way = ""

    def _train(self, start: RoundStart, index: int, moment: Moment, asked_at: float) -> None:
        waited_s = time.monotonic() - asked_at if self._shares_compute else 0.0
        try:
            if self.workshop.pace.is_due(index):
                self._measure(start.model, moment)
            if self.closed:
                return
            self.under_way = "round"
            local = self.workshop.train(start, index)
        except LearningError as error:
            if self.workshop.strict:
                self.node.fail(error)
                return
            log.error("round %d raised: %s", index + 1, error)  # noqa: TRY400 - the user's task, not our traceback
            self.loop.call_soon_threadsafe(self._report_round, start.model, None, waited_s)
        except BaseException as error:  # noqa: BLE001 - a bug in this thread must end the node, not vanish
            self.node.fail(error)
        else:
            self.loop.call_soon_threadsafe(self._report_round, start.model, local, waited_s)

    def _report_round(self, start: Vector, local: LocalRound | None, waited_s: float) -> None:
        """Hand the round's result to the engine, which uses it when the core commits a round."""
        self.engine_thread.engine.outcomes.put(None if local is None else (start, local))
        steps, samples = (local.steps, local.samples) if local else (0, 0)
        figure = self.workshop.gauged if local else None
        self.node.take(RoundTrained(steps=steps, samples=samples, waited_s=waited_s, figure=figure))

    def restore_learner(self) -> None:
        """Restore what the learner keeps for itself, because a round was dropped."""
        self.engine_thread.jobs.put(Look(lambda engine: self._submit(self._load, engine.state.local)))

    def _load(self, local: dict[str, NDArray[np.generic]]) -> None:
        try:
            self.workshop.learner.load_local_state(local)
        except BaseException as error:  # noqa: BLE001 - as above
            self.node.fail(error)

    def _measure(self, model: Vector, moment: Moment) -> None:
        self.under_way = "test"
        self.workshop.measure(model, moment)
        self.loop.call_soon_threadsafe(self.on_measure)

    def look_between_rounds(self, tick: int, closing_rounds: int) -> None:
        """Test the model between closing rounds: nothing is training then, and the model improves."""
        self.engine_thread.jobs.put(Look(lambda engine: self._see_closed(engine, closing_rounds)))
        self.workshop.pace.mixed(time.monotonic())
        if self.workshop.pace.is_due(tick):
            self.workshop.pace.begin()
            self.measure()

    def look_while_mixing(self) -> None:
        """Test the model, which neighbors move although this node trains no more; with "auto" in its share of the
        time.
        """
        if self.workshop.evaluate_every == AUTO:
            self.workshop.pace.mixed(time.monotonic())
            if not self.workshop.pace.is_due(0):
                return
            self.workshop.pace.begin()
        self.measure()

    def _see_closed(self, engine: Engine, closing_rounds: int) -> None:
        """Copy the model in the engine's thread, so that no exchange intervenes; the trainer may be busy for long."""
        seen = ClosedRound(closing_rounds, engine.exchanges, self.workshop.sketch_of(engine.state.model))
        self.loop.call_soon_threadsafe(self.on_closed, seen)

    def measure(self) -> None:
        """Score the current model once the trainer is free; not if large copies are already waiting for that."""
        untested_bytes = (self._untested + 1) * self.engine_thread.engine.state.model.nbytes
        if not self.workshop.evaluate_every or (self._untested and untested_bytes > WAITING_BYTES):
            return

        def take_from_line() -> None:
            self._untested -= 1

        self._untested += 1
        self.engine_thread.jobs.put(
            Look(
                lambda engine: self._submit(self._measure_next, engine.state.model.copy(), _now(engine), take_from_line)
            )
        )

    def _measure_next(self, model: Vector, moment: Moment, begun: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(begun)
        try:
            self._measure(model, moment)
        except BaseException as error:  # noqa: BLE001 - as above
            self.node.fail(error)

    def close(self) -> None:
        """Close without waiting for the learner."""
        self.closed = True
        if not self._shares_compute:
            self._trainer.shutdown(wait=False, cancel_futures=True)

    def learner_is_free(self) -> bool:
        """After `close`, return True if nothing is training or evaluating any more, so that others may use the
        learner.
        """
        return not self._learning.locked()


def _now(engine: Engine) -> Moment:
    return Moment(engine.state.rounds, engine.state.version)
