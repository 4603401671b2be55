"""Linear algebra: modulo 2^64 for what is masked, and over the rationals for what is learned."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from sim.audits.sums.probes import Ring

Rows = list[list[Fraction]]


def combinations_without(masked: Ring, carried: Ring) -> Ring:
    """All combinations of the rows (r, p) that are zero, as what they make of the rows `carried` (r, q): (k, q).

    A row that keeps only even entries is free of masks once it is doubled often enough: it tells the low bits.
    """
    left, right = masked.copy(), carried.copy()
    rows, columns = left.shape
    begin = 0
    for column in range(columns):
        if begin == rows:
            break
        odd = np.flatnonzero(left[begin:, column] & np.uint64(1))
        if not odd.size:
            continue
        pivot = begin + int(odd[0])
        for matrix in (left, right):
            matrix[[begin, pivot]] = matrix[[pivot, begin]]
        inverse = np.uint64(pow(int(left[begin, column]), -1, 2**64))
        below = np.flatnonzero(left[begin + 1 :, column]) + begin + 1
        factors = (left[below, column] * inverse)[:, None]
        left[below] -= factors * left[begin]
        right[below] -= factors * right[begin]
        begin += 1
    found = [right[row] * _annihilator(left[row]) for row in range(begin, rows)]
    kept = [row for row in found if row.any()]
    return np.array(kept, "<u8").reshape(len(kept), carried.shape[1])


def _annihilator(row: Ring) -> np.uint64:
    """The least power of two, modulo 2^64, that makes the row zero: 1 if it is; 0 if one of its entries is odd."""
    together = int(np.bitwise_or.reduce(row)) if row.size else 0
    if not together:
        return np.uint64(1)
    zeros = (together & -together).bit_length() - 1
    return np.uint64(2 ** (64 - zeros)) if zeros else np.uint64(0)


def signed(rows: Ring) -> Rows:
    """Numbers modulo 2^64 as those nearest to zero."""
    return [[Fraction(int(value)) for value in row] for row in rows.view(np.int64)]


def reduced(rows: Rows) -> Rows:
    """The reduced row echelon form, without rows of zeros."""
    left, found = [list(row) for row in rows], list[list[Fraction]]()
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        pivot = [value / pivot[column] for value in pivot]
        for others in (left, found):
            for place, row in enumerate(others):
                if row[column]:
                    others[place] = [a - row[column] * b for a, b in zip(row, pivot, strict=True)]
        found.append(pivot)
    return found


def rank(rows: Rows) -> int:
    return len(reduced(rows))
