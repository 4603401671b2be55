"""Chance that both ends can compute: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) as a function of seed and place.

Word i (from 0) of a seed is mix(seed + (i + 1) * 0x9E3779B97F4A7C15), all modulo 2^64. Normative: decoders use it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def words(seeds: NDArray[np.uint64] | Sequence[int], first: int, count: int) -> NDArray[np.uint64]:
    """Words first..first+count-1 of each seed, shape (seeds, count)."""
    start = np.asarray(seeds, np.uint64)[:, None]
    z: NDArray[np.uint64] = np.arange(first + 1, first + count + 1, dtype=np.uint64) * GOLDEN + start
    z ^= z >> np.uint64(30)
    z *= FIRST
    z ^= z >> np.uint64(27)
    z *= SECOND
    z ^= z >> np.uint64(31)
    return z
