"""What every compressor checks about a vector and about the length of a payload."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import Vector
from p2pfl.errors import PeerFault

FLOAT32_MAX = float(np.finfo(np.float32).max)


def require_vector(vector: Vector) -> None:
    if vector.ndim != 1 or vector.dtype not in (np.float32, np.float64):
        raise ValueError(f"expected a float32 or float64 vector, got {vector.dtype} of shape {vector.shape}")


def finite_float32(part: Vector) -> NDArray[np.float32]:
    """The values, shape (n,), as float32; a float64 beyond float32's range becomes the largest float32."""
    if not np.isfinite(part).all():
        raise ValueError("the vector holds NaN or infinity")
    if part.dtype == np.float64:
        part = np.clip(part, -FLOAT32_MAX, FLOAT32_MAX)
    return part.astype(np.float32, copy=False)


def payload_bytes(payload: bytes | memoryview, expected_bytes: int) -> NDArray[np.uint8]:
    """The payload as an array over the same memory, shape (expected_bytes,)."""
    found = memoryview(payload).nbytes
    if found != expected_bytes:
        raise PeerFault(f"payload of {found} bytes where {expected_bytes} were due")
    return np.frombuffer(payload, np.uint8) if found else np.empty(0, np.uint8)
