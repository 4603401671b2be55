"""The codecs with one float32 scale for each block of values: `q8`, `q4`, `q2` and `sign`.

Payload: the scales of all blocks, then the codes of all values. A value decodes to its level, a small integer, times
the scale of its block; the codec defines the block length, the levels and how codes are packed. Each class derives a
bound on its error, and gives measured values.

Small codes are packed into bytes, many rows at once: signed integers in 8 or 4 bits, and bit planes with one bit per
value. The integers are symmetric: -128 and -8 do not occur, so a payload that holds them was not made by an encoder.
4-bit codes are stored with 8 added, two per byte, the earlier in the low half. The rest of the last byte is filled with
code 0. A bit plane has eight bits per byte, the earliest lowest; the rest of the last byte is 0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import (
    FLOAT32_MAX,
    STAGES,
    VALUES,
    LazyRow,
    Payload,
    Reader,
    Rows,
    TiledCompressor,
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

# A float32 this large has no bits for fractions: adding it rounds to nearest, ties to even, as `rint` does, and leaves
# the integer in the low bits, whatever its sign.
WHOLE = np.float32(1.5 * 2**23)
FOUR_BIT_ZERO = 8

# As a multiple of the block's mean magnitude. One more would add 0.001 to delta.
BOUNDS = (1.3, 2.0)
BETWEEN = np.float32(2.5)
LANES = np.uint64(0x0101010101010101)

ROTATED_BLOCK = 2048

Scalar = TypeVar("Scalar", bound=np.generic)


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
        largest: NDArray[np.float32] = peaks.view(np.float32)
        return largest


class ScaledBlocks(TiledCompressor):
    """The functions of a compressor, built on a codec's functions for one tile."""

    __slots__ = ()
    random: ClassVar[bool] = False
    fixed: ClassVar[bool] = True

    @property
    def block(self) -> int:
        """The number of values that share a scale; it divides TILE."""
        return BLOCK

    @property
    @abstractmethod
    def largest_level(self) -> int:
        """Levels lie within -largest_level..largest_level."""

    @abstractmethod
    def codes_bytes(self, size: int) -> int:
        """Return the number of bytes after the scales."""

    @abstractmethod
    def _quantize(self, part: Rows, tile: Tile) -> NDArray[np.float32]:
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
        chances: Sequence[int] | None = None,  # noqa: ARG002 - nothing is drawn
        decoded: NDArray[np.float32] | None = None,
    ) -> None:
        require_rows(rows)
        count, size = rows.shape
        self._run(rows, payloads, None if decoded is None else rows_for(count, size, decoded))

    def quantize_rows(
        self,
        rows: Rows,
        *,
        chances: Sequence[int] | None = None,  # noqa: ARG002 - nothing is drawn
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        require_rows(rows)
        out = rows_for(len(rows), rows.shape[1], out)
        self._run(rows, None, out)
        return out

    def _run(
        self, rows: Rows | LazyRow, payloads: NDArray[np.uint8] | None, decoded: NDArray[np.float32] | None
    ) -> None:
        """Fill both results tile by tile, while their operands are in the cache."""
        count, size = rows.shape
        scratch = TileBuffers(count, size, self.block)
        for tall, wide in tiles(count, size, TILE):
            tile = scratch.cut(tall, wide)
            scales = self._quantize(rows[tall, wide], tile)
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


@dataclass(frozen=True, slots=True)
class BlockQuantizer(ScaledBlocks):
    """`q8` and `q4`: evenly spaced levels -C..C, rounded to nearest; C is 127 or 7.

    The delta holds for blocks whose peak lies between 1e-35 and the largest float32. Smaller blocks become zeros;
    float64 values beyond float32's range are clipped to it.

    The scale is peak / (C + 1/2), so that no value is further than half a step from its level. The error is at most
    half a step, and at most the value itself. The worst block has its peak at C + 1/2 steps and its other 255 values at
    half a step: 1 - delta = 64 / ((C + 1/2)^2 + 255/4), that is delta = 0.466 at 4 bits and 0.996 at 8 bits. Typical
    vectors do far better; measured at 4 bits: Gaussian 0.986, Laplace 0.972. For values uniform over the range the mean
    squared error is s^2/12 with the step s = 2 peak / (2^b - 1): the textbook's peak^2 / (3 (2^b - 1)^2).
    """

    bits: int
    source: ClassVar[str] = "Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022"

    @property
    def spec(self) -> str:
        return f"q{self.bits}"

    @property
    def largest_level(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def delta(self, size: int) -> float:  # noqa: ARG002 - of any size
        return 1 - (BLOCK / 4) / ((self.largest_level + 0.5) ** 2 + (BLOCK - 1) / 4) - ROUNDING

    def codes_bytes(self, size: int) -> int:
        return (size * self.bits + 7) // 8

    def _quantize(self, part: Rows, tile: Tile) -> NDArray[np.float32]:
        """Store `_whole` plus the codes in `tile.work`; `tile.values` is overwritten."""
        scale: NDArray[np.float32] = tile.load(part) / np.float32(self.largest_level + 0.5)
        np.minimum(scale, largest_scale(self.largest_level), out=scale)
        tiny = scale < SMALLEST_SCALE
        scale[tiny] = 1
        inverse = np.float32(1) / scale
        scale[tiny] = inverse[tiny] = 0
        steps = np.multiply(tile.values, inverse[..., None], out=tile.work)
        whole = self._whole
        steps += whole
        # After rounding: the peak itself, at C + 1/2 steps, rounds up half of the time.
        steps.clip(whole - self.largest_level, whole + self.largest_level, out=steps)
        return scale

    def _pack(self, tile: Tile, codes: NDArray[np.uint8], wide: slice) -> None:
        np.copyto(tile.codes, tile.work.view(np.uint32), casting="unsafe")
        stored, out = flat(tile.codes), codes[:, self._bytes(wide)]
        if self.bits == 4:
            stored = stored.view("<u2")
            stored |= stored >> 4
        np.copyto(out, stored[:, : out.shape[1]], casting="unsafe")

    def _levels(self, tile: Tile) -> NDArray[Any]:
        levels = tile.work
        levels -= self._whole
        return levels

    def _unpack(self, codes: NDArray[np.uint8], size: int, wide: slice, tile: Tile) -> NDArray[Any]:  # noqa: ARG002
        levels = tile.codes.view(np.int8)
        unpack = _unpack_eight if self.bits == 8 else _unpack_four
        unpack(codes[:, self._bytes(wide)], wide.stop - wide.start, flat(levels))
        return levels

    @property
    def _whole(self) -> np.float32:
        """Code 0 as returned by `_quantize`; its low byte is stored."""
        return np.float32(WHOLE + (FOUR_BIT_ZERO if self.bits == 4 else 0))

    def _bytes(self, wide: slice) -> slice:
        """Return the memory that holds the codes of these values."""
        return slice(self.codes_bytes(wide.start), self.codes_bytes(wide.stop))


STAGES.add(
    name="q8",
    place=VALUES,
    aliases=("int8", "8bit"),
    means="8 bits per value, one scale for each 256, round to nearest",
    rotated={},
)(partial(BlockQuantizer, 8))
STAGES.add(name="q4", place=VALUES, aliases=("int4", "4bit"), means="4 bits per value, as q8; the default", rotated={})(
    partial(BlockQuantizer, 4)
)


def _unpack_eight(packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
    """Write the codes in rows (b, size) to `out`, (b, n), with n a multiple of 8; code 0 follows the last.

    Raises PeerFault for a code that does not exist.
    """
    np.copyto(out[:, :size], packed.view(np.int8))
    out[:, size:] = 0
    if out.min() == -128:
        raise PeerFault("code -128 in an 8-bit payload")


def _unpack_four(packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
    """Do the same for rows of two codes a byte, to each of which 8 was added."""
    if size % 2 and (packed[:, -1] >> 4 != FOUR_BIT_ZERO).any():
        raise PeerFault("the padding after the last 4-bit code is not code 0")
    pairs = out.view("<u2")
    np.copyto(pairs[:, : packed.shape[1]], packed)
    pairs[:, packed.shape[1] :] = 0x88
    pairs |= pairs << 4
    pairs &= 0x0F0F
    if not out.min():
        raise PeerFault("code -8 in a 4-bit payload")
    out -= FOUR_BIT_ZERO


@STAGES.add(
    name="q2",
    place=VALUES,
    aliases=("int2", "2bit", "ternary"),
    means="2 bits per value, as q8",
    rotated={},
)
@dataclass(frozen=True, slots=True)
class TwoBits(ScaledBlocks):
    """`q2`: levels -4, -1, 1 and 4. The delta holds for blocks whose peak lies between 1e-35 and 8e37.

    Payload: the scales of all blocks, then one bit per value, set if it is negative, then one bit per value, set if its
    level is 4 or -4. Levels in the ratio one to four suit the heavy tails of updates better than evenly spaced ones,
    and a Gaussian as well. Measured delta for -4, -1, 1, 4, then -3, -1, 1, 3, then -1, 0, 1, each with the best scale:
    Gaussian 0.880, 0.882, 0.810; Laplace 0.825, 0.805, 0.738; updates of the digits 0.78 to 0.83, 0.73 to 0.80, 0.74 to
    0.77.

    For given levels q the best scale is s = <v, q> / |q|^2, with delta = <v, q>^2 / (|q|^2 |v|^2). The encoder tries a
    few thresholds above which a level is 4, keeps the best, and with its scale assigns every value the nearest level.
    One threshold is infinity, which makes all levels 1 or -1: with B values <v, q>^2 / |q|^2 = |v|_1^2 / B, hence delta
    >= 1/B.
    """

    spec: ClassVar[str] = "q2"
    source: ClassVar[str] = "Vargaftik et al., EDEN, ICML 2022 (arXiv:2108.08842)"

    @property
    def largest_level(self) -> int:
        return 4

    def delta(self, size: int) -> float:
        return 1 / min(BLOCK, max(1, size)) - ROUNDING

    def codes_bytes(self, size: int) -> int:
        return 2 * plane_bytes(size)

    def _quantize(self, part: Rows, tile: Tile) -> NDArray[np.float32]:
        """Record in `tile.codes` whether a level is 4 or -4."""
        mean, shrunk = mean_magnitude(tile, tile.load(part))
        scale = usable(tile, _best_scale(tile, mean) / shrunk, self.largest_level)
        bound = np.multiply(scale, BETWEEN)
        np.bitwise_and(tile.values.view(np.uint32), WITHOUT_SIGN, out=tile.work.view(np.uint32))
        np.greater(tile.work, bound[..., None], out=tile.codes.view(np.bool_))
        return scale

    def _pack(self, tile: Tile, codes: NDArray[np.uint8], wide: slice) -> None:
        middle = codes.shape[1] // 2
        pack_bits(flat(tile.codes), codes[:, middle:], wide)
        pack_bits(flat(tile.values).view(np.int32) < 0, codes[:, :middle], wide)

    def _levels(self, tile: Tile) -> NDArray[Any]:
        negative = flat(tile.values).view(np.int32) < 0
        return _levels(flat(tile.codes), negative.view(np.uint8)).reshape(tile.codes.shape)

    def _unpack(self, codes: NDArray[np.uint8], size: int, wide: slice, tile: Tile) -> NDArray[Any]:  # noqa: ARG002
        middle, count = codes.shape[1] // 2, flat(tile.codes).shape[1]
        high = unpack_bits(codes[:, middle:], wide, count)
        return _levels(high, unpack_bits(codes[:, :middle], wide, count)).reshape(tile.codes.shape)


@STAGES.add(
    name="sign",
    place=VALUES,
    aliases=("signsgd", "1bit"),
    means="signs, and the mean magnitude of each 256, after rotate of each 2048: 1.1 bits per value",
    rotated={"block": ROTATED_BLOCK},
)
@dataclass(frozen=True, slots=True)
class Sign(ScaledBlocks):
    """One bit per value, with the mean magnitude as the scale of each block of 256, or of 2048 after a rotation.

    The delta holds for blocks whose peak is at least 1e-35; blocks with a smaller mean become zeros.

    Payload: the scales of all blocks, then one bit per value, set if it is negative; zeros decode to plus the scale.

    With the mean magnitude m = |x|_1 / B of a block of B values, |x - m sign(x)|^2 = |x|^2 - |x|_1^2 / B, the smallest
    error that any scale gives. So the delta of a block is |x|_1^2 / (B |x|^2), at least 1/B, which is attained by a
    block with one nonzero value. Measured: Gaussian 0.637 = 2/pi, Laplace 0.50, updates of the digits 0.38 to 0.47.
    Rotated values are alike, so that one scale serves many of them: 2048, which is half a window or a small model's
    whole window.
    """

    spec: ClassVar[str] = "sign"
    source: ClassVar[str] = "Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019 (arXiv:1901.09847)"
    block: int = BLOCK

    @property
    def largest_level(self) -> int:
        return 1

    def delta(self, size: int) -> float:
        return 1 / min(self.block, max(1, size)) - ROUNDING

    def codes_bytes(self, size: int) -> int:
        return plane_bytes(size)

    def _quantize(self, part: Rows, tile: Tile) -> NDArray[np.float32]:
        mean, shrunk = mean_magnitude(tile, tile.load(part))
        return usable(tile, mean / shrunk, self.largest_level)

    def _pack(self, tile: Tile, codes: NDArray[np.uint8], wide: slice) -> None:
        negative = np.less(tile.values.view(np.int32), 0, out=tile.codes.view(np.bool_))
        pack_bits(flat(negative), codes, wide)

    def _levels(self, tile: Tile) -> NDArray[Any]:
        return np.copysign(np.float32(1), tile.values, out=tile.work)

    def _unpack(self, codes: NDArray[np.uint8], size: int, wide: slice, tile: Tile) -> NDArray[Any]:  # noqa: ARG002
        negative = unpack_bits(codes, wide, flat(tile.codes).shape[1])
        levels = flat(tile.codes).view(np.int8)
        np.left_shift(negative, 1, out=negative)
        np.subtract(np.int8(1), negative.view(np.int8), out=levels)
        return levels.reshape(tile.codes.shape)


def plane_bytes(size: int) -> int:
    return (size + 7) // 8


def pack_bits(bits: NDArray[Any], out: NDArray[np.uint8], wide: slice) -> None:
    """Set bits `wide` of `out`, (b, plane_bytes), where `bits` (b, n) is nonzero; the bits after them are 0."""
    place = out[:, wide.start // 8 : plane_bytes(wide.stop)]
    np.copyto(place, np.packbits(bits, axis=1, bitorder="little")[:, : place.shape[1]])


def unpack_bits(plane: NDArray[np.uint8], wide: slice, count: int) -> NDArray[np.uint8]:
    """Read bits `wide` of the plane (b, plane_bytes), each 0 or 1, and zeros up to `count` bits per row.

    Raises PeerFault if a bit after the last is not 0.
    """
    part = plane[:, wide.start // 8 : plane_bytes(wide.stop)]
    if wide.stop % 8 and (part[:, -1] >> (wide.stop % 8)).any():
        raise PeerFault("the padding after the last bit is not 0")
    return np.unpackbits(part, axis=1, count=count, bitorder="little")


def _levels(high: NDArray[np.uint8], negative: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Compute levels from the two bits of each value, 0 or 1; both inputs are overwritten."""
    levels, signs = high.view(np.int8), negative.view(np.int8)
    levels *= 3
    levels += 1
    signs *= -2
    signs += 1
    levels *= signs
    return levels


def _best_scale(tile: Tile, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the scales (b, blocks) for the best of the thresholds; mean magnitudes `mean` in float64.

    With n values above the threshold, whose magnitudes sum to H, <v, q> = |v|_1 + 3 H and |q|^2 = B + 15 n.
    """
    counts = tile.counts.astype(np.float64)
    total = mean * counts
    score, scale = total * mean, mean
    for factor in BOUNDS:
        bound = (mean * factor).astype(np.float32)[..., None]
        above = np.greater(tile.work, bound, out=tile.codes.view(np.bool_))
        # Bytes of 0 and 1, eight to a word: no lane of a block exceeds 32, and their sum does not exceed 256.
        number = (above.view(np.uint64).sum(axis=2) * LANES) >> np.uint64(56)
        beyond = np.maximum(tile.work, bound, out=tile.spare).sum(axis=2)
        width = tile.spare.shape[2]
        high = beyond - bound[..., 0].astype(np.float64) * (width - number)
        product, square = total + 3 * high, counts + 15 * number
        better = product**2 / square > score
        score = np.where(better, product**2 / square, score)
        scale = np.where(better, product / square, scale)
    return scale


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
