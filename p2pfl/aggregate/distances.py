"""Distances between vectors and sums of them, block by block, without a stacked copy of large models.

All in float64. Of many vectors every distance comes from one Gram matrix; where that would be a small difference of
large numbers, because two of them lie close together and far from the rest, it is computed from the two themselves.
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
"""A squared distance below this share of the squares it comes from has lost too many digits."""
FAR = 1e6
"""A vector whose squared distance is this many times the usual one is no reference point for the others."""
DIGITS = 2**18
"""The last bits of a float64 that comparisons ignore, so that sums in another order still tie."""


def blocks(size: int) -> Iterator[slice]:
    for left in range(0, size, BLOCK):
        yield slice(left, min(left + BLOCK, size))


def squared_to(center: Vector, rows: Sequence[Vector]) -> Floats:
    """(n,) squared distances of the rows from the center."""
    scratch = np.empty((2, min(BLOCK, max(1, center.size))))
    found = np.zeros(len(rows))
    for span in blocks(center.size):
        middle, gap = scratch[:, : span.stop - span.start]
        np.copyto(middle, center[span])
        for index, row in enumerate(rows):
            np.copyto(gap, row[span])
            gap -= middle
            found[index] += np.dot(gap, gap)
    return found


def squared_lengths(rows: Sequence[Vector]) -> Floats:
    """(n,)."""
    return squared_to(np.broadcast_to(rows[0].dtype.type(0), rows[0].shape), rows)


@dataclass(frozen=True, slots=True)
class VectorSpread:
    """The mutual positions of n vectors.

    `squares` (n, n) are the squared distances, symmetric bit by bit, of equal vectors equal. `gram` (n, n) are the
    inner products of the vectors less one point near most of them: distances from any other point follow from it.
    """

    squares: Floats
    gram: Floats

    def mixed(self, mixing: Floats) -> VectorSpread:
        """The same for the rows of `mixing @ vectors`; each row of `mixing` sums to 1."""
        count = len(mixing)
        squares = np.zeros((count, count))
        for first, second in zip(*np.triu_indices(count, 1), strict=True):
            apart = mixing[first] - mixing[second]
            there = np.flatnonzero(apart)
            square = -0.5 * apart[there] @ self.squares[np.ix_(there, there)] @ apart[there]
            squares[first, second] = squares[second, first] = max(0.0, square)
        return VectorSpread(squares, mixing @ self.gram @ mixing.T)

    def to_point(self, shares: Floats) -> Floats:
        """(n,) squared distances from the sum of shares[i] times vector i; the shares sum to 1."""
        towards = self.gram @ shares
        return np.maximum(0.0, self.gram.diagonal() - 2 * towards + shares @ towards)


def spread_of(rows: Sequence[Vector]) -> VectorSpread:
    """One Gram matrix; a second one where the first vector turns out to lie far from most."""
    gram = _gram(rows, rows[0])
    squares = _squares(gram, rows)
    inner = int(np.argmin(settled(np.sqrt(squares).sum(axis=1))))
    if gram[inner, inner] > FAR * np.median(squares[inner]):
        gram = _gram(rows, rows[inner])
    return VectorSpread(squares, gram)


def _squares(gram: Floats, rows: Sequence[Vector]) -> Floats:
    together = gram.diagonal()[:, None] + gram.diagonal()
    found = np.maximum(0.0, together - 2 * gram)
    found = np.maximum(found, found.T)
    np.fill_diagonal(found, 0.0)
    for first, second in np.argwhere(np.triu(found <= CANCELLED * together, 1)):
        found[first, second] = found[second, first] = squared_to(rows[first], [rows[second]])[0]
    for second in range(1, len(rows)):
        if not found[second, :second].all():
            first = int(np.argmin(found[second, :second]))
            found[second], found[:, second] = found[first], found[:, first]
    return found


def _gram(rows: Sequence[Vector], center: Vector) -> Floats:
    """The Gram matrix of the rows minus the center."""
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


def settled(values: Floats) -> Floats:
    """Round values so that those which differ only by the rounding of sums compare equal."""
    bits = values.view(np.int64)
    return ((bits + DIGITS // 2) & ~np.int64(DIGITS - 1)).view(np.float64)


def nearest(squares: Floats, count: int) -> NDArray[np.intp]:
    """The indices of the `count` smallest, ascending; of equal ones the lower indices."""
    return np.sort(np.argsort(settled(squares), kind="stable")[:count])


def moved(own: Vector, others: Sequence[Vector], pulls: Sequence[float]) -> Vector:
    """The own model + the sum of pulls[j] (others[j] - own): exactly `own` where all are equal; (d,) in its type."""
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
    """The sum of shares[i] rows[i], the shares from 0 to 1 and 1 together; a row that has all of it comes as it is."""
    taken = [(row, share) for row, share in zip(rows, shares, strict=True) if share]
    parts, weights = [row for row, _ in taken], [share for _, share in taken]
    out = np.empty_like(rows[0])
    gap = np.empty(min(BLOCK, max(1, out.size)), out.dtype)
    for span in blocks(out.size):
        _weigh([part[span] for part in parts], weights, out[span], gap[: span.stop - span.start])
    return out


def _weigh(parts: Sequence[Vector], weights: Sequence[float], out: Vector, scratch: Vector) -> None:
    """Write the sum into `out`. Equal weights are applied to the sum, unless that overflows the type."""
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
        # By a rounding beyond the type.
        np.nan_to_num(out, copy=False)


def within_type(own: Vector, others: Sequence[Vector], pulls: Sequence[float], out: Vector) -> None:
    """The same where a difference is beyond the type: shares of the rows themselves are not."""
    shares = [max(0.0, 1 - sum(pulls)), *pulls]
    most = float(np.finfo(out.dtype).max)
    total = np.zeros(own.shape)
    for row, share in zip([own, *others], shares, strict=True):
        total += row.astype(np.float64) * share
    np.copyto(out, np.clip(total, -most, most), casting="same_kind")
