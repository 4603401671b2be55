"""The learner at work: local rounds and evaluations, one at a time, in the thread that trains.

`LocalRounds` starts them from the event loop, and reports to it. A gate is asked before each round whether it may
begin: yes, no, or at a cost to be paid first. A test reads the whole common test set, so with short rounds it may take
as long as the round itself: `EvaluationPace` decides how often. `ModelFiles` writes checkpoints for people; `p2pfl
export` writes the same files, and `p2pfl evaluate` reads them. A restart needs none of them: it uses the state folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import EvaluateEvery
from p2pfl.config.tables import AUTO
from p2pfl.core.events import Event, RoundRefused, RoundTrained, StartRound
from p2pfl.engine.engine import Engine
from p2pfl.errors import LearningError, StorageError
from p2pfl.learn.figures import Gauge
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.load import to_safetensors
from p2pfl.learn.metrics import Losses, Measure
from p2pfl.learn.privacy import Spend
from p2pfl.learn.privacy.accounting import Ledger
from p2pfl.limits import WAITING_BYTES
from p2pfl.node.engine_thread import EngineThread, Look, Pay
from p2pfl.plugins import software
from p2pfl.reporting.measures import measures_in
from p2pfl.reporting.status import ClosedRound, Sketch
from p2pfl.storage.disk import replace_file

log = logging.getLogger("p2pfl")

TEST_SHARE = 0.1
"""With `evaluate_every = "auto"`, tests take at most this share of the seconds that rounds take."""
COMPARED = 3
"""A test's cost is the least of so many latest tests: the first one also loads code, and others may be interrupted."""
FIRST_TESTS = 2
"""So many tests come with the first rounds: only after the second is the cost of a test known."""


class EvaluationPace:
    """Decides after which rounds a node tests its model; it reads no clock.

    With `each_round`, `"auto"` tests after every round: the stop condition counts rounds by what tests find.
    """

    def __init__(self, every: EvaluateEvery, *, each_round: bool = False) -> None:
        self._every = 1 if every == AUTO and each_round else every
        self._costs_s: deque[float] = deque(maxlen=COMPARED)
        self._worked_s = 0.0
        """The seconds that rounds have taken since the latest test."""
        self._mixed_at: float | None = None

    @property
    def usual_rounds(self) -> int:
        """The rounds that may pass between two tests without the older one counting as outdated."""
        return 1 if isinstance(self._every, str) else max(1, self._every)

    def worked(self, seconds: float) -> None:
        """Count the time of a local round."""
        self._worked_s += seconds

    def mixed(self, now: float) -> None:
        """Count the time since the last call, in which only neighbors moved the model, as that of rounds."""
        if self._mixed_at is not None:
            self._worked_s += now - self._mixed_at
        self._mixed_at = now

    def begin(self) -> None:
        """Start the time until the next test, although this one has to wait for the learner."""
        self._worked_s = 0.0

    def tested(self, seconds: float) -> None:
        """Count a test, and start the time until the next one."""
        self._costs_s.append(seconds)
        self._worked_s = 0.0

    def is_due(self, version: int) -> bool:
        """Return True if the model of this version is to be tested now."""
        if not isinstance(self._every, str):
            return self._every > 0 and version % self._every == 0
        return len(self._costs_s) < FIRST_TESTS or self._worked_s * TEST_SHARE >= min(self._costs_s)


