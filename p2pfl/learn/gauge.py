"""The figure that must keep improving for training to continue (`training.stop`), read from a local round and the
latest test.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.config.model import TrainingConfig
from p2pfl.config.sections import parse_stop
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, Score

OF_ROUND = "loss"
"""The figure that comes from local rounds; all others are measured on the common test set."""
FALLING = (OF_ROUND, "test_loss")
"""Figures for which lower is better. Each of the task's metrics states its own direction."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """Reads a figure and orients it so that lower is better, as the core expects. `sign` is -1 if higher is better."""

    of: str
    sign: float = 1.0

    @property
    def is_tested(self) -> bool:
        return self.of != OF_ROUND

    def read(self, loss: float, score: Score | None) -> float | None:
        """Return the figure, or None if there is none yet. `loss` comes from a local round, `score` is the latest on
        the common test set.
        """
        figure = loss if not self.is_tested else None if score is None else figures(score).get(self.of)
        return None if figure is None else self.sign * figure


def figures(score: Score) -> dict[str, float]:
    """Return the figures in a score, by name."""
    known = {"test_loss": score.loss, "accuracy": score.accuracy, **score.metrics}
    return {name: value for name, value in known.items() if value is not None}


def gauge_of(training: TrainingConfig, learner: Learner) -> Gauge | None:
    """Make the gauge for a stop condition; return None if nothing has to improve. For a test figure, the initial model
    is tested once, to check that the figure exists.

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
