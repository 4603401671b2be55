"""The rule whose pulls are as long as they are at first, then all of one length, and fade at last.

After Hampel's three-part redescending M-estimator (Hampel et al. 1986, Robust Statistics). The first bend is the radius
of CS+ (Gaucher, Dieuleveut, Hendrikx 2025, arXiv 2410.10418). Each coordinate is cut besides. Why it is as it is, and
where it breaks: docs/decisions/0015-a-default-rule.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2pfl.aggregate import selection
from p2pfl.aggregate.batch import Rows
from p2pfl.aggregate.centered import Centered
from p2pfl.aggregate.columns import SAMPLED, sorted_blocks
from p2pfl.aggregate.distances import Floats, Spread, settled, spread_of, within_type
from p2pfl.aggregate.interface import Vector

FADES_FROM = 2.0
"""times the (n-b)-th distance from the center: from there on a pull is the shorter the farther its neighbor is."""
MOST_CUT = 1e30
"""cuts nothing but where all but b are alike; an infinite one would make no number of that."""


class Hampel(Centered):
    """Every neighbor's pull, all with one weight: what a neighbor says of itself gives it no more and no less.

    Of m neighbors d_j is the distance from the own model and t the (m - 2b)-th smallest of these. Of all n = m + 1
    vectors c_j is the distance from a center that b liars cannot carry off, and r the (n - b)-th smallest of these.
    Each coordinate of a pull is cut at `cut` times the (b + 1)-th longest that the neighbors have there, and the pull
    scaled by

        min(1, t / d_j) min(1, (2 r / c_j)^2)

    Of no more than b liars at least one honest neighbor is as far as t, and one as far as each coordinate's measure: so
    no liar pulls further than an honest neighbor is away, nor, in any coordinate, further than `cut` times that. At
    most b vectors fade. Of a weight it counts only whether it is 0, which says that the neighbor is not there.
    """

    def __init__(self, f: int = 0, idx: int = 0, cut: float = 2.0) -> None:
        super().__init__(f, idx)
        if not 1 <= cut <= MOST_CUT:
            raise ValueError(f"cut is a number from 1 to {MOST_CUT}, not {cut!r}")
        self.cut = cut

    @property
    def least(self) -> int:
        return 2 * self.f + 2

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        spread = spread_of([own, *others])
        squares = spread.squares[0, 1:]
        clipped = selection.clipping(squares, selection.clipped_sum_radius(squares, self.f))
        return np.where(weights > 0, 1 / (len(others) + 1), 0.0) * clipped * fading(spread, self.f)[1:]

    def kept(self, pulls: Floats, weights: Floats) -> Floats:  # noqa: ARG002 - weights are not asked
        return np.asarray(pulls * (len(pulls) + 1))

    def uncut(self, own: Vector, others: Rows) -> Floats:
        """Of evenly spaced coordinates."""
        step = max(1, own.size // SAMPLED)
        ways = np.abs(np.stack([row[::step] for row in others]).astype(np.float64) - own[::step])
        reach = self.cut * np.sort(ways, axis=0)[len(others) - self.f - 1]
        whole, left = (np.sqrt((part**2).sum(axis=1)) for part in (ways, np.minimum(ways, reach)))
        return np.asarray(np.divide(left, whole, out=np.ones_like(whole), where=whole > 0))

    def moved(self, own: Vector, others: Rows, pulls: Sequence[float]) -> Vector:
        out = np.empty_like(own)
        rank = len(others) - self.f - 1
        for span, (measure,) in sorted_blocks(Ways(own, others), range(rank, rank + 1), in_order=False):
            here, total = own[span], out[span]
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                reach = self.cut * measure
                low, high = here - reach, here + reach
                total[:] = 0
                for row, pull in zip(others, pulls, strict=True):
                    cut = _cut(row[span], low, high)
                    cut -= here
                    cut *= own.dtype.type(pull)
                    total += cut
                total += here
            if not np.isfinite(total).all():
                within_type(here, [_cut(row[span], low, high) for row in others], pulls, total)
        return out


def _cut(values: Vector, low: Vector, high: Vector) -> Vector:
    """As numpy.clip, which takes twice as long with ends that are arrays."""
    found = np.maximum(values, low)
    return np.minimum(found, high, out=found)


def fading(spread: Spread, liars: int) -> Floats:
    """(n,) from 0 to 1."""
    squares = spread.to_point(center(spread, liars))
    start = FADES_FROM**2 * np.sort(squares)[len(squares) - liars - 1]
    return np.asarray(np.divide(start, squares, out=np.ones_like(squares), where=squares > start))


def center(spread: Spread, liars: int) -> Floats:
    """(n,) shares of the n - f vectors nearest to that one which has them nearest, itself counted.

    Krum's choice mixed with its nearest: Allouah et al. 2023, arXiv 2302.01772.
    """
    scores = selection.krum_scores(spread.squares, max(1, len(spread.squares) - liars - 1))
    return selection.near_one(spread.squares, liars, int(np.argmin(settled(scores))))


class Ways:
    """How far the others' values are from the own ones: a source for `columns`."""

    def __init__(self, own: Vector, others: Rows) -> None:
        self.count, self.size, self.dtype = len(others), own.size, own.dtype
        self.own, self.others = own, others

    def read(self, span: slice) -> list[Vector]:
        with np.errstate(over="ignore"):
            return [np.abs(row[span] - self.own[span]) for row in self.others]
