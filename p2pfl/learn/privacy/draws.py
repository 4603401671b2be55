"""The random draws for privacy: which rows are in a step, and the noise.

A number that a neighbor can compute is not random. The federation's seed is in a file that all members have, so a node
asks the operating system for a new key each time and draws from ChaCha20 with it. No key is kept, so none can be read,
reused or duplicated by a fork. Only a simulation draws from the seed, because it has no secrets to protect.
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
"""The bits in the number that decides whether a row is drawn: the precision of a double."""
KEY_BYTES = 32


class Draws(Protocol):
    """The random draws of one local round."""

    def rows(self, samples: int, rate: float) -> Integers:
        """Draw the rows for a step from `samples`, each independently with probability `rate`; return them in ascending
        order.
        """
        ...

    def noise(self, size: int) -> Integers:
        """Draw independent discrete Gaussians (size,) with standard deviation `gaussian.UNIT`."""
        ...

    def order(self, count: int) -> Integers:
        """Return the numbers 0 to count - 1 in random order, all orders equally likely."""
        ...

    def seed(self) -> int:
        """Return a 63-bit seed for torch's generator: for dropout and whatever else a model draws for each row."""
        ...


class Chance(Protocol):
    """The source of a node's random draws. `is_secret` is True if nobody else can know them, so that they can hide
    something.
    """

    @property
    def is_secret(self) -> bool: ...
    def of_round(self, node: int, round_index: int) -> Draws: ...


class Secret:
    """The random source for nodes: keys come from the operating system, which needs no seed and is safe after a
    fork.
    """

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
    """The random source for simulations: it draws from the federation's seed, so that every run is the same. It
    protects nothing.
    """

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


def _secret(count: int) -> NDArray[np.uint8]:
    """Return bytes (count,) that nobody else knows."""
    key = os.urandom(KEY_BYTES)
    return np.frombuffer(nacl.utils.randombytes_deterministic(count, key), np.uint8)
