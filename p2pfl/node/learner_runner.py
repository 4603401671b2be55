"""The learner at work: local rounds and evaluations, one at a time, in the trainer's thread.

A test reads the whole common test set, so with short rounds it may take as long as the round itself: `EvaluationPace`
decides how often. `ModelFiles` writes checkpoints for people; `p2pfl export` writes the same files, and `p2pfl
evaluate` reads them. A restart needs none of them: it uses the state folder. `EachRound` calls a program's `on_round`.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import EvaluateEvery
from p2pfl.config.tables import AUTO
from p2pfl.errors import LearningError, StorageError
from p2pfl.learn.figures import Gauge
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.load import to_safetensors
from p2pfl.learn.metrics import Losses, Measure
from p2pfl.node.assembly import Setup
from p2pfl.plugins import software
from p2pfl.reporting.measures import measures_in
from p2pfl.reporting.status import Sketch
from p2pfl.storage.disk import replace_file

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


log = logging.getLogger("p2pfl")

NAME = "round-{:08d}.safetensors"
NAMES = re.compile(r"round-\d{8,}\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Writes at most `kept` files into `folder`, one every `every` rounds and one at the end."""

    folder: Path
    every: int
    kept: int
    learner: Learner
    federation: str
    node: str

    @classmethod
    def of(cls, setup: Setup) -> ModelFiles | None:
        """Return the writer, or None if the node file asks for no checkpoints."""
        node = setup.node
        if not node.checkpoint_every:
            return None
        return cls(
            folder=node.checkpoint_dir,
            every=node.checkpoint_every,
            kept=node.checkpoints_kept,
            learner=setup.learner,
            federation=setup.federation.name,
            node=setup.member.name,
        )

    def is_due(self, rounds: int) -> bool:
        return rounds > 0 and rounds % self.every == 0

    def save(self, vector: Vector, rounds: int) -> None:
        """Write the model (d,) after `rounds` rounds, whole or not at all, and remove the oldest files beyond `kept`.

        If the disk refuses, only this file is lost, not the round.
        """
        told = {"federation": self.federation, "node": self.node, "rounds": str(rounds), "software": software()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.folder / NAME.format(rounds), [to_safetensors(self.learner, vector, told)])
            for old in self.files()[: -self.kept]:
                old.unlink()
        except (StorageError, OSError) as error:
            log.warning("no checkpoint after round %d: %s", rounds, error)

    def files(self) -> list[Path]:
        """Return the existing files in order of rounds."""
        found = [path for path in self.folder.iterdir() if NAMES.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))


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


class EachRound:
    """Calls `on_round` in the thread that trains, which waits for it; an exception in it ends the node."""

    def __init__(self, node: str, learner: Learner, on_round: OnRound) -> None:
        self.node = node
        self.learner = learner
        self.on_round = on_round
        self.began_at = time.monotonic()

    def __call__(self, local: LocalRound, rounds: int, score: Score | None, tested_rounds: int | None) -> None:
        """Call `on_round`. `score` is from the latest test, made after `tested_rounds`."""
        vector = local.vector.view()
        vector.flags.writeable = False
        self.on_round(
            RoundState(
                node=self.node,
                rounds=rounds,
                seconds=time.monotonic() - self.began_at,
                steps=local.steps,
                samples=local.samples,
                loss=local.loss,
                accuracy=None if score is None else score.accuracy,
                test_loss=None if score is None else score.loss,
                metrics={} if score is None else dict(score.metrics),
                tested_rounds=tested_rounds,
                vector=vector,
                learner=self.learner,
            )
        )


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
    after_round: EachRound | None = None
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
