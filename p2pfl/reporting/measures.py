"""The figures of a run over time, the measures of a task in them, and references without a network of peers.

Everything with figures of a model (a line of a node, a point of a history, a report) has `accuracy`, `metrics` by name,
and the loss, as `test_loss` where there is a training loss too: `value_of` finds one of them by a `Measure`. A task's
main metric comes first, then the others, then the loss.

A reference is each node trained alone on its own data, or one model trained on all data, with the same optimizer, batch
size and round length, and plain steps. If nodes have their own test sets, a model's score is the mean over the nodes,
as for the federation. A learning rate schedule by time assumes rounds as long as they were in the run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional, TypeAlias, TypeVar

import msgspec
import numpy as np

from p2pfl.config.model import TrainingConfig
from p2pfl.config.sections import RateSchedule, parse_schedule
from p2pfl.learn.interface import Learner, RoundStart, Score, Vector, batch_sizes
from p2pfl.learn.intervals import Interval, of_mean
from p2pfl.learn.metrics import ACCURACY, LOSS, Measure, measured_by
from p2pfl.reporting.status import MeanAndMax

if TYPE_CHECKING:
    from p2pfl.learn.tensors import Samples, TensorSamples
    from p2pfl.learn.trainer import TorchLearner

MOST_SHOWN = 5
"""The most measures that a table shows for each node; reports have all."""
EVALUATIONS = 20
"""The most evaluations in one history."""
MOST_STEPS = 20_000
"""The most steps in a centralized run: more would cost as much as the run itself, long after convergence."""


Figure = TypeVar("Figure")
if TYPE_CHECKING:
    Maybe: TypeAlias = Figure | Any
else:
    Maybe = Optional
"""None if the run has no such figure. A type checker lets `report.accuracy.min` pass, as for a task that has one."""


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
    rounds: Maybe[Statistic] = None
    tested_rounds: Maybe[Statistic] = None
    """The rounds after which the models were tested, fewer than `rounds` where not every round is; real runs only."""
    accuracy: Maybe[Statistic] = None
    loss: Maybe[Statistic] = None
    """The loss on the common test set."""
    metrics: dict[str, Statistic] = {}
    """The task's own metrics on the common test set, by name."""
    train_loss: Maybe[Statistic] = None
    consensus_distance: float | None = None
    neighbor_distance: Maybe[Statistic] = None
    """The distance between nodes and the replicas of their neighbors; real runs only."""
    staleness: Maybe[MeanAndMax] = None
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


class References(msgspec.Struct, kw_only=True):
    """The results of the same training without a network of peers."""

    alone: Alone | None = None
    """Each node trained on its own data only; null unless the run was started with references."""
    centralized: Centralized | None = None
    """A model trained on all data; null if the data cannot be pooled."""
    fedavg: Reference | None = None
    """A server that averages all models each round; null if part of the model is personal."""


def rounds_beyond(rounds: int, asked: int | None) -> int | None:
    """Count the rounds trained beyond those asked for; None if no number was asked for."""
    return None if asked is None else max(0, rounds - asked)


def measures_of(sources: Iterable[Any]) -> tuple[Measure, ...]:
    """Return the measures of the first of `sources` that has any.

    If none has, return the loss, preceded by accuracy if a source has it.
    """
    known = list(sources)
    for source in known:
        if measures := getattr(source, "measures", None):
            return tuple(measures)
    return (ACCURACY, LOSS) if not known or any(source.accuracy is not None for source in known) else (LOSS,)


def measures_in(learner: Learner, score: Score | None) -> list[Measure]:
    """Return the measures of a learner. If it names none, return those in its latest `score`, or none before the first.

    The direction of such a metric is unknown: higher counts as better.
    """
    if measures := getattr(learner, "measures", ()):
        return list(measures)
    if score is None:
        return []
    return list(measured_by(dict.fromkeys(score.metrics, max), None, labels=score.accuracy is not None))


