"""Named random streams, the only source of randomness in nodes and simulations; nothing is drawn in this module.

A stream is identified by the federation's seed, its purpose, and a path (node, round, two ends of a link). Streams with
different names are independent, so that an additional draw from one does not change another.

- `generator` and `torch_seed` are for arrays: batches, noise, a model's initial values. numpy keeps the bits of PCG64
  stable, but may change how its Generator uses them (NEP 19). So draws that must be equal on two machines, such as the
  partition of a demo's data, need the same version of numpy. The graph does not: see `topologies.chance`.
- `stream` is for single events of a simulation. It uses only `random()` of Python's Mersenne Twister, which is the same
  in every version, so a trace has the same digest everywhere.
"""

from __future__ import annotations

import hashlib
import zlib
from random import Random

import numpy as np


def generator(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """Return a numpy generator. `seed` and the numbers in `path` must not be negative."""
    return np.random.Generator(np.random.PCG64(_material(seed, purpose, *path)))


def torch_seed(seed: int, purpose: str, *path: int) -> int:
    """Return a 63-bit seed for a torch generator."""
    return int(_material(seed, purpose, *path).generate_state(1, np.uint64)[0]) >> 1


def key(seed: int, purpose: str, *path: int) -> bytes:
    """Return 32 bytes that key a hash."""
    return _material(seed, purpose, *path).generate_state(4, np.uint64).astype("<u8").tobytes()


def _material(seed: int, purpose: str, *path: int) -> np.random.SeedSequence:
    words = [seed, zlib.crc32(purpose.encode()), *path]
    if min(words) >= 0 and max(words) < 2**32:
        return np.random.SeedSequence(np.array(words, np.uint32))  # as from a list, in a third of the time
    return np.random.SeedSequence(words)


def stream(seed: int, purpose: str, *path: int | str) -> Random:
    """Return a stream of random numbers for a purpose. In `path`, the number 1 and the text "1" are different."""
    parts = (str(seed), purpose, *(f"i{part}" if isinstance(part, int) else f"s{part}" for part in path))
    named = "".join(f"{len(part)}:{part}" for part in parts)
    return Random(int.from_bytes(hashlib.blake2b(named.encode(), digest_size=32, person=b"p2pfl-sim").digest(), "big"))
