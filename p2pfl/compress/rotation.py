"""`rotate`: a random rotation before the values are coded, so that no value of any vector stands out.

Payload: a seed of 8 bytes, then the inner compressor's payload of the rotated vector. The vector is cut into windows of
L values, the largest power of two up to 4096 that fits; where they leave a rest, one more window covers the last L
values and overlaps the one before, so that nothing is padded and no value is left in a small window. Each window in
turn: signs are flipped by bits of the seed (see `draws`; 1 flips), L for each window; then an orthonormal Walsh-
Hadamard transform, whose result stands transposed (see `_transform`).

Normative: decoders undo the windows from the last to the first, with float32 additions and subtractions in a fixed
order and one multiplication by float32(L^-1/2) at the end.

A rotation keeps lengths, so delta and gamma are the inner compressor's, less what rounding takes. What it gains: on any
vector the inner compressor does about as well as on a Gaussian one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.draws import bits, seeds_of, words
from p2pfl.compress.interface import Payload, RowCompressor, Rows, Vector
from p2pfl.compress.single import decode_one, encode_one
from p2pfl.compress.vectors import copy_float32, not_finite, require_payloads, require_rows, rows_for, tiles
from p2pfl.errors import PeerFault

SEED_BYTES = 8
LARGEST_WINDOW = 4096
# Worked on at a time: the temporaries stay in the cache.
TILE = 16 * LARGEST_WINDOW
# The share of the inner delta given up to rounding in float32.
ROUNDING = 1e-5
# Larger rows are scaled down to it: their sums could overflow.
LARGEST = np.float32(2.0**100)


@dataclass(frozen=True, slots=True)
class Rotation:
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

    def encode(self, vector: Vector, *, chance: int = 0, decoded: NDArray[np.float32] | None = None) -> Payload:
        return encode_one(self, vector, chance, decoded)

    def decode(self, payload: Payload, size: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        return decode_one(self, payload, size, out)

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
        # What no encoder sends may overflow.
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
        """The seed of each row's signs, which is sent, and what the inner compressor draws from."""
        both = words(seeds_of(chances, count), 0, 2)
        return both[:, 0].copy(), [int(word) for word in both[:, 1]] if self.inner.random else None


def _load(rows: Rows, out: NDArray[np.float32]) -> None:
    """Copy the rows as float32, those that are too large by a power of two smaller."""
    peaks = np.zeros(len(rows), np.float32)
    for tall, wide in tiles(len(rows), rows.shape[1], TILE):
        part = out[tall, wide]
        copy_float32(rows[tall, wide], part)
        np.maximum(peaks[tall], np.maximum(part.max(axis=1), -part.min(axis=1)), out=peaks[tall])
    # NaN, too, is not below infinity.
    if not (peaks < np.inf).all():
        raise not_finite()
    for row in np.flatnonzero(peaks > LARGEST):
        out[row] *= np.float32(2.0**-28)


def _windows(size: int) -> tuple[int, int, bool]:
    """How long a window is, how many stand side by side, and whether one more covers the end; `size` is not 0."""
    length = min(LARGEST_WINDOW, 1 << (size.bit_length() - 1))
    return length, size // length, size % length != 0


def _rotate(rows: NDArray[np.float32], seeds: NDArray[np.uint64]) -> None:
    """In place."""
    for tall, wide, first in _tiles(rows):
        length = _windows(rows.shape[1])[0]
        part = _cut(rows[tall, wide], length)
        x = np.empty(part.shape, np.float32)
        np.bitwise_xor(part.view(np.uint32), _flips(seeds[tall], first, x), out=x.view(np.uint32))
        x = _transform(x, length)
        np.multiply(x, _unit(length), out=part)


def _rotate_back(rows: NDArray[np.float32], seeds: NDArray[np.uint64]) -> None:
    """In place; undoes `_rotate`."""
    for tall, wide, first in reversed(list(_tiles(rows))):
        length = _windows(rows.shape[1])[0]
        part = _cut(rows[tall, wide], length)
        x = _transform(part.copy(), length, back=True)
        np.multiply(x, _unit(length), out=x)
        np.bitwise_xor(x.view(np.uint32), _flips(seeds[tall], first, x), out=part.view(np.uint32))


def _tiles(rows: NDArray[np.float32]) -> Iterator[tuple[slice, slice, int]]:
    """Rows and values of each tile, a whole number of windows, and which bit of the seed is its first."""
    count, size = rows.shape
    if not rows.size:
        return
    length, number, more = _windows(size)
    for tall, wide in tiles(count, length * number, TILE):
        yield tall, wide, wide.start
    if more:
        for tall, _ in tiles(count, length, TILE):
            yield tall, slice(size - length, size), length * number


def _cut(part: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """The windows of rows (b, d), a view of shape (b, d / length, length)."""
    return part.reshape(len(part), part.shape[1] // length, length)


def _flips(seeds: NDArray[np.uint64], first: int, x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The sign bit of a float32 where the seed says so, else 0; of the shape of `x`."""
    flips = bits(seeds, first, x.size // len(x)).astype(np.uint32)
    flips <<= np.uint32(31)
    return flips.reshape(x.shape)


def _unit(length: int) -> np.float32:
    return np.float32(length**-0.5)


def _transform(x: NDArray[np.float32], length: int, *, back: bool = False) -> NDArray[np.float32]:
    """Walsh-Hadamard of each window (b, windows, length) but for the factor; uses `x` up.

    A window is a matrix of A rows, A^2 = length or 2 length: all columns are transformed, then it is transposed, then
    all columns again. Long contiguous runs of additions are fast; the order is that of the doc.
    """
    rows = 1 << (length.bit_length() // 2)
    columns = length // rows
    if back:
        rows, columns = columns, rows
    shape = x.shape
    x = _columns(x.reshape(-1, rows, columns))
    x = np.ascontiguousarray(x.transpose(0, 2, 1))
    return _columns(x).reshape(shape)


def _columns(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Walsh-Hadamard of the columns of matrices (n, rows, columns): steps of 1, 2, 4, ... rows; uses `x` up."""
    number, rows, columns = x.shape
    y = np.empty_like(x)
    step = 1
    while step < rows:
        pairs, results = (z.reshape(number * rows // (2 * step), 2, step * columns) for z in (x, y))
        np.add(pairs[:, 0], pairs[:, 1], out=results[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=results[:, 1])
        x, y = y, x
        step *= 2
    return x
