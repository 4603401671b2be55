"""A count sketch: distances between models that live in different processes, from a few numbers of each.

Charikar, Chen, Farach-Colton (2002): with `width` buckets the squared distance is unbiased and its relative standard
deviation is sqrt(2/width), 9% at 256, so 4.4% of the distance itself. Used for the history of a run on one machine;
the final figure is computed from the models themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.interface import Vector

WIDTH = 256
BLOCK = 2**16
"""Values at a time, so that a large model needs no second copy in memory."""


class Sketch:
    """A sketch that is the same for all nodes of a federation: a function of its seed and the model's size alone.

    It takes two bytes a value.
    """

    def __init__(self, size: int, seed: int) -> None:
        chance = np.random.default_rng([seed, size])
        self.bucket = chance.integers(0, WIDTH, size, dtype=np.uint8)
        self.sign = 2 * chance.integers(0, 2, size, dtype=np.int8) - 1

    def of(self, vector: Vector) -> NDArray[np.float64]:
        """Map (d,) -> (256,)."""
        buckets = np.zeros(WIDTH)
        for start in range(0, vector.size, BLOCK):
            part = slice(start, start + BLOCK)
            signed = np.multiply(self.sign[part], vector[part], dtype=np.float64)
            buckets += np.bincount(self.bucket[part], weights=signed, minlength=WIDTH)
        return buckets


def consensus_distance(rows: NDArray[np.float64]) -> float:
    """Compute the root mean square distance of the rows (k, m) to their mean, divided by that mean's norm; of equal
    rows exactly 0.
    """
    from_first = rows - rows[0]
    center = from_first.mean(axis=0)
    norm = float(np.linalg.norm(rows[0] + center))
    distance = float(np.sqrt(np.mean(np.sum((from_first - center) ** 2, axis=1))))
    return distance / norm if norm > 0 else 0.0
