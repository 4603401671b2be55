"""The learner at work, and the waits at a node's end.

Local rounds and evaluations run one at a time, in the trainer's thread. At its end a node waits for the last test of
its model, and for a disk that refuses writes. The learned model stays in memory as long as the process lives, so the
node waits for a full disk; only a person gives up.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from p2pfl.config.model import EvaluateEvery
from p2pfl.errors import LearningError, StorageError
from p2pfl.learn.gauge import Gauge
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.losses import Losses
from p2pfl.learn.metrics import Measure
from p2pfl.node.evaluation_pace import EvaluationPace
from p2pfl.node.model_files import ModelFiles
from p2pfl.node.reloading import DataNews, Reloading
from p2pfl.node.round_callback import EachRound
from p2pfl.reporting.measures import measures_in
from p2pfl.reporting.status import Sketch

log = logging.getLogger("p2pfl")

LAST_ROUND_S = 3.0
"""How long a stopped node waits for the current local round or test, in seconds."""
LAST_TEST_S = 8.0
"""How long a stopped node waits for the test of its last model, in seconds; a launcher waits 15 s in all."""
RETRY_S = 3.0
POLL_S = 0.02
SAID_AFTER_S = 0.5
"""A wait longer than this is shown."""
SAID_AGAIN_S = 300.0
"""The time between two log lines about waiting for the disk, in seconds."""
WAITING_FOR_DISK = "waiting for disk"
TESTING = "testing"


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
class Workshop:
    """A learner at work. `sketch` is set if a launcher on this machine compares the nodes' models."""

    learner: Learner
    evaluate_every: EvaluateEvery
    sketch: Sketch | None = None
    figures: TrainingFigures = field(default_factory=TrainingFigures)
    strict: bool = False
    """True if a failing test is an error; otherwise it is logged, and the node goes on."""
    files: ModelFiles | None = None
    """Files to which the model is written now and then, if any."""
    after_round: EachRound | None = None
    reloading: Reloading | None = None
    """Rereads the data when they have grown; None if the data never change."""
    gauge: Gauge | None = None
    """Reads the figure watched by early stopping; None if there is none."""
    gauged: float | None = None
    """The gauge's reading after the latest local round."""
    pace: EvaluationPace = field(init=False)

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
        if self.after_round is not None:
            self.after_round(local, index + 1, score, None if tested is None else tested.moment.rounds)
        return replace(local, local=self.learner.local_state())

    def score(self, vector: Vector, part: str) -> Score | None:
        """Score the model like `Learner.evaluate`; returns None for a withheld part too."""
        return None if part in self.figures.withheld else self.learner.evaluate(vector, part)

    def renew_data(self) -> DataNews | None:
        """Check between two rounds whether the data have grown; return the news, if any."""
        news = None if self.reloading is None else self.reloading.look()
        if news is not None and not news.refused:
            self.figures.losses.forget()
        return news

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


class Waiting:
    """A node's waits.

    `show` is called with what the node is waiting for, then with an empty text. Set `hurried` to end a wait early.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show = show
        self.hurried = asyncio.Event()
        self.for_disk = False
        """True while the node waits for a disk."""

    async def until_written(self, write: Callable[[], None], folder: Path) -> str | None:
        """Call `write` in a thread until the disk accepts it; return None, or the last refusal if the wait was cut
        short.
        """
        said_at = float("-inf")
        while True:
            try:
                await asyncio.to_thread(write)
            except StorageError as error:
                reason = str(error)
            else:
                break
            now = time.monotonic()
            if now - said_at >= SAID_AGAIN_S:
                said_at = now
                log.warning("%s: waiting for the disk, tried again every %g s: %s", folder, RETRY_S, reason)
            self.for_disk = True
            self.show(WAITING_FOR_DISK)
            if await self._hurried_within(RETRY_S):
                return reason
        if self.for_disk:
            self.for_disk = False
            log.warning("%s: the disk takes the state again", folder)
            self.show("")
        return None

    async def until(self, done: Callable[[], bool], *, limit_s: float | None) -> bool:
        """Wait until `done` returns true; return False if `limit_s` passes (None: no limit) or `hurried` is set
        first.
        """
        began, shown = time.monotonic(), False
        while not done():
            waited_s = time.monotonic() - began
            if limit_s is not None and waited_s >= limit_s:
                break
            if waited_s >= SAID_AFTER_S and not shown:
                shown = True
                self.show(TESTING)
            if await self._hurried_within(POLL_S):
                break
        if shown:
            self.show("")
        return done()

    async def _hurried_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.hurried.wait(), seconds)
        return self.hurried.is_set()


def why_untested(under_way: str, tested: Tested | None) -> str:
    """Explain what the node was stopped in (a "round" or a "test"), what is lost, and which model it has scored."""
    if under_way == "round":
        what = "stopped in a long local round, whose work is discarded"
    else:
        what = "stopped in a long test; nothing that was learned is lost"
    of = "is not known" if tested is None else f"is that after round {tested.moment.rounds}"
    return f"{what}: the last model is not tested, its accuracy {of}"


def start_errand(work: Callable[[], None], compute: Executor | None = None) -> Future[None]:
    """Do work that the process need not wait for when it ends, in a separate thread or in `compute`."""
    if compute is not None:
        return compute.submit(work)
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=run, name="errand", daemon=True).start()
    return outcome
