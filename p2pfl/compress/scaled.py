"""What codecs with one float32 scale per block share: the payload, the tiles, the check of the scales.

Payload: the scales of all blocks, then the codes of all values. A value decodes to its level, a small integer, times
the scale of its block; the codec defines the block length, the levels and how codes are packed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.draws import seeds_of
from p2pfl.compress.interface import (
    FLOAT32_MAX,
    ByTiles,
    LazyRow,
    Payload,
    Reader,
    Rows,
    copy_float32,
    not_finite,
    payload_row,
    require_payloads,
    require_rows,
    rows_for,
    tiles,
)
from p2pfl.errors import PeerFault

BLOCK = 256
# The number of values in a piece, chosen so that its temporaries stay in the cache; whole blocks, so that none spans
# two tiles.
TILE = 256 * BLOCK
# A smaller scale is subnormal, and some processors are set to flush those to zero.
SMALLEST_SCALE = np.finfo(np.float32).smallest_normal
# The fraction of the proven delta given up to rounding in float32.
ROUNDING = 1e-4
WITHOUT_SIGN = np.uint32(0x7FFFFFFF)
# The sum of a block of these is far from overflow; larger values are scaled down first.
HUGE, SHRINK = np.float32(2.0**100), 2.0**-64
INFINITY_BITS = np.float32(np.inf).view(np.uint32)

Scalar = TypeVar("Scalar", bound=np.generic)
Place = tuple[NDArray[np.uint64], int]
"""The seeds of a tile's rows (b,), and the index of its first value in its row; an encoder draws from these."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Part of the rows, split into blocks: buffers of shape (b, blocks, width), the last block of a row padded."""

    values: NDArray[np.float32]
    work: NDArray[np.float32]
    spare: NDArray[np.float32]
    codes: NDArray[np.uint8]
    size: int
    """The number of values per row in this tile, without padding."""
    block: int

    @property
    def counts(self) -> NDArray[np.float32]:
        """The number of values in each block without padding, shape (blocks,)."""
        counts = np.full(self.values.shape[1], self.block, np.float32)
        counts[-1] = self.size - self.block * (len(counts) - 1)
        return counts

    def load(self, part: Rows) -> NDArray[np.float32]:
        """Fill `values` with `part` (b, d) and `work` with the magnitudes, both followed by zeros; return the peaks (b,
        blocks).

        Raises ValueError if a value is NaN or infinity.
        """
        copy_float32(part, flat(self.values)[:, : self.size])
        flat(self.values)[:, self.size :] = 0
        bits = self.work.view(np.uint32)
        np.bitwise_and(self.values.view(np.uint32), WITHOUT_SIGN, out=bits)
        # As integers, the bits of positive floats have the same order as the floats, with infinity and NaN above them.
        peaks = bits.max(axis=2)
        if peaks.max() >= INFINITY_BITS:
            raise not_finite()
        found: NDArray[np.float32] = peaks.view(np.float32)
        return found


