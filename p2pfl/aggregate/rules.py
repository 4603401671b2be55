"""The rules as pure functions of a batch: `TrimmedMean(f=1)(vectors)`, byzfl's calling convention and names.

`vectors` is a 2-D torch tensor, a 2-D array or a list of vectors; the result is a vector of the same kind and dtype.
`f` is the number of vectors that may be lies. Each rule refuses NaN, infinity, vectors of different lengths, and fewer
vectors than it needs to tolerate f lies. Ties go to the lower index.

A `Centered` rule treats `vectors[idx]` as the node's own and the others as its neighbors': it maps their distances to
the share of each pull that passes, so the d values are read once to measure and once to mix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from p2pfl.aggregate import distances
from p2pfl.aggregate.columns import SAMPLED, Gaps, MixedRows, PlainRows, Source, average, sorted_blocks
from p2pfl.aggregate.distances import (
    Floats,
    VectorSpread,
    combined,
    moved,
    nearest,
    settled,
    spread_of,
    squared_to,
    within_type,
)
from p2pfl.aggregate.interface import Mixture, Neighborhood, Rows, Vector, as_rows, require_finite
from p2pfl.specs import Catalog, Entry, Parameter, number, whole

MEDIAN_BOUND = "kappa = 4 (1 + b/(n-2b))^2"
CONTAINED = (
    "each coordinate of a mix lies between those of honest models that the node saw, its own included, while at most b "
    "of its neighbors are malicious"
)
BOUNDED = "no malicious neighbor pulls a model further than the distance of an honest one of the same weight"
CUT = number(1, 1e30)
"""Allowed values of `cut`: the largest clips nothing unless all but b values are equal, where infinity gives NaN."""
FADES_FROM = 2.0
"""A pull begins to shrink at this multiple of the (n-b)-th distance from the center."""


@dataclass(frozen=True, kw_only=True)
class RuleEntry(Entry):
    """A rule's entry. In its texts n = m + 1 counts the node's own model and m neighbors' models; the first parameter
    is b.
    """

    bound: str
    """A bound on kappa: the squared error is at most kappa times the variance of the honest models."""
    cost: str
    weights: bool = False
    """True if the neighbors' weights, and with them staleness, count."""
    guaranteed: str = ""
    """The guarantee that holds for any task; by default it is the bound."""

    @property
    def b_means(self) -> str:
        return self.parameters[0].means if self.parameters else "no malicious neighbor is tolerated"


RULES: Catalog[RuleEntry] = Catalog(
    "rule",
    RuleEntry,
    gone={
        "krum": "byzfl:Krum,b=1, or nnm+trimmed-mean",
        "multi-krum": "byzfl:MultiKrum,b=1, or nnm+trimmed-mean",
        "bulyan": "nnm+trimmed-mean",
        "centered-clipping": "scc, or a rule of your own around byzfl's CenteredClipping",
        "balance": "scc, with a fixed radius tau, or a rule of your own",
    },
)
RULES.add(
    name="mean",
    aliases=("average", "fedavg", "none"),
    means="own + sum of weight x (neighbor - own), exchanged so that the sum over both ends stays",
    bound="none: one malicious neighbor can make it anything",
    cost="nothing beyond the exchanges",
    weights=True,
    source="Xiao, Boyd 2004",
)(dict)
BEFORE: Catalog[RuleEntry] = Catalog("pre-aggregation", RuleEntry)
"""Pre-aggregations that may precede a rule."""


def liars(means: str) -> Parameter:
    """Return the parameter b: the number of malicious neighbors that a node tolerates."""
    return Parameter("b", whole(1, 10**6), means, default=1, argument="f")


