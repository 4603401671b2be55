"""Metrics, each a number computed from a whole set of (outputs, targets), with a direction.

Definitions follow scikit-learn, which the tests compare against, in a few lines of numpy, so that a Raspberry Pi need
not install scikit-learn. Classification takes logits (n, classes, ...) and integer labels (n, ...); one column (n, 1)
of logits is the odds of class 1. Regression takes (n, outputs). A metric is NaN if it is undefined on the set, such as
the AUC of equal labels, or if an output is not finite.

A node's losses are tracked to find out why one of them grows. The loss on the common test set can grow for several
reasons, and not all of them are somebody's fault. An overfitted model fits its own rows better and better. A model
that diverges, because steps are too long or a neighbor lies, fits its own rows worse as well. So the loss of the
node's own rounds distinguishes the two. With privacy noise that loss is private, and the noise alone explains the
growth.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn import intervals
from p2pfl.learn.intervals import Interval

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric. `compute` maps all outputs and targets of a set to a number. `interval` maps them to the number's 95%
    interval, for the choice of rows in the set; None if the metric has no interval.
    """

    compute: Callable[[Any, Any], float]
    higher_is_better: bool
    label: str
    """The name on axes and above columns."""
    interval: Callable[[Any, Any], Interval | None] | None = None

    def __call__(self, outputs: Any, targets: Any) -> float:
        return float(self.compute(outputs, targets))


@dataclass(frozen=True, slots=True)
class Classified:
    """The outputs and labels of a classification. `logs` (n, classes) are logarithms of probabilities."""

    logs: Floats
    labels: Labels

    @property
    def probabilities(self) -> Floats:
        return np.exp(self.logs)

    @property
    def chosen(self) -> Labels:
        return np.asarray(self.logs.argmax(axis=1), dtype=np.int64)

    @property
    def is_binary(self) -> bool:
        return bool(self.logs.shape[1] == 2)

    def one_against_rest(self) -> Iterator[tuple[Floats, NDArray[np.bool_]]]:
        """Yield, for each class of interest, the scores (n,) that order the rows and a mask of the class's rows. With
        two classes only class 1 is of interest, otherwise all.
        """
        if self.is_binary:
            yield self.logs[:, 1] - self.logs[:, 0], self.labels == 1
        else:
            yield from ((self.logs[:, place], self.labels == place) for place in range(self.logs.shape[1]))


def classified(outputs: Any, targets: Any) -> Classified:
    """Interpret outputs as the logits of a classification. Raises ValueError: targets are no labels for them."""
    logits, labels = as_floats(outputs), np.asarray(_plain(targets))
    if logits.ndim == 1 or logits.shape[1] == 1:
        odds = logits.reshape(-1)
        logits = np.stack([np.zeros_like(odds), odds], axis=1)
    else:
        logits = np.moveaxis(logits, 1, -1).reshape(-1, logits.shape[1])
    whole = labels.astype(np.int64).reshape(-1)
    known = len(whole) == len(logits) and bool(np.all(whole == labels.reshape(-1)))
    if not known or not 0 <= whole.min(initial=0) <= whole.max(initial=0) < logits.shape[1]:
        raise ValueError(f"this metric needs one label from 0 to {logits.shape[1] - 1} for each row of outputs")
    if not np.isfinite(logits).all():
        return Classified(np.full_like(logits, np.nan), whole)
    logits = logits - logits.max(axis=1, keepdims=True)
    return Classified(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), whole)


@dataclass(frozen=True, slots=True)
class OfClasses:
    """A classification metric, with an interval if each row has one label."""

    compute: Callable[[Classified], float]
    interval_of: Callable[[Classified], Interval | None]

    def __call__(self, outputs: Any, targets: Any) -> float:
        judged = classified(outputs, targets)
        return self.compute(judged) if _is_known(judged) else np.nan

    def interval(self, outputs: Any, targets: Any) -> Interval | None:
        """Return the interval, or None if the metric is undefined, or if a row has many pixels, which are not
        independent draws.
        """
        judged = classified(outputs, targets)
        return self.interval_of(judged) if _is_known(judged) and len(judged.labels) == len(targets) else None


