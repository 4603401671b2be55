"""The thin shell around the core: real time in, effects carried out.

The core runs on the event loop, the engine in its own thread, training and evaluation in another, so that a large
exchange never stalls the loop and gossip never stalls training.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.plugins import describe_failure
from p2pfl.core.core import Core
from p2pfl.core.effects import Alarm, ChangeEdges, CloseSession, Effect, Finish, Send, StartRound
from p2pfl.core.events import (
    Amended,
    Event,
    MessageReceived,
    RoundCommitted,
    RoundTrained,
    SessionClosed,
    SessionOpened,
    Started,
    StopRequested,
)
from p2pfl.core.facts import Phase
from p2pfl.core.messages import Message
from p2pfl.engine.engine import Engine
from p2pfl.errors import LearningError
from p2pfl.learn.interface import LocalRound, RoundStart, Vector
from p2pfl.net.link import MALFORMED
from p2pfl.node.budget import Budget
from p2pfl.node.engine_thread import EngineThread, Look, Operate, Pay, Quit
from p2pfl.node.feed import Feed
from p2pfl.node.reloading import News
from p2pfl.node.status import Presence
from p2pfl.node.workshop import Moment, Workshop
from p2pfl.reporting.status import ClosedRound

log = logging.getLogger("p2pfl")

WAITING_BYTES = 64 << 20
"""The memory for models that wait for their test: a large one may take longer than until the next is due."""
TRAINING_NICE = 10
"""How much lower the priority of training is: it takes all time that nothing else wants, and no more."""
NOTICES = frozenset(
    {
        "joined",
        "data-reloaded",
        "storage-restored",
        "enough-neighbors",
        "kept-again",
        "probation",
        "trained-enough",
        "budget-begun",
        "budget-spent",
    }
)
"""Kinds of what has become right, or was meant to be: told, and no alarm."""
POLL_S = 0.1
FIRST_ALARMS = 5
LATER_ALARMS = 100
"""Of one kind from one neighbor the first FIRST_ALARMS are logged, then the 100th, the 200th, the 400th and so on."""


def _yield_to_gossip() -> None:
    """Lower the priority of this thread, and of those that torch starts from it, below the loop's and the engine's.

    Linux alone gives each thread its own. Else a loop thread that wakes waits for its turn behind training, or for the
    interpreter lock of a thread that does.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            nice = os.getpriority(os.PRIO_PROCESS, 0) + TRAINING_NICE
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def compute_thread() -> ThreadPoolExecutor:
    """One thread for training and testing: torch draws from one generator of the whole process."""
    return ThreadPoolExecutor(1, thread_name_prefix="train", initializer=_yield_to_gossip)


class NetworkEdge(Protocol):
    """What the driver needs of the network edge."""

    def send(self, peer: int, session: int, message: Message) -> None: ...
    def close(self, peer: int, session: int, reason: str, rest_s: float = 0.0) -> None: ...


