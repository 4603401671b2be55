"""The figures of a run over time and of its references, and the measures of a task in them.

Everything with figures of a model (a line of a node, a point of a history, a report) has `accuracy`, `metrics` by name,
and the loss, as `test_loss` where there is a training loss too: `value_of` finds one of them by a `Measure`. A task's
main metric comes first, then the others, then the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from p2pfl.learn.interface import Learner, Score
from p2pfl.learn.intervals import of_mean
from p2pfl.learn.metrics import ACCURACY, LOSS, Measure, measured_by
from p2pfl.reporting.status import MeanAndMax


class Statistic(msgspec.Struct, frozen=True):
    """A figure over the honest nodes that have a value; NaN if one of them is NaN."""

    mean: float
    min: float
    max: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.mean) and math.isfinite(self.min) and math.isfinite(self.max)


class Point(msgspec.Struct, kw_only=True):
    """One moment of a run's history."""

    time_s: float
    """Seconds since the start; virtual time in a simulation."""
    rounds: Statistic | None = None
    tested_rounds: Statistic | None = None
    """The rounds after which the models were tested, fewer than `rounds` where not every round is; real runs only."""
    accuracy: Statistic | None = None
    loss: Statistic | None = None
    """The loss on the common test set."""
    metrics: dict[str, Statistic] = {}
    """The task's own metrics on the common test set, by name."""
    train_loss: Statistic | None = None
    consensus_distance: float | None = None
    neighbor_distance: Statistic | None = None
    """The distance between nodes and the replicas of their neighbors; real runs only."""
    staleness: MeanAndMax | None = None
    bytes_sent: int | None = None
    messages_sent: int | None = None
    running: int | None = None
    """The number of nodes still running."""
    evaluated: int | None = None
    """The number of nodes in the figures; null if all honest ones are."""


class ModelScore(msgspec.Struct, kw_only=True):
    accuracy: float | None = None
    loss: float | None = None
    metrics: dict[str, float | None] = {}
    """The task's own metrics, by name."""
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of accuracy and metrics, by name, for the choice of test rows."""


class ReferencePoint(ModelScore):
    """One moment of a reference run."""

    rounds: int | None = None
    steps: int | None = None
    bytes_sent: int | None = None


class Reference(ReferencePoint):
    history: list[ReferencePoint] = []


class Centralized(msgspec.Struct, kw_only=True):
    """A model trained on all data: once with as many steps as one node takes, and once with as many as all nodes."""

    one_node: Reference | None = None
    all_nodes: Reference | None = None


class Alone(msgspec.Struct, kw_only=True):
    """The scores on the common test set, over all nodes, of models that were each trained on one node's data."""

    accuracy: Statistic | None = None
    loss: Statistic | None = None
    metrics: dict[str, Statistic] = {}
    intervals: dict[str, tuple[float, float]] = {}
    """95% intervals of the means, by name, as if all nodes were tested on the same rows."""


class Comparison(msgspec.Struct, kw_only=True):
    """The difference between the mean over the nodes and a reference, and whether the choice of test rows alone could
    explain it.
    """

    measure: str
    """The task's main measure."""
    difference: float
    """The mean over the nodes minus the reference."""
    interval: tuple[float, float] | None
    """The 95% interval of the difference; null if the models were tested on different rows, or on too few."""
    rows: int | None = None
    """The total number of test rows."""
    verdict: str
    """"better", "worse", or "open": the figures do not decide which is better."""
    why: str
    """The reason, in words."""


class References(msgspec.Struct, kw_only=True):
    """The results of the same training without a network of peers."""

    alone: Alone | None = None
    """Each node trained on its own data only; null unless the run was started with references."""
    against_alone: Comparison | None = None
    """The nodes together compared with each alone; null if they were not compared."""
    centralized: Centralized | None = None
    """A model trained on all data; null if the data cannot be pooled."""
    against_pooled: Comparison | None = None
    """The nodes together, compared with a model trained on all data with as many steps as all nodes."""
    fedavg: Reference | None = None
    """A server that averages all models each round; null if part of the model is personal."""


MOST_SHOWN = 5
"""The most measures that a table shows for each node; reports have all."""


def measures_of(sources: Iterable[Any]) -> tuple[Measure, ...]:
    """Return the measures of the first of `sources` that has any.

    If none has, return the loss, preceded by accuracy if a source has it.
    """
    known = list(sources)
    for one in known:
        if told := getattr(one, "measures", None):
            return tuple(told)
    return (ACCURACY, LOSS) if not known or any(one.accuracy is not None for one in known) else (LOSS,)