def shown(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return the measures for which a table has room. The loss is always included; it comes last unless it is the main
    one.
    """
    others = [measure for measure in measures[1:] if measure.name != LOSS.name]
    last = [measure for measure in measures[1:] if measure.name == LOSS.name]
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
    known = [source for source in sources if source is not None]
    intervals: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(name for source in known for name in source.intervals):
        having = [source for source in known if _figure(source, name) is not None]
        ends = of_mean((0.0, source.intervals.get(name)) for source in having)
        if ends is not None:
            intervals[name] = ends
    return rounded(intervals)


def _figure(source: Any, name: str) -> Any:
    return source.accuracy if name == ACCURACY.name else source.metrics.get(name)


def model_score(score: Score | None) -> ModelScore | None:
    """Convert a model's score to its form in a report."""
    if score is None:
        return None
    return ModelScore(
        accuracy=score.accuracy, loss=score.loss, metrics=metrics_in(score), intervals=rounded(score.intervals)
    )


def spread(values: Iterable[float | None]) -> Statistic | None:
    """Return mean, minimum and maximum; None if there are no values, NaN if one of them is NaN."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return Statistic(mean=float(np.mean(known)), min=float(np.min(known)), max=float(np.max(known)))


def spreads(scores: Iterable[Mapping[str, float | None]], *, defined: bool = False) -> dict[str, Statistic]:
    """Compute mean, minimum and maximum of each metric, by name. With `defined`, ignore scores in which the metric is
    not a number.
    """
    by_name: dict[str, list[float]] = {}
    for metrics in scores:
        for name, value in metrics.items():
            if value is not None and not (defined and math.isnan(value)):
                by_name.setdefault(name, []).append(value)
    return {name: Statistic(math.fsum(row) / len(row), *_ends(row)) for name, row in by_name.items()}


def _ends(values: list[float]) -> tuple[float, float]:
    return (math.nan, math.nan) if any(map(math.isnan, values)) else (min(values), max(values))


# -- references --------------------------------------------------------------------------------------------------------


def centralized(
    learners: Sequence[TorchLearner],
    rounds: int,
    *,
    rows: TensorSamples | None = None,
    most_steps: int = MOST_STEPS,
    round_s: float = 0.0,
) -> Centralized | None:
    """Train one model on all data; return None if the data cannot be pooled.

    The first result is after as many steps as one of `learners` takes in `rounds` rounds, on average; the second after
    as many as all of them together, or `most_steps`. Each has accuracy, loss (on the test set, or in training if there
    is no test set), metrics, steps and history. `rows` has all data, if they are already in one set; `round_s` is the
    duration of a round. A learning rate schedule is stretched to the length of the second.
    """
    rows = joined([learner.train_set for learner in learners]) if rows is None else rows
    if rows is None:
        return None
    first = learners[0]
    steps = [len(batch_sizes(first.training, learner.samples)) for learner in learners]
    training = replace(first.training, local_steps=round(sum(steps) / len(steps)), local_epochs=None)
    tests = _tests_of(learners)
    goals = rounds, min(rounds * len(steps), most_steps // (training.local_steps or 1))
    pooled = _Pooled(_pooled_learner(first, rows, training), tests, round_s)
    if parse_schedule(training.schedule) == RateSchedule():
        single, every = pooled.run(goals)
        return Centralized(one_node=single, all_nodes=every)
    stretched = str(parse_schedule(training.schedule).stretched(goals[1] / goals[0]))
    longer = _Pooled(_pooled_learner(first, rows, replace(training, schedule=stretched)), tests, round_s)
    return Centralized(one_node=next(pooled.run(goals[:1])), all_nodes=next(longer.run(goals[1:])))


def joined(sets: Sequence[Samples]) -> TensorSamples | None:
    """Join all rows in one set; return None if they are read row by row, or differ in shape or dtype."""
    import torch  # noqa: PLC0415 - a task without torch has no such sets

    from p2pfl.learn.tensors import TensorSamples  # noqa: PLC0415 - as above

    tensors = [samples for samples in sets if isinstance(samples, TensorSamples)]
    kinds = {(s.inputs.shape[1:], s.inputs.dtype, s.targets.shape[1:], s.targets.dtype) for s in tensors}
    if len(tensors) < len(sets) or len(kinds) != 1:
        return None
    return TensorSamples(torch.cat([s.inputs for s in tensors]), torch.cat([s.targets for s in tensors]))


def alone(learner: Learner, rounds: int, round_s: float = 0.0) -> ModelScore | None:
    """Score a node's model on its test set after `rounds` rounds on its own data, without neighbors.

    Return None if there is no test set. This changes the personal part of the learner's model.
    """
    model = learner.initial()
    for index in range(rounds):
        model = learner.train(RoundStart(model, elapsed_s=index * round_s), index).vector
    return model_score(learner.evaluate(model, "test"))


def beside(report: Any, other: Alone | ModelScore | None) -> str | None:
    """Say by how much the mean over a `Report`'s nodes differs from a reference, by the main measure, and whether their
    95% intervals show which is better; return None if one has no interval.
    """
    main = report.main_measure
    value, reference = value_of(report, main), None if other is None else value_of(other, main)
    if value is None or reference is None or other is None:
        return None
    ends, others = report.intervals.get(main.name), other.intervals.get(main.name)
    if ends is None or others is None:
        return None
    difference = value.mean - (reference.mean if isinstance(reference, Statistic) else reference)
    if ends[0] <= others[1] and others[0] <= ends[1]:
        verdict = "this does not show which is better: their 95% intervals overlap"
    else:
        better = "better" if (difference > 0) == main.higher_is_better else "worse"
        verdict = f"together is {better}: their 95% intervals do not overlap"
    return f"{main.label} {difference:+.3g}: {verdict}"


def of_alone(scores: Sequence[ModelScore | None]) -> Alone | None:
    """Combine the scores of all nodes, each trained alone; return None if there are no scores."""
    known = [score for score in scores if score is not None]
    if not known:
        return None
    return Alone(
        accuracy=spread(score.accuracy for score in known),
        loss=spread(score.loss for score in known),
        metrics=spreads(score.metrics for score in known),
        intervals=mean_intervals(known),
    )


def reference_point(score: Score | None, training_loss: float) -> ReferencePoint:
    """Make a point of a reference; without a test set, its loss is the training loss."""
    result = model_score(score) or ModelScore(loss=training_loss)
    return ReferencePoint(**msgspec.structs.asdict(result))


def with_history(history: list[ReferencePoint]) -> Reference:
    """Make a reference from the last of these points, with all of them as its history."""
    return Reference(**msgspec.structs.asdict(history[-1]), history=history)


def moments(rounds: int) -> list[int]:
    """Return the rounds after which a model is evaluated: evenly spaced and including the last."""
    count = min(rounds, EVALUATIONS)
    return [rounds * (place + 1) // count for place in range(count)]


def mean_score(scores: Iterable[tuple[Score | None, int]]) -> Score | None:
    """Average the scores of one model on several test sets, each weighted by the number of nodes that have it.

    If a metric is undefined on a set, the mean ignores that set. A single score is returned unchanged; without scores,
    return None.
    """
    known = [(score, nodes) for score, nodes in scores if score is not None]
    scored = [score for score, _ in known]
    if len(known) < 2:
        return scored[0] if scored else None
    names = dict.fromkeys(name for score, _ in known for name in score.metrics)
    return Score(
        accuracy=None if scored[0].accuracy is None else _mean((score.accuracy, nodes) for score, nodes in known),
        loss=math.fsum(score.loss * nodes for score, nodes in known) / sum(nodes for _, nodes in known),
        samples=sum(score.samples for score in scored),
        metrics={name: _mean((score.metrics.get(name, math.nan), nodes) for score, nodes in known) for name in names},
        intervals=dict(_intervals_of_mean(known)),
    )


def _intervals_of_mean(known: Sequence[tuple[Score, int]]) -> Iterator[tuple[str, Interval]]:
    """Yield the intervals of means over test sets without common rows, each weighted by its number of nodes."""
    for name in dict.fromkeys(name for score, _ in known for name in score.intervals):
        parts = [(_figure(score, name), score.intervals.get(name), nodes) for score, nodes in known]
        there = [row for row in parts if row[0] is not None and not math.isnan(row[0])]
        ends = of_mean(((value, ends) for value, ends, _ in there), [n for *_, n in there], independent=True)
        if ends is not None:
            yield name, ends


def round_seconds(history: Sequence[Point]) -> float:
    """Return the average duration of a training round in a run, including mixing and waiting; 0 if there was none."""
    counted = [(point.time_s, point.rounds.mean) for point in history if point.rounds is not None]
    if not counted or not counted[-1][1]:
        return 0.0
    most = counted[-1][1]
    began = max((time_s for time_s, rounds in counted if not rounds), default=counted[0][0])
    return max(0.0, next(time_s for time_s, rounds in counted if rounds >= most) - began) / most


def _mean(values: Iterable[tuple[float | None, int]]) -> float:
    """Average values, each weighted by its number of nodes; NaN where there are no nodes."""
    known = [(value, nodes) for value, nodes in values if value is not None and not math.isnan(value)]
    return math.fsum(value * nodes for value, nodes in known) / sum(nodes for _, nodes in known) if known else math.nan


def _tests_of(learners: Sequence[TorchLearner]) -> list[tuple[Samples, int]]:
    """Return the distinct test sets, each with the number of nodes that have it."""
    from p2pfl.learn.tensors import Distinct  # noqa: PLC0415 - torch

    distinct, counts = Distinct(), Counter[int]()
    for learner in learners:
        counts[distinct.add(learner.test_set)] += 1
    return [(samples, counts[number]) for number, samples in enumerate(distinct.sets)]


class _Pooled:
    """One model trained on all data: `learner` has all rows, `tests` has the sets that it is tested on."""

    def __init__(self, learner: TorchLearner, tests: Sequence[tuple[Samples, int]], round_s: float) -> None:
        self.learner, self.tests, self.round_s = learner, tests, round_s

    def run(self, goals: Sequence[int]) -> Iterator[Reference]:
        """Yield a reference after each of these numbers of rounds; no training is added for one already reached."""
        learner, steps = self.learner, self.learner.training.local_steps or 1
        model, done, history = learner.initial(), 0, list[ReferencePoint]()
        for goal in goals:
            for moment in moments(goal):
                loss = math.nan
                for index in range(done, moment):
                    local = learner.train(RoundStart(model, elapsed_s=index * self.round_s), index)
                    model, loss = local.vector, local.loss
                if moment > done:
                    done = moment
                    point = reference_point(self._score(model), loss)
                    point.steps = done * steps
                    history.append(point)
            yield with_history(list(history))

    def _score(self, model: Vector) -> Score | None:
        return mean_score((self._score_on(model, samples), nodes) for samples, nodes in self.tests)

    def _score_on(self, model: Vector, samples: Samples) -> Score | None:
        self.learner.test_set = samples
        return self.learner.evaluate(model, "test")


def _pooled_learner(first: TorchLearner, rows: TensorSamples, training: TrainingConfig) -> TorchLearner:
    from p2pfl.learn.trainer import TorchLearner  # noqa: PLC0415 - torch

    learner = TorchLearner(first.task, replace(first.context, node=0), training)
    return learner.at_node(learner.context, rows, None)
