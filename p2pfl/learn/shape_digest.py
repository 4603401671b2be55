"""What two nodes compare before they mix: a digest of the shared tensors' names, shapes, dtypes and order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

DIGEST_BYTES = 16


def shape_digest(tensors: Iterable[tuple[str, Sequence[int], str]]) -> bytes:
    """BLAKE2b-128 of (name, shape, dtype) for every shared tensor, in the order of the vector."""
    rows = [[name, list(shape), dtype] for name, shape, dtype in tensors]
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=DIGEST_BYTES).digest()
