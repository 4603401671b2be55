"""Rules centered on the node's own model: `vectors[idx]`; the other vectors are the neighbors'.

Each maps the neighbors' distances to the share of each pull that passes, so the d values are read once to measure and
once to mix. `weights` (n - 1,) are the neighbors' shares in a mean, 1 / n each by default.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from p2pfl.aggregate import distances
from p2pfl.aggregate.columns import SAMPLED, sorted_blocks
from p2pfl.aggregate.distances import (
    Floats,
    VectorSpread,
    moved,
    nearest,
    settled,
    spread_of,
    squared_lengths,
    squared_to,
    within_type,
)
from p2pfl.aggregate.entry import BOUNDED, RULES, RuleEntry, liars
from p2pfl.aggregate.interface import Rows, Vector, as_rows
from p2pfl.aggregate.rules import RADIUS, Aggregator
from p2pfl.specs import Parameter, number

FADES_FROM = 2.0
"""A pull begins to shrink at this multiple of the (n-b)-th distance from the center."""
CUT = number(1, 1e30)
"""The allowed values of `cut`. The largest clips nothing unless all but b values are equal; infinity would give NaN
there.
"""


class Centered(Aggregator):
    """Rules that clip the neighbors' vectors around the node's own."""

    def __init__(self, f: int = 0, idx: int = 0) -> None:
        super().__init__(f)
        if isinstance(idx, bool) or not isinstance(idx, int) or idx < 0:
            raise ValueError(f"idx is a whole number from 0, not {idx!r}")
        self.idx = idx

    def __call__(self, vectors: Any, weights: Any = None) -> Any:
        rows, restore = as_rows(vectors)
        self.require(len(rows))
        own, others = self._split(rows)
        told = even_weights(len(others)) if weights is None else _weights(weights, len(others))
        return restore(self.moved(own, others, self.pulls(own, others, told).tolist()))

    def of(self, rows: Rows) -> Vector:
        own, others = self._split(rows)
        return self.moved(own, others, self.pulls(own, others, even_weights(len(others))).tolist())

    @abstractmethod
    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:
        """Return the step toward each neighbor, (m,): nonnegative, with a sum of at most 1."""

    def moved(self, own: Vector, others: Rows, pulls: Sequence[float]) -> Vector:
        """Return the node's own model plus the sum of the pulls, (d,); exactly its own model if all are equal."""
        return moved(own, others, pulls)

    def kept(self, pulls: Floats, weights: Floats) -> Floats:
        """Return the share of each neighbor's whole pull that passes, (m,)."""
        return np.divide(pulls, weights, out=np.zeros_like(pulls), where=weights > 0)

    def uncut(self, own: Vector, others: Rows) -> Floats:  # noqa: ARG002 - for those that look at coordinates
        """Return the share of each neighbor's pull that is left after its coordinates are clipped, (m,)."""
        return np.ones(len(others))

    def _split(self, rows: Rows) -> tuple[Vector, Rows]:
        if self.idx >= len(rows):
            raise ValueError(f"idx={self.idx} of {len(rows)} vectors")
        return rows[self.idx], [row for index, row in enumerate(rows) if index != self.idx]


class Choosing(Centered):
    """Rules in which a neighbor's model counts fully or not at all."""

    def kept(self, pulls: Floats, weights: Floats) -> Floats:  # noqa: ARG002 - weights are not asked
        return np.where(pulls > 0, 1.0, 0.0)


@RULES.add(
    RuleEntry(
        name="monna",
        aliases=("nna", "nearestneighboraveraging"),
        means="the mean of the own model and the m-b nearest to it (NNA)",
        parameters=(liars("neighbors left out"),),
        bound="the error is at most 2b/(n-b) times the farthest honest model's distance",
        cost="distances from the own model, one mean",
        source="Farhadkhani et al. 2023, arXiv 2209.10931",
    )
)
class MoNNA(Choosing):
    """The mean of the node's own vector and the n - f - 1 vectors nearest to it (nearest neighbor averaging; with
    momentum it is called MoNNA). Weights are ignored.
    """

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        near = nearest(squared_to(own, others), len(others) - self.f)
        found = np.zeros(len(others))
        found[near] = 1 / (len(near) + 1)
        return found


