"""Built-in `digits` with rounds that last a given time: it is slept, so that many nodes on a few processors are as fast
as each would be on its own. Copied into a federation's folder as `task.py`.

How long stands in a node's own `[data]`, `pace_s`. A simulation does not read that, and does not sleep.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from p2pfl.learn.digits import digits
from p2pfl.learn.load import learner_for


class Paced:
    """A task, as `p2pfl.learn.task.LearnerFactory` has it."""

    def __init__(self, *, partition: str) -> None:
        self.task = digits(partition=partition)

    def learner(self, context: Any, training: Any) -> Any:
        pace_s = float(context.local.get("pace_s", 0.0))
        return PacedLearner(learner_for(self.task, replace(context, local={}), training), pace_s)


class PacedLearner:
    """All but the time is the other learner's."""

    def __init__(self, learner: Any, pace_s: float) -> None:
        self.learner = learner
        self.pace_s = pace_s
        self.samples = learner.samples
        self.size = learner.size
        self.shape_digest = learner.shape_digest

    def train(self, start: Any, correction: Any, round_index: int) -> Any:
        began = time.monotonic()
        done = self.learner.train(start, correction, round_index)
        if self.pace_s:
            time.sleep(max(0.0, self.pace_s - (time.monotonic() - began)))
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)


def task(*, partition: str = "iid") -> Paced:
    return Paced(partition=partition)
