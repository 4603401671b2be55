"""All random draws of this library: `StableDraws` if all machines must draw the same numbers, `generator` for a single
machine.

numpy promises that the raw bits of PCG64 never change; it promises nothing about what its Generator derives from them
(NEP 19). Each node of a federation computes the graph for itself, with whatever numpy version it has. So graphs and
schedules are made from raw bits only; searches, simulations and pictures, which run on one machine, use the Generator.
"""

from __future__ import annotations

from hashlib import blake2b, sha256

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError


class StableDraws:
    """A stream identified by a label and a seed; streams with different labels or seeds are independent."""

    def __init__(self, label: str, seed: int) -> None:
        self._bits = np.random.PCG64(int.from_bytes(blake2b(f"{label} {seed}".encode(), digest_size=16).digest()))

    @classmethod
    def of_schedule(cls, family: str, nodes: int, seed: int) -> StableDraws:
        """Make the stream for a schedule. Parameters are left out on purpose: a longer schedule begins with the rounds
        of a shorter one.
        """
        draws = cls.__new__(cls)
        draws._bits = np.random.PCG64(int.from_bytes(sha256(f"{family} {nodes} {seed}".encode()).digest()))  # noqa: SLF001
        return draws

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Draw multiples of 2^-53 in [0, 1)."""
        return np.asarray((self._raw(int(np.prod(shape))) >> np.uint64(11)) * 2.0**-53).reshape(shape)

    def below(self, limit: int, count: int) -> NDArray[np.int64]:
        """Draw integers from 0 to limit - 1, for a limit of at most 2^31. Shape (count,)."""
        # the high half times the limit, then its high half again; the bias is at most limit / 2^32
        return ((self._raw(count) >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)).astype(np.int64)

    def _raw(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)


def check_seed(seed: int) -> int:
    """Return the seed. Raises TopologyError for a negative one, which numpy does not accept."""
    if seed < 0:
        raise TopologyError("no such seed", key="seed", value=seed, allowed="a whole number from 0")
    return seed


def generator(*seed: int) -> np.random.Generator:
    """Make a generator. Raises TopologyError if numpy does not accept the seed."""
    check_seed(min(seed))
    return np.random.default_rng(seed[0] if len(seed) == 1 else list(seed))