class Aggregator(ABC):
    """A rule that maps vectors (n, d) to one (d,)."""

    def __init__(self, f: int = 0) -> None:
        self.f = _counted("f", f)

    @property
    def least(self) -> int:
        """The smallest number of vectors with which it tolerates f lies."""
        return 2 * self.f + 1

    def __call__(self, vectors: Any) -> Any:
        rows, restore = as_rows(vectors)
        if not (shown := self.shows_faults(rows)):
            require_finite(rows)
        if (count := len(rows)) < self.least:
            raise ValueError(f"{type(self).__name__} tolerates f={self.f} from {self.least} vectors on, not of {count}")
        model = self.mixture(rows).model
        if shown and not np.isfinite(model).all():
            require_finite(rows)
        return restore(model)

    def shows_faults(self, rows: Rows) -> bool:  # noqa: ARG002 - most rules hide them
        """Return True if the result is finite exactly where all vectors are, which then need not be read twice."""
        return False

    @abstractmethod
    def mixture(self, rows: Rows) -> Mixture:
        """Aggregate a sufficient number of finite vectors of one length and dtype; `kept` is of all but the first."""

    def mix(self, around: Neighborhood) -> Mixture:
        """Aggregate a node's own model and those of sufficiently many neighbors."""
        return self.mixture([around.own, *around.others])

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