def measures_in(learner: Learner, score: Score | None) -> list[Measure]:
    """Return the measures of a learner. If it names none, return those in its latest `score`, or none before the first.

    The direction of such a metric is unknown: higher counts as better.
    """
    if told := getattr(learner, "measures", ()):
        return list(told)
    if score is None:
        return []
    return list(measured_by(dict.fromkeys(score.metrics, max), None, labels=score.accuracy is not None))


def shown(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return the measures for which a table has room. The loss is always included; it comes last unless it is the main
    one.
    """
    others = [one for one in measures[1:] if one.name != LOSS.name]
    last = [one for one in measures[1:] if one.name == LOSS.name]
    return (*measures[:1], *others[: MOST_SHOWN - 1 - len(last)], *last)


def value_of(source: Any, measure: Measure) -> Any:
    """Return the value of a measure in `source` on the common test set: a number, a `Statistic`, or None."""
    if measure.name == ACCURACY.name:
        return source.accuracy
    if measure.name == LOSS.name:
        return source.test_loss if hasattr(source, "test_loss") else source.loss
    return source.metrics.get(measure.name)


def local_value_of(source: Any, measure: Measure) -> Any:
    """Return the value of a measure on the node's own training data; reports have no loss there."""
    if measure.name == ACCURACY.name:
        return source.local_accuracy
    return source.local_metrics.get(measure.name)


def worst(values: Statistic, measure: Measure) -> float:
    """Return the end of a statistic that belongs to the worst node."""
    return values.min if measure.higher_is_better else values.max


def in_words(source: Any, measures: Sequence[Measure]) -> str | None:
    """Describe the main measure over all nodes, as in `AUC 0.912 (worst 0.874)`; return None if nothing was tested."""
    main = (measures or measures_of([source]))[0]
    values: Statistic | None = value_of(source, main)
    if values is None:
        return None
    form = ".3f" if main.higher_is_better else ".4g"
    return f"{main.label} {values.mean:{form}} (worst {worst(values, main):{form}})"


def merit(value: float | None, measure: Measure) -> tuple[bool, float]:
    """Make a sort key that puts the worst first; a missing value precedes all others."""
    if value is None or math.isnan(value):
        return (False, 0.0)
    return (True, value if measure.higher_is_better else -value)


def metrics_in(score: Score) -> dict[str, float | None]:
    """Return the metrics of a score as in a report: None for a metric that is undefined on the set, such as the AUC if
    there is only one class.

    If the model has diverged, so that its loss is not finite either, the metrics are returned unchanged.
    """
    if not math.isfinite(score.loss):
        return dict(score.metrics)
    return {name: None if math.isnan(value) else value for name, value in score.metrics.items()}


def rounded(intervals: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Round intervals for output to six digits."""
    return {name: (float(f"{low:.6g}"), float(f"{high:.6g}")) for name, (low, high) in intervals.items()}


def mean_intervals(sources: Iterable[Any]) -> dict[str, tuple[float, float]]:
    """Compute the intervals of means over nodes from each node's `intervals`, by name, as if all nodes were tested on
    the same rows.

    If a node has no interval for a metric, the mean gets none.
    """
    known = [one for one in sources if one is not None]
    found: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(name for one in known for name in one.intervals):
        having = [one for one in known if _figure(one, name) is not None]
        ends = of_mean((0.0, one.intervals.get(name)) for one in having)
        if ends is not None:
            found[name] = ends
    return rounded(found)


def _figure(source: Any, name: str) -> Any:
    return source.accuracy if name == ACCURACY.name else source.metrics.get(name)


def model_score(score: Score | None) -> ModelScore | None:
    """Convert a model's score to its form in a report."""
    if score is None:
        return None
    return ModelScore(
        accuracy=score.accuracy, loss=score.loss, metrics=metrics_in(score), intervals=rounded(score.intervals)
    )


def spreads(scores: Iterable[Mapping[str, float | None]], *, defined: bool = False) -> dict[str, Statistic]:
    """Compute mean, minimum and maximum of each metric, by name. With `defined`, ignore scores in which the metric is
    not a number.
    """
    found: dict[str, list[float]] = {}
    for metrics in scores:
        for name, value in metrics.items():
            if value is not None and not (defined and math.isnan(value)):
                found.setdefault(name, []).append(value)
    return {name: Statistic(math.fsum(row) / len(row), *_ends(row)) for name, row in found.items()}


def _ends(values: list[float]) -> tuple[float, float]:
    return (math.nan, math.nan) if any(map(math.isnan, values)) else (min(values), max(values))
