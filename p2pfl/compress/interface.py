"""The interface of every compressor; the common checks of vectors and payloads, and the pieces in which they work.

Decoding is normative, since the two ends of an edge must hold identical replicas on x86 and on ARM: an integer code
becomes a float32 and is multiplied once, in float32, by a scale that was sent; a rotation is undone by additions and
subtractions of float32 in a fixed order and one multiplication. Nothing else is computed, nothing is fused, and every
number of a payload is little-endian. Encoding is not normative: only its sender ever runs it. A random encoder draws
from its `chance` and from nothing else, so that the same vector and chance give the same payload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import PeerFault

Vector = NDArray[np.floating[Any]]
"""One dimension, float32 or float64."""

Rows = NDArray[np.floating[Any]]
"""A float32 or float64 array of shape (n, d), with a vector in each row."""

Payload = bytes | memoryview
"""The bytes of a message body, flat."""


class Compressor(Protocol):
    """A pair of pure functions Q and its inverse; holds no state, so that one object serves every edge.

    The functions on rows compute for many vectors of one size what the others compute for one, to the last bit.
    """

    @property
    def spec(self) -> str:
        """Its spec in `gossip.compressor`, in canonical spelling."""

    @property
    def source(self) -> str:
        """The paper, or the standard, that defines it."""

    @property
    def random(self) -> bool:
        """True if its encoder draws from `chance`."""

    @property
    def fixed(self) -> bool:
        """True if every payload has exactly `size_bytes`; else that is the most, and the values decide."""

    def size_bytes(self, size: int) -> int:
        """Payload size for a vector of `size` values: exact if `fixed`, else no payload is longer."""

    def delta(self, size: int) -> float:
        """Contraction: |v - Q(v)|^2 <= (1 - delta) |v|^2, within the range the class documents.

        Guaranteed for each vector if not `random`, else in expectation over `chance`. Zero or less: no contraction, and
        error feedback would not converge.
        """

    def gamma(self, size: int) -> float:
        """The share of a full mixing step that suits it, in (0, 1]."""

    def encode(self, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None) -> Payload:
        """Encode a vector of shape (d,), float32 or float64, as a payload; fill `decoded` (d,) with the decoded
        payload.

        `chance` is 64 bits. The payload is new memory, which nobody writes to again.

        Raises ValueError: the vector holds NaN or infinity, or is not of that shape and type.
        """

    def decode(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Decode a payload to a vector, shape (size,), always finite: `out`, or a new array.

        Raises PeerFault: the length is wrong, or the payload holds what no encoder may send. It is raised before memory
        is allocated beyond a small multiple of the vector; `out` may be filled in part.
        """

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Compute the vectors that payloads of the rows (b, d) would decode to, without the payloads; `out` may be
        `rows` itself.

        `chances` has one for each row, and may be None where the encoder is not `random`.

        Raises ValueError: as for `encode`; `out` may be filled in part.
        """


class RowCompressor(Compressor, Protocol):
    """A compressor with payloads of a fixed size, so that those of many vectors make a matrix."""

    def encode_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, decoded: NDArray[np.float32] | None = None
    ) -> NDArray[np.uint8]:
        """Payloads, shape (b, size_bytes(d)), of the rows of (b, d); raises as `encode` does.

        Fills `decoded` (b, d), which may be `rows` itself, with what they decode to.
        """

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Vectors, shape (b, size), of payloads (b, size_bytes(size)): `out`, or a new array.

        Raises PeerFault: as for `decode`, if any row is at fault; `out` may be filled in part.
        """


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
    """Return `out`, or a new array of shape (count, size)."""
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
    """Implements `encode` and `decode` of a `RowCompressor` by its functions on rows."""

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
    """Return the bytes (n,), which nobody may write to again. Copying many into a Python object would stop
    all threads.
    """
    return codes.tobytes() if codes.size <= SMALL_BYTES else codes.data.toreadonly()
