"""What every compressor checks about vectors and payloads, and in which pieces it works on them.

`ByRows` gives one vector by way of the functions on rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import Payload, RowCompressor, Rows, Vector
from p2pfl.errors import PeerFault

FLOAT32_MAX = float(np.finfo(np.float32).max)

SMALL_BYTES = 64 * 1024


def require_vector(vector: Vector) -> None:
    if vector.ndim != 1 or vector.dtype not in (np.float32, np.float64):
        raise ValueError(f"expected a float32 or float64 vector, got {vector.dtype} of shape {vector.shape}")


def require_rows(rows: Rows) -> None:
    if rows.ndim != 2 or rows.dtype not in (np.float32, np.float64):
        raise ValueError(f"expected rows of float32 or float64, got {rows.dtype} of shape {rows.shape}")


def tiles(count: int, size: int, values: int) -> Iterator[tuple[slice, slice]]:
    """Cut `count` rows of `size` values into tiles of about `values` values: whole rows, or pieces of one row."""
    height = max(1, values // max(1, size))
    for top in range(0, count, height):
        for left in range(0, size, values):
            yield slice(top, min(top + height, count)), slice(left, min(left + values, size))


def rows_for(count: int, size: int, out: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """`out`, or a new array of shape (count, size)."""
    if out is None:
        return np.empty((count, size), np.float32)
    if out.shape != (count, size) or out.dtype != np.float32:
        raise ValueError(f"expected out of float32 and shape {(count, size)}, got {out.dtype} of shape {out.shape}")
    return out


def copy_float32(part: Rows, out: NDArray[np.float32]) -> None:
    """Round to float32; a finite float64 beyond its range becomes the largest, NaN and infinity stay."""
    if part.dtype == np.float32:
        np.copyto(out, part)
        return
    with np.errstate(over="ignore"):
        np.copyto(out, part, casting="same_kind")
    if np.isinf(out).any():
        beyond = np.isinf(out) & np.isfinite(part)
        np.copyto(out, np.copysign(np.float32(FLOAT32_MAX), out), where=beyond)


def require_finite(values: NDArray[np.float32]) -> None:
    if not np.isfinite(values).all():
        raise not_finite()


def not_finite() -> ValueError:
    return ValueError("the vector holds NaN or infinity")


def payload_row(payload: bytes | memoryview, expected_bytes: int) -> NDArray[np.uint8]:
    """The payload as one row over the same memory, shape (1, expected_bytes)."""
    found = memoryview(payload).nbytes
    require_length(found, expected_bytes)
    return (np.frombuffer(payload, np.uint8) if found else np.empty(0, np.uint8))[None]


def require_length(found_bytes: int, expected_bytes: int) -> None:
    if found_bytes != expected_bytes:
        raise PeerFault(f"payload of {found_bytes} bytes where {expected_bytes} were due")


def require_payloads(payloads: NDArray[np.uint8], expected_bytes: int) -> None:
    if payloads.ndim != 2 or payloads.dtype != np.uint8:
        raise ValueError(f"expected rows of uint8, got {payloads.dtype} of shape {payloads.shape}")
    require_length(payloads.shape[1], expected_bytes)


class ByRows:
    """`encode` and `decode` of a `RowCompressor`, from its functions on rows."""

    __slots__ = ()

    def encode(
        self: RowCompressor, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None
    ) -> Payload:
        require_vector(vector)
        rows = None if decoded is None else decoded[None]
        return as_payload(self.encode_rows(vector[None], chances=(chance,), decoded=rows).reshape(-1))

    def decode(
        self: RowCompressor, payload: Payload, size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        row = payload_row(payload, self.size_bytes(size))
        vector: NDArray[np.float32] = self.decode_rows(row, size, None if out is None else out[None])[0]
        return vector


def as_payload(codes: NDArray[np.uint8]) -> Payload:
    """The bytes (n,) that nobody writes to again. Copying many into an object of Python's would stop all threads."""
    return codes.tobytes() if codes.size <= SMALL_BYTES else codes.data.toreadonly()
