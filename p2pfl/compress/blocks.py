"""`q8` and `q4`, and stochastic rounding in 8, 4 and 2 bits: evenly spaced levels -C..C, one float32 scale a block.

To nearest: the scale is peak / (C + 1/2), so that no value is further than half a step from its level. An error is at
most half a step, and at most the value itself. The worst block has its peak at C + 1/2 steps and its other 255 values
at half a step: 1 - delta = 64 / ((C + 1/2)^2 + 255/4), that is delta = 0.466 at 4 bits and 0.996 at 8 bits. Typical
vectors do far better, measured at 4 bits: Gaussian 0.986, Laplace 0.972. Of values spread evenly over the range the
mean squared error is s^2/12 with the step s = 2 peak / (2^b - 1): the textbook's peak^2 / (3 (2^b - 1)^2).

Stochastic: the scale is peak / C, and a value between two levels goes to either by chance so that its expectation is
the value. A value f of a step s above a level has variance f (1 - f) s^2, hence at most s^2/4 and, where f is spread
evenly, s^2/6: three times and twice the mean to nearest with steps of that size, which are 2 peak / (2^b - 2) here.
The peak has no error, and the worst block has its other n = 255 values at the same f: 1 - delta is the largest
n f (1 - f) / (C^2 + n f^2), attained at 1/f = 1 + sqrt(1 + n / C^2), and that is (sqrt(1 + n / C^2) - 1) / 2. So
delta is 0.996 at 8 bits, 0.255 at 4, and -6.5 at 2: no contraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress.codes import EIGHT_BITS, FOUR_BITS, TWO_BITS, Packing
from p2pfl.compress.draws import dither
from p2pfl.compress.interface import RowCompressor, Rows
from p2pfl.compress.scaled import BLOCK, ROUNDING, SMALLEST_SCALE, Place, ScaledBlocks, Tile, flat, largest_scale
from p2pfl.compress.twobits import TwoBits

# A float32 this large has no bits for fractions: adding it rounds to nearest, to even between two, as `rint` does,
# and leaves the whole number in the low bits, whatever its sign.
WHOLE = np.float32(1.5 * 2**23)


@dataclass(frozen=True, slots=True)
class BlockQuantizer(ScaledBlocks):
    """The delta holds for blocks whose peak lies between 1e-35 and the largest float32.

    Smaller blocks become zeros; float64 beyond float32's range is clipped to it.
    """

    spec: str
    packing: Packing
    random: bool = False
    """Whether it rounds stochastically. The expectation is then exact up to 2^-16 of a step, 2^-15 at 8 bits."""
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
        """Leaves `_whole` plus the codes in `tile.work`; `tile.values` is used up."""
        scale: NDArray[np.float32] = tile.load(part) / np.float32(self._peak_steps)
        # Stochastic: only where the peak is next to the largest float32.
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
        """Code 0 as `_quantize` gives it: the low byte is what the packing stores."""
        return np.float32(WHOLE + self.packing.zero)

    def _bytes(self, wide: slice) -> slice:
        """Where the codes of these values are."""
        return slice(self.packing.size_bytes(wide.start), self.packing.size_bytes(wide.stop))


def block_quantizer(bits: int, *, stochastic: bool = False) -> RowCompressor:
    """`q8`, `q4` or `q2`, or one of them with `:stochastic`."""
    if bits == 2 and not stochastic:
        return TwoBits()
    packing = {8: EIGHT_BITS, 4: FOUR_BITS, 2: TWO_BITS}[bits]
    if not stochastic:
        return BlockQuantizer(f"q{bits}", packing)
    source = "Alistarh et al., QSGD, NeurIPS 2017 (arXiv:1610.02132)"
    return BlockQuantizer(f"q{bits}:stochastic", packing, random=True, source=source)