@RULES.add(
    RuleEntry(
        name="scc",
        aliases=("clippedgossip", "selfcenteredclipping"),
        means="each neighbor's pull, no longer than tau; without tau, a radius from the m-b nearest",
        parameters=(
            liars("neighbors that the radius leaves out; nothing where tau is given"),
            Parameter("tau", RADIUS, "the longest pull"),
        ),
        bound="without tau the error is at most 9/4 the root of (b largest weights x weighted honest squares)",
        cost="distances from the own model, one mean",
        weights=True,
        source="He, Karimireddy, Jaggi 2022, arXiv 2202.01545",
    )
)
class SelfCenteredClipping(Centered):
    """Clipping around the node's own vector (SCC).

    Without `tau`, as in the paper's experiments, tau^2 is the weighted mean of the m - f smallest squared distances,
    divided by the share that f neighbors may have.
    """

    def __init__(self, f: int = 0, idx: int = 0, tau: float | None = None) -> None:
        super().__init__(f, idx)
        if tau is not None:
            RULES["scc"].checked(tau=tau)
        self.tau = tau

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        squares = squared_to(own, others)
        radius = distances.own_radius(squares, weights, self.f) if self.tau is None else self.tau
        return weights * distances.clipping(squares, radius)


@RULES.add(
    RuleEntry(
        name="cs+",
        aliases=("cs", "csplus", "clippedsum"),
        means="each neighbor's pull, no longer than the (m-2b)-th shortest",
        parameters=(liars("2b pulls are clipped"),),
        bound="with equal weights, the squared error of the sum of pulls is at most 2b times the honest pulls' squares",
        guaranteed=BOUNDED,
        cost="distances from the own model, one mean",
        weights=True,
        source="Gaucher, Dieuleveut, Hendrikx 2025, arXiv 2410.10418",
    )
)
class ClippedSum(Centered):
    """Clipping at one radius for all neighbors (CS+).

    The paper proves its bound, 2f times the honest pulls' squares, for equal weights. With unequal weights, a neighbor
    that claims many samples outweighs honest ones that have few, and nothing is proven.
    """

    @property
    def least(self) -> int:
        return 2 * self.f + 2

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        squares = squared_to(own, others)
        return weights * distances.clipping(squares, distances.clipped_sum_radius(squares, self.f))


@RULES.add(
    RuleEntry(
        name="balance",
        means="alpha own + (1-alpha) mean of neighbors within gamma exp(-kappa x rounds done) of the own length",
        parameters=(
            liars("only from how many neighbors on it mixes"),
            Parameter("alpha", number(0, 1), "the own model's share"),
            Parameter("gamma", number(0, 1e30, above=True), "the radius at first, as a part of the own length"),
            Parameter("kappa", number(0, 1e3), "how fast the radius shrinks"),
        ),
        bound="no lies move it farther than (1-alpha) gamma of the own length",
        cost="distances from the own model, one mean",
        source="Fang et al. 2024, arXiv 2406.10416",
    )
)
class Balance(Choosing):
    """A rule whose radius shrinks with `progress`, the fraction of rounds done, and does not depend on b."""

    def __init__(self, f: int = 0, idx: int = 0, *, alpha: float = 0.5, gamma: float = 0.3, kappa: float = 1.0) -> None:
        super().__init__(f, idx)
        self.alpha, self.gamma, self.kappa = alpha, gamma, kappa

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        bound = (self.gamma * np.exp(-self.kappa * progress)) ** 2 * squared_lengths([own])[0]
        within = squared_to(own, others) <= bound
        return np.where(within, (1 - self.alpha) / max(1, int(within.sum())), 0.0)


def even_weights(others: int) -> Floats:
    return np.full(others, 1 / (others + 1))