class ScaledBlocks(ByTiles, ABC):
    """The functions of a compressor, built on a codec's functions for one tile."""

    __slots__ = ()
    spec: str
    random: bool
    fixed: bool
    source: str

    @property
    def block(self) -> int:
        """The number of values that share a scale; it divides TILE."""
        return BLOCK

    @property
    @abstractmethod
    def largest_level(self) -> int:
        """Levels lie within -largest_level..largest_level."""

    @abstractmethod
    def delta(self, size: int) -> float:
        """Return the contraction, as in `Compressor`."""

    @abstractmethod
    def codes_bytes(self, size: int) -> int:
        """Return the number of bytes after the scales."""

    @abstractmethod
    def _quantize(self, part: Rows, tile: Tile, place: Place) -> NDArray[np.float32]:
        """Compute the scales (b, blocks) of `part` (b, d), and store in `tile` what `_pack` and `_levels` need."""

    @abstractmethod
    def _pack(self, tile: Tile, codes: NDArray[np.uint8], wide: slice) -> None:
        """Write the codes of the quantized values `wide` to their place in `codes` (b, codes_bytes)."""

    @abstractmethod
    def _levels(self, tile: Tile) -> NDArray[Any]:
        """Return the levels of the quantized values, (b, blocks, width); `tile.values` is free afterwards."""

    @abstractmethod
    def _unpack(self, codes: NDArray[np.uint8], size: int, wide: slice, tile: Tile) -> NDArray[Any]:
        """Return the levels of the values `wide`, (b, blocks, width), from `codes` (b, codes_bytes(size)).

        Raises PeerFault if a code does not exist, or if the padding after the last is wrong.
        """

    def size_bytes(self, size: int) -> int:
        return 4 * block_count(size, self.block) + self.codes_bytes(size)

    def gamma(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1.0

    @property
    def tile(self) -> int:
        return TILE

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
        self._run(rows, chances, payloads, None if decoded is None else rows_for(count, size, decoded))

    def quantize_rows(
        self, rows: Rows, *, chances: Sequence[int] | None = None, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_rows(rows)
        out = rows_for(len(rows), rows.shape[1], out)
        self._run(rows, chances, None, out)
        return out

    def _run(
        self,
        rows: Rows | LazyRow,
        chances: Sequence[int] | None,
        payloads: NDArray[np.uint8] | None,
        decoded: NDArray[np.float32] | None,
    ) -> None:
        """Fill both results tile by tile, while their operands are in the cache."""
        count, size = rows.shape
        seeds = seeds_of(chances, count) if self.random else np.empty(count, np.uint64)
        scratch = TileBuffers(count, size, self.block)
        for tall, wide in tiles(count, size, TILE):
            tile = scratch.cut(tall, wide)
            scales = self._quantize(rows[tall, wide], tile, (seeds[tall], wide.start))
            if payloads is not None:
                stored, codes = self._split(payloads[tall], size)
                stored[:, _blocks(wide, self.block)] = scales
                self._pack(tile, codes, wide)
            if decoded is not None:
                _multiply(self._levels(tile), scales, decoded[tall, wide], tile.values)

    def decode_rows(
        self, payloads: NDArray[np.uint8], size: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        require_payloads(payloads, self.size_bytes(size))
        out = rows_for(len(payloads), size, out)
        stored, codes = self._split(payloads, size)
        scales = self._checked(stored)
        scratch = TileBuffers(len(payloads), size, self.block)
        for tall, wide in tiles(len(payloads), size, TILE):
            tile = scratch.cut(tall, wide)
            levels = self._unpack(codes[tall], size, wide, tile)
            _multiply(levels, scales[tall, _blocks(wide, self.block)], out[tall, wide], tile.values)
        return out

    def reader(self, payload: Payload, size: int) -> Reader:
        row = payload_row(payload, self.size_bytes(size))
        stored, codes = self._split(row, size)
        scales, scratch, whole = self._checked(stored), TileBuffers(1, size, self.block), slice(0, 1)

        def read(wide: slice, out: NDArray[np.float32]) -> None:
            tile = scratch.cut(whole, wide)
            levels = self._unpack(codes, size, wide, tile)
            _multiply(levels, scales[:, _blocks(wide, self.block)], out[None], tile.values)

        return read

    def _split(self, payloads: NDArray[np.uint8], size: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return views of the scales (b, blocks) and of the codes (b, bytes)."""
        end = 4 * block_count(size, self.block)
        return payloads[:, :end].view("<f4"), payloads[:, end:]

    def _checked(self, scales: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a copy of the scales (b, blocks): each is +0 or a normal positive number within the range."""
        scales = scales.astype(np.float32)
        low, high = SMALLEST_SCALE.view(np.uint32), largest_scale(self.largest_level).view(np.uint32)
        bits = scales.view(np.uint32)
        # Modulo 2^32, so that numbers that are too small become too large as well; +0 is all zeros.
        wrong = bits - low > high - low
        wrong &= bits != 0
        if wrong.any():
            raise PeerFault("a block's scale is negative, not finite or out of range")
        return scales


@cache
def largest_scale(largest_level: int) -> np.float32:
    """Return the largest scale that an encoder makes: none of its levels becomes infinite."""
    return np.float32(FLOAT32_MAX if largest_level == 1 else FLOAT32_MAX / (largest_level + 0.25))


class TileBuffers:
    """Buffers for the tiles of rows of one size, split into blocks: `width` values each, the last padded."""

    def __init__(self, count: int, size: int, block: int) -> None:
        self.block = block
        # This way no byte of codes spans two blocks.
        self.width = min(block, size + -size % 8)
        tall, wide = next(tiles(count, size, TILE), (slice(0, 0), slice(0, 0)))
        values = tall.stop * block_count(wide.stop, block) * self.width
        self.floats = np.empty((3, values), np.float32)
        self.bytes = np.empty(values, np.uint8)

    def cut(self, tall: slice, wide: slice) -> Tile:
        size = wide.stop - wide.start
        shape = (tall.stop - tall.start, block_count(size, self.block), self.width)
        count = shape[0] * shape[1] * shape[2]
        values, work, spare = self.floats[:, :count].reshape(3, *shape)
        return Tile(values, work, spare, self.bytes[:count].reshape(shape), size, self.block)


def mean_magnitude(tile: Tile, peaks: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the mean magnitude in `tile.work` for each block, (b, blocks), and the factor by which magnitudes were
    scaled first.

    If a block's peak is so large that a sum could overflow, `tile.work` is multiplied by a power of two.
    """
    huge = peaks > HUGE
    shrunk = np.where(huge, SHRINK, 1.0)
    if huge.any():
        tile.work[huge] *= np.float32(SHRINK)
    return tile.work.sum(axis=2) / tile.counts.astype(np.float64), shrunk


def usable(tile: Tile, scales: NDArray[np.float64], largest_level: int) -> NDArray[np.float32]:
    """Round the scales (b, blocks) as they are sent; where they are too small, set them and `tile.values` to 0."""
    sent = np.minimum(scales, largest_scale(largest_level)).astype(np.float32)
    tiny = sent < SMALLEST_SCALE
    if tiny.any():
        sent[tiny] = 0
        tile.values[tiny] = 0
    return sent


def _multiply(
    levels: NDArray[Any], scales: NDArray[np.float32], out: NDArray[np.float32], scratch: NDArray[np.float32]
) -> None:
    """Write levels (b, blocks, width) times scales (b, blocks) to `out`, (b, d); `scratch` is as large as `levels`."""
    is_full = out.size == levels.size
    product = out.reshape(levels.shape) if is_full else scratch
    np.copyto(product, levels)  # integers are converted faster by themselves than by a multiplication
    np.multiply(product, scales[..., None], out=product)
    if not is_full:
        np.copyto(out, flat(scratch)[:, : out.shape[1]])


def flat(blocks: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return the blocks (b, blocks, width) of each row end to end, a view of shape (b, blocks * width)."""
    return blocks.reshape(len(blocks), blocks.shape[1] * blocks.shape[2])


def block_count(size: int, block: int = BLOCK) -> int:
    return -(-size // block)


def _blocks(wide: slice, block: int) -> slice:
    """Return the blocks that hold these values."""
    return slice(wide.start // block, block_count(wide.stop, block))
