"""The two compressors that keep every value as a float: `none` (float32) and `float16`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import Vector
from p2pfl.compress.vectors import finite_float32, payload_bytes, require_vector
from p2pfl.errors import PeerFault

FLOAT16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Float32:
    """Exact for float32. A float64 is rounded, hence delta = 1 - 2^-48, and saturates at float32's range."""

    spec: str = "none"
    delta: float = 1 - 2.0**-48

    def size_bytes(self, size: int) -> int:
        return 4 * size

    def encode(self, vector: Vector) -> bytes:
        require_vector(vector)
        return finite_float32(vector).astype("<f4", copy=False).tobytes()

    def decode(self, payload: bytes | memoryview, size: int) -> NDArray[np.float32]:
        return _finite(payload_bytes(payload, self.size_bytes(size)).view("<f4"))


@dataclass(frozen=True, slots=True)
class Float16:
    """Half precision; magnitudes beyond 65504 are clipped to it, so that one outlier never becomes infinity.

    delta = 1 - 2^-22 is IEEE's bound for vectors whose non-zero magnitudes lie within [2^-14, 65504].
    Below 2^-14 the absolute error is at most 2^-25, and a clipped value still moves towards its target.
    """

    spec: str = "float16"
    delta: float = 1 - 2.0**-22

    def size_bytes(self, size: int) -> int:
        return 2 * size

    def encode(self, vector: Vector) -> bytes:
        require_vector(vector)
        clipped = np.clip(finite_float32(vector), -FLOAT16_MAX, FLOAT16_MAX)
        return clipped.astype("<f2").tobytes()

    def decode(self, payload: bytes | memoryview, size: int) -> NDArray[np.float32]:
        return _finite(payload_bytes(payload, self.size_bytes(size)).view("<f2"))


def _finite(values: Vector) -> NDArray[np.float32]:
    if not np.isfinite(values).all():
        raise PeerFault("the payload holds NaN or infinity")
    return values.astype(np.float32)