class Driver:
    """Carries events to the core and effects from it, until the core finishes.

    `name_of` turns a member index into a name for the log; `on_measure` is called after each evaluation, `on_closed`
    after each closing round, `on_amended` when a change of the federation takes effect. `compute` is the thread in
    which nodes of one process learn in turn, else this node has one of its own.
    """

    def __init__(
        self,
        core: Core,
        engine_thread: EngineThread,
        workshop: Workshop,
        *,
        name_of: Callable[[int], str],
        on_measure: Callable[[], None],
        on_closed: Callable[[ClosedRound], None] = lambda _: None,
        on_amended: Callable[[], None] = lambda: None,
        compute: ThreadPoolExecutor | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.core = core
        self.engine_thread = engine_thread
        self.workshop = workshop
        self.name_of = name_of
        self.on_measure = on_measure
        self.on_closed = on_closed
        self.on_amended = on_amended
        self.budget = budget
        """What pays for each round; None: nobody asks for it."""
        self.links: NetworkEdge
        self.loop = asyncio.get_running_loop()
        self.finished = asyncio.Event()
        self.failure: BaseException | None = None
        self.alarms: Counter[str] = Counter()
        self.feed = Feed(name_of)
        self.presence = Presence(
            core, name_of=name_of, on_alarm=self._raise_alarm, now=self.loop.time(), feed=self.feed
        )
        self._told: Counter[tuple[str, int | None]] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._shares_compute = compute is not None
        self._trainer = compute or compute_thread()
        self._learning = threading.Lock()
        self._closed = False
        self._untested = 0
        self.under_way = ""
        """What the learner is doing: a "round", a "test", or nothing."""

    # -- in -----------------------------------------------------------------------------------------------------------

    def start(self, links: NetworkEdge) -> None:
        self.links = links
        self.take(Started())

    def session_opened(self, peer: int, session: int) -> None:
        self.presence.opened(peer, self.loop.time())
        self.take(SessionOpened(peer=peer, session=session))

    def session_closed(self, peer: int, session: int, reason: str) -> None:
        self.presence.ended(peer, reason, self.loop.time())
        malformed = reason.removeprefix(MALFORMED) if reason.startswith(MALFORMED) else ""
        self.take(SessionClosed(peer=peer, session=session, malformed=malformed))

    def message_received(self, peer: int, session: int, message: Message) -> None:
        self.take(MessageReceived(peer=peer, session=session, message=message))

    def stop(self) -> None:
        """The user wants this node to stop: end cleanly, keep a snapshot."""
        self.take(StopRequested())

    def amend(self, event: Amended) -> None:
        """The federation has changed; the core says when that takes effect."""
        self.take(event)

    def deliver(self, events: list[Event]) -> None:
        """Called from the engine's thread."""
        self.loop.call_soon_threadsafe(self._take_all, events)

    def fail(self, error: BaseException) -> None:
        """From any thread: our own bug, or a learner that calls exit, ends the node. Neither may look like a finish."""
        if isinstance(error, SystemExit | asyncio.CancelledError):
            error = LearningError(f"the task would have ended the process: {describe_failure(error)}")
        self.loop.call_soon_threadsafe(self._fail, error)

    def take(self, event: Event) -> None:
        """Hand one event to the core and carry out what it decides."""
        if isinstance(event, RoundCommitted) and event.failed:
            self._put_back()
        self._run(self.core.handle(event, self.loop.time()))
        if isinstance(event, RoundCommitted) and self.core.rounds.phase is Phase.CLOSING:
            self._look_between_rounds(event.version)

    def _take_all(self, events: list[Event]) -> None:
        for event in events:
            self.take(event)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.finished.set()

    # -- out ----------------------------------------------------------------------------------------------------------

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)
        self._schedule()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(peer=peer, session=session, message=message):
                self.links.send(peer, session, message)
            case CloseSession(peer=peer, session=session, reason=reason, rest_s=rest_s):
                self.links.close(peer, session, reason, rest_s)
            case StartRound():
                self._start_round(effect)
            case Alarm():
                self._raise_alarm(effect)
            case Finish():
                self.finished.set()
            case ChangeEdges():
                self.engine_thread.jobs.put(Operate(effect))
                self.presence.follow(self.loop.time())
                self.on_amended()
            case _:
                self.engine_thread.jobs.put(Operate(effect))

    def _schedule(self) -> None:
        """One timer, at the core's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.core.deadline()
        if deadline is not None and not self.finished.is_set():
            self._timer = self.loop.call_at(deadline, self._wake)

    def _wake(self) -> None:
        self._run(self.core.wake(self.loop.time()))

    def alarm(self, kind: str, peer: int | None, text: str) -> None:
        """The network, or who watches this node, has seen what the user should know."""
        self._raise_alarm(Alarm(kind=kind, peer=peer, text=text))

    def _raise_alarm(self, alarm: Alarm) -> None:
        """All are counted; logged are the first few of a kind, then ever fewer: no neighbor can fill the disk."""
        planned = alarm.notice or alarm.kind in NOTICES
        if planned:
            self.feed.settle(alarm.kind, alarm.peer)
        else:
            self.alarms[alarm.kind] += 1
            self.feed.stand(alarm.kind, alarm.peer, alarm.text)
        self._told[alarm.kind, alarm.peer] += 1
        times = self._told[alarm.kind, alarm.peer]
        hundreds, rest = divmod(times, LATER_ALARMS)
        if times <= FIRST_ALARMS or (rest == 0 and hundreds.bit_count() == 1):
            self.feed.tell(alarm.kind, alarm.peer, alarm.text, wrong=not planned, times=times)

    # -- training -----------------------------------------------------------------------------------------------------

    def _start_round(self, effect: StartRound) -> None:
        """Take the model as it is between two operations, then train in the other thread."""

        def begin(engine: Engine) -> None:
            start = engine.begin_round(accompanied=effect.accompanied, away=effect.away)
            self._submit(self._train, start, effect.index, _now(engine), time.monotonic())

        if self.budget is None:
            self.engine_thread.jobs.put(Look(begin))
        else:
            self._pay_when_heard(self.budget, begin)

    def _pay_when_heard(self, budget: Budget, begin: Callable[[Engine], None]) -> None:
        """Neighbors may still have to tell what this node has forgotten."""
        if self.finished.is_set():
            return
        if budget.evidence.is_due(self.loop.time()):
            self.loop.call_later(POLL_S, self._pay_when_heard, budget, begin)
        else:
            self._submit(self._price, budget, begin)

    def _price(self, budget: Budget, begin: Callable[[Engine], None]) -> None:
        """What the round will cost depends on the rows that there are then: they are read before it is paid for.

        The accountant may take its time here, and has its answers ready when the engine's thread asks the same.
        """
        try:
            self._renew_data()
            samples, reserved = self.workshop.learner.samples, 1
            spend, ledger = budget.plan.spend(samples), self.engine_thread.engine.state.ledger
            budget.look(ledger, samples)
            if budget.wrong(ledger, spend) is None and ledger is not None:
                budget.look(ledger.plus(spend), samples)
                reserved = budget.reserved_rounds(ledger, samples)
        except BaseException as error:  # noqa: BLE001 - as below
            self.fail(error)
        else:
            self.engine_thread.jobs.put(Pay(spend, lambda ledger: budget.wrong(ledger, spend), begin, reserved))

    def _submit(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            self._trainer.submit(self._learn, work, *arguments)
        except RuntimeError:
            log.debug("nothing is trained while the node stops")

    def _learn(self, work: Callable[..., None], *arguments: object) -> None:
        with self._learning:
            if not self._closed:
                work(*arguments)
            self.under_way = ""

    def _train(self, start: RoundStart, index: int, of: Moment, asked_at: float) -> None:
        waited_s = time.monotonic() - asked_at if self._shares_compute else 0.0
        try:
            if self.workshop.is_due(index):
                self._measure(start.model, of)
            if self._closed:
                return
            self.under_way = "round"
            waited_s += self._renew_data() if self.budget is None else 0.0
            local = self.workshop.train(start, index)
        except LearningError as error:
            if self.workshop.strict:
                self.fail(error)
                return
            log.error("round %d raised: %s", index + 1, error)  # noqa: TRY400 - the user's task, not our traceback
            self.loop.call_soon_threadsafe(self._trained, start.model, None, waited_s)
        except BaseException as error:  # noqa: BLE001 - a bug in this thread must end the node, not vanish
            self.fail(error)
        else:
            self.loop.call_soon_threadsafe(self._trained, start.model, local, waited_s)

    def _renew_data(self) -> float:
        """Read the data again if they have grown; the seconds that it took, which are no part of the round."""
        began = time.monotonic()
        news = self.workshop.renew_data()
        if news is not None:
            self.loop.call_soon_threadsafe(self._tell_of_data, news)
        return time.monotonic() - began

    def _tell_of_data(self, news: News) -> None:
        text = news.text
        if self.budget is not None:  # it tells of rows
            log.log(logging.WARNING if news.refused else logging.INFO, "data: %s", text)
            text = news.counts
        if not text:
            return
        if news.refused:
            self.alarm("data-refused", None, text)
        else:
            self.alarm("data-reloaded", None, text)

    def _trained(self, start: Vector, local: LocalRound | None, waited_s: float) -> None:
        """The engine takes what came of the round when the core asks it to commit one."""
        self.engine_thread.engine.outcomes.put(None if local is None else (start, local))
        steps, samples = (local.steps, local.samples) if local else (0, 0)
        figure = self.workshop.figure if local else None
        self.take(RoundTrained(steps=steps, samples=samples, waited_s=waited_s, figure=figure))

    def _put_back(self) -> None:
        """A round was dropped: what the learner keeps for itself is, before the next one, what it was before."""
        self.engine_thread.jobs.put(Look(lambda engine: self._submit(self._load, engine.state.local)))

    def _load(self, local: dict[str, NDArray[np.generic]]) -> None:
        try:
            self.workshop.learner.load_local_state(local)
        except BaseException as error:  # noqa: BLE001 - as above
            self.fail(error)

    def _measure(self, model: Vector, of: Moment) -> None:
        self.under_way = "test"
        self.workshop.measure(model, of)
        self.loop.call_soon_threadsafe(self.on_measure)

    def _look_between_rounds(self, tick: int) -> None:
        """In closing rounds nothing trains, and the model goes on getting better."""
        closing_rounds = self.core.facts.closed
        self.engine_thread.jobs.put(Look(lambda engine: self._see_closed(engine, closing_rounds)))
        if self.workshop.is_due(tick):
            self.measure()

    def _see_closed(self, engine: Engine, closing_rounds: int) -> None:
        """In the engine's thread, so that no exchange comes in between; the trainer's may be busy for long."""
        seen = ClosedRound(closing_rounds, engine.exchanges, self.workshop.sketch_of(engine.state.model))
        self.loop.call_soon_threadsafe(self.on_closed, seen)

    def measure(self) -> None:
        """Score the model as it is, once the trainer is free; not if copies wait for that which are large."""
        untested_bytes = (self._untested + 1) * self.engine_thread.engine.state.model.nbytes
        if not self.workshop.evaluate_every or (self._untested and untested_bytes > WAITING_BYTES):
            return
        self._untested += 1
        self.engine_thread.jobs.put(
            Look(lambda engine: self._submit(self._measure_next, engine.state.model.copy(), _now(engine)))
        )

    def _measure_next(self, model: Vector, of: Moment) -> None:
        self.loop.call_soon_threadsafe(self._take_from_line)
        try:
            self._measure(model, of)
        except BaseException as error:  # noqa: BLE001 - as above
            self.fail(error)

    def _take_from_line(self) -> None:
        self._untested -= 1

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop both threads: what the engine has to do is still done, what the learner is doing not waited for."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._shares_compute:
            self._trainer.shutdown(wait=False, cancel_futures=True)
        if self.engine_thread.is_alive():
            self.engine_thread.jobs.put(Quit())
            await asyncio.to_thread(self.engine_thread.join)

    def learner_is_free(self) -> bool:
        """After `close`: whether nothing trains or evaluates any more, so that others may use the learner."""
        return not self._learning.locked()


def _now(engine: Engine) -> Moment:
    return Moment(engine.state.rounds, engine.state.version)
