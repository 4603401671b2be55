"""The codecs with one float32 scale for each block of values: `q8`, `q4` and `q2`, also stochastic, and `sign`.

`scaled` has their common part. Each class derives its distance from the vector, and gives what was measured.

Their small codes are packed into bytes, many rows at once: signed integers in 8, 4 or 2 bits, and planes of one bit for
each value. The integers are symmetric: -128, -8 and -2 do not exist, so a payload that holds them was not made by an
encoder. In 4 bits a code is stored plus 8, two to a byte, the earlier in the low half; in 2 bits plus 2, four to a
byte, the earliest lowest. The rest of the last byte is filled with code 0. A plane has eight bits to a byte, the
earliest lowest; the rest of the last byte is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.draws import dither
from p2pfl.compress.entry import STAGES, VALUES, StageEntry
from p2pfl.compress.interface import RowCompressor, Rows
from p2pfl.compress.scaled import (
    BLOCK,
    ROUNDING,
    SMALLEST_SCALE,
    WITHOUT_SIGN,
    Place,
    ScaledBlocks,
    Tile,
    flat,
    largest_scale,
    mean_magnitude,
    usable,
)
from p2pfl.errors import PeerFault

# A float32 this large has no bits for fractions: adding it rounds to nearest, to even between two, as `rint` does,
# and leaves the whole number in the low bits, whatever its sign.
WHOLE = np.float32(1.5 * 2**23)

# In mean magnitudes of the block. One more would add 0.001 to delta.
BOUNDS = (1.3, 2.0)
BETWEEN = np.float32(2.5)
LANES = np.uint64(0x0101010101010101)

ROTATED_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class BlockQuantizer(ScaledBlocks):
    """`q8` and `q4`, and stochastic rounding in 8, 4 and 2 bits: evenly spaced levels -C..C.

    The delta holds for blocks whose peak lies between 1e-35 and the largest float32. Smaller blocks become zeros;
    float64 beyond float32's range is clipped to it.

    To nearest: the scale is peak / (C + 1/2), so that no value is further than half a step from its level. An error is
    at most half a step, and at most the value itself. The worst block has its peak at C + 1/2 steps and its other 255
    values at half a step: 1 - delta = 64 / ((C + 1/2)^2 + 255/4), that is delta = 0.466 at 4 bits and 0.996 at 8 bits.
    Typical vectors do far better, measured at 4 bits: Gaussian 0.986, Laplace 0.972. For values spread evenly over the
    range the mean squared error is s^2/12 with the step s = 2 peak / (2^b - 1): the textbook's peak^2 / (3 (2^b -
    1)^2).

    Stochastic: the scale is peak / C, and a value between two levels is rounded to either at random so that its
    expectation is the value. A value f of a step s above a level has variance f (1 - f) s^2, hence at most s^2/4 and,
    where f is spread evenly, s^2/6: three times and twice the mean to nearest with steps of that size, which are 2 peak
    / (2^b - 2) here. The peak has no error, and the worst block has its other n = 255 values at the same f: 1 - delta
    is the largest n f (1 - f) / (C^2 + n f^2), attained at 1/f = 1 + sqrt(1 + n / C^2), and that is (sqrt(1 + n / C^2)
    - 1) / 2. So delta is 0.996 at 8 bits, 0.255 at 4, and -6.5 at 2: no contraction.
    """

    spec: str
    packing: Packing
    random: bool = False
    """True for stochastic rounding; the expectation is then exact up to 2^-16 of a step, 2^-15 at 8 bits."""
    fixed: bool = True
    source: str = "Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022"

    @property
    def largest_level(self) -> int:
        return self.packing.largest

    def delta(self, size: int) -> float:  # noqa: ARG002 - of any size
        if self.random:
            return 1 - (sqrt(1 + (BLOCK - 1) / self.packing.largest**2) - 1) / 2 - ROUNDING
        return 1 - (BLOCK / 4) / (self._peak_steps**2 + (BLOCK - 1) / 4) - ROUNDING

    def codes_bytes(self, size: int) -> int:
        return self.packing.size_bytes(size)

    def _quantize(self, part: Rows, tile: Tile, place: Place) -> NDArray[np.float32]:
        """Leave `_whole` plus the codes in `tile.work`; `tile.values` is overwritten."""
        scale: NDArray[np.float32] = tile.load(part) / np.float32(self._peak_steps)
        # Stochastic rounding needs it only where the peak is next to the largest float32.
        np.minimum(scale, largest_scale(self.largest_level), out=scale)
        tiny = scale < SMALLEST_SCALE
        scale[tiny] = 1
        inverse = np.float32(1) / scale
        scale[tiny] = inverse[tiny] = 0
        steps = np.multiply(tile.values, inverse[..., None], out=tile.work)
        if self.random:
            dither(*place, flat(tile.values))
            steps += tile.values
        whole = self._whole
        steps += whole
        # After the rounding: the peak itself, at C + 1/2 steps, rounds up half of the time.
        steps.clip(whole - self.packing.largest, whole + self.packing.largest, out=steps)
        return scale

    def _pack(self, tile: Tile, codes: NDArray[np.uint8], wide: slice) -> None:
        np.copyto(tile.codes, tile.work.view(np.uint32), casting="unsafe")
        self.packing.pack(flat(tile.codes), codes[:, self._bytes(wide)])

    def _levels(self, tile: Tile) -> NDArray[Any]:
        levels = tile.work
        levels -= self._whole
        return levels

    def _unpack(self, codes: NDArray[np.uint8], size: int, wide: slice, tile: Tile) -> NDArray[Any]:  # noqa: ARG002
        levels = tile.codes.view(np.int8)
        self.packing.unpack(codes[:, self._bytes(wide)], wide.stop - wide.start, flat(levels))
        return levels

    @property
    def _peak_steps(self) -> float:
        return self.packing.largest + (0.0 if self.random else 0.5)

    @property
    def _whole(self) -> np.float32:
        """Code 0 as `_quantize` returns it; the packing stores its low byte."""
        return np.float32(WHOLE + self.packing.zero)

    def _bytes(self, wide: slice) -> slice:
        """The memory that holds the codes of these values."""
        return slice(self.packing.size_bytes(wide.start), self.packing.size_bytes(wide.stop))


def block_quantizer(bits: int, *, stochastic: bool = False) -> RowCompressor:
    """Make `q8`, `q4` or `q2`, or one of them with `:stochastic`."""
    if bits == 2 and not stochastic:
        return TwoBits()
    packing = {8: EIGHT_BITS, 4: FOUR_BITS, 2: TWO_BITS}[bits]
    if not stochastic:
        return BlockQuantizer(f"q{bits}", packing)
    source = "Alistarh et al., QSGD, NeurIPS 2017 (arXiv:1610.02132)"
    return BlockQuantizer(f"q{bits}:stochastic", packing, random=True, source=source)


STOCHASTIC = StageEntry(
    name=":stochastic",
    means="after q8 or q4: round up or down at random, so that the mean is right",
    example="q8:stochastic",
)


@STAGES.add(
    StageEntry(
        name="q8",
        place=VALUES,
        aliases=("int8", "8bit"),
        chains={"qsgd": "q8:stochastic"},
        means="8 bits per value, one scale for each 256, round to nearest",
        stochastic=True,
        rotated={},
    )
)
def q8(*, stochastic: bool = False) -> RowCompressor:
    return block_quantizer(8, stochastic=stochastic)


@STAGES.add(
    StageEntry(
        name="q4",
        place=VALUES,
        aliases=("int4", "4bit"),
        means="4 bits per value, as q8; the default",
        stochastic=True,
        rotated={},
    )
)
def q4(*, stochastic: bool = False) -> RowCompressor:
    return block_quantizer(4, stochastic=stochastic)


@STAGES.add(
    StageEntry(
        name="q2",
        place=VALUES,
        aliases=("int2", "2bit", "ternary"),
        means="2 bits per value, as q8",
        stochastic=True,
        rotated={},
    )
)
def q2(*, stochastic: bool = False) -> RowCompressor:
    return block_quantizer(2, stochastic=stochastic)


@dataclass(frozen=True, slots=True)
class TwoBits(ScaledBlocks):
    """`q2`: levels -4, -1, 1 and 4. The delta holds for blocks whose peak lies between 1e-35 and 8e37.

    Payload: the scales of all blocks, a bit for each value, 1 where it is negative, and a bit for each value, 1 where
    its level is 4 or -4. Levels one to four suit the heavy tails of updates better than evenly spaced ones, and a
    Gaussian as well; measured delta for -4, -1, 1, 4 against -3, -1, 1, 3 against -1, 0, 1, each with the best scale:
    Gaussian 0.880, 0.882, 0.810; Laplace 0.825, 0.805, 0.738; updates of the digits 0.78 to 0.83, 0.73 to 0.80, 0.74 to
    0.77.

    For given levels q the best scale is s = <v, q> / |q|^2, with delta = <v, q>^2 / (|q|^2 |v|^2). The encoder tries a
    few bounds above which a level is 4, takes the best, and with its scale gives every value the nearest level. One of
    the bounds is infinity, all levels 1 or -1: with B values <v, q>^2 / |q|^2 = |v|_1^2 / B, hence delta >= 1/B.
    """

    spec: str = "q2"
    random: bool = False
    fixed: bool = True
    source: str = "Vargaftik et al., EDEN, ICML 2022 (arXiv:2108.08842)"

    @property
    def largest_level(self) -> int:
        return 4

    def delta(self, size: int) -> float:
        return 1 / min(BLOCK, max(1, size)) - ROUNDING

    def codes_bytes(self, size: int) -> int:
        return 2 * plane_bytes(size)

    def _quantize(self, part: Rows, tile: Tile, place: Place) -> NDArray[np.float32]:  # noqa: ARG002 - nothing is drawn
        """Leave in `tile.codes` whether a level is 4 or -4."""
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
    StageEntry(
        name="sign",
        place=VALUES,
        aliases=("signsgd", "1bit"),
        means="signs, and the mean magnitude of each 256, after rotate of each 2048: 1.1 bits per value",
        rotated={"block": ROTATED_BLOCK},
    )
)
@dataclass(frozen=True, slots=True)
class Sign(ScaledBlocks):
    """One bit per value, with the mean magnitude as the scale of each block of 256, or of 2048 after a rotation.

    The delta holds for blocks whose peak is at least 1e-35; those of a smaller mean become zeros.

    Payload: the scales of all blocks, then a bit for each value, 1 where it is negative; zeros decode to plus the
    scale.

    With the mean magnitude m = |x|_1 / B of a block of B values, |x - m sign(x)|^2 = |x|^2 - |x|_1^2 / B, the least
    that any scale gives. So delta of a block is |x|_1^2 / (B |x|^2), at least 1/B, that of a block with one value that
    is not 0. Measured: Gaussian 0.637 = 2/pi, Laplace 0.50, updates of the digits 0.38 to 0.47. Rotated values are
    alike, so that one scale serves many of them: 2048, half a window or a small model's whole window.
    """

    spec: str = "sign"
    random: bool = False
    fixed: bool = True
    source: str = "Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019 (arXiv:1901.09847)"
    block: int = BLOCK

    @property
    def largest_level(self) -> int:
        return 1

    def delta(self, size: int) -> float:
        return 1 / min(self.block, max(1, size)) - ROUNDING

    def codes_bytes(self, size: int) -> int:
        return plane_bytes(size)

    def _quantize(self, part: Rows, tile: Tile, place: Place) -> NDArray[np.float32]:  # noqa: ARG002 - nothing is drawn
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


class Packing(Protocol):
    @property
    def largest(self) -> int:
        """Codes are within -largest..largest."""

    @property
    def zero(self) -> int:
        """The stored value of code 0; the others are next to it, modulo 256."""

    def size_bytes(self, size: int) -> int:
        """The number of bytes for `size` codes."""

    def pack(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Write rows (b, n) of codes plus `zero` to `out`, (b, size_bytes(d)), where 8 divides n and n is at least d.

        Codes after the d-th are 0. `stored` is overwritten.
        """

    def unpack(self, packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
        """Write codes of rows (b, size_bytes(size)) to `out`, (b, n), where 8 divides n; code 0 follows the last.

        Raises PeerFault for a code that does not exist.
        """


@dataclass(frozen=True, slots=True)
class _EightBits:
    largest: int = 127
    zero: int = 0

    def size_bytes(self, size: int) -> int:
        return size

    def pack(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        np.copyto(out, stored[:, : out.shape[1]])

    def unpack(self, packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
        np.copyto(out[:, :size], packed.view(np.int8))
        out[:, size:] = 0
        if out.min() == -128:
            raise PeerFault("code -128 in an 8-bit payload")


@dataclass(frozen=True, slots=True)
class _FourBits:
    largest: int = 7
    zero: int = 8

    def size_bytes(self, size: int) -> int:
        return (size + 1) // 2

    def pack(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        pairs = stored.view("<u2")
        pairs |= pairs >> 4
        np.copyto(out, pairs[:, : out.shape[1]], casting="unsafe")

    def unpack(self, packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
        if size % 2 and (packed[:, -1] >> 4 != self.zero).any():
            raise PeerFault("the filling after the last 4-bit code is not code 0")
        pairs = out.view("<u2")
        np.copyto(pairs[:, : packed.shape[1]], packed)
        pairs[:, packed.shape[1] :] = 0x88
        pairs |= pairs << 4
        pairs &= 0x0F0F
        if not out.min():
            raise PeerFault("code -8 in a 4-bit payload")
        out -= self.zero


@dataclass(frozen=True, slots=True)
class _TwoBits:
    largest: int = 1
    zero: int = 2

    def size_bytes(self, size: int) -> int:
        return (size + 3) // 4

    def pack(self, stored: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        fours = stored.view("<u4")
        fours |= fours >> 6
        fours |= fours >> 12
        np.copyto(out, fours[:, : out.shape[1]], casting="unsafe")

    def unpack(self, packed: NDArray[np.uint8], size: int, out: NDArray[np.int8]) -> None:
        fours = out.view("<u4")
        np.copyto(fours[:, : packed.shape[1]], packed)
        fours[:, packed.shape[1] :] = 0xAA
        fours |= fours << 12
        fours &= 0x000F000F
        fours |= fours << 6
        fours &= 0x03030303
        if (out[:, size:] != self.zero).any():
            raise PeerFault("the filling after the last 2-bit code is not code 0")
        if not out.min():
            raise PeerFault("code -2 in a 2-bit payload")
        out -= self.zero


EIGHT_BITS: Packing = _EightBits()
FOUR_BITS: Packing = _FourBits()
TWO_BITS: Packing = _TwoBits()


def plane_bytes(size: int) -> int:
    return (size + 7) // 8


def pack_bits(bits: NDArray[Any], out: NDArray[np.uint8], wide: slice) -> None:
    """Set the bits `wide` of `out`, (b, plane_bytes), where `bits` (b, n) is not 0; the bits after them are 0."""
    place = out[:, wide.start // 8 : plane_bytes(wide.stop)]
    np.copyto(place, np.packbits(bits, axis=1, bitorder="little")[:, : place.shape[1]])


def unpack_bits(plane: NDArray[np.uint8], wide: slice, count: int) -> NDArray[np.uint8]:
    """Read the bits `wide` of the plane (b, plane_bytes), each 0 or 1, and zeros up to `count` bits of each row.

    Raises PeerFault: a bit after the last is not 0.
    """
    part = plane[:, wide.start // 8 : plane_bytes(wide.stop)]
    if wide.stop % 8 and (part[:, -1] >> (wide.stop % 8)).any():
        raise PeerFault("the filling after the last bit is not 0")
    return np.unpackbits(part, axis=1, count=count, bitorder="little")


def _levels(high: NDArray[np.uint8], negative: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Compute levels from the two bits of each value, 0 or 1; overwrites both."""
    levels, signs = high.view(np.int8), negative.view(np.int8)
    levels *= 3
    levels += 1
    signs *= -2
    signs += 1
    levels *= signs
    return levels


def _best_scale(tile: Tile, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the scales (b, blocks) for the best of the bounds; mean magnitudes `mean` in float64.

    With n values above the bound, whose magnitudes sum to H, <v, q> = |v|_1 + 3 H and |q|^2 = B + 15 n.
    """
    counts = tile.counts.astype(np.float64)
    total = mean * counts
    score, scale = total * mean, mean
    for factor in BOUNDS:
        bound = (mean * factor).astype(np.float32)[..., None]
        above = np.greater(tile.work, bound, out=tile.codes.view(np.bool_))
        # Bytes of 0 and 1, eight to a word: no lane of a block exceeds 32, nor all together 256.
        number = (above.view(np.uint64).sum(axis=2) * LANES) >> np.uint64(56)
        beyond = np.maximum(tile.work, bound, out=tile.spare).sum(axis=2)
        width = tile.spare.shape[2]
        high = beyond - bound[..., 0].astype(np.float64) * (width - number)
        product, square = total + 3 * high, counts + 15 * number
        better = product**2 / square > score
        score = np.where(better, product**2 / square, score)
        scale = np.where(better, product / square, scale)
    return scale
