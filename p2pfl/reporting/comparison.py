"""Compare models that learned together with others: are they better, or are the test rows too few to decide?

Two models that are tested on the same rows are compared row by row: by the bootstrap of the difference, with a fixed
seed (Efron and Tibshirani 1993, chapter 16), widened as in `learn.intervals`. Where rows are not available it takes two
intervals that do not overlap, which demands more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from p2pfl.chance import generator
from p2pfl.learn.intervals import RESAMPLES, Interval, percentiles
from p2pfl.learn.metrics import Measure
from p2pfl.reporting.history import Alone, Comparison, ModelScore, Statistic
from p2pfl.reporting.measures import value_of
from p2pfl.reporting.report import Report

FEWEST_ROWS = 30
FEWEST_OF_A_CLASS = 5
"""The fewest test rows of a class, on all nodes together, for a comparison: a rule of thumb."""
MOST_VALUES = 20_000
LEAST_RESAMPLES = 200
BETTER, WORSE, OPEN = "better", "worse", "open"
Value = Callable[[Any, Any], float]
Bounded = tuple[float, Interval | None]
"""A value and its interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The outputs (n, ...) of a node's model and of another one on the same test rows, and their targets (n, ...).

    `place` is equal for pairs with one test set.
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
    """Compare the means over nodes, each with its pair; `value` is the measure of outputs and targets. None if it is
    defined for no pair.
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
    """Compare two values with intervals; None if one has none."""
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
    """Say why these targets decide nothing; empty where they may."""
    if rows < FEWEST_ROWS:
        return f"there are only {rows} test rows"
    arrays = [np.asarray(targets) for targets in sets]
    if all(one.ndim == 1 and one.dtype.kind in "iu" for one in arrays):
        least = int(np.unique(np.concatenate(arrays), return_counts=True)[1].min())
        if least < FEWEST_OF_A_CLASS:
            return f"there are only {least} test rows of a class"
    return ""


def _ends(pairs: Sequence[Pair], value: Value, rows: int) -> Interval | None:
    """Resample each test set, once for all nodes that have it. Tables that do not define the measure at a node are left
    out there.
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