NAME = "round-{:08d}.safetensors"
NAMES = re.compile(r"round-\d{8,}\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Writes at most `kept` files into `folder`, one every `every` rounds and one at the end."""

    folder: Path
    every: int
    kept: int
    learner: Learner
    about: Mapping[str, str]
    """The names of federation and node, which stand in the files."""

    def is_due(self, rounds: int) -> bool:
        return rounds > 0 and rounds % self.every == 0

    def save(self, vector: Vector, rounds: int) -> None:
        """Write the model (d,) after `rounds` rounds, whole or not at all, and remove the oldest files beyond `kept`.

        If the disk refuses, only this file is lost, not the round.
        """
        about = {**self.about, "rounds": str(rounds), "software": software()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / NAME.format(rounds), [to_safetensors(self.learner, vector, about)])
            for old in self.files()[: -self.kept]:
                old.unlink()
        except (StorageError, OSError) as error:
            log.warning("no checkpoint after round %d: %s", rounds, error)

    def files(self) -> list[Path]:
        """Return the existing files in order of rounds."""
        files = [path for path in self.folder.iterdir() if NAMES.fullmatch(path.name)]
        return sorted(files, key=lambda path: int(path.stem.rpartition("-")[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """A node after a local round, before its model is mixed with its neighbors'.

    `accuracy`, `test_loss` and `metrics` come from the latest test, made after `tested_rounds` rounds; they are None or
    empty before the first test.
    """

    node: str
    rounds: int
    """The number of rounds that the node has trained, including this one."""
    seconds: float
    """Seconds since the node began."""
    steps: int
    """The number of optimizer steps in this round."""
    samples: int
    """The size of the node's training set."""
    loss: float
    """The mean loss over the steps of this round."""
    accuracy: float | None
    test_loss: float | None
    metrics: Mapping[str, float]
    tested_rounds: int | None
    vector: Vector
    """The model (d,), read-only and valid only during the call: copy what you keep."""
    learner: Learner = field(repr=False)

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Return copies of the model's tensors by name, personal ones included."""
        return self.learner.state_dict(self.vector)


OnRound = Callable[[RoundState], Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """A model's place in time: the node's own rounds and versions up to it; `final` says that it will not change."""

    rounds: int
    version: int
    final: bool = False


@dataclass(frozen=True, slots=True)
class Tested:
    """A score on the common test set, and the model it belongs to."""

    score: Score
    moment: Moment


@dataclass(slots=True)
class TrainingFigures:
    """Results of a node's rounds and tests so far, as far as they may be shown.

    `tested` is the latest score on the common test set, `loss` the loss of the latest local round.
    """

    withheld: frozenset[str] = frozenset()
    """Parts of the data about which no figure may be shown, not even in the node's own log: "local", "test"."""
    losses: Losses = field(default_factory=Losses)
    """The trend of the losses in its rounds and tests."""
    tested: Tested | None = None
    loss: float | None = None
    sketched: list[float] = field(default_factory=list)
    """The sketch of the last tested model; empty if nobody needs it."""
    steps: int = 0
    cpu_s: float = 0.0
    """CPU seconds spent on training alone, in its thread."""

    def after_round(self, local: LocalRound, cpu_s: float) -> LocalRound:
        """Record a round that took `cpu_s` CPU seconds; return it without withheld figures."""
        self.cpu_s += cpu_s
        self.steps += local.steps
        if "local" in self.withheld:
            return replace(local, loss=math.nan)
        self.loss = local.loss
        self.losses.trained(local.loss)
        return local

    def after_test(self, score: Score | None, moment: Moment) -> None:
        if score is not None:
            self.losses.tested(score.loss)
        # replaced in one step, because other threads read it
        self.tested = None if score is None else Tested(score, moment)


@dataclass(slots=True)
class LearnerRunner:
    """A learner at work. `sketch` is set if a launcher on this machine compares the nodes' models."""

    learner: Learner
    evaluate_every: EvaluateEvery
    sketch: Sketch | None = None
    figures: TrainingFigures = field(default_factory=TrainingFigures)
    strict: bool = False
    """True if a failing test is an error; otherwise it is logged, and the node goes on."""
    files: ModelFiles | None = None
    """Files to which the model is written now and then, if any."""
    on_round: OnRound | None = None
    """The program's function, called in the thread that trains; an exception in it ends the node."""
    node: str = ""
    """The node's name, for `on_round`."""
    gauge: Gauge | None = None
    """Reads the figure watched by early stopping; None if there is none."""
    gauged: float | None = None
    """The gauge's reading after the latest local round."""
    pace: EvaluationPace = field(init=False)
    began_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        is_watched = self.gauge is not None and self.gauge.is_tested
        self.pace = EvaluationPace(self.evaluate_every, each_round=is_watched)

    @property
    def measures(self) -> list[Measure]:
        """The task's measures, the main one first; empty until they are known."""
        tested = self.figures.tested
        return measures_in(self.learner, None if tested is None else tested.score)

    def train(self, start: RoundStart, index: int) -> LocalRound:
        if self.files is not None and self.files.is_due(index):
            self.files.save(start.model, index)
        began, began_cpu = time.monotonic(), time.thread_time()
        local = self.learner.train(start, index)
        local = self.figures.after_round(local, time.thread_time() - began_cpu)
        self.pace.worked(time.monotonic() - began)
        tested = self.figures.tested
        score = None if tested is None else tested.score
        if self.gauge is not None:
            self.gauged = self.gauge.read(local.loss, score)
        if self.on_round is not None:
            kept = replace(local, vector=local.vector.copy()) if local.vector is start.model else local
            self.on_round(self._round_state(kept, index + 1))
        return replace(local, local=self.learner.local_state())

    def _round_state(self, local: LocalRound, rounds: int) -> RoundState:
        tested, vector = self.figures.tested, local.vector.view()
        vector.flags.writeable = False
        score = None if tested is None else tested.score
        return RoundState(
            node=self.node,
            rounds=rounds,
            seconds=time.monotonic() - self.began_at,
            steps=local.steps,
            samples=local.samples,
            loss=local.loss,
            accuracy=None if score is None else score.accuracy,
            test_loss=None if score is None else score.loss,
            metrics={} if score is None else dict(score.metrics),
            tested_rounds=None if tested is None else tested.moment.rounds,
            vector=vector,
            learner=self.learner,
        )

    def score(self, vector: Vector, part: str) -> Score | None:
        """Score the model like `Learner.evaluate`; returns None for a withheld part too."""
        return None if part in self.figures.withheld else self.learner.evaluate(vector, part)

    def sketch_of(self, vector: Vector) -> list[float]:
        """Return the sketch of `vector` (d,); empty if nobody needs it. Safe to call from any thread."""
        return [] if self.sketch is None else [round(float(value), 6) for value in self.sketch.of(vector)]

    def measure(self, vector: Vector, moment: Moment) -> None:
        """Score `vector` (d,) on the common test set. Raises LearningError if the task failed and this is `strict`."""
        began = time.monotonic()
        self.figures.sketched = self.sketch_of(vector)
        if moment.final and self.files is not None:
            self.files.save(vector, moment.rounds)
        try:
            score = self.score(vector, "test")
        except LearningError as error:
            if self.strict:
                raise
            log.error("evaluation failed: %s", error)  # noqa: TRY400 - the user's task, not our traceback
        else:
            self.figures.after_test(score, moment)
            self.pace.tested(time.monotonic() - began)


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
    """The round may begin once `spend` is on disk. `wrong` is asked once more with the ledger at that point."""

    spend: Spend
    wrong: Callable[[Ledger | None], RoundRefused | None]


Answer = RoundRefused | Wait | Payment | None
"""None means that the round may begin.

After a refusal that is not `for_good`, the node first checks whether the federation has ended; half a second later it
asks again.
"""


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

    def take(self, event: Event) -> None: ...
    def fail(self, error: BaseException) -> None: ...


class LocalRounds:
    """Runs a node's local rounds and tests.

    `on_measure` is called after each evaluation, `on_closed` after each closing round. `compute` is the thread in which
    nodes of one process learn in turn; None if this node has its own.
    """

    def __init__(
        self,
        engine_thread: EngineThread,
        runner: LearnerRunner,
        *,
        on_measure: Callable[[], None],
        on_closed: Callable[[ClosedRound], None] = lambda _: None,
        compute: ThreadPoolExecutor | None = None,
    ) -> None:
        self.engine_thread = engine_thread
        self.runner = runner
        self.on_measure = on_measure
        self.on_closed = on_closed
        self.gate: Callable[[RoundPlan], Answer] | None = None
        """Asked before each round, in the thread that trains; None if every round may begin."""
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
            start = engine.begin_round(effect)
            self._submit(self._train, start, effect.index, _now(engine), time.monotonic())

        if self.gate is None:
            self.engine_thread.jobs.put(Look(begin))
        else:
            self._submit(self._ask, self.gate, effect.index, begin)

    def _ask(self, gate: Callable[[RoundPlan], Answer], index: int, begin: Callable[[Engine], None]) -> None:
        """Ask the gate."""
        try:
            ledger = self.engine_thread.engine.state.ledger
            answer = gate(RoundPlan(index, self.runner.learner.samples, ledger))
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
            case Payment(spend=spend, wrong=wrong):
                self.engine_thread.jobs.put(Pay(spend, wrong, begin))

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
            if self.runner.pace.is_due(index):
                self._measure(start.model, moment)
            if self.closed:
                return
            self.under_way = "round"
            local = self.runner.train(start, index)
        except LearningError as error:
            if self.runner.strict:
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
        figure = self.runner.gauged if local else None
        self.node.take(RoundTrained(steps=steps, samples=samples, waited_s=waited_s, figure=figure))

    def restore_learner(self) -> None:
        """Restore what the learner keeps for itself, because a round was dropped."""
        self.engine_thread.jobs.put(Look(lambda engine: self._submit(self._load, engine.state.local)))

    def _load(self, local: dict[str, NDArray[np.generic]]) -> None:
        try:
            self.runner.learner.load_local_state(local)
        except BaseException as error:  # noqa: BLE001 - as above
            self.node.fail(error)

    def _measure(self, model: Vector, moment: Moment) -> None:
        self.under_way = "test"
        self.runner.measure(model, moment)
        self.loop.call_soon_threadsafe(self.on_measure)

    def look_between_rounds(self, version: int, closing_rounds: int) -> None:
        """Test the model between closing rounds: nothing is training then, and the model improves."""
        self.engine_thread.jobs.put(Look(lambda engine: self._see_closed(engine, closing_rounds)))
        self.runner.pace.mixed(time.monotonic())
        if self.runner.pace.is_due(version):
            self.runner.pace.begin()
            self.measure()

    def look_while_mixing(self) -> None:
        """Test the model, which neighbors move although this node trains no more; with "auto" in its share of time."""
        if self.runner.evaluate_every == AUTO:
            self.runner.pace.mixed(time.monotonic())
            if not self.runner.pace.is_due(0):
                return
            self.runner.pace.begin()
        self.measure()

    def _see_closed(self, engine: Engine, closing_rounds: int) -> None:
        """Copy the model in the engine's thread, so that no exchange intervenes; the trainer may be busy for long."""
        seen = ClosedRound(closing_rounds, engine.exchanges, self.runner.sketch_of(engine.state.model))
        self.loop.call_soon_threadsafe(self.on_closed, seen)

    def measure(self) -> None:
        """Score the current model once the trainer is free; not if large copies are already waiting for that."""
        untested_bytes = (self._untested + 1) * self.engine_thread.engine.state.model.nbytes
        if not self.runner.evaluate_every or (self._untested and untested_bytes > WAITING_BYTES):
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
        """After `close`, return True if nothing trains or evaluates any more, so that others may use the learner."""
        return not self._learning.locked()


def _now(engine: Engine) -> Moment:
    return Moment(engine.state.rounds, engine.state.version)
