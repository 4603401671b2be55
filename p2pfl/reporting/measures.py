"""The measures of a task in tables and pictures: its main metric first, then its others, then the loss.

Everything with figures of a model (a line of a node, a point of a history, a report) has `accuracy`, `metrics` by name,
and the loss, as `test_loss` where there is a training loss too. This module finds one of them by a `Measure`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from p2pfl.learn.interface import Learner, Score
from p2pfl.learn.intervals import of_mean
from p2pfl.learn.metrics import ACCURACY, LOSS, Measure, measured_by
from p2pfl.reporting.history import ModelScore, Statistic

MOST_SHOWN = 5
"""The most measures that a table shows of each node; reports have all."""


def measures_of(sources: Iterable[Any]) -> tuple[Measure, ...]:
    """The measures of the first of `sources` that has any. If none has: accuracy, if a source has one, and loss."""
    known = list(sources)
    for one in known:
        if told := getattr(one, "measures", None):
            return tuple(told)
    return (ACCURACY, LOSS) if not known or any(one.accuracy is not None for one in known) else (LOSS,)


def measures_in(learner: Learner, score: Score | None) -> list[Measure]:
    """The measures of a learner; if it names none, those in its latest `score`, empty before there is one.

    Such a metric has only a name: higher counts as better.
    """
    if told := getattr(learner, "measures", ()):
        return list(told)
    if score is None:
        return []
    return list(measured_by(dict.fromkeys(score.metrics, max), None, labels=score.accuracy is not None))


def shown(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """The measures for which a table has room: the loss is always included, and last unless it is the main one."""
    others = [one for one in measures[1:] if one.name != LOSS.name]
    last = [one for one in measures[1:] if one.name == LOSS.name]
    return (*measures[:1], *others[: MOST_SHOWN - 1 - len(last)], *last)


def value_of(source: Any, measure: Measure) -> Any:
    """The value of a measure in `source` on the common test set: a number, a `Statistic`, or None."""
    if measure.name == ACCURACY.name:
        return source.accuracy
    if measure.name == LOSS.name:
        return source.test_loss if hasattr(source, "test_loss") else source.loss
    return source.metrics.get(measure.name)


def local_value_of(source: Any, measure: Measure) -> Any:
    """The value of a measure on the node's own training data; reports have no loss there."""
    if measure.name == ACCURACY.name:
        return source.local_accuracy
    return source.local_metrics.get(measure.name)


def worst(values: Statistic, measure: Measure) -> float:
    """The end of a statistic at which the worst node is."""
    return values.min if measure.higher_is_better else values.max


def in_words(source: Any, measures: Sequence[Measure]) -> str | None:
    """Write the main measure over all nodes, `AUC 0.912 (worst 0.874)`; None where nothing is tested."""
    main = (measures or measures_of([source]))[0]
    values: Statistic | None = value_of(source, main)
    if values is None:
        return None
    form = ".3f" if main.higher_is_better else ".4g"
    return f"{main.label} {values.mean:{form}} (worst {worst(values, main):{form}})"


def merit(value: float | None, measure: Measure) -> tuple[bool, float]:
    """Make a sort key, the worst first; a missing value comes before all."""
    if value is None or math.isnan(value):
        return (False, 0.0)
    return (True, value if measure.higher_is_better else -value)


def metrics_in(score: Score) -> dict[str, float | None]:
    """Return the metrics of a score as in a report: None for one that the set does not define, such as the AUC of one
    class.

    For a model that has diverged, whose loss is not finite either, they stay as they are.
    """
    if not math.isfinite(score.loss):
        return dict(score.metrics)
    return {name: None if math.isnan(value) else value for name, value in score.metrics.items()}


def rounded(intervals: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Round intervals for output to six digits."""
    return {name: (float(f"{low:.6g}"), float(f"{high:.6g}")) for name, (low, high) in intervals.items()}


def mean_intervals(sources: Iterable[Any]) -> dict[str, tuple[float, float]]:
    """Compute the intervals of the mean of nodes that each have `intervals`, by name, as if all were tested on the same
    rows.

    A metric for which some node has no interval gets none.
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
    """The score of a model as in a report."""
    if score is None:
        return None
    return ModelScore(
        accuracy=score.accuracy, loss=score.loss, metrics=metrics_in(score), intervals=rounded(score.intervals)
    )


def spreads(scores: Iterable[Mapping[str, float | None]], *, defined: bool = False) -> dict[str, Statistic]:
    """Compute mean, minimum and maximum of each metric, by name. `defined`: over the scores in which it is a number."""
    found: dict[str, list[float]] = {}
    for metrics in scores:
        for name, value in metrics.items():
            if value is not None and not (defined and math.isnan(value)):
                found.setdefault(name, []).append(value)
    return {name: Statistic(math.fsum(row) / len(row), *_ends(row)) for name, row in found.items()}


def _ends(values: list[float]) -> tuple[float, float]:
    return (math.nan, math.nan) if any(map(math.isnan, values)) else (min(values), max(values))
