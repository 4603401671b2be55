"""Discrete Gaussians of standard deviation UNIT, made from whole numbers alone.

Floating-point Gaussians have gaps and lattices that depend on their size, which reveal what was added to them (Mironov
2012, doi 10.1145/2382196.2382264; Jin, McMurtry, Rubinstein and Ohrimenko, arXiv 2112.05307). Here a table of exact
probabilities gives small discrete Gaussians x, and x1 + 80 x2 + 80^2 x3 + 80^3 x4 is a large one (Micciancio and Walter
2017, eprint.iacr.org/2017/259, section 3). Each number then has the probability that a discrete Gaussian gives it but
for 2^-110 of that, for the sum; and but for 2^-119 of all numbers together, for the table, which ends at 12.8 standard
deviations and has 140 bits.

A discrete Gaussian of variance s^2 is a real one of variance s^2 - 1/12 that was rounded, but for terms of 1/s^4; and
the rounded one reveals no more than the real one. So accountants of real Gaussians hold for it.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Bytes = Callable[[int], NDArray[np.uint8]]
"""Draws that many bytes, uniform and independent."""

WIDTH, FACTOR, LEVELS = 160, 80, 4
"""The standard deviation of a small Gaussian, the factor between levels, at most half of it, and the
number of levels.
"""
UNIT = 81_926_000.0
"""The standard deviation of the sum, rounded down by more than 2^-18 of it."""
COLUMN_BITS, REST_BITS = 12, 128
WORD_BITS = 32 - COLUMN_BITS
"""The number of bits that decide within a column and are drawn together; the others are drawn if these
do not decide.
"""
COLUMNS, HALF = 1 << COLUMN_BITS, 1 << (COLUMN_BITS - 1)
BLOCK = 1 << 16
"""The number of values made at once, so that they stay in the cache."""


class AliasTable(NamedTuple):
    """The table of Walker's alias method.

    `limits` has the bound for a word in each column (4096,), `rests` the remaining bits of that bound; `numbers`
    (8192,) has by column the number if the word is not below the bound, and the number if it is.
    """

    limits: NDArray[np.uint32]
    rests: list[int]
    numbers: NDArray[np.int32]


def gaussians(size: int, draw: Bytes) -> Integers:
    """Draw independent discrete Gaussians (size,)."""
    found = np.empty(size, np.int64)
    for first in range(0, size, BLOCK):
        block = found[first : first + BLOCK]
        block[:] = _small(len(block), draw)
        for _ in range(LEVELS - 1):
            block *= FACTOR
            block += _small(len(block), draw)
    return found


def _small(count: int, draw: Bytes) -> NDArray[np.int32]:
    """Draw numbers from the table (count,)."""
    table = _table()
    words = draw(4 * count).view(np.uint32)
    columns = (words >> np.uint32(WORD_BITS)).view(np.int32)
    limits = table.limits.take(columns)
    places = (columns << 1) | (words < limits)
    for place in np.flatnonzero(words == limits).tolist():
        rest = int.from_bytes(draw(REST_BITS // 8).tobytes(), "little") >> WORD_BITS
        places[place] |= rest < table.rests[columns[place]]
    return table.numbers.take(places)


@lru_cache(maxsize=1)
def _table() -> AliasTable:
    limits, aliases = columns_of(weights())
    top = [limit >> (REST_BITS - WORD_BITS) for limit in limits]
    words = [(column << WORD_BITS) + one for column, one in enumerate(top)]
    rests = [limit & ((1 << (REST_BITS - WORD_BITS)) - 1) for limit in limits]
    numbers = np.stack([np.array(aliases), np.arange(COLUMNS)], axis=1).ravel() - HALF
    return AliasTable(np.array(words, np.uint32), rests, numbers.astype(np.int32))


def weights() -> list[int]:
    """The probabilities of -HALF to HALF - 1, in units of 2^-140: those of a discrete Gaussian, rounded down, and the
    remainder at zero.
    """
    with localcontext() as context:
        context.prec = 60
        one_side = [(Decimal(-number * number) / (2 * WIDTH * WIDTH)).exp() for number in range(HALF + 1)]
        scale = (1 << (REST_BITS + COLUMN_BITS)) / (2 * sum(one_side[1:HALF]) + one_side[0])
        found = [int(scale * one_side[abs(number)]) for number in range(-HALF, HALF)]
    found[0] = 0  # so that both sides are equal
    found[HALF] += (1 << (REST_BITS + COLUMN_BITS)) - sum(found)
    return found


def columns_of(weight: list[int]) -> tuple[list[int], list[int]]:
    """Build Walker's alias table in whole numbers (Vose 1991, doi 10.1109/32.92917): the share of each column, of
    2^128, that is its own number's, and the number that has the rest.
    """
    full, left = 1 << REST_BITS, list(weight)
    limits, aliases = [0] * COLUMNS, list(range(COLUMNS))
    small = [column for column in range(COLUMNS) if left[column] < full]
    large = [column for column in range(COLUMNS) if left[column] >= full]
    while small:
        column, donor = small.pop(), large[-1]
        limits[column], aliases[column] = left[column], donor
        left[donor] -= full - left[column]
        if left[donor] < full:
            small.append(large.pop())
    return limits, aliases
