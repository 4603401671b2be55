"""Quantiles and a histogram of one column, from counts of its values in buckets (`learn.trees.bins`).

No range need be known beforehand. Buckets are joined until each has enough rows: a quantile is known up to such a bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.statistics.hiding import CountBounds
from p2pfl.learn.trees.bins import FINENESS, as_cells, edges_of, keys_of, value_of

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles."""
MOST_BINS, HISTOGRAM_BINS = 64, 10
ROUNDING = 2.0**-23
"""The largest relative difference between a value and the float32 in whose place it is counted, twice."""
MOST_FLOAT = 3e38
"""Larger numbers are counted as the largest float32, and so have no bound."""
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A quantile lies from `low` to `high`. None: too few rows lie beyond for a bound."""

    share: float
    low: float | None
    high: float | None

    @property
    def value(self) -> float | None:
        return None if self.low is None or self.high is None else (self.low + self.high) / 2

    @property
    def bound(self) -> float | None:
        """The most by which `value` is off."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The rows with values from `low` to below `high`; None: without end. `rows` None: hidden."""

    low: float | None
    high: float | None
    rows: int | None


def fineness(rows: int, least_rows: int) -> int:
    """Return the bins for which full buckets are divided: no finer than the rows that a bin must have."""
    return max(1, min(MOST_BINS, rows // (FINENESS * least_rows)))


def quantiles(cuts: Sequence[int], counts: Counts, least_rows: int) -> tuple[Quantile, ...]:
    """Return what the counts (k,) in buckets that begin at these keys tell of the quantiles."""
    edges, inside = _bins(cuts, counts, least_rows)
    ends = np.cumsum(inside)
    rows, found = int(ends[-1]), []
    for share in SHARES:
        place = (rows - 1) * share
        low, high = (int(np.searchsorted(ends, spot, "right")) for spot in (math.floor(place), math.ceil(place)))
        found.append(Quantile(share=share, low=_wider(edges[low], -1), high=_wider(edges[high + 1], 1)))
    return tuple(found)


def histogram_edges(cuts: Sequence[int], counts: Counts, least_rows: int) -> list[float]:
    """Return round numbers, about ten of them, between the first and the last bin."""
    edges, _ = _bins(cuts, counts, least_rows)
    known = [edge for edge in edges if edge is not None]
    if not known:
        return []
    low, high = known[0], known[-1]
    if not high - low > 0:
        return [low]
    step = _round_step((high - low) / HISTOGRAM_BINS)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [place * step for place in range(first, last + 1)] or [low]


def bars(edges: Sequence[float], counts: Counts, sites: Counts, bounds: CountBounds) -> tuple[Bar, ...]:
    """Join neighboring bins, of counts (len(edges) + 1,), until none has too few rows or sites."""
    found: list[tuple[int, int]] = []
    start, rest = 0, len(counts)
    for place in range(len(counts)):
        here, after = slice(start, place + 1), slice(place + 1, rest)
        if _is_enough(counts[here], sites[here], bounds) and _is_enough(counts[after], sites[after], bounds):
            found.append((start, place + 1))
            start = place + 1
    found.append((start, rest))
    ends = [None, *edges, None]
    return tuple(Bar(low=ends[first], high=ends[end], rows=int(counts[first:end].sum())) for first, end in found)


def common_bars(
    edges: Sequence[float], groups: Sequence[tuple[Counts, Counts]], whole: Sequence[Bar], bounds: CountBounds
) -> list[tuple[Bar, ...]]:
    """Join the bars of all rows, until each has enough rows in all groups, of whose bins are counts and sites."""
    ends = [edges.index(bar.high) + 1 for bar in whole if bar.high is not None]
    start, chosen, rest = 0, list[int](), len(edges) + 1
    for end in ends:
        parts = (slice(start, end), slice(end, rest))
        if all(_is_enough(counts[part], sites[part], bounds) for counts, sites in groups for part in parts):
            chosen.append(end)
            start = end
    spans = list(zip([0, *chosen], [*chosen, rest], strict=True))
    limits = [None, *edges, None]
    return [
        tuple(Bar(low=limits[low], high=limits[high], rows=int(counts[low:high].sum())) for low, high in spans)
        for counts, _ in groups
    ]


def _is_enough(counts: Counts, sites: Counts, bounds: CountBounds) -> bool:
    return bool(counts.any()) and not bounds.is_small(counts, sites)


def _bins(cuts: Sequence[int], counts: Counts, least_rows: int) -> tuple[list[float | None], Counts]:
    """Return the edges (b + 1,) of bins with enough rows each, and their counts (b,)."""
    inner = edges_of(cuts, counts, int(counts.sum()), least_rows)
    keys = keys_of(as_cells(np.array(inner)))
    places = [0, *np.searchsorted(np.array(cuts, np.int64), keys).tolist()]
    full = np.flatnonzero(counts)
    first, last = int(full[0]), int(full[-1])
    low = value_of(cuts[first]) if counts[first] >= least_rows else None
    high = value_of(cuts[last + 1]) if counts[last] >= least_rows and last + 1 < len(cuts) else None
    ends = [None if one is None or not abs(one) < MOST_FLOAT else one for one in (low, high)]
    return [ends[0], *inner, ends[1]], np.add.reduceat(counts, places)


def _wider(edge: float | None, sign: int) -> float | None:
    return None if edge is None or not math.isfinite(edge) else edge + sign * abs(edge) * ROUNDING


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))
