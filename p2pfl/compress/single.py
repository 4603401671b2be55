"""One vector by way of the functions on rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import Payload, RowCompressor, Vector
from p2pfl.compress.vectors import payload_row, require_vector

SMALL_BYTES = 64 * 1024


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
