"""`rotate`: a random rotation before the values are coded, so that no value stands out, whatever the vector.

Payload: a seed of 8 bytes, then the inner compressor's payload of the rotated vector. The vector is split into windows
of L values, the largest power of two up to 4096 that fits. If values are left over, one more window ends with the
vector and overlaps the previous one, so that nothing is padded and no value is in a small window: its length is the
smallest power of two that covers the remainder, and at least a block of 256 unless L is smaller. In each window in
turn, signs are flipped by bits of the seed (see `draws`; 1 flips), one per value, taken in window order; an orthonormal
Walsh-Hadamard transform follows, whose result is transposed (see `_transform`).

Normative: decoders undo the windows from the last to the first, with float32 additions and subtractions in a fixed
order and one multiplication by float32(L^-1/2), L the length of the window, at the end.

A rotation preserves norms, so delta and gamma are the inner compressor's, minus a little for rounding. The gain: on any
vector the inner compressor does about as well as on a Gaussian one. Before `sign` this is DRIVE, and before `q2` it is
EDEN at 2 bits, except that each block has a scale that minimizes the error, which suits error feedback, instead of one
unbiased scale for the whole vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import (
    ROTATION,
    STAGES,
    RowCompressor,
    Rows,
    bits,
    copy_float32,
    not_finite,
    require_payloads,
    require_rows,
    rows_for,
    seeds_of,
    tiles,
    words,
)
from p2pfl.errors import PeerFault

SEED_BYTES = 8
LARGEST_WINDOW, SMALLEST_LAST = 4096, 256
# The number of values in a piece, chosen so that its temporaries stay in the cache.
TILE = 15 * LARGEST_WINDOW
# The fraction of the inner delta given up to rounding in float32.
ROUNDING = 1e-5
# Larger rows are scaled down to this: their sums could overflow.
LARGEST = np.float32(2.0**100)

Matrices = NDArray[np.float32]
"""One matrix for each window of some rows, shape (A, b, windows, B): all first rows are stored together."""


@STAGES.add(
    name="rotate",
    place=ROTATION,
    aliases=("hadamard", "rotation"),
    chains={"drive": "rotate+sign", "eden": "rotate+q2"},
    means="rotate at random first, so that no value stands out: DRIVE with sign, EDEN with q2",
    example="rotate+sign",
)
@dataclass(frozen=True, slots=True)
class Rotation(RowCompressor):
    """The delta holds for vectors whose peak lies between 1e-30 and 1e30; larger ones are scaled down to 2^100."""

    inner: RowCompressor
    random: bool = True
    fixed: bool = True
    source: str = "Vargaftik et al., DRIVE, NeurIPS 2021 (arXiv:2105.08339); EDEN, ICML 2022 (arXiv:2108.08842)"

    @property
    def spec(self) -> str:
        return f"rotate+{self.inner.spec}"

    def delta(self, size: int) -> float:
        return self.inner.delta(size) - ROUNDING

    def gamma(self, size: int) -> float:
        return self.inner.gamma(size)

    def size_bytes(self, size: int) -> int:
        return SEED_BYTES + self.inner.size_bytes(size)

    def encode_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, decoded: NDArray[np.float32] | None = None
    ) -> NDArray[np.uint8]:
        require_rows(rows)
        count, size = rows.shape
        seeds = _seeds(chances, count)
        rotated = np.empty((count, size), np.float32) if decoded is None else rows_for(count, size, decoded)
        _load(rows, rotated)
        rotate_rows(rotated, seeds)
        payloads = np.empty((count, self.size_bytes(size)), np.uint8)
        np.copyto(payloads[:, :SEED_BYTES], seeds.astype("<u8")[:, None].view(np.uint8))
        payloads[:, SEED_BYTES:] = self.inner.encode_rows(rotated, decoded=decoded)
        if decoded is not None:
            rotate_rows_back(decoded, seeds)
        return payloads

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        out = self.inner.decode_rows(payloads[:, SEED_BYTES:], size, out)
        seeds = np.ascontiguousarray(payloads[:, :SEED_BYTES]).view("<u8")[:, 0].astype(np.uint64)
        # A payload that no encoder sends may overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            rotate_rows_back(out, seeds)
        for tile in tiles(len(out), size, TILE):
            if not np.isfinite(out[tile]).all():
                raise PeerFault("rotated back, a value is not finite")
        return out

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_rows(rows)
        seeds = _seeds(chances, len(rows))
        out = rows_for(len(rows), rows.shape[1], out)
        _load(rows, out)
        rotate_rows(out, seeds)
        self.inner.quantize_rows(out, out=out)
        rotate_rows_back(out, seeds)
        return out


def _seeds(chances: Sequence[int] | None, count: int) -> NDArray[np.uint64]:
    """Return the seed of each row's signs, which is sent."""
    return words(seeds_of(chances, count), 0, 1)[:, 0].copy()