def _is_known(predictions: Classified) -> bool:
    return len(predictions.labels) > 0 and not bool(np.isnan(predictions.logs).any())


def accuracy(predictions: Classified) -> float:
    return float(np.mean(predictions.chosen == predictions.labels))


def balanced_accuracy(predictions: Classified) -> float:
    """Return the mean recall over the classes that occur."""
    hits = predictions.chosen == predictions.labels
    return float(np.mean([hits[predictions.labels == label].mean() for label in np.unique(predictions.labels)]))


def auc(predictions: Classified) -> float:
    """Return the area under the ROC curve; for several classes, the mean of one-vs-rest over the classes with positive
    and negative rows.
    """
    return _mean(_area(scores, positive) for scores, positive in predictions.one_against_rest())


def average_precision(predictions: Classified) -> float:
    """Return the area under the precision-recall curve, as a sum of steps; for several classes, the mean over those
    that occur.
    """
    return _mean(_precision(scores, positive) for scores, positive in predictions.one_against_rest())


def f1(predictions: Classified) -> float:
    """Return the F1 score of class 1 of two; for more classes, the mean over those that occur or are predicted."""
    chosen, several = predictions.chosen, not predictions.is_binary
    return _mean(
        _f1(chosen == place, predictions.labels == place)
        for place in (range(predictions.logs.shape[1]) if several else [1])
    )


def log_loss(predictions: Classified) -> float:
    return float(np.mean(_log_losses(predictions)))


def brier(predictions: Classified) -> float:
    """Return the mean squared error of the probabilities: of class 1 if there are two classes, summed over all classes
    if there are more.
    """
    return float(np.mean(_brier_scores(predictions)))


def mae(errors: Floats, _: Floats) -> float:
    return float(np.mean(np.abs(errors)))


def rmse(errors: Floats, _: Floats) -> float:
    """Return the root mean square error; for several outputs, their mean."""
    return float(np.mean(np.sqrt(np.mean(errors**2, axis=0))))


def r2(errors: Floats, targets: Floats) -> float:
    """Return the coefficient of determination; for several outputs, their mean. It is NaN if a target is constant."""
    variance = np.var(targets, axis=0)
    if not (variance > 0).all():
        return np.nan
    return float(np.mean(1 - np.mean(errors**2, axis=0) / variance))


@dataclass(frozen=True, slots=True)
class OfNumbers:
    """A regression metric, computed from errors (n, outputs) and targets (n, outputs), with its interval for one
    output.

    Raises ValueError: the numbers of targets and outputs differ.
    """

    compute: Callable[[Floats, Floats], float]
    interval_of: Callable[[Floats, Floats], Interval | None]

    def __call__(self, outputs: Any, targets: Any) -> float:
        pair = _errors(outputs, targets)
        return np.nan if pair is None else self.compute(*pair)

    def interval(self, outputs: Any, targets: Any) -> Interval | None:
        """Return the interval of the metric; for several outputs, as if their errors were fully correlated."""
        pair = _errors(outputs, targets)
        if pair is None:
            return None
        errors, truths = pair
        ends = (self.interval_of(errors[:, place], truths[:, place]) for place in range(errors.shape[1]))
        return intervals.of_mean((0.0, span) for span in ends)


def _errors(outputs: Any, targets: Any) -> tuple[Floats, Floats] | None:
    """Return errors and targets, (n, outputs) each, or None if an output is not finite."""
    predicted, truths = as_floats(outputs), as_floats(targets)
    if predicted.size != truths.size:
        raise ValueError(f"this metric needs one target for each output: {predicted.shape} and {truths.shape}")
    if not predicted.size or not np.isfinite(predicted).all():
        return None
    predicted, truths = predicted.reshape(len(predicted), -1), truths.reshape(len(truths), -1)
    return predicted - truths, truths


