"""`q2`: two bits a value, levels -4, -1, 1 and 4 times the scale of a block of 256 values.

Payload: the scales of all blocks, a bit for each value, 1 where it is negative, and a bit for each value, 1 where its
level is 4 or -4. Levels one to four suit the heavy tails of updates better than evenly spaced ones, and a Gaussian as
well; measured delta for -4, -1, 1, 4 against -3, -1, 1, 3 against -1, 0, 1, each with the best scale: Gaussian 0.880,
0.882, 0.810; Laplace 0.825, 0.805, 0.738; updates of the digits 0.78 to 0.83, 0.73 to 0.80, 0.74 to 0.77.

For given levels q the best scale is s = <v, q> / |q|^2, with delta = <v, q>^2 / (|q|^2 |v|^2). The encoder tries a few
bounds above which a level is 4, takes the best, and with its scale gives every value the nearest level. One of
the bounds is infinity, all levels 1 or -1: with B values <v, q>^2 / |q|^2 = |v|_1^2 / B, hence delta >= 1/B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.interface import Rows
from p2pfl.compress.planes import pack_bits, plane_bytes, unpack_bits
from p2pfl.compress.scaled import (
    BLOCK,
    ROUNDING,
    WITHOUT_SIGN,
    Place,
    ScaledBlocks,
    Tile,
    flat,
    mean_magnitude,
    usable,
)

# In mean magnitudes of the block. One more would add 0.001 to delta.
BOUNDS = (1.3, 2.0)
BETWEEN = np.float32(2.5)
LANES = np.uint64(0x0101010101010101)


@dataclass(frozen=True, slots=True)
class TwoBits(ScaledBlocks):
    """The delta holds for blocks whose peak lies between 1e-35 and 8e37."""

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
        """Leaves in `tile.codes` whether a level is 4 or -4."""
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


def _levels(high: NDArray[np.uint8], negative: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Levels from the two bits of each value, 0 or 1; uses both up."""
    levels, signs = high.view(np.int8), negative.view(np.int8)
    levels *= 3
    levels += 1
    signs *= -2
    signs += 1
    levels *= signs
    return levels


def _best_scale(tile: Tile, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scales (b, blocks) for the best of the bounds; mean magnitudes `mean` in float64.

    With n values above the bound, whose magnitudes sum to H, <v, q> = |v|_1 + 3 H and |q|^2 = B + 15 n.
    """
    counts = tile.counts.astype(np.float64)
    total = mean * counts
    score, scale = total * mean, mean
    for factor in BOUNDS:
        bound = (mean * factor).astype(np.float32)[..., None]
        above = np.greater(tile.work, bound, out=tile.codes.view(np.bool_))
        # Bytes of 0 and 1, eight to a word: no lane of a block comes to more than 32, nor all to 256.
        number = (above.view(np.uint64).sum(axis=2) * LANES) >> np.uint64(56)
        beyond = np.maximum(tile.work, bound, out=tile.spare).sum(axis=2)
        width = tile.spare.shape[2]
        high = beyond - bound[..., 0].astype(np.float64) * (width - number)
        product, square = total + 3 * high, counts + 15 * number
        better = product**2 / square > score
        score = np.where(better, product**2 / square, score)
        scale = np.where(better, product / square, scale)
    return scale