class ColumnRule(Aggregator):
    """A rule that treats each coordinate separately: the mean of a column without its ends."""

    @abstractmethod
    def trimmed(self, count: int) -> int:
        """Return how many of the `count` values are trimmed at each end of a column."""

    def mixture(self, rows: Rows) -> Mixture:
        """Aggregate; `kept` is estimated on evenly spaced columns."""
        model, cut = self.model(PlainRows(rows)), self.trimmed(len(rows))
        if not cut or not model.size:
            return Mixture(model=model, kept=np.ones(len(rows) - 1))
        values = np.stack([row[:: max(1, row.size // SAMPLED)] for row in rows])
        order = np.sort(values, axis=0)
        inside = (order[cut] <= values) & (values <= order[len(rows) - 1 - cut])
        return Mixture(model=model, kept=np.asarray(inside.mean(axis=1)[1:]))

    def shows_faults(self, rows: Rows) -> bool:
        return rows[0].dtype == np.float32 and not self.trimmed(len(rows))

    def model(self, source: Source) -> Vector:
        cut = self.trimmed(source.count)
        out = np.empty(source.size, source.dtype)
        for span, parts in sorted_blocks(source, range(cut, source.count - cut)):
            average(parts, out[span])
        return out


@RULES.add(
    name="trimmed-mean",
    aliases=("trmean", "trimmed", "cwtm"),
    means="of each coordinate, the mean without the b lowest and the b highest of n values",
    parameters=(liars("values cut off at each end of a coordinate"),),
    bound="kappa = 6b/(n-2b) (1 + b/(n-2b))",
    guaranteed=CONTAINED,
    cost="a sort of each coordinate",
    source="Yin et al. 2018, arXiv 1803.01498",
)
class TrimmedMean(ColumnRule):
    def trimmed(self, count: int) -> int:  # noqa: ARG002 - it need not know
        return self.f


@RULES.add(
    name="median",
    aliases=("cwmed", "coordinatemedian", "coordinatewisemedian"),
    means="of each coordinate, the median of n values",
    parameters=(liars("only from how many neighbors on it mixes"),),
    bound=MEDIAN_BOUND,
    guaranteed=CONTAINED,
    cost="a sort of each coordinate",
    source="Yin et al. 2018, arXiv 1803.01498",
)
class Median(ColumnRule):
    """The median; for an even number of values, the mean of the middle two."""

    def trimmed(self, count: int) -> int:
        return (count - 1) // 2


@RULES.add(
    name="geometric-median",
    aliases=("gm", "geomed", "rfa"),
    means="the point of least summed distance to the n models",
    parameters=(liars("only from how many neighbors on it mixes"),),
    bound=MEDIAN_BOUND,
    cost="all distances, one mean",
    source="Pillutla et al. 2022, arXiv 1912.13445",
)
class GeometricMedian(Aggregator):
    """The geometric median, as precise as float64 allows. It needs no f, only that fewer than half of all lie."""

    def mixture(self, rows: Rows) -> Mixture:
        return _weighted(rows, self.shares(spread_of(rows)))

    def shares(self, spread: VectorSpread) -> Floats:
        """Return the share of each vector in the result, shape (n,): from 0 to 1, with sum 1."""
        count = len(spread.squares)
        return distances.geometric_median(spread, np.full(count, 1 / count))


MIXABLE = (ColumnRule, GeometricMedian)
"""Rules that NNM may precede: they treat the node's own model as one vector among others."""


@BEFORE.add(
    name="nnm",
    written="nnm+trimmed-mean",
    aliases=("nnm",),
    means="each of n models becomes the mean of its n-b nearest, then one of the rules above",
    parameters=(liars("models that each mean leaves out, and as in the rule"),),
    bound="kappa = 8b/(n-b) (1 + kappa of the rule)",
    cost="all distances, and the rule",
    example="nnm+trimmed-mean:b=1",
    source="Allouah et al. 2023, arXiv 2302.01772",
)
class NNM(Aggregator):
    """A rule applied to vectors each of which is the mean of the n - f nearest to one. The geometric median, which
    depends on distances alone, is computed without mixing any.
    """

    def __init__(self, rule: Aggregator, f: int = 0) -> None:
        super().__init__(f)
        if not isinstance(rule, MIXABLE):
            raise ValueError(f"no NNM before {type(rule).__name__}")  # noqa: TRY004 - one way to refuse
        self.rule: ColumnRule | GeometricMedian = rule

    @property
    def least(self) -> int:
        return max(2 * self.f + 1, self.rule.least)

    def mixture(self, rows: Rows) -> Mixture:
        spread = spread_of(rows)
        mixing = distances.near_each(spread.squares, self.f)
        if isinstance(self.rule, GeometricMedian):
            return _weighted(rows, self.rule.shares(spread.mixed(mixing)) @ mixing)
        return Mixture(model=self.rule.model(MixedRows(rows, mixing)))


class Centered(Aggregator):
    """Rules that clip the neighbors' vectors around the node's own.

    `weights` (n - 1,) are the neighbors' shares in a mean, 1 / n each by default.
    """

    def __init__(self, f: int = 0, idx: int = 0) -> None:
        super().__init__(f)
        self.idx = _counted("idx", idx)

    def mix(self, around: Neighborhood) -> Mixture:
        return self.mixture([around.own, *around.others], around.weights)

    def mixture(self, rows: Rows, weights: Floats | None = None) -> Mixture:
        if self.idx >= len(rows):
            raise ValueError(f"idx={self.idx} of {len(rows)} vectors")
        own, others = rows[self.idx], [row for index, row in enumerate(rows) if index != self.idx]
        weights = np.full(len(others), 1 / len(rows)) if weights is None else weights
        pulls = self.pulls(own, others, weights)
        return Mixture(model=self.moved(own, others, pulls.tolist()), kept=self.kept(own, others, pulls, weights))

    @abstractmethod
    def pulls(self, own: Vector, others: Rows, weights: Floats) -> Floats:
        """Return the step toward each neighbor, (m,): nonnegative, with a sum of at most 1."""

    def moved(self, own: Vector, others: Rows, pulls: Sequence[float]) -> Vector:
        """Return the node's own model plus the sum of the pulls, (d,); exactly its own model if all are equal."""
        return moved(own, others, pulls)

    def kept(self, own: Vector, others: Rows, pulls: Floats, weights: Floats) -> Floats:  # noqa: ARG002 - of most rules
        """Return the share of each neighbor's whole pull that passes, (m,)."""
        return np.divide(pulls, weights, out=np.zeros_like(pulls), where=weights > 0)


@RULES.add(
    name="monna",
    aliases=("nna", "nearestneighboraveraging"),
    means="the mean of the own model and the m-b nearest to it (NNA)",
    parameters=(liars("neighbors left out"),),
    bound="the error is at most 2b/(n-b) times the farthest honest model's distance",
    cost="distances from the own model, one mean",
    source="Farhadkhani et al. 2023, arXiv 2209.10931",
)
class MoNNA(Centered):
    """The mean of the node's own vector and the n - f - 1 vectors nearest to it (nearest neighbor averaging; with
    momentum it is called MoNNA). A neighbor counts fully or not at all, and weights are ignored.
    """

    def pulls(self, own: Vector, others: Rows, weights: Floats) -> Floats:  # noqa: ARG002
        near = nearest(squared_to(own, others), len(others) - self.f)
        pulls = np.zeros(len(others))
        pulls[near] = 1 / (len(near) + 1)
        return pulls

    def kept(self, own: Vector, others: Rows, pulls: Floats, weights: Floats) -> Floats:  # noqa: ARG002
        return np.where(pulls > 0, 1.0, 0.0)


@RULES.add(
    name="scc",
    aliases=("clippedgossip", "selfcenteredclipping"),
    means="each neighbor's pull, no longer than tau; without tau, a radius from the m-b nearest",
    parameters=(
        liars("neighbors that the radius leaves out; nothing where tau is given"),
        Parameter("tau", number(0, 1e30, above=True), "the longest pull"),
    ),
    bound="without tau the error is at most 9/4 the root of (b largest weights x weighted honest squares)",
    cost="distances from the own model, one mean",
    weights=True,
    source="He, Karimireddy, Jaggi 2022, arXiv 2202.01545",
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

    def pulls(self, own: Vector, others: Rows, weights: Floats) -> Floats:
        squares = squared_to(own, others)
        radius = distances.own_radius(squares, weights, self.f) if self.tau is None else self.tau
        return weights * distances.clipping(squares, radius)


@RULES.add(
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
class ClippedSum(Centered):
    """Clipping at one radius for all neighbors (CS+).

    The paper proves its bound, 2f times the honest pulls' squares, for equal weights. With unequal weights, a neighbor
    that claims many samples outweighs honest ones that have few, and nothing is proven.
    """

    @property
    def least(self) -> int:
        return 2 * self.f + 2

    def pulls(self, own: Vector, others: Rows, weights: Floats) -> Floats:
        squares = squared_to(own, others)
        return weights * distances.clipping(squares, distances.clipped_sum_radius(squares, self.f))


@RULES.add(
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

    def pulls(self, own: Vector, others: Rows, weights: Floats) -> Floats:
        spread = spread_of([own, *others])
        squares = spread.squares[0, 1:]
        clipped = distances.clipping(squares, distances.clipped_sum_radius(squares, self.f))
        return np.where(weights > 0, 1 / (len(others) + 1), 0.0) * clipped * fading(spread, self.f)[1:]

    def kept(self, own: Vector, others: Rows, pulls: Floats, weights: Floats) -> Floats:  # noqa: ARG002
        """Estimate from evenly spaced coordinates what is left after they are clipped."""
        step = max(1, own.size // SAMPLED)
        ways = np.abs(np.stack([row[::step] for row in others]).astype(np.float64) - own[::step])
        reach = self.cut * np.sort(ways, axis=0)[len(others) - self.f - 1]
        whole, left = (np.sqrt((part**2).sum(axis=1)) for part in (ways, np.minimum(ways, reach)))
        uncut = np.divide(left, whole, out=np.ones_like(whole), where=whole > 0)
        return np.asarray(pulls * (len(pulls) + 1) * uncut)

    def moved(self, own: Vector, others: Rows, pulls: Sequence[float]) -> Vector:
        out = np.empty_like(own)
        rank, ways = len(others) - self.f - 1, Gaps(own, others)
        for span, (measure,) in sorted_blocks(ways, range(rank, rank + 1)):
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


def _counted(name: str, value: int) -> int:
    """Check a count or an index. Raises ValueError unless it is a nonnegative integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is a whole number from 0, not {value!r}")
    return value


def _weighted(rows: Rows, shares: Floats) -> Mixture:
    """Mix by shares (n,) from 0 to 1 with sum 1."""
    return Mixture(model=combined(rows, shares.tolist()), kept=np.minimum(1.0, shares[1:] * len(rows)))


def _cut(values: Vector, low: Vector, high: Vector) -> Vector:
    """Clip like numpy.clip, which takes twice as long if its bounds are arrays."""
    cut = np.maximum(values, low)
    return np.minimum(cut, high, out=cut)
