"""The interface of every compressor; the common checks of vectors and payloads, and the pieces in which they work.

Decoding is normative, since the two ends of an edge must hold identical replicas on x86 and on ARM: an integer code
becomes a float32 and is multiplied once, in float32, by a scale that was sent; a rotation is undone by float32
additions and subtractions in a fixed order and one multiplication. Nothing else is computed, nothing is fused, and
every number in a payload is little-endian. Encoding is not normative: only its sender ever runs it. A random encoder
draws only from its `chance`, so that the same vector and chance give the same payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

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
    """A pair of pure functions Q and its inverse; it holds no state, so one object serves every edge.

    The functions on rows compute for many vectors of one size what the others compute for one, bit for bit.
    """

    @property
    def spec(self) -> str:
        """Its spec in `gossip.compressor`, in canonical spelling."""

    @property
    def source(self) -> str:
        """The paper or standard that defines it."""

    @property
    def random(self) -> bool:
        """True if its encoder draws from `chance`."""

    @property
    def fixed(self) -> bool:
        """True if every payload has exactly `size_bytes`; otherwise that is the maximum, and the size depends on the
        values.
        """

    def size_bytes(self, size: int) -> int:
        """Return the payload size for a vector of `size` values: exact if `fixed`, otherwise an upper bound."""

    def delta(self, size: int) -> float:
        """Return the contraction: |v - Q(v)|^2 <= (1 - delta) |v|^2, within the range the class documents.

        If `random`, it is guaranteed in expectation over `chance`, otherwise for each vector. At zero or less there is
        no contraction, and error feedback would not converge.
        """

    def gamma(self, size: int) -> float:
        """Return the fraction of a full mixing step that suits it, in (0, 1]."""

    def encode(self, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None) -> Payload:
        """Encode a vector of shape (d,), float32 or float64, as a payload; fill `decoded` (d,) with the decoded
        payload.

        `chance` is 64 bits. The payload is new memory that is not written to again.

        Raises ValueError if the vector holds NaN or infinity, or has another shape or dtype.
        """

    def decode(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Decode a payload to a vector, shape (size,), always finite: `out`, or a new array.

        Raises PeerFault if the length is wrong, or if the payload holds what no encoder may send. It is raised before
        memory is allocated beyond a small multiple of the vector; `out` may be partly filled.
        """

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Compute the vectors that payloads of the rows (b, d) would decode to, without the payloads; `out` may be
        `rows` itself.

        `chances` has one entry per row, and may be None if the encoder is not `random`.

        Raises ValueError like `encode`; `out` may be partly filled.
        """


class RowCompressor(Compressor, Protocol):
    """A compressor with payloads of a fixed size, so that many vectors' payloads form a matrix."""

    def encode_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, decoded: NDArray[np.float32] | None = None
    ) -> NDArray[np.uint8]:
        """Return the payloads, shape (b, size_bytes(d)), of rows (b, d); raises as `encode` does.

        Fills `decoded` (b, d), which may be `rows` itself, with what they decode to.
        """

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return the vectors, shape (b, size), of payloads (b, size_bytes(size)): `out`, or a new array.

        Raises PeerFault like `decode`, if any row is at fault; `out` may be partly filled.
        """


Reader = Callable[[slice, NDArray[np.float32]], None]
"""(tile, out (n,)) -> None: fills `out` with these values of a payload. Raises PeerFault like `decode`."""


@runtime_checkable
class TiledCompressor(RowCompressor, Protocol):
    """A compressor of which each tile is independent of the others, but for the place where it is stored. Values are
    encoded as they are computed, and decoded where they are used, without a vector of the model's size.
    """

    @property
    def tile(self) -> int:
        """Tiles that are read begin at multiples of this."""

    def write_rows(
        self,
        rows: Rows | LazyRow,
        payloads: NDArray[np.uint8],
        *,
        chances: Sequence[int] | None = None,
        decoded: NDArray[np.float32] | None = None,
    ) -> None:
        """Fill `payloads` (b, size_bytes(d)), like `encode_rows`."""

    def encode_row(self, row: LazyRow, *, chance: int = 0) -> Payload:
        """Encode a vector that is computed as it is encoded, like `encode`."""

    def reader(self, payload: Payload, size: int) -> Reader:
        """Return a function that decodes any tile of a payload, with the bits of `decode`; it keeps the payload.

        Raises PeerFault if the length is wrong, or what comes before the values; the rest is checked when it is read.
        """


class LazyRow:
    """A vector (d,) that is computed a tile at a time, shown as rows (1, d) to encoders that work in tiles.

    `compute` returns the values of a tile (n,), in memory that the next tile may reuse.
    """

    ndim = 2

    def __init__(self, size: int, dtype: np.dtype[Any], compute: Callable[[slice], Vector]) -> None:
        self.shape, self.dtype, self._compute = (1, size), dtype, compute

    def __len__(self) -> int:
        return 1

    def __getitem__(self, tile: tuple[slice, slice]) -> Rows:
        return self._compute(tile[1])[None]


FLOAT32_MAX = float(np.finfo(np.float32).max)

SMALL_BYTES = 64 * 1024


def require_vector(vector: Vector) -> None:
    if vector.ndim != 1 or vector.dtype not in (np.float32, np.float64):
        raise ValueError(f"expected a float32 or float64 vector, got {vector.dtype} of shape {vector.shape}")


def require_rows(rows: Rows | LazyRow) -> None:
    if rows.ndim != 2 or rows.dtype not in (np.float32, np.float64):
        raise ValueError(f"expected rows of float32 or float64, got {rows.dtype} of shape {rows.shape}")


def tiles(count: int, size: int, values: int) -> Iterator[tuple[slice, slice]]:
    """Split `count` rows of `size` values into tiles of about `values` values: whole rows, or pieces of one row."""
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
    """Return the payload as one row over the same memory, shape (1, expected_bytes)."""
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


class ByTiles(ByRows):
    """Implements `encode_rows` of a `TiledCompressor` by its `write_rows`."""

    __slots__ = ()

    def encode_rows(
        self: TiledCompressor,
        rows: Rows,
        *,
        chances: Sequence[int] | None = None,
        decoded: NDArray[np.float32] | None = None,
    ) -> NDArray[np.uint8]:
        require_rows(rows)
        payloads = np.empty((len(rows), self.size_bytes(rows.shape[1])), np.uint8)
        self.write_rows(rows, payloads, chances=chances, decoded=decoded)
        return payloads

    def encode_row(self: TiledCompressor, row: LazyRow, *, chance: int = 0) -> Payload:
        payload = np.empty((1, self.size_bytes(row.shape[1])), np.uint8)
        self.write_rows(row, payload, chances=(chance,))
        return as_payload(payload[0])


def as_payload(codes: NDArray[np.uint8]) -> Payload:
    """Return the bytes (n,), which must not be written to again. Copying many into a Python object would stall all
    threads.
    """
    return codes.tobytes() if codes.size <= SMALL_BYTES else codes.data.toreadonly()
