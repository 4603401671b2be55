"""95% intervals of metrics, by standard methods. They cover the error due to the choice of test rows.

All assume rows drawn independently, with one outcome per row. For a proportion this is Wilson's score interval (1927);
for the area under a ROC curve, Newcombe's analogue with Hanley and McNeil's variance (Statistics in Medicine 25:559,
2006, method 5). Unlike an estimate plus or minus two standard errors, both stay valid when there are few rows and all
are right. Means over rows get Student's interval. Intervals are combined by MOVER (Zou and Donner, Statistics in
Medicine 27:1693, 2008). numpy only: a Raspberry Pi installs no scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator

Interval = tuple[float, float]
Floats = NDArray[np.float64]

LEVEL = 0.95
Z = 1.959963984540054
"""The two-sided normal quantile for LEVEL."""
RESAMPLES = 1000
_FEW = (12.7062, 4.3027)
"""Student's quantiles for LEVEL at one and two degrees of freedom."""
_HALVINGS = 60


def wilson(share: float, rows: float) -> Interval | None:
    """Return the score interval for a proportion `share` of `rows` (Wilson 1927, JASA 22:209), or None if there are no
    rows.
    """
    if not rows > 0 or math.isnan(share):
        return None
    squared = Z * Z / rows
    center = (share + squared / 2) / (1 + squared)
    half = Z * math.sqrt(share * (1 - share) / rows + squared / (4 * rows)) / (1 + squared)
    return max(0.0, min(center - half, share)), min(1.0, max(center + half, share))


def area(theta: float, first: int, second: int) -> Interval | None:
    """Return the interval for an area under a ROC curve, `theta`, from `first` rows of one class and `second` of the
    other, or None if a class has no rows.

    Newcombe 2006, method 5: the ends are where `theta` is Z standard errors away, by Hanley and McNeil's variance at
    those points (Radiology 143:29, 1982), with the mean of both counts in place of each.
    """
    if not first or not second or math.isnan(theta):
        return None
    spare = (first + second) / 2 - 1

    def is_within(at: float) -> bool:
        factor = 1 + spare * ((1 - at) / (2 - at) + at / (1 + at))
        return (theta - at) ** 2 <= Z * Z * at * (1 - at) * factor / (first * second)

    return _edge(is_within, theta, 0.0), _edge(is_within, theta, 1.0)


def of_rows(values: Floats) -> Interval | None:
    """Return Student's t interval for the mean of `values` (n,), one per row and all at least 0, or None for a single
    row.
    """
    ends = of_influence(float(np.mean(values)), values) if len(values) else None
    return ends and (max(0.0, ends[0]), ends[1])


def of_influence(value: float, influence: Floats, *, most: float = math.inf) -> Interval | None:
    """Return the interval for a `value` that is a smooth function of means, by the delta method.

    `influence` (n,) is the derivative of the value with respect to the weight of each row (Efron 1982, The Jackknife,
    chapter 6); Student's t replaces the normal distribution.
    """
    if len(influence) < 2 or not np.isfinite(influence).all():
        return None
    half = student(len(influence) - 1) * float(np.std(influence, ddof=1)) / math.sqrt(len(influence))
    return value - half, min(most, value + half)


def student(freedom: int) -> float:
    """Return the two-sided quantile of Student's t for LEVEL, accurate to 0.1%, by Abramowitz and Stegun 26.7.5."""
    if freedom <= len(_FEW):
        return _FEW[freedom - 1]
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return Z + math.fsum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def of_mean(
    parts: Iterable[tuple[float, Interval | None]], weights: Sequence[float] | None = None, *, independent: bool = False
) -> Interval | None:
    """Return the interval for the mean of several values with intervals, weighted by `weights` if given, or None if a
    value has no interval.

    If `independent`, the values come from different rows, and MOVER combines them. Otherwise each end is the mean of
    the ends, as if all errors were fully correlated. That is the worst case, because the deviation of a mean is at most
    the mean of the deviations.
    """
    known = list(parts)
    ends = [ends for _, ends in known if ends is not None]
    if not known or len(ends) < len(known):
        return None
    values, (low, high) = np.array([value for value, _ in known]), np.array(ends).T
    shares = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    shares /= shares.sum()
    if not independent:
        return float(shares @ low), float(shares @ high)
    below, above = (math.sqrt(float(np.sum((shares * (values - end)) ** 2))) for end in (low, high))
    mean = float(shares @ values)
    return mean - below, mean + above


def bootstrap(compute: Callable[[Any, Any], float]) -> Callable[[Any, Any], Interval | None]:
    """Return a bootstrap interval function for any metric. It computes the metric RESAMPLES times, each time on as many
    rows, drawn with replacement from a fixed seed.

    The interval consists of Efron's percentiles, widened for few rows as in Hesterberg, The American Statistician
    69:371, 2015, section 3.3. It is None if the metric is undefined on one of the resamples.
    """

    def interval(outputs: Any, targets: Any) -> Interval | None:
        rows = len(targets)
        if rows < 2:
            return None
        draws = generator(0, "bootstrap").integers(rows, size=(RESAMPLES, rows))
        measured = [float(compute(outputs[draw], targets[draw])) for draw in draws]
        return percentiles(measured, rows)

    return interval


def percentiles(values: Sequence[float] | Floats, rows: int) -> Interval | None:
    """Return the interval that contains LEVEL of the resampled `values`, with Hesterberg's widening for this number of
    `rows`.
    """
    drawn = np.asarray(values)
    if not np.isfinite(drawn).all():
        return None
    reach = math.sqrt(rows / (rows - 1)) * student(rows - 1)
    tail = math.erfc(reach / math.sqrt(2)) / 2
    low, high = np.quantile(drawn, (tail, 1 - tail))
    return float(low), float(high)


def _edge(is_within: Callable[[float], bool], inside: float, outside: float) -> float:
    """Find by bisection where a condition that holds at `inside` stops holding on the way to `outside`."""
    if is_within(outside) and inside == outside:
        return outside
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if is_within(middle) else (inside, middle)
    return inside
