"""References without a network of peers, and whether the nodes together are better than those.

A reference is each node trained alone on its own data, or one model trained on all data, with the same optimizer, batch
size and round length, and plain steps. If nodes have their own test sets, a model's score is the mean over the nodes,
as for the federation. A learning rate schedule by time assumes rounds as long as they were in the run.

Two models tested on the same rows are compared row by row, by a bootstrap of the difference with a fixed seed (Efron
and Tibshirani 1993, chapter 16), widened as in `learn.intervals`. If the rows are not available, two intervals must not
overlap, which is a stricter test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from p2pfl.chance import generator
from p2pfl.config.model import TrainingConfig
from p2pfl.config.sections import RateSchedule, parse_schedule
from p2pfl.learn.interface import Learner, RoundStart, Score, Vector, batch_sizes
from p2pfl.learn.intervals import RESAMPLES, Interval, of_mean, percentiles
from p2pfl.learn.metrics import ACCURACY, Measure
from p2pfl.reporting.figures import spread
from p2pfl.reporting.measures import (
    Alone,
    Centralized,
    Comparison,
    ModelScore,
    Point,
    Reference,
    ReferencePoint,
    Statistic,
    mean_intervals,
    metrics_in,
    model_score,
    rounded,
    spreads,
    value_of,
)
from p2pfl.reporting.report import Report

if TYPE_CHECKING:
    from p2pfl.learn.tensors import Samples, TensorSamples
    from p2pfl.learn.trainer import TorchLearner

FEWEST_ROWS = 30
FEWEST_OF_A_CLASS = 5
"""The fewest test rows per class, over all nodes, that allow a comparison: a rule of thumb."""
MOST_VALUES = 20_000
LEAST_RESAMPLES = 200
BETTER, WORSE, OPEN = "better", "worse", "open"
Value = Callable[[Any, Any], float]
Bounded = tuple[float, Interval | None]
"""A value and its interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The outputs (n, ...) of a node's model and of another one on the same test rows, and their targets (n, ...).

    `place` is equal for pairs that share a test set.
    """

    together: Any
    other: Any
    targets: Any
    place: int

    def difference(self, value: Value, rows: Any = slice(None)) -> float:
        """Return the value of `together` minus that of `other`."""
        targets = self.targets[rows]
        return float(value(self.together[rows], targets)) - float(value(self.other[rows], targets))


def paired(pairs: Sequence[Pair], measure: Measure, value: Value) -> Comparison | None:
    """Compare means over nodes, with one pair per node; `value` computes the measure from outputs and targets. Return
    None if it is undefined for all pairs.
    """
    pairs = [pair for pair in pairs if math.isfinite(pair.difference(value))]
    if not pairs:
        return None
    sets = {pair.place: pair.targets for pair in pairs}
    rows = sum(map(len, sets.values()))
    difference = float(np.mean([pair.difference(value) for pair in pairs]))
    few = _too_few(list(sets.values()), rows)
    ends = None if few else _ends(pairs, value, rows - len(sets) + 1)
    if ends is None:
        verdict, why = OPEN, few or "too few of the tables drawn from these rows define it"
    elif ends[0] <= 0 <= ends[1]:
        verdict, why = OPEN, f"the difference may be chance, on {rows:,} test rows"
    else:
        verdict, why = _verdict(difference, measure), f"on the same {rows:,} test rows"
    return Comparison(measure=measure.name, difference=difference, interval=ends, rows=rows, verdict=verdict, why=why)


def by_intervals(together: Bounded, other: Bounded, measure: Measure) -> Comparison | None:
    """Compare two values that have intervals; return None if one has none."""
    (value, ends), (against, others) = together, other
    if ends is None or others is None:
        return None
    difference, overlap = value - against, ends[0] <= others[1] and others[0] <= ends[1]
    return Comparison(
        measure=measure.name,
        difference=difference,
        interval=None,
        verdict=OPEN if overlap else _verdict(difference, measure),
        why="their 95% intervals overlap" if overlap else "their 95% intervals do not overlap",
    )


def against(report: Report, other: Alone | ModelScore | None) -> Comparison | None:
    """Compare a report's mean over the nodes with a reference, by the main measure and its intervals."""
    main = report.main_measure
    value, reference = value_of(report, main), None if other is None else value_of(other, main)
    if value is None or reference is None or other is None:
        return None
    known = float(reference.mean if isinstance(reference, Statistic) else reference)
    together = value.mean, report.intervals.get(main.name)
    return by_intervals(together, (known, other.intervals.get(main.name)), main)