def _accuracy_interval(predictions: Classified) -> Interval | None:
    return intervals.wilson(accuracy(predictions), len(predictions.labels))


def _balanced_interval(predictions: Classified) -> Interval | None:
    """Return the interval of balanced accuracy, in which each class's recall is a proportion of separate rows."""
    hits = predictions.chosen == predictions.labels
    rows = [hits[predictions.labels == label] for label in np.unique(predictions.labels)]
    recalls = [(float(part.mean()), intervals.wilson(float(part.mean()), len(part))) for part in rows]
    return intervals.of_mean(recalls, independent=True)


def _auc_interval(predictions: Classified) -> Interval | None:
    return _of_each(predictions, lambda s, p: intervals.area(_area(s, p), int(p.sum()), int((~p).sum())))


def _precision_interval(predictions: Classified) -> Interval | None:
    """Return the interval of average precision from the number of rows of the class, as in Boyd, Eng and Page (ECML
    PKDD 2013, section 3.2), but with Wilson's interval in place of theirs.
    """
    return _of_each(predictions, lambda s, p: intervals.wilson(_precision(s, p), int(p.sum())))


def _of_each(
    predictions: Classified, interval: Callable[[Floats, NDArray[np.bool_]], Interval | None]
) -> Interval | None:
    """Return the interval of the mean over the classes for which the metric is defined. They share their rows."""
    ends = [interval(scores, positive) for scores, positive in predictions.one_against_rest()]
    return intervals.of_mean((0.0, span) for span in ends if span is not None)


def _f1_interval(predictions: Classified) -> Interval | None:
    """Return the interval of F1 = 2J / (1 + J). J is a proportion: among the rows that belong to the class or are
    predicted to, the share for which both hold.
    """
    chosen, labels = predictions.chosen, predictions.labels
    ends = []
    for place in range(predictions.logs.shape[1]) if not predictions.is_binary else (1,):
        either = (chosen == place) | (labels == place)
        if (rows := int(either.sum())) and (span := intervals.wilson(float((chosen == labels)[either].mean()), rows)):
            ends.append((2 * span[0] / (1 + span[0]), 2 * span[1] / (1 + span[1])))
    return intervals.of_mean((0.0, span) for span in ends)


def _log_losses(predictions: Classified) -> Floats:
    return np.asarray(-predictions.logs[np.arange(len(predictions.labels)), predictions.labels])


def _brier_scores(predictions: Classified) -> Floats:
    wrong = predictions.probabilities.copy()
    wrong[np.arange(len(wrong)), predictions.labels] -= 1
    return np.asarray((wrong**2).sum(axis=1) / (2 if predictions.is_binary else 1))


def _rmse_interval(errors: Floats, _: Floats) -> Interval | None:
    """Return the interval of the RMSE, computed on the logarithmic scale, on which squared errors are less skewed."""
    mean = float(np.mean(errors**2))
    ends = intervals.of_influence(0.0, errors**2 / mean) if mean > 0 else None
    return ends and (math.sqrt(mean * math.exp(ends[0])), math.sqrt(mean * math.exp(ends[1])))


def _r2_interval(errors: Floats, targets: Floats) -> Interval | None:
    """Return the interval of R2, from the influence of each row's weight on the ratio of the two sums of squares."""
    variance = float(np.var(targets))
    if not variance > 0:
        return None
    ratio = float(np.mean(errors**2)) / variance
    influence = (errors**2 - ratio * (targets - targets.mean()) ** 2) / variance
    return intervals.of_influence(1 - ratio, influence, most=1.0)


def _area(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """Return the share of pairs (positive, negative) in the right order, where ties count half: the Mann-Whitney U
    statistic.
    """
    first, second = int(positive.sum()), int((~positive).sum())
    if not first or not second:
        return np.nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[place][positive].sum() - first * (first + 1) / 2) / (first * second))


