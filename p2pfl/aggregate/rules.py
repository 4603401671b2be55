"""The rules as pure functions of a batch: `TrimmedMean(f=1)(vectors)`, byzfl's calling convention and names.

`vectors` is a 2-D torch tensor, a 2-D array or a list of vectors; the result is a vector of the same kind and dtype.
`f` is the number of vectors that may be lies. Each rule refuses NaN, infinity, vectors of different lengths, and fewer
vectors than it needs to tolerate f lies. Ties go to the lower index. `centered.py` has the rules that treat one of the
vectors as the node's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import distances
from p2pfl.aggregate.columns import MixedRows, PlainRows, Source, mean_around_median, spans, trimmed_mean
from p2pfl.aggregate.distances import Floats, VectorSpread, combined, moved, spread_of, squared_to
from p2pfl.aggregate.entry import BEFORE, CONTAINED, KRUM_BOUND, MEDIAN_BOUND, RULES, RuleEntry, liars
from p2pfl.aggregate.interface import Rows, Vector, as_rows
from p2pfl.specs import Parameter, number, whole

RADIUS = number(0, 1e30, above=True)


def lies(f: int) -> int:
    """Check the number of vectors that may be lies. Raises ValueError unless it is a nonnegative integer."""
    if isinstance(f, bool) or not isinstance(f, int) or f < 0:
        raise ValueError(f"f is a whole number from 0, not {f!r}")
    return f


class Aggregator(ABC):
    """A rule that maps vectors (n, d) to one (d,)."""

    def __init__(self, f: int = 0) -> None:
        self.f = lies(f)

    @property
    def least(self) -> int:
        """The smallest number of vectors with which it tolerates f lies."""
        return 2 * self.f + 1

    def __call__(self, vectors: Any) -> Any:
        rows, restore = as_rows(vectors)
        self.require(len(rows))
        return restore(self.of(rows))

    def require(self, count: int) -> None:
        if count < self.least:
            raise ValueError(f"{type(self).__name__} tolerates f={self.f} from {self.least} vectors on, not of {count}")

    @abstractmethod
    def of(self, rows: Rows) -> Vector:
        """Aggregate a sufficient number of finite vectors of one length and dtype; the result is new memory of that
        dtype.
        """

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


class DistanceRule(Aggregator):
    """A rule whose result depends only on distances."""

    @abstractmethod
    def shares(self, spread: VectorSpread) -> Floats:
        """Return the share of each vector in the result, shape (n,): from 0 to 1, with sum 1."""

    def shares_after(self, spread: VectorSpread, mixing: Floats) -> Floats:
        """Return the shares for the rows of `mixing @ vectors`, as shares of the vectors themselves."""
        return self.shares(spread.mixed(mixing)) @ mixing

    def of(self, rows: Rows) -> Vector:
        return combined(rows, self.shares(spread_of(rows)).tolist())


class ColumnRule(Aggregator):
    """A rule that treats each coordinate separately."""

    @abstractmethod
    def trimmed(self, count: int) -> int:
        """Return how many of the `count` values are trimmed at each end of a column."""

    def of(self, rows: Rows) -> Vector:
        return self.of_source(PlainRows(rows))

    def of_source(self, source: Source) -> Vector:
        cut = self.trimmed(source.count)
        return trimmed_mean(source, cut, cut)


@RULES.add(
    RuleEntry(
        name="mean",
        aliases=("average", "fedavg", "none"),
        means="own + sum of weight x (neighbor - own), exchanged so that the sum over both ends stays",
        bound="none: one malicious neighbor can make it anything",
        cost="nothing beyond the exchanges",
        weights=True,
        source="Xiao, Boyd 2004",
    )
)
class Average(Aggregator):
    def __init__(self) -> None:
        super().__init__(0)

    def of(self, rows: Rows) -> Vector:
        return combined(rows, [1 / len(rows)] * len(rows))


@RULES.add(
    RuleEntry(
        name="trimmed-mean",
        aliases=("trmean", "trimmed", "cwtm"),
        means="of each coordinate, the mean without the b lowest and the b highest of n values",
        parameters=(liars("values cut off at each end of a coordinate"),),
        bound="kappa = 6b/(n-2b) (1 + b/(n-2b))",
        guaranteed=CONTAINED,
        cost="a sort of each coordinate",
        source="Yin et al. 2018, arXiv 1803.01498",
    )
)
class TrimmedMean(ColumnRule):
    def trimmed(self, count: int) -> int:  # noqa: ARG002 - it need not know
        return self.f


@RULES.add(
    RuleEntry(
        name="median",
        aliases=("cwmed", "coordinatemedian", "coordinatewisemedian"),
        means="of each coordinate, the median of n values",
        parameters=(liars("only from how many neighbors on it mixes"),),
        bound=MEDIAN_BOUND,
        guaranteed=CONTAINED,
        cost="a sort of each coordinate",
        source="Yin et al. 2018, arXiv 1803.01498",
    )
)
class Median(ColumnRule):
    """The median; for an even number of values, the mean of the middle two."""

    def trimmed(self, count: int) -> int:
        return (count - 1) // 2


@RULES.add(
    RuleEntry(
        name="krum",
        means="of n models, the one with the least sum of squared distances to its n-b-1 nearest",
        parameters=(liars("models that a score leaves out"),),
        bound=KRUM_BOUND,
        cost="all distances",
        source="Blanchard et al. 2017, arXiv 1703.02757",
    )
)
class Krum(DistanceRule):
    def shares(self, spread: VectorSpread) -> Floats:
        return distances.krum(spread.squares, self.f, 1)


@RULES.add(
    RuleEntry(
        name="multi-krum",
        aliases=("mkrum",),
        means="the mean of the n-b models of least such sum",
        parameters=(liars("models that a score, and then the mean, leaves out"),),
        bound=KRUM_BOUND,
        cost="all distances, one mean",
        source="Blanchard et al. 2017, arXiv 1703.02757",
    )
)
class MultiKrum(DistanceRule):
    def shares(self, spread: VectorSpread) -> Floats:
        return distances.krum(spread.squares, self.f, len(spread.squares) - self.f)


@RULES.add(
    RuleEntry(
        name="bulyan",
        means="Krum chooses n-2b models; of each coordinate, the mean of the n-4b values nearest their median",
        parameters=(liars("malicious models that Krum may choose, and values cut off at each end"),),
        bound="within the range of the honest, or its width beyond",
        cost="all distances, a sort of each coordinate",
        source="El Mhamdi et al. 2018, arXiv 1802.07927",
    )
)
class Bulyan(Aggregator):
    @property
    def least(self) -> int:
        return 4 * self.f + 3 if self.f else 1

    def of(self, rows: Rows) -> Vector:
        return self.around([rows[index] for index in self.choice(spread_of(rows))])

    def choice(self, spread: VectorSpread) -> NDArray[np.intp]:
        return distances.bulyan_choice(spread.squares, self.f)

    def around(self, chosen: Sequence[Vector], mixing: Floats | None = None) -> Vector:
        source: Source = PlainRows(chosen) if mixing is None else MixedRows(chosen, mixing)
        return mean_around_median(source, source.count - 2 * self.f)


@RULES.add(
    RuleEntry(
        name="geometric-median",
        aliases=("gm", "geomed", "rfa"),
        means="the point of least summed distance to the n models",
        parameters=(liars("only from how many neighbors on it mixes"),),
        bound=MEDIAN_BOUND,
        cost="all distances, one mean",
        source="Pillutla et al. 2022, arXiv 1912.13445",
    )
)
class GeometricMedian(DistanceRule):
    """The geometric median. Without `T` it is as precise as float64 allows.

    With `T` it is byzfl's: T Weiszfeld steps from zero, smoothed by `nu`. It needs no f, only that fewer than half of
    the vectors lie.
    """

    def __init__(self, nu: float = 0.1, T: int | None = None, *, f: int = 0) -> None:
        super().__init__(f)
        self.nu, self.T = nu, T

    def of(self, rows: Rows) -> Vector:
        if self.T is None:
            return super().of(rows)
        zero = np.zeros_like(rows[0])
        return combined([zero, *rows], distances.smoothed_median(spread_of([zero, *rows]), self.T, self.nu).tolist())

    def shares(self, spread: VectorSpread) -> Floats:
        count = len(spread.squares)
        return distances.geometric_median(spread, np.full(count, 1 / count))


@RULES.add(
    RuleEntry(
        name="centered-clipping",
        aliases=("cc",),
        means="from the own model, `steps` times to the mean of all n, each no farther than tau; without tau as scc",
        parameters=(
            liars("models that the radius leaves out; nothing where tau is given"),
            Parameter("tau", RADIUS, "the farthest that a step goes", default=None),
            Parameter("steps", whole(1, 1000), "steps from the own model", default=3, argument="L"),
        ),
        bound="with tau, no lies move it farther than steps x tau",
        cost="all distances, one mean",
        source="Karimireddy, He, Jaggi 2021, arXiv 2012.10333",
    )
)
class CenteredClipping(Aggregator):
    """L steps from `m` (zero by default) to the mean of the vectors, each clipped to distance `tau` from the current
    point.

    Without `tau` each step computes its own radius, from f. Unlike byzfl's version it keeps no state between calls.
    """

    def __init__(self, m: Any = None, L: int = 1, tau: float | None = 100.0, *, f: int = 0) -> None:
        super().__init__(f)
        if tau is not None and not tau >= 0:
            raise ValueError(f"tau is a number from 0, not {tau!r}")
        self.m, self.L, self.tau = m, L, tau

    def of(self, rows: Rows) -> Vector:
        center = np.zeros_like(rows[0]) if self.m is None else as_rows([self.m])[0][0].astype(rows[0].dtype)
        if center.shape != rows[0].shape:
            raise ValueError(f"m has shape {center.shape}, the vectors {rows[0].shape}")
        if self.L == 1:
            return self.step(center, rows)
        around = [center, *rows]
        return combined(around, self.shares(spread_of(around), slice(1, None)).tolist())

    def step(self, center: Vector, rows: Rows) -> Vector:
        """Do one step, which needs only the distances from the center."""
        squares = squared_to(center, rows)
        weights = np.full(len(rows), 1 / len(rows))
        radius = distances.own_radius(squares, weights, self.f) if self.tau is None else self.tau
        return moved(center, rows, (weights * distances.clipping(squares, radius)).tolist())

    def shares(self, spread: VectorSpread, counted: slice) -> Floats:
        """Return the shares of the vectors in `spread`: the first is the center, and those in `counted` pull."""
        return distances.clipped_center(spread, counted, self.f, self.tau, self.L)


@BEFORE.add(
    RuleEntry(
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
)
class NNM:
    """Nearest neighbor mixing. Calling it returns all mixed vectors, (n, d); `NNM(f).before(rule)` combines it with a
    rule.
    """

    def __init__(self, f: int = 0) -> None:
        self.f = lies(f)

    def __repr__(self) -> str:
        return f"NNM(f={self.f})"

    def __call__(self, vectors: Any) -> Any:
        rows, restore = as_rows(vectors)
        if self.f >= len(rows):
            raise ValueError(f"f={self.f} of {len(rows)} vectors")
        source = MixedRows(rows, distances.near_each(spread_of(rows).squares, self.f))
        found = np.empty((len(rows), source.size), source.dtype)
        for span in spans(source.size):
            found[:, span] = source.read(span)
        return restore(found) if hasattr(vectors, "ndim") else [restore(row) for row in found]

    def before(self, rule: Aggregator) -> AfterNNM:
        return AfterNNM(self, rule)


MIXABLE = (DistanceRule, ColumnRule, Bulyan)
"""Rules that NNM may precede: they treat the node's own model as one vector among others."""


class AfterNNM(Aggregator):
    """A rule applied to mixed vectors. A rule that depends only on distances is computed without mixing any."""

    def __init__(self, nnm: NNM, rule: Aggregator) -> None:
        super().__init__(nnm.f)
        if not isinstance(rule, MIXABLE):
            raise ValueError(f"no NNM before {type(rule).__name__}")  # noqa: TRY004 - one way to refuse
        self.rule: DistanceRule | ColumnRule | Bulyan = rule

    @property
    def least(self) -> int:
        return max(2 * self.f + 1, self.rule.least)

    def of(self, rows: Rows) -> Vector:
        spread = spread_of(rows)
        mixing = distances.near_each(spread.squares, self.f)
        match self.rule:
            case DistanceRule():
                return combined(rows, self.rule.shares_after(spread, mixing).tolist())
            case ColumnRule():
                return self.rule.of_source(MixedRows(rows, mixing))
            case Bulyan():
                return self.rule.around(rows, mixing[self.rule.choice(spread.mixed(mixing))])