@RULES.add(
    RuleEntry(
        name="hampel",
        aliases=("redescending",),
        means="as cs+, but pulls of outliers fade, and each coordinate of a pull is clipped",
        parameters=(
            liars("2b pulls are clipped, b may fade, and b values of each coordinate may be clipped"),
            Parameter("cut", CUT, "how many times the (b+1)-th longest pull in a coordinate is let through there"),
        ),
        bound="no malicious pull is longer than an honest one, or `cut` times (twice) that in a coordinate; "
        "the squared error of the sum of pulls is at most 9b times the honest pulls' squares",
        guaranteed=BOUNDED,
        cost="all distances, a sort of each coordinate, one mean",
        source="docs/decisions/0015-a-default-rule.md",
    )
)
class Hampel(Centered):
    """Leaves short pulls unchanged, clips longer ones to a common norm, and fades out the longest.

    After Hampel's three-part redescending M-estimator (Hampel et al. 1986, Robust Statistics). The first bend is the
    radius of CS+ (`ClippedSum`). Each coordinate is clipped too. Reasons and limits are in
    docs/decisions/0015-a-default-rule.md. All neighbors have equal weight, whatever they claim.

    For m neighbors, d_j is the distance from the own model and t the (m - 2b)-th smallest of these. For all n = m + 1
    vectors, c_j is the distance from a center that b malicious vectors cannot move far, and r the (n - b)-th smallest
    of these. Each coordinate of a pull is clipped at `cut` times the (b + 1)-th longest that the neighbors have there,
    and the pull is scaled by

        min(1, t / d_j) min(1, (2 r / c_j)^2)

    With at most b malicious neighbors, some honest one is at least t away, and some honest one reaches each
    coordinate's measure. So no malicious neighbor pulls further than the distance of an honest one, or `cut` times that
    in any coordinate. At most b vectors fade. A weight only matters if it is 0, which means that the neighbor is
    absent.
    """

    def __init__(self, f: int = 0, idx: int = 0, cut: float = 2.0) -> None:
        super().__init__(f, idx)
        RULES["hampel"].checked(cut=cut)
        self.cut = cut

    @property
    def least(self) -> int:
        return 2 * self.f + 2

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        spread = spread_of([own, *others])
        squares = spread.squares[0, 1:]
        clipped = distances.clipping(squares, distances.clipped_sum_radius(squares, self.f))
        return np.where(weights > 0, 1 / (len(others) + 1), 0.0) * clipped * fading(spread, self.f)[1:]

    def kept(self, pulls: Floats, weights: Floats) -> Floats:  # noqa: ARG002 - weights are not asked
        return np.asarray(pulls * (len(pulls) + 1))

    def uncut(self, own: Vector, others: Rows) -> Floats:
        """Estimate the share from evenly spaced coordinates."""
        step = max(1, own.size // SAMPLED)
        ways = np.abs(np.stack([row[::step] for row in others]).astype(np.float64) - own[::step])
        reach = self.cut * np.sort(ways, axis=0)[len(others) - self.f - 1]
        whole, left = (np.sqrt((part**2).sum(axis=1)) for part in (ways, np.minimum(ways, reach)))
        return np.asarray(np.divide(left, whole, out=np.ones_like(whole), where=whole > 0))

    def moved(self, own: Vector, others: Rows, pulls: Sequence[float]) -> Vector:
        out = np.empty_like(own)
        rank, ways = len(others) - self.f - 1, Ways(own, others)
        for span, (measure,) in sorted_blocks(ways, range(rank, rank + 1), in_order=False):
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


def fading(spread: VectorSpread, liars: int) -> Floats:
    """Compute factors from 0 to 1, (n,)."""
    squares = spread.to_point(center(spread, liars))
    start = FADES_FROM**2 * np.sort(squares)[len(squares) - liars - 1]
    return np.asarray(np.divide(start, squares, out=np.ones_like(squares), where=squares > start))


def center(spread: VectorSpread, liars: int) -> Floats:
    """Return the shares (n,) of the n - f vectors nearest to Krum's choice, itself included.

    Krum's choice mixed with its nearest vectors: Allouah et al. 2023, arXiv 2302.01772.
    """
    scores = distances.krum_scores(spread.squares, max(1, len(spread.squares) - liars - 1))
    return distances.near_one(spread.squares, liars, int(np.argmin(settled(scores))))


class Ways:
    """The others' values minus the node's own, as a source for `columns`."""

    def __init__(self, own: Vector, others: Rows) -> None:
        self.count, self.size, self.dtype = len(others), own.size, own.dtype
        self.own, self.others = own, others

    def read(self, span: slice) -> list[Vector]:
        with np.errstate(over="ignore"):
            return [np.abs(row[span] - self.own[span]) for row in self.others]


def _weights(weights: Any, count: int) -> Floats:
    told = np.asarray(weights, np.float64)
    if told.shape != (count,) or not (told >= 0).all() or not told.sum() <= 1:
        raise ValueError(f"expected {count} weights from 0, at most 1 together")
    return told


def _cut(values: Vector, low: Vector, high: Vector) -> Vector:
    """Clip like numpy.clip, which takes twice as long if its bounds are arrays."""
    found = np.maximum(values, low)
    return np.minimum(found, high, out=found)
