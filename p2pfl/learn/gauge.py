"""The figure that must improve for training to go on (`training.stop`), read off a local round and the latest test."""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.config.model import TrainingConfig
from p2pfl.config.stop import parse_stop
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, Score

OF_ROUND = "loss"
"""The figure of the local rounds; all others are measured on the common test set."""
FALLING = (OF_ROUND, "test_loss")
"""Figures of which less is better. Each of the task's metrics has a direction of its own."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """Reads a figure such that lower is better, as the core expects. `sign` is -1 where higher is better."""

    of: str
    sign: float = 1.0

    @property
    def is_tested(self) -> bool:
        return self.of != OF_ROUND

    def read(self, loss: float, score: Score | None) -> float | None:
        """Read the figure. `loss` is that of a local round, `score` the latest on the common test set; None: there is
        none yet.
        """
        figure = loss if not self.is_tested else None if score is None else figures(score).get(self.of)
        return None if figure is None else self.sign * figure


def figures(score: Score) -> dict[str, float]:
    """The figures of a score, by name."""
    known = {"test_loss": score.loss, "accuracy": score.accuracy, **score.metrics}
    return {name: value for name, value in known.items() if value is not None}


def gauge_of(training: TrainingConfig, learner: Learner) -> Gauge | None:
    """Make the gauge of a stop condition; None if nothing has to improve. A test figure makes it test the first model.

    Raises UserError: the task has no such figure.
    """
    stop = None if training.stop is None else parse_stop(training.stop)
    if stop is None or stop.patience is None:
        return None
    if stop.of != OF_ROUND:
        score = learner.evaluate(learner.initial(), "test")
        known = [] if score is None else list(figures(score))
        if stop.of not in known:
            text = "the task has no such test metric" if known else "this node has no test data"
            raise UserError(text, key="training.stop", value=stop.of, allowed=", ".join([OF_ROUND, *known]))
    return Gauge(stop.of, 1.0 if _is_falling(stop.of, learner) else -1.0)


def _is_falling(figure: str, learner: Learner) -> bool:
    metric = getattr(getattr(learner, "task", None), "metrics", {}).get(figure)
    return figure in FALLING or not getattr(metric, "higher_is_better", True)
