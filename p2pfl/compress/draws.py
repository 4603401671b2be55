"""Randomness that both ends can compute: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) as a function of seed and place.

Word i (from 0) of a seed is mix(seed + (i + 1) * 0x9E3779B97F4A7C15), all modulo 2^64. Normative: decoders use it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def words(seeds: NDArray[np.uint64] | Sequence[int], first: int, count: int) -> NDArray[np.uint64]:
    """Return words first..first+count-1 of each seed, shape (seeds, count)."""
    start = np.asarray(seeds, np.uint64)[:, None]
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    steps *= GOLDEN
    z = steps + start
    shifted = np.empty_like(z)
    z ^= np.right_shift(z, np.uint64(30), out=shifted)
    z *= FIRST
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= SECOND
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


def seeds_of(chances: Sequence[int] | None, rows: int) -> NDArray[np.uint64]:
    """Return the seed of each row, shape (rows,)."""
    if chances is None or len(chances) != rows:
        found = "none" if chances is None else len(chances)
        raise ValueError(f"expected a chance for each of {rows} rows, got {found}")
    return np.array(chances, np.uint64)


def dither(seeds: NDArray[np.uint64], first: int, out: NDArray[np.float32]) -> None:
    """Fill `out` (seeds, n) with values first.. of each seed, uniform within (-1/2, 1/2).

    They are odd multiples of 2^-17, from 16 bits each; `first` and n are multiples of 4.
    """
    drawn = words(seeds, first // 4, out.shape[1] // 4).astype("<u8", copy=False).view("<i2")
    np.copyto(out, drawn)
    out *= np.float32(2.0**-16)
    out += np.float32(2.0**-17)


def bits(seeds: NDArray[np.uint64], first: int, count: int) -> NDArray[np.uint8]:
    """Return bits first..first+count-1 of each seed, each 0 or 1, shape (seeds, count); in a word, the lowest bit comes
    first.
    """
    skipped = first % 64
    drawn = words(seeds, first // 64, -(-(skipped + count) // 64)).astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(drawn, axis=1, count=skipped + count, bitorder="little")[:, skipped:]
