"""Random numbers for the families that are not drawn by networkx. Each node of a federation draws the same graph from
the seed, so the numbers may not change with numpy's version: they come from the raw stream of a bit generator, which
numpy promises to keep (its generators' methods may change).
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError


def uniform(shape: tuple[int, ...], seed: int, label: str) -> NDArray[np.float64]:
    """Multiples of 2^-53 in [0, 1). Streams of another `label` or seed are independent."""
    raw = _raw(int(np.prod(shape)), seed, label)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53).reshape(shape)


def below(limit: int, count: int, seed: int, label: str) -> NDArray[np.int64]:
    """Whole numbers from 0 to limit - 1, limit at most 2^31. Shape (count,)."""
    # the high half times the limit, its high half again: uneven by at most limit / 2^32
    return ((_raw(count, seed, label) >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


def _raw(count: int, seed: int, label: str) -> NDArray[np.uint64]:
    state = int.from_bytes(blake2b(f"{label} {seed}".encode(), digest_size=16).digest())
    return np.asarray(np.random.PCG64(state).random_raw(count), dtype=np.uint64)


def generator(*seed: int) -> np.random.Generator:
    """Raises TopologyError where numpy has no generator for such a seed."""
    if min(seed) < 0:
        raise TopologyError("no such seed", key="seed", value=min(seed), allowed="a whole number from 0")
    return np.random.default_rng(seed[0] if len(seed) == 1 else list(seed))
