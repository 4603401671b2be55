"""Named streams of chance: equal on every machine and in every process, independent of each other.

A stream is known by the federation's seed, its purpose and a path of integers (node, round). Nothing here draws.
"""

from __future__ import annotations

import zlib

import numpy as np


def stream(seed: int, purpose: str, *path: int) -> np.random.SeedSequence:
    """Seed material for one purpose; `seed` and `path` are not negative."""
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *path])


def generator(seed: int, purpose: str, *path: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(stream(seed, purpose, *path)))


def torch_seed(seed: int, purpose: str, *path: int) -> int:
    """63 bits for a torch generator."""
    return int(stream(seed, purpose, *path).generate_state(1, np.uint64)[0]) >> 1
