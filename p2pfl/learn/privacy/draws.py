"""The random draws for privacy: the rows of a step, and the noise.

A number that a neighbor can compute is not random. The federation's seed is in a file that all members have, so nodes
ask the operating system for a new key each time and draw from ChaCha20 under it: nothing is kept that could be read,
repeated or forked. Only a simulation draws from the seed, and keeps nobody's secret.
"""

from __future__ import annotations

import os
from typing import Protocol

import nacl.utils
import numpy as np
from numpy.typing import NDArray

from p2pfl import chance
from p2pfl.learn.privacy.gaussian import UNIT, gaussians

Integers = NDArray[np.int64]

BITS = 53
"""The bits of the number that decides whether a row is drawn: as many as a double holds."""
KEY_BYTES = 32


class Draws(Protocol):
    """The random draws of one local round."""

    def rows(self, samples: int, rate: float) -> Integers:
        """The rows of a step among `samples`, ascending: each with probability `rate`, independently of the others."""
        ...

    def noise(self, size: int) -> Integers:
        """Independent discrete Gaussians (size,) of standard deviation `gaussian.UNIT`."""
        ...

    def order(self, count: int) -> Integers:
        """The numbers 0 to count - 1 in a random order, all orders equally likely."""
        ...

    def seed(self) -> int:
        """63 bits for torch's generator: dropout and whatever else a model draws for each row."""
        ...


class Chance(Protocol):
    """The source of a node's random draws. `is_secret`: nobody else knows them, so they can hide something."""

    @property
    def is_secret(self) -> bool: ...
    def of_round(self, node: int, round_index: int) -> Draws: ...


class Secret:
    """Chance for nodes, with keys from the operating system, which has no seed and is safe after a fork."""

    is_secret = True

    def of_round(self, node: int, round_index: int) -> Secret:
        del node, round_index
        return self

    def rows(self, samples: int, rate: float) -> Integers:
        """Draw the rows; the rate is rounded down to a multiple of 2^-53."""
        words = _secret(8 * samples).view(np.uint64) >> np.uint64(64 - BITS)
        return np.flatnonzero(words < np.uint64(rate * 2.0**BITS))

    def noise(self, size: int) -> Integers:
        return gaussians(size, _secret)

    def order(self, count: int) -> Integers:
        return np.argsort(_secret(8 * count).view(np.uint64))

    def seed(self) -> int:
        return int.from_bytes(os.urandom(8), "little") >> 1


class Seeded:
    """Chance for simulations, from the federation's seed, so that each run is the same. It protects nothing."""

    is_secret = False

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def of_round(self, node: int, round_index: int) -> SeededDraws:
        return SeededDraws(self._seed, node, round_index)


class SeededDraws:
    """The seeded draws of one round, from separate streams, so that the rows of a step reveal nothing of its noise."""

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


def _secret(count: int) -> NDArray[np.uint8]:
    """Bytes (count,) that nobody else knows."""
    key = os.urandom(KEY_BYTES)
    return np.frombuffer(nacl.utils.randombytes_deterministic(count, key), np.uint8)
