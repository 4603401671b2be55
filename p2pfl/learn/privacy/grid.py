"""A sum and its noise as whole numbers of one grid: only what the noise covers is left of the sum.

Where a float is added to a float, the last bits of the result are those of the larger one, so where noise and sum
nearly cancel they are the sum's (Mironov 2012, doi 10.1145/2382196.2382264). And one row more changes how a sum of all
is rounded (Casacuberta, Shoemate, Vadhan and Wagaman, arXiv 2207.10635). So the sum is rounded to the grid, once; the
clip is reduced by what that may add to a row's effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.privacy.draws import Draws
from p2pfl.learn.privacy.gaussian import UNIT

Reals = NDArray[np.float64]
ULP = 2.0**-53
MARGIN = 1.0 - 2.0**-10
"""The part of the clip that is left for one row.

The clipping itself is computed in float64, and in a batch of many pieces it may move another row, whose gradient is
then rounded differently, in float32. The largest effect seen was 2^-22 of the clip.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid. `step` is the distance of its points, `length` the bound to which the vector of one row is clipped, so
    that a row moves the rounded sum by at most the clip.

    Both follow from what all may know.
    """

    step: float
    length: float

    @classmethod
    def of(cls, *, noise: float, clip: float, size: int, rows: int, in_sequence: int) -> Grid:
        """The grid for sums of at most `rows` vectors (size,) in float64, each number with at most `in_sequence`
        roundings.

        A rounded number changes by less than the number itself and one step, and each of the two sums is wrong by at
        most `in_sequence` roundings of the sum of all lengths (Higham 2002, equation 4.4). Raises UserError: that is
        more than the clip.
        """
        step = noise * clip / UNIT
        length = MARGIN * clip - math.sqrt(size) * step * (1.0 + 2.0**-10) - 2.0 * in_sequence * ULP * rows * clip
        if length <= 0.0:
            text = f"no sum of {rows:,} rows of {size:,} numbers is exact enough for this"
            raise UserError(text, key="privacy.noise", value=noise, allowed="less, fewer rows, or a smaller model")
        return cls(step=step, length=length)

    def hidden(self, total: Reals, draws: Draws) -> Reals:
        """Add noise to the sum (d,), on the grid."""
        found = np.rint(total / self.step)
        found += draws.noise(total.size)
        found *= self.step
        return found