def _verdict(difference: float, measure: Measure) -> str:
    return BETTER if (difference > 0) == measure.higher_is_better else WORSE


def _too_few(sets: Sequence[Any], rows: int) -> str:
    """Say why these targets cannot decide anything; return an empty string if they may."""
    if rows < FEWEST_ROWS:
        return f"there are only {rows} test rows"
    arrays = [np.asarray(targets) for targets in sets]
    if all(one.ndim == 1 and one.dtype.kind in "iu" for one in arrays):
        least = int(np.unique(np.concatenate(arrays), return_counts=True)[1].min())
        if least < FEWEST_OF_A_CLASS:
            return f"there are only {least} test rows of a class"
    return ""


def _ends(pairs: Sequence[Pair], value: Value, rows: int) -> Interval | None:
    """Resample each test set, once for all nodes that share it. If a resample leaves a node's measure undefined, that
    node ignores it.
    """
    draws, found = generator(0, "comparison"), []
    sizes = {pair.place: len(pair.targets) for pair in pairs}
    for _ in range(max(LEAST_RESAMPLES, min(RESAMPLES, MOST_VALUES // (2 * len(pairs))))):
        chosen = {place: draws.integers(size, size=size) for place, size in sizes.items()}
        differences = [pair.difference(value, chosen[pair.place]) for pair in pairs]
        known = [one for one in differences if math.isfinite(one)]
        if not known:
            return None
        found.append(float(np.mean(known)))
    return percentiles(found, rows)


EVALUATIONS = 20
"""The most evaluations in one history."""
MOST_STEPS = 20_000
"""The most steps in a centralized run: more would cost as much as the run itself, long after convergence."""


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
    if parse_schedule(training.schedule) == RateSchedule(name="constant"):
        one, every = pooled.run(goals)
        return Centralized(one_node=one, all_nodes=every)
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
    return model_score(learner.evaluate(learned_alone(learner, rounds, round_s), "test"))


def learned_alone(learner: Learner, rounds: int, round_s: float = 0.0) -> Vector:
    """Train a node's model (d,) for `rounds` rounds on its own data. The learner keeps the personal part of that
    model.
    """
    model = learner.initial()
    for index in range(rounds):
        model = learner.train(RoundStart(model, elapsed_s=index * round_s), index).vector
    return model


def of_alone(scores: Sequence[ModelScore | None]) -> Alone | None:
    """Combine the scores of all nodes, each trained alone; return None if there are no scores."""
    known = [one for one in scores if one is not None]
    if not known:
        return None
    return Alone(
        accuracy=spread(one.accuracy for one in known),
        loss=spread(one.loss for one in known),
        metrics=spreads(one.metrics for one in known),
        intervals=mean_intervals(known),
    )


def reference_point(score: Score | None, training_loss: float) -> ReferencePoint:
    """Make a point of a reference; without a test set, its loss is the training loss."""
    if score is None:
        return ReferencePoint(loss=training_loss)
    return ReferencePoint(
        accuracy=score.accuracy, loss=score.loss, metrics=metrics_in(score), intervals=rounded(score.intervals)
    )


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
        parts = [(score.accuracy if name == ACCURACY.name else score.metrics.get(name), score, n) for score, n in known]
        there = [(value, score.intervals.get(name), n) for value, score, n in parts if value is not None]
        there = [one for one in there if not math.isnan(one[0])]
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
        """Yield a reference after each of these numbers of rounds; no training is added for a number already
        reached.
        """
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