def _precision(scores: Floats, positive: NDArray[np.bool_]) -> float:
    if not positive.any():
        return np.nan
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)  # equal scores are one threshold
    hits = np.cumsum(positive[order])[ends]
    return float(np.sum(np.diff(hits, prepend=0) / hits[-1] * hits / (ends + 1)))


def _f1(chosen: NDArray[np.bool_], positive: NDArray[np.bool_]) -> float:
    either = int(chosen.sum() + positive.sum())
    return 2 * int((chosen & positive).sum()) / either if either else np.nan


def _mean(values: Iterator[float]) -> float:
    """Return the mean of the values that are defined."""
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else np.nan


def as_floats(value: Any) -> Floats:
    return np.asarray(_plain(value), dtype=np.float64)


def _plain(value: Any) -> Any:
    """Convert a torch tensor, on any device, to a numpy array; return anything else unchanged."""
    return value.detach().cpu().double().numpy() if hasattr(value, "detach") else value


BUILT_IN: dict[str, Metric] = {
    name: Metric(compute=metric, higher_is_better=higher_is_better, label=label, interval=metric.interval)
    for name, metric, higher_is_better, label in (
        ("accuracy", OfClasses(accuracy, _accuracy_interval), True, "accuracy"),
        ("balanced_accuracy", OfClasses(balanced_accuracy, _balanced_interval), True, "balanced accuracy"),
        ("auc", OfClasses(auc, _auc_interval), True, "AUC"),
        ("average_precision", OfClasses(average_precision, _precision_interval), True, "average precision"),
        ("f1", OfClasses(f1, _f1_interval), True, "F1"),
        ("log_loss", OfClasses(log_loss, lambda judged: intervals.of_rows(_log_losses(judged))), False, "log loss"),
        ("brier", OfClasses(brier, lambda judged: intervals.of_rows(_brier_scores(judged))), False, "Brier score"),
        ("mae", OfNumbers(mae, lambda errors, _: intervals.of_rows(np.abs(errors))), False, "MAE"),
        ("rmse", OfNumbers(rmse, _rmse_interval), False, "RMSE"),
        ("r2", OfNumbers(r2, _r2_interval), True, "R²"),
    )
}


def named(names: Sequence[str], *, key: str = "task.metrics") -> dict[str, Metric]:
    """Return the built-in metrics with these names, or this one, in the order given.

    Raises UserError: there is no such metric; the error names `key`.
    """
    names = [names] if isinstance(names, str) or not isinstance(names, Sequence) else names
    for name in names:
        if not isinstance(name, str) or name not in BUILT_IN:
            raise UserError("no such metric", key=key, value=name, allowed=", ".join(BUILT_IN))
    return {name: BUILT_IN[name] for name in names}


@dataclass(frozen=True, slots=True)
class Measure:
    """The name of a figure, and whether higher or lower is better."""

    name: str
    label: str
    higher_is_better: bool


ACCURACY = Measure("accuracy", "accuracy", higher_is_better=True)
LOSS = Measure("loss", "loss", higher_is_better=False)


def measured_by(
    metrics: Mapping[str, Metric | Callable[[Any, Any], Any]], main: str | None, *, labels: bool
) -> tuple[Measure, ...]:
    """Return the measures of a task, the main one first. Loss is always included, accuracy if targets are `labels`.

    Without `main`, the main one is accuracy if there is one, else the first of `metrics`, else loss. For a plain
    function, higher is taken to be better.
    """
    own = [
        Measure(name, metric.label, metric.higher_is_better)
        if isinstance(metric, Metric)
        else Measure(name, name, higher_is_better=True)
        for name, metric in metrics.items()
        if name not in (ACCURACY.name, LOSS.name)
    ]
    measures = [*([ACCURACY] if labels or ACCURACY.name in metrics else []), *own, LOSS]
    first = next((measure for measure in measures if measure.name == main), measures[0])
    return (first, *(measure for measure in measures if measure is not first))


