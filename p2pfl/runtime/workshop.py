"""Where learning happens: local rounds and evaluations, one at a time, in the trainer's thread."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace

from p2pfl.errors import LearningError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.reporting.sketch import Sketch

log = logging.getLogger("p2pfl")


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a model stands: the node's own rounds and versions up to it; `final`: nothing moves it any more."""

    rounds: int
    version: int
    final: bool = False


@dataclass(frozen=True, slots=True)
class Tested:
    """A score on the common test set, and of which model it is."""

    score: Score
    of: Moment


@dataclass(slots=True)
class Workshop:
    """`tested` is the latest score on the common test set, `loss` that of the latest local round.

    `sketch` is set where a launcher on this machine wants to know how far the nodes are apart.
    """

    learner: Learner
    evaluate_every: int
    sketch: Sketch | None = None
    strict: bool = False
    """Whether a test that fails is an error; else it is logged, and the node goes on."""
    tested: Tested | None = None
    loss: float | None = None
    sketched: list[float] = field(default_factory=list)
    steps: int = 0
    cpu_s: float = 0.0
    """The CPU-seconds of training alone, in its thread."""

    def train(self, start: RoundStart, index: int) -> LocalRound:
        began = time.thread_time()
        local = self.learner.train(start, index)
        self.cpu_s += time.thread_time() - began
        self.loss = local.loss
        self.steps += local.steps
        return replace(local, local=self.learner.local_state())

    def is_due(self, tick: int) -> bool:
        return self.evaluate_every > 0 and tick % self.evaluate_every == 0

    def sketch_of(self, vector: Vector) -> list[float]:
        """Of `vector` (d,); empty where nobody wants to know. Any thread may ask."""
        return [] if self.sketch is None else [round(float(value), 6) for value in self.sketch.of(vector)]

    def measure(self, vector: Vector, of: Moment) -> None:
        """Score `vector` (d,) on the common test set. Raises LearningError: the task failed, and this is `strict`."""
        self.sketched = self.sketch_of(vector)
        try:
            score = self.learner.evaluate(vector, "test")
        except LearningError as error:
            if self.strict:
                raise
            log.error("evaluation failed: %s", error)  # noqa: TRY400 - the user's task, not our traceback
        else:
            self.tested = None if score is None else Tested(score, of)  # in one step: others read it meanwhile
