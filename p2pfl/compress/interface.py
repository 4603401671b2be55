"""The interface of every compressor, its registry, and what all share: checks of vectors and payloads, the pieces in
which they work, and randomness that both ends can compute.

Decoding is normative, since the two ends of an edge must hold identical replicas on x86 and on ARM: an integer code
becomes a float32 and is multiplied once, in float32, by a scale that was sent; a rotation is undone by float32
additions and subtractions in a fixed order and one multiplication. Nothing else is computed, nothing is fused, and
every number in a payload is little-endian. Encoding is not normative: only its sender ever runs it. A random encoder
draws only from its `chance`, so that the same vector and chance give the same payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import PeerFault
from p2pfl.specs import Catalog, Entry, Kind, Parameter

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

    __slots__ = ()

    def encode_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, decoded: NDArray[np.float32] | None = None
    ) -> NDArray[np.uint8]:
        """Return the payloads, shape (b, size_bytes(d)), of rows (b, d); raises as `encode` does.

        Fills `decoded` (b, d), which may be `rows` itself, with what they decode to.
        """
        ...

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return the vectors, shape (b, size), of payloads (b, size_bytes(size)): `out`, or a new array.

        Raises PeerFault like `decode`, if any row is at fault; `out` may be partly filled.
        """
        ...

    def encode(self, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None) -> Payload:
        require_vector(vector)
        rows = None if decoded is None else decoded[None]
        return as_payload(self.encode_rows(vector[None], chances=(chance,), decoded=rows).reshape(-1))

    def decode(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        row = payload_row(payload, self.size_bytes(size))
        vector: NDArray[np.float32] = self.decode_rows(row, size, None if out is None else out[None])[0]
        return vector


Reader = Callable[[slice, NDArray[np.float32]], None]
"""(tile, out (n,)) -> None: fills `out` with these values of a payload. Raises PeerFault like `decode`."""


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


@runtime_checkable
class TiledCompressor(RowCompressor, Protocol):
    """A compressor of which each tile is independent of the others, but for the place where it is stored. Values are
    encoded as they are computed, and decoded where they are used, without a vector of the model's size.
    """

    __slots__ = ()

    @property
    def tile(self) -> int:
        """Tiles that are read begin at multiples of this."""
        ...

    def write_rows(
        self,
        rows: Rows | LazyRow,
        payloads: NDArray[np.uint8],
        *,
        chances: Sequence[int] | None = None,
        decoded: NDArray[np.float32] | None = None,
    ) -> None:
        """Fill `payloads` (b, size_bytes(d)), like `encode_rows`."""
        ...

    def reader(self, payload: Payload, size: int) -> Reader:
        """Return a function that decodes any tile of a payload, with the bits of `decode`; it keeps the payload.

        Raises PeerFault if the length is wrong, or what comes before the values; the rest is checked when it is read.
        """
        ...

    def encode_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, decoded: NDArray[np.float32] | None = None
    ) -> NDArray[np.uint8]:
        require_rows(rows)
        payloads = np.empty((len(rows), self.size_bytes(rows.shape[1])), np.uint8)
        self.write_rows(rows, payloads, chances=chances, decoded=decoded)
        return payloads

    def encode_row(self, row: LazyRow, *, chance: int = 0) -> Payload:
        """Encode a vector that is computed as it is encoded, like `encode`."""
        payload = np.empty((1, self.size_bytes(row.shape[1])), np.uint8)
        self.write_rows(row, payload, chances=(chance,))
        return as_payload(payload[0])


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
    size_bytes = memoryview(payload).nbytes
    require_length(size_bytes, expected_bytes)
    return (np.frombuffer(payload, np.uint8) if size_bytes else np.empty(0, np.uint8))[None]


def require_length(found_bytes: int, expected_bytes: int) -> None:
    if found_bytes != expected_bytes:
        raise PeerFault(f"payload of {found_bytes} bytes where {expected_bytes} were due")


