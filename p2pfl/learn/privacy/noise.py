"""Randomness for privacy: discrete Gaussians of integers, secret draws, and sums with noise on one grid of integers.

Floating-point Gaussians have gaps and lattices that depend on their size, which reveal what was added to them (Mironov
2012, doi 10.1145/2382196.2382264; Jin, McMurtry, Rubinstein and Ohrimenko, arXiv 2112.05307). Here small discrete
Gaussians x come from a table of exact probabilities, and x1 + 80 x2 + 80^2 x3 + 80^3 x4 is a large one (Micciancio and
Walter 2017, eprint.iacr.org/2017/259, section 3). The probability of each number equals that of a discrete Gaussian up
to two errors: a relative one of 2^-110 from the sum, and a total of 2^-119 over all numbers from the table, which ends
at 12.8 standard deviations and has 140 bits.

A discrete Gaussian of variance s^2 equals a rounded continuous one of variance s^2 - 1/12, up to terms of order 1/s^4,
and rounding reveals nothing more. So accountants for continuous Gaussians apply to it.

A number that a neighbor can compute is not random. The federation's seed is in a file that all members have, so a node
asks the operating system for a new key each time and draws from ChaCha20 with it. No key is kept, so none can be read,
reused or duplicated by a fork. Only a simulation draws from the seed, because it has no secrets to protect.

When two floats are added, the last bits of the result come from the larger one. So where noise and sum nearly cancel,
those bits belong to the sum (Mironov 2012, doi 10.1145/2382196.2382264). Moreover, one additional row changes how the
whole sum is rounded (Casacuberta, Shoemate, Vadhan and Wagaman, arXiv 2207.10635). So the sum is rounded to the grid
once, and the clip is reduced by what rounding may add to a row's effect.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import nacl.utils
import numpy as np
from numpy.typing import NDArray

from p2pfl import chance
from p2pfl.errors import UserError

Integers = NDArray[np.int64]
Bytes = Callable[[int], NDArray[np.uint8]]
"""A function that draws this many bytes, uniform and independent."""

WIDTH, FACTOR, LEVELS = 160, 80, 4
"""The standard deviation of a small Gaussian, the factor between levels, at most half of it, and their number."""
UNIT = 81_926_000.0
"""The standard deviation of the sum, rounded down by more than a relative 2^-18."""
COLUMN_BITS, REST_BITS = 12, 128
WORD_BITS = 32 - COLUMN_BITS
"""The number of bits drawn at once to decide within a column; the rest is drawn only if these leave a tie."""
COLUMNS, HALF = 1 << COLUMN_BITS, 1 << (COLUMN_BITS - 1)
BLOCK = 1 << 16
"""The number of values generated at once, chosen to fit in the cache."""


class AliasTable(NamedTuple):
    """The table of Walker's alias method.

    For each column, `limits` (4096,) has the bound for a word and `rests` the remaining bits of that bound. `numbers`
    (8192,) has two numbers per column: first the one for a word not below the bound, then the one for a word below it.
    """

    limits: NDArray[np.uint32]
    rests: list[int]
    numbers: NDArray[np.int32]


def gaussians(size: int, draw: Bytes) -> Integers:
    """Draw independent discrete Gaussians (size,)."""
    drawn = np.empty(size, np.int64)
    for first in range(0, size, BLOCK):
        block = drawn[first : first + BLOCK]
        block[:] = _small(len(block), draw)
        for _ in range(LEVELS - 1):
            block *= FACTOR
            block += _small(len(block), draw)
    return drawn


def _small(count: int, draw: Bytes) -> NDArray[np.int32]:
    """Draw numbers (count,) from the table."""
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
    words = [(column << WORD_BITS) + word for column, word in enumerate(top)]
    rests = [limit & ((1 << (REST_BITS - WORD_BITS)) - 1) for limit in limits]
    numbers = np.stack([np.array(aliases), np.arange(COLUMNS)], axis=1).ravel() - HALF
    return AliasTable(np.array(words, np.uint32), rests, numbers.astype(np.int32))


def weights() -> list[int]:
    """Return a discrete Gaussian's probabilities of -HALF to HALF - 1, rounded down to 2^-140, and the rest at zero."""
    with localcontext() as context:
        context.prec = 60
        one_side = [(Decimal(-number * number) / (2 * WIDTH * WIDTH)).exp() for number in range(HALF + 1)]
        scale = (1 << (REST_BITS + COLUMN_BITS)) / (2 * sum(one_side[1:HALF]) + one_side[0])
        scaled = [int(scale * one_side[abs(number)]) for number in range(-HALF, HALF)]
    scaled[0] = 0  # so that the table is symmetric
    scaled[HALF] += (1 << (REST_BITS + COLUMN_BITS)) - sum(scaled)
    return scaled


def columns_of(weight: list[int]) -> tuple[list[int], list[int]]:
    """Return Walker's alias table (Vose 1991, doi 10.1109/32.92917): columns' parts of 2^128, who gets the rest."""
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