def _load(rows: Rows, out: NDArray[np.float32]) -> None:
    """Copy the rows as float32, scaled down by a power of two if they are too large."""
    peaks = np.zeros(len(rows), np.float32)
    for tall, wide in tiles(len(rows), rows.shape[1], TILE):
        part = out[tall, wide]
        copy_float32(rows[tall, wide], part)
        np.maximum(peaks[tall], np.maximum(part.max(axis=1), -part.min(axis=1)), out=peaks[tall])
    # NaN is not below infinity either.
    if not (peaks < np.inf).all():
        raise not_finite()
    for row in np.flatnonzero(peaks > LARGEST):
        out[row] *= np.float32(2.0**-28)


def _windows(size: int) -> tuple[int, int, int]:
    """Return the length of a window, how many stand side by side, and that of the last, or 0; `size` is not 0."""
    length = min(LARGEST_WINDOW, 1 << (size.bit_length() - 1))
    number, rest = divmod(size, length)
    last = min(length, max(SMALLEST_LAST, 1 << (rest - 1).bit_length())) if rest else 0
    return length, number, last


def rotate_rows(rows: NDArray[np.float32], seeds: NDArray[np.uint64]) -> None:
    """Rotate rows in place."""
    scratch = np.empty((2, TILE), np.float32)
    for tall, wide, length, first in _tiles(rows):
        part = _matrices(rows[tall, wide], length)
        x, y = scratch[:, : part.size].reshape(2, *part.shape)
        flips = _flips(seeds[tall], first, y)
        np.bitwise_xor(part.view(np.uint32), flips, out=x.view(np.uint32))
        x, _ = _transform(x, y)
        np.multiply(x, _unit(x), out=_transposed(part))


def rotate_rows_back(rows: NDArray[np.float32], seeds: NDArray[np.uint64]) -> None:
    """Undo `rotate_rows`, in place."""
    scratch = np.empty((2, TILE), np.float32)
    for tall, wide, length, first in reversed(list(_tiles(rows))):
        part = _matrices(rows[tall, wide], length)
        turned = _transposed(part)
        x, y = scratch[:, : part.size].reshape(2, *turned.shape)
        np.copyto(x, turned)
        x, y = _transform(x, y)
        x *= _unit(x)
        np.bitwise_xor(x.view(np.uint32), _flips(seeds[tall], first, y), out=part.view(np.uint32))


def _tiles(rows: NDArray[np.float32]) -> Iterator[tuple[slice, slice, int, int]]:
    """Yield, for each tile, its rows and values, the common length of its windows, and the position of its first bit in
    the seed.
    """
    count, size = rows.shape
    if not rows.size:
        return
    length, number, last = _windows(size)
    for tall, wide in tiles(count, length * number, TILE):
        yield tall, wide, length, wide.start
    if last:
        for tall, _ in tiles(count, last, TILE):
            yield tall, slice(size - last, size), last, length * number


def _matrices(part: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Return the windows of rows (b, d) as matrices, A rows and B columns, A = B or 2 B: a view (A, b, windows, B)."""
    height = 1 << (length.bit_length() // 2)
    return part.reshape(len(part), -1, height, length // height).transpose(2, 0, 1, 3)


def _transposed(matrices: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the same memory as matrices of B rows and A columns: a view (B, b, windows, A)."""
    height, count, windows, width = matrices.shape
    return matrices.transpose(1, 2, 0, 3).reshape(count, windows, width, height).transpose(2, 0, 1, 3)


def _flips(seeds: NDArray[np.uint64], first: int, out: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the sign bit of a float32 where the seed flips it, 0 elsewhere, shape (A, b, windows, B), in the memory of
    `out`.
    """
    height, count, windows, width = out.shape
    flips = out.view(np.uint32).reshape(count, windows, height, width)
    np.copyto(flips, bits(seeds, first, out.size // count).reshape(flips.shape))
    flips <<= np.uint32(31)
    return flips.transpose(2, 0, 1, 3)


def _unit(x: NDArray[np.float32]) -> np.float32:
    return np.float32((x.shape[0] * x.shape[3]) ** -0.5)


def _transform(x: Matrices, y: Matrices) -> tuple[Matrices, Matrices]:
    """Apply an unscaled Walsh-Hadamard transform to all columns of matrices x (A, ..., B), then to all rows, and
    transpose.

    The result, shape (B, ..., A), uses the memory of one of the two; both are returned, the result first.
    """
    x, y = _columns(x, y)
    turned = y.reshape(x.shape[3], *x.shape[1:3], x.shape[0])
    np.copyto(turned, x.transpose(3, 1, 2, 0))
    return _columns(turned, x.reshape(turned.shape))


def _columns(x: Matrices, y: Matrices) -> tuple[Matrices, Matrices]:
    """Apply an unscaled Walsh-Hadamard transform to the columns of matrices x (A, ..., B); return also the other
    memory.

    Rows A/2 apart are added and subtracted, then rows A/4 apart, and so on. Each step reads rows from the upper and
    lower halves and writes their sums and differences one after the other, so that the next step again finds its
    operands in the two halves, and all rows end in their places. Adding two long stretches of memory is fast.
    """
    height = len(x)
    for _ in range(height.bit_length() - 1):
        upper, lower = x.reshape(2, height // 2, -1)
        results = y.reshape(height // 2, 2, -1)
        np.add(upper, lower, out=results[:, 0])
        np.subtract(upper, lower, out=results[:, 1])
        x, y = y, x
    return x, y
