"""The compressors that keep every value as a float: `none` (float32), `float16` and `bf16`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.draws import seeds_of, words
from p2pfl.compress.entry import ALONE, STAGES, VALUES, StageEntry
from p2pfl.compress.interface import (
    ByTiles,
    LazyRow,
    Payload,
    Reader,
    Rows,
    copy_float32,
    payload_row,
    require_finite,
    require_payloads,
    require_rows,
    rows_for,
    tiles,
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


@ALONE.add(
    StageEntry(name="none", aliases=("none", "float32", "fp32", "f32"), means="float32 as it is: 32 bits per value")
)
@dataclass(frozen=True, slots=True)
class Float32(ByTiles):
    """Exact for float32. A float64 is rounded, so delta = 1 - 2^-48, and saturates at float32's range."""

    spec: str = "none"
    random: bool = False
    fixed: bool = True
    source: str = "IEEE 754"
    tile: int = 1

    def delta(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1 - 2.0**-48

    def gamma(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1.0

    def size_bytes(self, size: int) -> int:
        return 4 * size

    def write_rows(
        self,
        rows: Rows | LazyRow,
        payloads: NDArray[np.uint8],
        *,
        chances: Sequence[int] | None = None,  # noqa: ARG002 - nothing is drawn
        decoded: NDArray[np.float32] | None = None,
    ) -> None:
        require_rows(rows)
        count, size = rows.shape
        stored, out = payloads.view("<f4"), None if decoded is None else rows_for(count, size, decoded)
        for tile in tiles(count, size, TILE):
            values = stored[tile]
            copy_float32(rows[tile], values)
            require_finite(values)
            if out is not None:
                np.copyto(out[tile], values)

    def reader(self, payload: Payload, size: int) -> Reader:
        stored = payload_row(payload, self.size_bytes(size)).view("<f4")[0]

        def read(tile: slice, out: NDArray[np.float32]) -> None:
            np.copyto(out, stored[tile])
            _require_finite_payload(out)

        return read

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        return _finite(payloads.view("<f4"), rows_for(len(payloads), size, out))

    def quantize_rows(
        self,
        rows: Rows,
        *,
        chances: Sequence[int] | None = None,  # noqa: ARG002 - nothing is drawn
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        require_rows(rows)
        out = rows_for(len(rows), rows.shape[1], out)
        for tile in tiles(len(rows), rows.shape[1], TILE):
            copy_float32(rows[tile], out[tile])
            require_finite(out[tile])
        return out


@STAGES.add(
    StageEntry(
        name="float16",
        place=VALUES,
        aliases=("fp16", "f16", "half"),
        means="half precision: 16 bits per value",
    )
)
@dataclass(frozen=True, slots=True)
class Float16(ByTiles):
    """Half precision; magnitudes beyond 65504 are clipped to it, so that one outlier never becomes infinity.

    delta = 1 - 2^-22 is IEEE's bound for vectors whose non-zero magnitudes lie within [2^-14, 65504]. Below 2^-14 the
    absolute error is at most 2^-25, and a clipped value still moves towards its target.
    """

    spec: str = "float16"
    random: bool = False
    fixed: bool = True
    source: str = "IEEE 754"
    tile: int = 1

    def delta(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1 - 2.0**-22

    def gamma(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1.0

    def size_bytes(self, size: int) -> int:
        return 2 * size

    def write_rows(
        self,
        rows: Rows | LazyRow,
        payloads: NDArray[np.uint8],
        *,
        chances: Sequence[int] | None = None,  # noqa: ARG002 - nothing is drawn
        decoded: NDArray[np.float32] | None = None,
    ) -> None:
        require_rows(rows)
        count, size = rows.shape
        out = None if decoded is None else rows_for(count, size, decoded)
        halves = payloads.view("<u2")
        for tile in tiles(count, size, TILE):
            values = _rounded(_within_float16(rows[tile]))
            if out is not None:
                np.copyto(out[tile], values)
            np.copyto(halves[tile], _halves(values), casting="unsafe")

    def reader(self, payload: Payload, size: int) -> Reader:
        halves = payload_row(payload, self.size_bytes(size)).view("<u2")[0]

        def read(tile: slice, out: NDArray[np.float32]) -> None:
            np.copyto(out, _all_halves()[halves[tile]])
            _require_finite_payload(out)

        return read

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        halves, out = payloads.view("<u2"), rows_for(len(payloads), size, out)
        for tile in tiles(len(out), size, TILE):
            np.copyto(out[tile], _all_halves()[halves[tile]])
            _require_finite_payload(out[tile])
        return out

    def quantize_rows(
        self,
        rows: Rows,
        *,
        chances: Sequence[int] | None = None,  # noqa: ARG002 - nothing is drawn
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        require_rows(rows)
        out = rows_for(len(rows), rows.shape[1], out)
        for tile in tiles(len(rows), rows.shape[1], TILE):
            np.copyto(out[tile], _rounded(_within_float16(rows[tile])))
        return out


@STAGES.add(
    StageEntry(
        name="bf16",
        place=VALUES,
        aliases=("bfloat16",),
        means="bfloat16, rounded at random so that the mean is exact: 16 bits per value",
    )
)
@dataclass(frozen=True, slots=True)
class BFloat16(ByTiles):
    """The upper half of a float32, rounded up or down at random: a value that lies at a fraction f of the way from one
    bfloat16 to the next becomes the next one with probability f, so that the mean over `chance` is the value itself.

    Two vectors encoded with the same chance are rounded by the same draws: where they are equal, so are their payloads,
    and the difference of two close values is rounded with less noise than each of them. delta holds for each vector of
    normal magnitudes; beyond the largest bfloat16 values are clipped.
    """

    spec: str = "bf16"
    random: bool = True
    fixed: bool = True
    source: str = "stochastic rounding: Gupta et al., ICML 2015 (arXiv:1502.02551)"
    tile: int = 1

    def delta(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1 - 2.0**-14

    def gamma(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1.0

    def size_bytes(self, size: int) -> int:
        return 2 * size

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
        seeds = seeds_of(chances, count)
        halves = payloads.view("<u2")
        for tile in tiles(count, size, TILE):
            bits = _upper_halves(rows[tile], seeds[tile[0]], tile[1].start)
            if out is not None:
                np.copyto(out[tile], bits.view(np.float32))
            bits >>= np.uint32(16)
            np.copyto(halves[tile], bits, casting="unsafe")

    def reader(self, payload: Payload, size: int) -> Reader:
        halves = payload_row(payload, self.size_bytes(size)).view("<u2")[0]

        def read(tile: slice, out: NDArray[np.float32]) -> None:
            bits = out.view(np.uint32)
            np.copyto(bits, halves[tile])
            bits <<= np.uint32(16)
            _require_finite_payload(out)

        return read

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        halves, out = payloads.view("<u2"), rows_for(len(payloads), size, out)
        for tile in tiles(len(out), size, TILE):
            bits = halves[tile].astype(np.uint32)
            bits <<= np.uint32(16)
            np.copyto(out[tile], bits.view(np.float32))
            _require_finite_payload(out[tile])
        return out

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_rows(rows)
        out = rows_for(len(rows), rows.shape[1], out)
        seeds = seeds_of(chances, len(rows))
        for tile in tiles(len(rows), rows.shape[1], TILE):
            np.copyto(out[tile], _upper_halves(rows[tile], seeds[tile[0]], tile[1].start).view(np.float32))
        return out


def _upper_halves(part: Rows, seeds: NDArray[np.uint64], first: int) -> NDArray[np.uint32]:
    """Return the float32 bits of the values (b, n) rounded to bfloat16; `first`, a multiple of 4, is the place of the
    first one in its row.
    """
    values = np.empty(part.shape, np.float32)
    copy_float32(part, values)
    require_finite(values)
    bits: NDArray[np.uint32] = values.view(np.uint32)
    signs = bits & SIGN
    bits &= ~SIGN
    np.minimum(bits, LARGEST_BFLOAT16, out=bits)
    size = part.shape[1]
    drawn = words(seeds, first // 4, -(-size // 4)).astype("<u8", copy=False).view("<u2")
    bits += drawn[:, :size]
    bits |= signs
    bits &= UPPER_HALF
    return bits


def _within_float16(part: Rows) -> NDArray[np.float32]:
    """Return a copy of the values (b, d) as float32, clipped to float16's range."""
    values = np.empty(part.shape, np.float32)
    copy_float32(part, values)
    require_finite(values)
    return values.clip(-FLOAT16_MAX, FLOAT16_MAX, out=values)


def _rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to float16 values in place; several times faster than numpy's conversions, with the same bits."""
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
    return values


def _halves(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Compute the float16 bits of values that float16 can represent; overwrites the values.

    Processors take 50 times as long to convert numbers below 2^-14, where most updates of a model are.
    """
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


@cache
def _all_halves() -> NDArray[np.float32]:
    """Tabulate the values of all 65,536 float16 bit patterns; a lookup takes the same time for each."""
    with np.errstate(invalid="ignore"):
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _finite(values: Rows, out: NDArray[np.float32]) -> NDArray[np.float32]:
    """Copy the values (b, d) to `out`."""
    for tile in tiles(len(out), out.shape[1], TILE):
        np.copyto(out[tile], values[tile])
        _require_finite_payload(out[tile])
    return out


def _require_finite_payload(decoded: NDArray[np.float32]) -> None:
    if not np.isfinite(decoded).all():
        raise PeerFault("the payload holds NaN or infinity")