BITS = 53
"""The bits in the number that decides whether a row is drawn: the precision of a double."""
KEY_BYTES = 32


class Secret:
    """The random source for nodes: keys are the operating system's, which needs no seed and is safe after a fork."""

    is_secret = True
    """True if nobody else can know what is drawn, so that it can hide something."""

    def of_round(self, node: int, round_index: int) -> Secret:
        del node, round_index
        return self

    def rows(self, samples: int, rate: float) -> Integers:
        """Draw each of `samples` rows with probability `rate`, rounded down to a multiple of 2^-53; ascending."""
        words = _secret(8 * samples).view(np.uint64) >> np.uint64(64 - BITS)
        return np.flatnonzero(words < np.uint64(rate * 2.0**BITS))

    def noise(self, size: int) -> Integers:
        """Draw independent discrete Gaussians (size,) with standard deviation UNIT."""
        return gaussians(size, _secret)

    def order(self, count: int) -> Integers:
        """Return the numbers 0 to count - 1 in random order, all orders equally likely."""
        return np.argsort(_secret(8 * count).view(np.uint64))

    def seed(self) -> int:
        """Return a 63-bit seed for torch's generator: for dropout and whatever else a model draws for each row."""
        return int.from_bytes(os.urandom(8), "little") >> 1


class Seeded:
    """The random source for simulations: it draws from the federation's seed, to repeat a run. It protects nothing."""

    is_secret = False

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of_round(self, node: int, round_index: int) -> SeededDraws:
        return SeededDraws(self._seed, node, round_index)


class SeededDraws:
    """The seeded draws for one round, from separate streams, so that a step's rows reveal nothing about its noise."""

    def __init__(self, seed: int, node: int, round_index: int) -> None:
        self._place = (seed, node, round_index)
        self._rows = chance.generator(seed, "private rows", node, round_index)
        self._noise = chance.generator(seed, "private noise", node, round_index)
        self._order = chance.generator(seed, "private order", node, round_index)

    def rows(self, samples: int, rate: float) -> Integers:
        return np.flatnonzero(self._rows.random(samples) < rate)

    def noise(self, size: int) -> Integers:
        return np.rint(self._noise.standard_normal(size) * UNIT).astype(np.int64)

    def order(self, count: int) -> Integers:
        return self._order.permutation(count)

    def seed(self) -> int:
        seed, *place = self._place
        return chance.torch_seed(seed, "dropout", *place)


Draws = Secret | SeededDraws
"""The random draws of one local round."""
Chance = Secret | Seeded
"""The source of a node's random draws."""


def _secret(count: int) -> NDArray[np.uint8]:
    """Return bytes (count,) that nobody else knows."""
    key = os.urandom(KEY_BYTES)
    return np.frombuffer(nacl.utils.randombytes_deterministic(count, key), np.uint8)


Reals = NDArray[np.float64]
ULP = 2.0**-53
MARGIN = 1.0 - 2.0**-10
"""The fraction of the clip that is left for one row.

The rest covers two effects: clipping is itself computed in float64, and in a batch of several pieces one row may move
another, whose float32 gradient is then rounded differently. The largest effect observed was 2^-22 of the clip.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid with `step` between its points. Both figures depend on public values only.

    `length` is the norm to which one row's vector is clipped, so that it changes the rounded sum by at most the clip.
    """

    step: float
    length: float

    @classmethod
    def of(cls, *, noise: float, clip: float, size: int, rows: int, in_sequence: int) -> Grid:
        """Return the grid for sums of at most `rows` vectors (size,), with at most `in_sequence` roundings of a number.

        Rounding adds less than one step to the change of a number, and each of the two sums is off by that many
        roundings of the sum of all norms (Higham 2002, equation 4.4). Raises UserError: they exceed the clip.
        """
        step = cls.step_of(noise=noise, clip=clip)
        length = MARGIN * clip - math.sqrt(size) * step * (1.0 + 2.0**-10) - 2.0 * in_sequence * ULP * rows * clip
        if length <= 0.0:
            text = f"no sum of {rows:,} rows of {size:,} numbers is exact enough for this"
            raise UserError(text, key="privacy.noise", value=noise, allowed="less, fewer rows, or a smaller model")
        return cls(step=step, length=length)

    @staticmethod
    def step_of(*, noise: float, clip: float) -> float:
        """Return the distance between the points of a grid."""
        return noise * clip / UNIT

    def hidden(self, total: Reals, draws: Draws) -> Reals:
        """Add noise to the sum (d,) on the grid."""
        noisy = np.rint(total / self.step)
        noisy += draws.noise(total.size)
        noisy *= self.step
        return noisy

    def hidden_steps(self, total: Reals, draws: Draws) -> Integers:
        """Add noise to the sum (d,), which has at most 2^62 steps of the grid; return it in steps."""
        return np.rint(total / self.step).astype(np.int64) + draws.noise(total.size)