def require_payloads(payloads: NDArray[np.uint8], expected_bytes: int) -> None:
    if payloads.ndim != 2 or payloads.dtype != np.uint8:
        raise ValueError(f"expected rows of uint8, got {payloads.dtype} of shape {payloads.shape}")
    require_length(payloads.shape[1], expected_bytes)


def as_payload(codes: NDArray[np.uint8]) -> Payload:
    """Return the bytes (n,), which must not be written to again. Copying many into a Python object would stall all
    threads.
    """
    return codes.tobytes() if codes.size <= SMALL_BYTES else codes.data.toreadonly()


# -- the registry ------------------------------------------------------------------------------------------------------

SPARSIFIER, ROTATION, VALUES, ENTROPY = range(4)
"""The position of a stage in a chain, which has at most one of each."""
LARGEST_COUNT = 10**12


@dataclass(frozen=True, kw_only=True)
class StageEntry(Entry):
    """A stage's entry; its source is the one for the compressor in the example."""

    chains: Mapping[str, str] = field(default_factory=dict)
    """Names that others use for a chain with this stage, mapped to its spec."""
    rotated: Mapping[str, Any] | None = None
    """Additional arguments of the code after `rotate`; None if it cannot follow `rotate`."""
    before: tuple[str, ...] | None = None
    """The stages that may follow; None if all may."""

    @property
    def hints(self) -> Mapping[str, str]:
        return {**super().hints, **self.chains}


STAGES: Catalog[StageEntry] = Catalog("stage", StageEntry)
ALONE: Catalog[StageEntry] = Catalog("compressor", StageEntry)
"""Compressors that are not stages, and stand alone."""


def _read_keep(value: Any) -> int | float:
    if isinstance(value, int):
        if not 1 <= value <= LARGEST_COUNT:
            raise ValueError(f"a count lies from 1 to {LARGEST_COUNT}")
    elif not 0 < value <= 1:
        raise ValueError("a fraction lies in (0, 1]")
    return value  # type: ignore[no-any-return]


KEEP = Parameter(
    "X",
    Kind("a fraction in (0, 1] like 0.05, or a whole number from 1", _read_keep),
    "the values to keep: a share of them, or a count",
    argument="keep",
)


def plain(keep: float) -> str:
    """Write the number as in a spec, without an exponent."""
    return str(keep) if isinstance(keep, int) else format(Decimal(repr(keep)), "f")


# -- randomness that both ends can compute -----------------------------------------------------------------------------

# SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) as a function of seed and place. Word i (from 0) of a seed is
# mix(seed + (i + 1) * 0x9E3779B97F4A7C15), all modulo 2^64. Normative: decoders use it.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def words(seeds: NDArray[np.uint64] | Sequence[int], first: int, count: int) -> NDArray[np.uint64]:
    """Return words first..first+count-1 of each seed, shape (seeds, count)."""
    start = np.asarray(seeds, np.uint64)[:, None]
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    steps *= GOLDEN
    z = steps + start
    shifted = np.empty_like(z)
    z ^= np.right_shift(z, np.uint64(30), out=shifted)
    z *= FIRST
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= SECOND
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


def seeds_of(chances: Sequence[int] | None, rows: int) -> NDArray[np.uint64]:
    """Return the seed of each row, shape (rows,)."""
    if chances is None or len(chances) != rows:
        given = "none" if chances is None else len(chances)
        raise ValueError(f"expected a chance for each of {rows} rows, got {given}")
    return np.array(chances, np.uint64)


def bits(seeds: NDArray[np.uint64], first: int, count: int) -> NDArray[np.uint8]:
    """Return bits first..first+count-1 of each seed, each 0 or 1, shape (seeds, count); in a word, the lowest bit comes
    first.
    """
    skipped = first % 64
    drawn = words(seeds, first // 64, -(-(skipped + count) // 64)).astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(drawn, axis=1, count=skipped + count, bitorder="little")[:, skipped:]
