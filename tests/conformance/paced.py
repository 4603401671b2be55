"""Built-in `digits` with rounds that last a given time: it is slept, so that many nodes on a few processors are as fast
as each would be on its own. Copied into a federation's folder as `task.py`.

How long stands in a node's own `[data]`, `pace_s`, and where it writes down when it stood still, `stalls_path`. A
simulation does not read that, and does not sleep.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from p2pfl.learn.digits import digits
from p2pfl.learn.load import learner_for

PULSE_S = 0.05
LATE_S = 0.1
"""Who comes later than that was stopped, or had no processor; what is less, a shared machine has all the time."""


class Paced:
    """A task, as `p2pfl.learn.task.LearnerFactory` has it."""

    def __init__(self, *, partition: str) -> None:
        self.task = digits(partition=partition)

    def learner(self, context: Any, training: Any) -> Any:
        learner = learner_for(self.task, replace(context, local={}), training)
        if "pace_s" not in context.local:
            return learner
        return PacedLearner(learner, float(context.local["pace_s"]), Stalls(context.path("stalls_path")))


class Stalls:
    """A file with a line for each time that something came late: when it was, what, and by how many seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, what: str, late_s: float) -> None:
        if late_s > LATE_S:
            with self.path.open("a") as out:
                out.write(f"{time.time():.3f} {what} {late_s:.3f}\n")

    def feel(self) -> None:
        """For as long as the process lives: while nobody trains, it may be stopped too."""
        while True:
            began = time.monotonic()
            time.sleep(PULSE_S)
            self.note("process", time.monotonic() - began - PULSE_S)


class PacedLearner:
    """All but the time is the other learner's.

    From one round's end to the next it is `pace_s` and a few exchanges: what is more, one of the node's threads stood
    still, even where the others did not.
    """

    def __init__(self, learner: Any, pace_s: float, stalls: Stalls) -> None:
        self.learner = learner
        self.pace_s = pace_s
        self.stalls = stalls
        self.ended: float | None = None
        threading.Thread(target=stalls.feel, daemon=True).start()
        self.samples = learner.samples
        self.size = learner.size
        self.shape_digest = learner.shape_digest

    def train(self, start: Any, round_index: int) -> Any:
        began = time.monotonic()
        done = self.learner.train(start, round_index)
        time.sleep(max(0.0, self.pace_s - (time.monotonic() - began)))
        before, self.ended = self.ended or began, time.monotonic()
        self.stalls.note("round", self.ended - before - self.pace_s)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)


def task(*, partition: str = "iid") -> Paced:
    return Paced(partition=partition)
