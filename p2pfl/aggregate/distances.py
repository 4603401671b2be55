"""Distances between vectors and sums of them, block by block, without a stacked copy of large models; and the rules
that depend on distances alone: which vectors count, and how much.

Each of these rules maps squared distances (n, n) to shares (n,), from 0 to 1 with sum 1, so a Gram matrix is all they
need from the vectors. Ties go to the lower index. Everything is in float64. If two vectors lie close together and far
from the rest, their distance from that matrix would be a small difference of large numbers, so it is computed from the
two vectors directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate.interface import Vector

Floats = NDArray[np.float64]

BLOCK = 8192
CANCELLED = 1e-9
"""A squared distance below this fraction of the squares it comes from has lost too many digits."""
FAR = 1e6
"""A vector whose squared distance is this many times the usual one is not used as a reference point for the others."""
DIGITS = 2**18
"""A factor that drops the last bits of a float64 in comparisons, so that sums taken in another order still tie."""

CONVERGED, MOST_STEPS = 1e-10, 1000
"""The geometric median has converged once its step is below this fraction of the usual distance; and the maximum number
of steps.
"""


def blocks(size: int, length: int = BLOCK) -> Iterator[slice]:
    for left in range(0, size, length):
        yield slice(left, min(left + length, size))


def squared_to(center: Vector, rows: Sequence[Vector]) -> Floats:
    """Return the squared distances of the rows from the center, (n,)."""
    scratch = np.empty((2, min(BLOCK, max(1, center.size))))
    squares = np.zeros(len(rows))
    for span in blocks(center.size):
        middle, gap = scratch[:, : span.stop - span.start]
        np.copyto(middle, center[span])
        for index, row in enumerate(rows):
            np.copyto(gap, row[span])
            gap -= middle
            squares[index] += np.dot(gap, gap)
    return squares


@dataclass(frozen=True, slots=True)
class VectorSpread:
    """The mutual positions of n vectors.

    `squares` (n, n) are the squared distances, bitwise symmetric, and equal for equal vectors. `gram` (n, n) are the
    inner products of the vectors minus one point near most of them; distances from any other point follow from it.
    """

    squares: Floats
    gram: Floats

    def mixed(self, mixing: Floats) -> VectorSpread:
        """Return the same for the rows of `mixing @ vectors`; each row of `mixing` sums to 1."""
        count = len(mixing)
        squares = np.zeros((count, count))
        for first, second in zip(*np.triu_indices(count, 1), strict=True):
            apart = mixing[first] - mixing[second]
            there = np.flatnonzero(apart)
            square = -0.5 * apart[there] @ self.squares[np.ix_(there, there)] @ apart[there]
            squares[first, second] = squares[second, first] = max(0.0, square)
        return VectorSpread(squares, mixing @ self.gram @ mixing.T)

    def to_point(self, shares: Floats) -> Floats:
        """Return the squared distances (n,) from the sum of shares[i] times vector i; the shares sum to 1."""
        towards = self.gram @ shares
        return np.maximum(0.0, self.gram.diagonal() - 2 * towards + shares @ towards)


def spread_of(rows: Sequence[Vector]) -> VectorSpread:
    """Compute the distances from one Gram matrix, or from a second one if the first vector lies far from most."""
    gram = _gram(rows, rows[0])
    squares = _squares(gram, rows)
    inner = int(np.argmin(settled(np.sqrt(squares).sum(axis=1))))
    if gram[inner, inner] > FAR * np.median(squares[inner]):
        gram = _gram(rows, rows[inner])
    return VectorSpread(squares, gram)


def settled(values: Floats) -> Floats:
    """Round values so that values which differ only by the rounding of sums compare equal."""
    bits = values.view(np.int64)
    return ((bits + DIGITS // 2) & ~np.int64(DIGITS - 1)).view(np.float64)


def nearest(squares: Floats, count: int) -> NDArray[np.intp]:
    """Return the indices of the `count` smallest values, ascending; ties go to the lower index."""
    return np.sort(np.argsort(settled(squares), kind="stable")[:count])


def moved(own: Vector, others: Sequence[Vector], pulls: Sequence[float]) -> Vector:
    """Return own + the sum of pulls[j] (others[j] - own): (d,) in its dtype, exactly `own` if all are equal."""
    out = np.empty_like(own)
    pulling = [(row, own.dtype.type(pull)) for row, pull in zip(others, pulls, strict=True) if pull]
    gap = np.empty(min(BLOCK, max(1, own.size)), own.dtype)
    for span in blocks(own.size):
        part, total = gap[: span.stop - span.start], out[span]
        total[:] = 0
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for row, pull in pulling:
                np.subtract(row[span], own[span], out=part)
                part *= pull
                total += part
            total += own[span]
        if not np.isfinite(total).all():
            within_type(own[span], [row[span] for row in others], pulls, total)
    return out


def combined(rows: Sequence[Vector], shares: Sequence[float]) -> Vector:
    """Return the sum of shares[i] rows[i], for shares from 0 to 1 with sum 1; a row of share 1 is returned itself."""
    taken = [(row, share) for row, share in zip(rows, shares, strict=True) if share]
    parts, weights = [row for row, _ in taken], [share for _, share in taken]
    out = np.empty_like(rows[0])
    gap = np.empty(min(BLOCK, max(1, out.size)), out.dtype)
    for span in blocks(out.size):
        _weigh([part[span] for part in parts], weights, out[span], gap[: span.stop - span.start])
    return out


def within_type(own: Vector, others: Sequence[Vector], pulls: Sequence[float], out: Vector) -> None:
    """Sum where a difference would overflow the dtype: shares of the rows themselves do not."""
    shares = [max(0.0, 1 - sum(pulls)), *pulls]
    most = float(np.finfo(out.dtype).max)
    total = np.zeros(own.shape)
    for row, share in zip([own, *others], shares, strict=True):
        total += row.astype(np.float64) * share
    np.copyto(out, np.clip(total, -most, most), casting="same_kind")


def krum_scores(squares: Floats, count: int) -> Floats:
    """Return the sums (n,) of the squared distances to the `count` nearest other vectors: Blanchard et al. 2017.

    The original counts n - f - 2 of them; with one more, a bound holds whenever n > 2f (Allouah et al. 2023).
    """
    others = np.sort(squares + np.diag(np.full(len(squares), np.inf)), axis=1)
    return np.asarray(others[:, :count].sum(axis=1))


def near_one(squares: Floats, liars: int, center: int) -> Floats:
    """Return the n - f vectors nearest to the one at `center`: itself included, or as many copies of it."""
    near = nearest(squares[center], len(squares) - liars)
    shares = np.zeros(len(squares))
    shares[near] = 1 / len(near)
    return shares


def near_each(squares: Floats, liars: int) -> Floats:
    """Return the shares of NNM, (n, n): each row is the mean of the n - f vectors nearest to that one; Allouah et al.
    2023.
    """
    return np.stack([near_one(squares, liars, center) for center in range(len(squares))])


def geometric_median(spread: VectorSpread, weights: Floats) -> Floats:
    """Return the geometric median, by Weiszfeld's steps from the best of the vectors until they converge.

    If a step lands on a vector, the next one leaves it in the direction of descent, if there is one: Vardi and Zhang
    2000.
    """
    start = int(np.argmin(settled(np.sqrt(spread.squares) @ weights)))
    shares = np.zeros(len(weights))
    shares[start] = 1.0
    gaps = np.sqrt(spread.squares[start])
    for _ in range(MOST_STEPS):
        away = gaps > 0
        pulls = np.divide(weights, gaps, out=np.zeros_like(weights), where=away)
        if not pulls.any():
            break
        target = pulls / pulls.sum()
        apart = target - shares
        length = np.sqrt(max(0.0, apart @ spread.gram @ apart))
        here, force = weights[~away].sum(), pulls.sum() * length
        if here >= force:
            break
        shares = shares + (1 - here / force) * apart
        if length <= CONVERGED * np.median(gaps):
            break
        gaps = np.sqrt(spread.to_point(shares))
    return shares


def clipping(squares: Floats, radius: float) -> Floats:
    """Return the factor min(1, radius / distance) for each vector."""
    gaps = np.sqrt(squares)
    return np.divide(radius, gaps, out=np.ones_like(gaps), where=gaps > radius)


def own_radius(squares: Floats, weights: Floats, liars: int) -> float:
    """Return the radius of He, Karimireddy, Jaggi 2022: from the m - b nearest, with the b largest weights as the
    liars' share.
    """
    share = np.sort(weights)[len(weights) - liars :].sum()
    if not share:
        return float("inf")
    near = nearest(squares, len(squares) - liars)
    return float(np.sqrt(weights[near] @ squares[near] / share))


def clipped_sum_radius(squares: Floats, liars: int) -> float:
    """Return the (m - 2b)-th smallest distance: Gaucher, Dieuleveut, Hendrikx 2025, CS+."""
    return float(np.sqrt(np.sort(squares)[len(squares) - 2 * liars - 1]))


def _squares(gram: Floats, rows: Sequence[Vector]) -> Floats:
    together = gram.diagonal()[:, None] + gram.diagonal()
    squares = np.maximum(0.0, together - 2 * gram)
    squares = np.maximum(squares, squares.T)
    np.fill_diagonal(squares, 0.0)
    for first, second in np.argwhere(np.triu(squares <= CANCELLED * together, 1)):
        squares[first, second] = squares[second, first] = squared_to(rows[first], [rows[second]])[0]
    for second in range(1, len(rows)):
        if not squares[second, :second].all():
            first = int(np.argmin(squares[second, :second]))
            squares[second], squares[:, second] = squares[first], squares[:, first]
    return squares


def _gram(rows: Sequence[Vector], center: Vector) -> Floats:
    """Return the Gram matrix of the rows minus the center."""
    gram = np.zeros((len(rows), len(rows)))
    scratch = np.empty((len(rows), min(BLOCK, max(1, center.size))))
    for span in blocks(center.size):
        part = scratch[:, : span.stop - span.start]
        middle = center[span].astype(np.float64)
        for into, row in zip(part, rows, strict=True):
            np.copyto(into, row[span])
            np.subtract(into, middle, out=into)
        gram += part @ part.T
    return gram


def _weigh(parts: Sequence[Vector], weights: Sequence[float], out: Vector, scratch: Vector) -> None:
    """Write the weighted sum into `out`. Equal weights are applied to the sum, unless that overflows the dtype."""
    number = out.dtype.type
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if weights.count(weights[0]) == len(weights):
            np.copyto(out, parts[0])
            for part in parts[1:]:
                out += part
            out *= number(weights[0])
            if np.isfinite(out).all():
                return
        np.multiply(parts[0], number(weights[0]), out=out)
        for part, weight in zip(parts[1:], weights[1:], strict=True):
            out += np.multiply(part, number(weight), out=scratch)
    if not np.isfinite(out).all():
        # Rounding may exceed the dtype's range.
        np.nan_to_num(out, copy=False)
