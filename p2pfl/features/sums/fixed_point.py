"""Real numbers within bounds as whole numbers modulo 2^64, and their sums back as real numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2pfl.errors import PeerFault
from p2pfl.features.sums.masks import Words

MOST_SUM = 2**63
MOST_STEPS = 2**52
"""A double counts no further in whole steps."""


class SpoiledSum(PeerFault):
    """A sum that no values within the bounds can have: some member's masked vector was wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """Values from `low` to `high` in steps of `resolution`, for at most `members` summands.

    Raises ValueError: the bounds are no bounds, or the sum of all members would not fit.
    """

    low: float
    high: float
    resolution: float
    members: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"within = ({self.low}, {self.high}): allowed are two finite numbers, the lower first")
        if not (math.isfinite(self.resolution) and self.resolution > 0):
            raise ValueError(f"resolution = {self.resolution}: allowed is a finite number above 0")
        width, scale = self.high - self.low, 1 / self.resolution
        if not width * scale <= MOST_STEPS:
            raise ValueError(f"({self.high} - {self.low}) / {self.resolution} is more than 2^52 steps")
        if self.members * (math.floor(width * scale) + 1) >= MOST_SUM:
            text = f"{self.members} members times ({self.high} - {self.low}) times {scale:g} steps"
            raise ValueError(f"{text} reaches 2^63: use a coarser resolution or narrower bounds")

    @property
    def steps(self) -> int:
        """The largest code of one value."""
        return round((self.high - self.low) / self.resolution)

    def encode(self, arrays: Mapping[str, ArrayLike]) -> Words:
        """All entries by name, as one vector. Raises ValueError: one is not finite or out of bounds."""
        return np.concatenate([self._encoded(name, arrays[name]) for name in sorted(arrays)] or [np.zeros(0, "<u8")])

    def _encoded(self, name: str, array: ArrayLike) -> Words:
        values = np.asarray(array, np.float64).ravel()
        wrong = ~((values >= self.low) & (values <= self.high))
        if wrong.any():
            place = int(np.argmax(wrong))
            text = f"entry {place} of {name!r} is {values[place]}: allowed is {self.low} to {self.high}"
            raise ValueError(text)
        return np.rint((values - self.low) / self.resolution).astype("<u8")

    def decode(self, total: Words, count: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float64]]:
        """The arrays' sums over `count` members.

        Raises SpoiledSum: an entry is beyond what `count` values within the bounds can add up to. A wrong value within
        the bounds is not noticed.
        """
        if total.size and int(total.max()) > count * self.steps:
            raise SpoiledSum(f"entry {int(np.argmax(total))} is out of bounds: some masked vector was wrong")
        values = total.astype(np.float64) * self.resolution + count * self.low
        found, start = {}, 0
        for name in sorted(shapes):
            size = math.prod(shapes[name])
            found[name] = values[start : start + size].reshape(shapes[name])
            start += size
        return found

    def terms(self, label: str, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
        """32 bytes that differ where names, shapes, bounds, resolution or label do: members compare them first."""
        numbers = (self.low, self.high, self.resolution, self.members)
        text = repr((label, sorted((name, tuple(shape)) for name, shape in shapes.items()), tuple(map(repr, numbers))))
        return hashlib.blake2b(text.encode(), digest_size=32, person=b"p2pfl-sums-terms").digest()