WINDOW = 10
"""The window, in rounds, for the median of a loss: single values are too noisy."""
GROWN = 1.25
"""A loss counts as grown if it is at least this many times its best, and exceeds it by SHARE."""
SHARE = 0.1
"""The growth must be at least this share of the first loss: near zero, a ratio means nothing."""
FOLLOWS = 0.25
"""The loss of the node's own rounds counts as grown too if it has grown by at least this share of the test loss's
growth.
"""
DIVERGED = 10.0
"""Without tests, the own rounds' loss counts as grown if it is this many times that of the untrained model."""

DRIVEN, OVERFITTED, NOISY = "driven", "overfitted", "noisy"
"""The reasons for a growing loss on the common test set. Driven: something pushes the model away from where it fits, so
that it fits its own rows worse too. Overfitted: it fits its own rows better. Noisy: there is noise for privacy.
"""


class Growth(NamedTuple):
    """A loss that has grown: why, and a description. `is_lost` is True if an untrained model has a lower one."""

    reason: str
    text: str
    is_lost: bool


@dataclass(slots=True)
class Trend:
    """The losses of one model during training: medians over WINDOW rounds, of which `first` and `best` are kept."""

    latest: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    untrained: float | None = None
    """The very first loss."""
    first: float | None = None
    best: float = float("inf")

    def note(self, loss: float) -> bool:
        """Record a loss; return True if this is the best so far."""
        self.untrained = loss if self.untrained is None else self.untrained
        self.latest.append(loss)
        if len(self.latest) < WINDOW:
            return True
        now = self.now
        self.first = now if self.first is None else self.first
        is_best = now <= self.best
        self.best = min(self.best, now)
        return is_best

    @property
    def now(self) -> float:
        """Return the median of the latest losses."""
        return median(self.latest)

    @property
    def has_grown(self) -> bool:
        if self.first is None:
            return False
        now = self.now
        return now > GROWN * self.best and now - self.best > SHARE * self.first


@dataclass(slots=True)
class Losses:
    """The losses of a node: `own` from its local rounds, `tests` on the common test set. `private` is True if rounds
    have noise, `resumed` if the node goes on with a model, so that the first loss is not that of an untrained one.
    """

    private: bool = False
    resumed: bool = False
    own: Trend = field(default_factory=Trend)
    tests: Trend = field(default_factory=Trend)
    own_at_best: float | None = None
    """The loss of the node's own rounds when the test loss was at its best."""

    def trained(self, loss: float) -> None:
        self.own.note(loss)
        if self.own_at_best is None and self.tests.latest:
            self.own_at_best = self.own.now  # the best test so far came before the first round of this process

    def tested(self, loss: float) -> None:
        if self.tests.note(loss) and self.own.latest:
            self.own_at_best = self.own.now

    @property
    def growth(self) -> Growth | None:
        """Describe the loss that has grown; return None if none has.

        The loss of a node's own rounds also grows when nodes with different data converge. So if there is a common test
        set, that loss only explains why the test loss has grown. Without one, it counts once it is far above the
        untrained model's loss.
        """
        if self.tests.latest:
            if not self.tests.has_grown:
                return None
            text = f"the loss on the test rows is {self.tests.now:.3g}, after {self.tests.best:.3g} at its best"
            is_lost = not self.resumed and self.tests.now > (self.tests.untrained or 0.0)
            return Growth(self._reason(), text, is_lost=is_lost)
        own = self.own
        if self.private or own.untrained is None or not own.has_grown or own.now <= DIVERGED * own.untrained:
            return None
        text = f"the loss of the latest rounds is {own.now:.3g}, after {own.best:.3g} at its best"
        return Growth(DRIVEN, text, is_lost=True)

    def _reason(self) -> str:
        if self.private:
            return NOISY
        if self.own_at_best is None or not self.own.latest:
            return DRIVEN
        follows = self.own.now - self.own_at_best > FOLLOWS * (self.tests.now - self.tests.best)
        return DRIVEN if follows else OVERFITTED
