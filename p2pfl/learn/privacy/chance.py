"""What privacy draws: which rows a step sees, and the noise.

What a neighbor can compute is no chance. The federation's seed is in a file that all members have, so nodes ask the
operating system for a new key each time and draw from ChaCha20 under it: nothing is kept that could be read, repeated
or forked. Only a simulation draws from the seed, and keeps nobody's secret.

Floating-point Gaussians give away in their last bits which uniform numbers they were made of (Mironov 2012; Jin,
McMurtry, Rubinstein and Ohrimenko, arXiv 2112.05307). So each one here is the sum of two, over the square root of two,
and comes of four uniform numbers. Holohan and Braghin (arXiv 2107.10138, section 5.2) add four Gaussians, the halves of
two Box-Muller pairs, which come of as many; here the halves of a pair are added on paper, by one cosine.
"""

from __future__ import annotations

import os
from typing import Protocol

import nacl.utils
import numpy as np
from numpy.typing import NDArray

from p2pfl import chance

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

BITS = 53
"""Of the number that decides whether a row is drawn: as many as a double holds."""
ANGLE_BITS = 24
KEY_BYTES = 32
BLOCK = 1 << 16
"""Gaussians made at once: so they stay in the cache, and those of a large model fit into memory."""


class Draws(Protocol):
    """The chance of one local round."""

    def rows(self, samples: int, rate: float) -> Integers:
        """Which of `samples` rows a step sees, ascending: each with probability `rate`, whatever the others do."""
        ...

    def normal(self, size: int) -> Reals:
        """Independent standard Gaussians (size,)."""
        ...

    def seed(self) -> int:
        """63 bits for torch's generator: dropout and whatever else a model draws for each row."""
        ...


class Chance(Protocol):
    """Where a node's draws come from. `is_secret`: nobody else knows them, so what they hide is hidden."""

    @property
    def is_secret(self) -> bool: ...
    def of_round(self, node: int, round_index: int) -> Draws: ...


class Secret:
    """From keys of the operating system, which has no seed and is safe after a fork. For nodes."""

    is_secret = True

    def of_round(self, node: int, round_index: int) -> Secret:
        del node, round_index
        return self

    def rows(self, samples: int, rate: float) -> Integers:
        """The rate is rounded down to a multiple of 2^-53."""
        words = _secret(8 * samples).view(np.uint64) >> np.uint64(64 - BITS)
        return np.flatnonzero(words < np.uint64(rate * 2.0**BITS))

    def normal(self, size: int) -> Reals:
        found = np.empty(size)
        for first in range(0, size, BLOCK):
            block = found[first : first + BLOCK]
            block[:] = _pairs(len(block))
            block += _pairs(len(block))
        found *= np.sqrt(0.5)
        return found

    def seed(self) -> int:
        return int.from_bytes(os.urandom(8), "little") >> 1


class Seeded:
    """From the federation's seed, so that a simulation is the same each time. It protects nothing."""

    is_secret = False

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of_round(self, node: int, round_index: int) -> SeededDraws:
        return SeededDraws(self._seed, node, round_index)


class SeededDraws:
    """Two streams, so that the rows of a step say nothing of its noise."""

    def __init__(self, seed: int, node: int, round_index: int) -> None:
        self._place = (seed, node, round_index)
        self._rows = chance.generator(seed, "private rows", node, round_index)
        self._noise = chance.generator(seed, "private noise", node, round_index)

    def rows(self, samples: int, rate: float) -> Integers:
        return np.flatnonzero(self._rows.random(samples) < rate)

    def normal(self, size: int) -> Reals:
        return self._noise.standard_normal(size)

    def seed(self) -> int:
        seed, *place = self._place
        return chance.torch_seed(seed, "dropout", *place)


def _secret(count: int) -> NDArray[np.uint8]:
    """Bytes (count,) that nobody else knows."""
    key = os.urandom(KEY_BYTES)
    return np.frombuffer(nacl.utils.randombytes_deterministic(count, key), np.uint8)


def _pairs(count: int) -> Reals:
    """The sum of both Gaussians of each of (count,) Box-Muller pairs, over the square root of 2.

    r cos a + r sin a is sqrt(2) r cos(a - pi/4), and a - pi/4 is as uniform as a: one cosine does for both. Of 64 bits
    the angle takes 24, which a float32 holds, and the radius 40, so that it reaches 7.4.
    """
    words = _secret(8 * count).view(np.uint64)
    radius = np.log(((words >> np.uint64(ANGLE_BITS)) + np.uint64(1)) * 2.0 ** (ANGLE_BITS - 64))
    radius *= -2.0
    angle = (words & np.uint64(2**ANGLE_BITS - 1)).astype(np.float32) * np.float32(2.0 * np.pi / 2**ANGLE_BITS)
    found: Reals = np.sqrt(radius, out=radius) * np.cos(angle)
    return found
