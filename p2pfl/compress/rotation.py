"""`rotate`: a random rotation before the values are coded, so that no value of any vector stands out.

Payload: a seed of 8 bytes, then the inner compressor's payload of the rotated vector. The vector is cut into windows of
L values, the largest power of two up to 4096 that fits; where they leave a rest, one more window ends with the vector
and overlaps the one before, so that nothing is padded and no value is left in a small window: the smallest power of two
that covers the rest, no less than a block of 256 unless L is. In each window in turn, signs are flipped by bits of the
seed (see `draws`; 1 flips), as many as its values, those of the first window first; then an orthonormal Walsh-Hadamard
transform follows, whose result is transposed (see `_transform`).

Normative: decoders undo the windows from the last to the first, with float32 additions and subtractions in a fixed
order and one multiplication by float32(L^-1/2), L the length of the window, at the end.

A rotation keeps lengths, so delta and gamma are the inner compressor's, less what rounding takes. The gain: on any
vector the inner compressor does about as well as on a Gaussian one. Before `sign` it is DRIVE and before `q2` EDEN at 2
bits, with a scale for each block that makes the error least, as suits error feedback, instead of one for the vector
that makes it unbiased.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.draws import bits, seeds_of, words
from p2pfl.compress.entry import ROTATION, STAGES, StageEntry
from p2pfl.compress.interface import (
    ByRows,
    RowCompressor,
    Rows,
    copy_float32,
    not_finite,
    require_payloads,
    require_rows,
    rows_for,
    tiles,
)
from p2pfl.errors import PeerFault

SEED_BYTES = 8
LARGEST_WINDOW, SMALLEST_LAST = 4096, 256
# The values in a piece, whose temporaries stay in the cache.
TILE = 15 * LARGEST_WINDOW
# The share of the inner delta given up to rounding in float32.
ROUNDING = 1e-5
# Larger rows are scaled down to it: their sums could overflow.
LARGEST = np.float32(2.0**100)

Matrices = NDArray[np.float32]
"""One for each window of some rows, shape (A, b, windows, B): all first rows stand together."""


@STAGES.add(
    StageEntry(
        name="rotate",
        place=ROTATION,
        aliases=("hadamard", "rotation"),
        chains={"drive": "rotate+sign", "eden": "rotate+q2"},
        means="rotate at random first, so that no value stands out: DRIVE with sign, EDEN with q2",
        example="rotate+sign",
    )
)
@dataclass(frozen=True, slots=True)
class Rotation(ByRows):
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
        seeds, inner = self._chances(chances, count)
        rotated = np.empty((count, size), np.float32) if decoded is None else rows_for(count, size, decoded)
        _load(rows, rotated)
        _rotate(rotated, seeds)
        payloads = np.empty((count, self.size_bytes(size)), np.uint8)
        np.copyto(payloads[:, :SEED_BYTES], seeds.astype("<u8")[:, None].view(np.uint8))
        payloads[:, SEED_BYTES:] = self.inner.encode_rows(rotated, chances=inner, decoded=decoded)
        if decoded is not None:
            _rotate_back(decoded, seeds)
        return payloads

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        out = self.inner.decode_rows(payloads[:, SEED_BYTES:], size, out)
        seeds = np.ascontiguousarray(payloads[:, :SEED_BYTES]).view("<u8")[:, 0].astype(np.uint64)
        # A payload that no encoder sends may overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            _rotate_back(out, seeds)
        for tile in tiles(len(out), size, TILE):
            if not np.isfinite(out[tile]).all():
                raise PeerFault("rotated back, a value is not finite")
        return out

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_rows(rows)
        seeds, inner = self._chances(chances, len(rows))
        out = rows_for(len(rows), rows.shape[1], out)
        _load(rows, out)
        _rotate(out, seeds)
        self.inner.quantize_rows(out, chances=inner, out=out)
        _rotate_back(out, seeds)
        return out

    def _chances(self, chances: Sequence[int] | None, count: int) -> tuple[NDArray[np.uint64], Sequence[int] | None]:
        """Return the seed of each row's signs, which is sent, and the chance for the inner compressor."""
        both = words(seeds_of(chances, count), 0, 2)
        return both[:, 0].copy(), [int(word) for word in both[:, 1]] if self.inner.random else None


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
    """The length of a window, the number of them side by side, and the length of the last, or 0; `size` is not 0."""
    length = min(LARGEST_WINDOW, 1 << (size.bit_length() - 1))
    number, rest = divmod(size, length)
    last = min(length, max(SMALLEST_LAST, 1 << (rest - 1).bit_length())) if rest else 0
    return length, number, last


def _rotate(rows: NDArray[np.float32], seeds: NDArray[np.uint64]) -> None:
    """Rotate rows in place."""
    scratch = np.empty((2, TILE), np.float32)
    for tall, wide, length, first in _tiles(rows):
        part = _matrices(rows[tall, wide], length)
        x, y = scratch[:, : part.size].reshape(2, *part.shape)
        flips = _flips(seeds[tall], first, y)
        np.bitwise_xor(part.view(np.uint32), flips, out=x.view(np.uint32))
        x, _ = _transform(x, y)
        np.multiply(x, _unit(x), out=_transposed(part))


def _rotate_back(rows: NDArray[np.float32], seeds: NDArray[np.uint64]) -> None:
    """Undo `_rotate`, in place."""
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
    """Yield rows and values of each tile, of windows of one length; that length, and the tile's first bit
    of the seed.
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
    """The windows of rows (b, d) as matrices of A rows and B columns, A = B or 2 B: a view (A, b, windows, B)."""
    height = 1 << (length.bit_length() // 2)
    return part.reshape(len(part), -1, height, length // height).transpose(2, 0, 1, 3)


def _transposed(matrices: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same memory as matrices of B rows and A columns: a view (B, b, windows, A)."""
    height, count, windows, width = matrices.shape
    return matrices.transpose(1, 2, 0, 3).reshape(count, windows, width, height).transpose(2, 0, 1, 3)


def _flips(seeds: NDArray[np.uint64], first: int, out: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the sign bit of a float32 where the seed flips it, else 0, shape (A, b, windows, B), in the memory of
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
    """Walsh-Hadamard of all columns of the matrices x (A, ..., B), then of all rows, without the factor, transposed.

    The result, shape (B, ..., A), is in the memory of one of the two, which are returned with it as the first.
    """
    x, y = _columns(x, y)
    turned = y.reshape(x.shape[3], *x.shape[1:3], x.shape[0])
    np.copyto(turned, x.transpose(3, 1, 2, 0))
    return _columns(turned, x.reshape(turned.shape))


def _columns(x: Matrices, y: Matrices) -> tuple[Matrices, Matrices]:
    """Transform (Walsh-Hadamard) the columns of the matrices x (A, ..., B), without the factor; return also the other
    memory.

    Rows A/2 apart are added and subtracted, then rows A/4 apart, and so on. Each step takes the rows of the upper and
    of the lower half and writes their sums and differences one after the other, so that the next step again has its
    operands in the two halves, and all rows are in their places at the end: additions of two long runs of memory are
    fast.
    """
    height = len(x)
    for _ in range(height.bit_length() - 1):
        upper, lower = x.reshape(2, height // 2, -1)
        results = y.reshape(height // 2, 2, -1)
        np.add(upper, lower, out=results[:, 0])
        np.subtract(upper, lower, out=results[:, 1])
        x, y = y, x
    return x, y
