"""Named streams of chance, the one source of every draw of a node and of a simulation: nothing here draws.

A stream is known by the federation's seed, its purpose, and a path (node, round, two ends of a link). Streams of other
names are independent, so that one more draw here moves nothing there.

- `generator` and `torch_seed` are for arrays: batches, noise, a model's first values. numpy keeps the bits of PCG64 and
  may change what its Generator makes of them (NEP 19): what two machines must draw alike needs one version of numpy, as
  the partition of a demo's data does. The graph is not among it: see `topologies.chance`.
- `stream` is for single events of a simulation. Only `random()` of its Mersenne Twister is drawn from, which is the
  same in every version of Python, so a trace has one digest everywhere.
"""

from __future__ import annotations

import hashlib
import zlib
from random import Random

import numpy as np


def generator(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """`seed` and `path` are not negative."""
    return np.random.Generator(np.random.PCG64(_material(seed, purpose, *path)))


def torch_seed(seed: int, purpose: str, *path: int) -> int:
    """63 bits for a torch generator."""
    return int(_material(seed, purpose, *path).generate_state(1, np.uint64)[0]) >> 1


def key(seed: int, purpose: str, *path: int) -> bytes:
    """32 bytes for a keyed hash."""
    return _material(seed, purpose, *path).generate_state(4, np.uint64).astype("<u8").tobytes()


def _material(seed: int, purpose: str, *path: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *path])


def stream(seed: int, purpose: str, *path: int | str) -> Random:
    """A stream of random numbers for a purpose. In `path` the number 1 and the text "1" are different names."""
    named = "".join(f"{len(part)}:{part}" for part in (str(seed), purpose, *map(_named, path)))
    return Random(int.from_bytes(hashlib.blake2b(named.encode(), digest_size=32, person=b"p2pfl-sim").digest(), "big"))


def _named(part: int | str) -> str:
    return f"i{part}" if isinstance(part, int) else f"s{part}"
