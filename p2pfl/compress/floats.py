"""The compressors that keep every value as a float: `none` (float32), `float16` and `bf16`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import (
    ALONE,
    STAGES,
    VALUES,
    LazyRow,
    Payload,
    Reader,
    Rows,
    TiledCompressor,
    copy_float32,
    payload_row,
    require_finite,
    require_payloads,
    require_rows,
    rows_for,
    seeds_of,
    tiles,
    words,
)
from p2pfl.errors import PeerFault

FLOAT16_MAX = np.float32(65504.0)
FLOAT16_NORMAL = np.float32(2.0**-14)
EXPONENT = np.uint32(0x7F800000)
SIGN = np.uint32(0x80000000)
UPPER_HALF = np.uint32(0xFFFF0000)
LARGEST_BFLOAT16 = np.uint32(0x7F7F0000)
"""The bits of the largest bfloat16 as a float32."""
HALF_BITS, NORMAL_BITS = np.float32(0.5).view(np.uint32), FLOAT16_NORMAL.view(np.uint32)
# The number of values in a piece, chosen so that its temporaries stay in the cache.
TILE = 1 << 16


class Floats(TiledCompressor):
    """The functions of a compressor, built on how one tile is rounded, stored and read."""

    __slots__ = ()
    spec: ClassVar[str]
    error: ClassVar[float]
    """1 - delta, of vectors of any size."""
    stored: ClassVar[str]
    """The dtype of a value in the payload."""
    random: ClassVar[bool] = False
    fixed: ClassVar[bool] = True
    source: ClassVar[str] = "IEEE 754"
    tile: ClassVar[int] = 1

    @abstractmethod
    def round(self, values: NDArray[np.float32], seeds: NDArray[np.uint64], first: int) -> None:
        """Round finite values (b, n) in place; `first`, a multiple of 4, is the place of the first one in its row."""

    @abstractmethod
    def codes(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Return rounded values (b, n) as they are stored, which may overwrite them."""

    @abstractmethod
    def read(self, codes: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Fill `out` with the stored values, of the same shape."""

    def delta(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1 - self.error

    def gamma(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1.0

    def size_bytes(self, size: int) -> int:
        return np.dtype(self.stored).itemsize * size

    def write_rows(
        self,
        rows: Rows | LazyRow,
        payloads: NDArray[np.uint8],
        *,
        chances: Sequence[int] | None = None,
        decoded: NDArray[np.float32] | None = None,
    ) -> None:
        require_rows(rows)
        count, size = rows.shape
        out = None if decoded is None else rows_for(count, size, decoded)
        seeds, stored = self._seeds(chances, count), payloads.view(self.stored)
        for tile in tiles(count, size, TILE):
            place = stored[tile]
            values = place if place.dtype == np.float32 else np.empty(place.shape, np.float32)
            self._load(rows[tile], values, seeds[tile[0]], tile[1].start)
            if out is not None:
                np.copyto(out[tile], values)
            if values is not place:
                np.copyto(place, self.codes(values), casting="unsafe")

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_rows(rows)
        count, size = rows.shape
        out = rows_for(count, size, out)
        seeds = self._seeds(chances, count)
        for tile in tiles(count, size, TILE):
            self._load(rows[tile], out[tile], seeds[tile[0]], tile[1].start)
        return out

    def reader(self, payload: Payload, size: int) -> Reader:
        stored = payload_row(payload, self.size_bytes(size)).view(self.stored)[0]

        def read(tile: slice, out: NDArray[np.float32]) -> None:
            self.read(stored[tile], out)
            _require_finite_payload(out)

        return read

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        stored, out = payloads.view(self.stored), rows_for(len(payloads), size, out)
        for tile in tiles(len(out), size, TILE):
            self.read(stored[tile], out[tile])
            _require_finite_payload(out[tile])
        return out

    def _seeds(self, chances: Sequence[int] | None, count: int) -> NDArray[np.uint64]:
        return seeds_of(chances, count) if self.random else np.empty(count, np.uint64)

    def _load(self, part: Rows, values: NDArray[np.float32], seeds: NDArray[np.uint64], first: int) -> None:
        copy_float32(part, values)
        require_finite(values)
        self.round(values, seeds, first)


@ALONE.add(name="none", aliases=("none", "float32", "fp32", "f32"), means="float32 as it is: 32 bits per value")
@dataclass(frozen=True, slots=True)
class Float32(Floats):
    """Exact for float32. A float64 is rounded, so delta = 1 - 2^-48, and saturates at float32's range."""

    spec: ClassVar[str] = "none"
    error: ClassVar[float] = 2.0**-48
    stored: ClassVar[str] = "<f4"

    def round(self, values: NDArray[np.float32], seeds: NDArray[np.uint64], first: int) -> None:
        """Leave them as they are."""

    def codes(self, values: NDArray[np.float32]) -> NDArray[Any]:
        return values

    def read(self, codes: NDArray[Any], out: NDArray[np.float32]) -> None:
        np.copyto(out, codes)


@STAGES.add(
    name="float16",
    place=VALUES,
    aliases=("fp16", "f16", "half"),
    means="half precision: 16 bits per value",
)
@dataclass(frozen=True, slots=True)
class Float16(Floats):
    """Half precision; magnitudes beyond 65504 are clipped to it, so that one outlier never becomes infinity.

    delta = 1 - 2^-22 is IEEE's bound for vectors whose non-zero magnitudes lie within [2^-14, 65504]. Below 2^-14 the
    absolute error is at most 2^-25, and a clipped value still moves towards its target.
    """

    spec: ClassVar[str] = "float16"
    error: ClassVar[float] = 2.0**-22
    stored: ClassVar[str] = "<u2"

    def round(self, values: NDArray[np.float32], seeds: NDArray[np.uint64], first: int) -> None:  # noqa: ARG002
        """Several times faster than numpy's conversions, with the same bits."""
        values.clip(-FLOAT16_MAX, FLOAT16_MAX, out=values)
        bits = values.view(np.uint32)
        # The power of two below each value, but at least that of the smallest normal float16.
        power = (bits & EXPONENT).view(np.float32)
        power.clip(FLOAT16_NORMAL, FLOAT16_MAX, out=power)
        # Near this number a float32 has as many bits left as a float16, and is rounded to nearest, ties to even.
        power *= np.float32(1.5 * 2**13)
        rounded = values + power
        rounded -= power
        # A negative value that became zero keeps its sign.
        bits &= SIGN
        bits |= rounded.view(np.uint32)

    def codes(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Processors take 50 times as long to convert numbers below 2^-14, where most updates of a model are."""
        bits = values.view(np.uint32)
        signs = bits >> np.uint32(16)
        signs &= np.uint32(0x8000)
        bits &= ~SIGN
        # Near 1/2 the bits of a float32 count in steps of 2^-24, like those of a float16 up to 2^-14.
        low = np.minimum(values, FLOAT16_NORMAL)
        low += np.float32(0.5)
        small = low.view(np.uint32)
        small -= HALF_BITS
        # Above that they differ in the number of bits.
        np.maximum(bits, NORMAL_BITS, out=bits)
        bits -= NORMAL_BITS
        bits >>= np.uint32(13)
        bits |= signs
        bits += small
        return bits

    def read(self, codes: NDArray[Any], out: NDArray[np.float32]) -> None:
        np.copyto(out, _all_halves()[codes])


@STAGES.add(
    name="bf16",
    place=VALUES,
    aliases=("bfloat16",),
    means="bfloat16, rounded at random so that the mean is exact: 16 bits per value",
)
@dataclass(frozen=True, slots=True)
class BFloat16(Floats):
    """The upper half of a float32, rounded up or down at random: a value that lies at a fraction f of the way from one
    bfloat16 to the next becomes the next one with probability f, so that the mean over `chance` is the value itself.

    Two vectors encoded with the same chance are rounded by the same draws: where they are equal, so are their payloads,
    and the difference of two close values is rounded with less noise than each of them. delta holds for each vector of
    normal magnitudes; beyond the largest bfloat16 values are clipped.
    """

    spec: ClassVar[str] = "bf16"
    error: ClassVar[float] = 2.0**-14
    stored: ClassVar[str] = "<u2"
    random: ClassVar[bool] = True
    source: ClassVar[str] = "stochastic rounding: Gupta et al., ICML 2015 (arXiv:1502.02551)"

    def round(self, values: NDArray[np.float32], seeds: NDArray[np.uint64], first: int) -> None:
        bits = values.view(np.uint32)
        signs = bits & SIGN
        bits &= ~SIGN
        np.minimum(bits, LARGEST_BFLOAT16, out=bits)
        size = values.shape[1]
        drawn = words(seeds, first // 4, -(-size // 4)).astype("<u8", copy=False).view("<u2")
        bits += drawn[:, :size]
        bits |= signs
        bits &= UPPER_HALF

    def codes(self, values: NDArray[np.float32]) -> NDArray[Any]:
        bits: NDArray[np.uint32] = values.view(np.uint32)
        bits >>= np.uint32(16)
        return bits

    def read(self, codes: NDArray[Any], out: NDArray[np.float32]) -> None:
        bits = out.view(np.uint32)
        np.copyto(bits, codes)
        bits <<= np.uint32(16)


@cache
def _all_halves() -> NDArray[np.float32]:
    """Tabulate the values of all 65,536 float16 bit patterns; a lookup takes the same time for each."""
    with np.errstate(invalid="ignore"):
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _require_finite_payload(decoded: NDArray[np.float32]) -> None:
    if not np.isfinite(decoded).all():
        raise PeerFault("the payload holds NaN or infinity")
