"""A sum and its noise on one integer grid, so that nothing of the sum remains beyond what the noise covers.

When two floats are added, the last bits of the result come from the larger one. So where noise and sum nearly cancel,
those bits belong to the sum (Mironov 2012, doi 10.1145/2382196.2382264). Moreover, one additional row changes how the
whole sum is rounded (Casacuberta, Shoemate, Vadhan and Wagaman, arXiv 2207.10635). So the sum is rounded to the grid
once, and the clip is reduced by what rounding may add to a row's effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.privacy.draws import Draws, Integers
from p2pfl.learn.privacy.gaussian import UNIT

Reals = NDArray[np.float64]
ULP = 2.0**-53
MARGIN = 1.0 - 2.0**-10
"""The fraction of the clip that is left for one row.

The rest covers two effects: clipping is itself computed in float64, and in a batch of several pieces one row may move
another, whose float32 gradient is then rounded differently. The largest effect observed was 2^-22 of the clip.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid. `step` is the distance between its points. `length` is the norm to which one row's vector is clipped, so
    that a row changes the rounded sum by at most the clip.

    Both depend on public values only.
    """

    step: float
    length: float

    @classmethod
    def of(cls, *, noise: float, clip: float, size: int, rows: int, in_sequence: int) -> Grid:
        """Return the grid for sums of at most `rows` vectors (size,) in float64, where each number undergoes at most
        `in_sequence` roundings.

        Rounding adds less than one step to the change of a number, and each of the two sums is off by at most
        `in_sequence` roundings of the sum of all norms (Higham 2002, equation 4.4). Raises UserError: these errors
        exceed the clip.
        """
        step = cls.step_of(noise=noise, clip=clip)
        length = MARGIN * clip - math.sqrt(size) * step * (1.0 + 2.0**-10) - 2.0 * in_sequence * ULP * rows * clip
        if length <= 0.0:
            text = f"no sum of {rows:,} rows of {size:,} numbers is exact enough for this"
            raise UserError(text, key="privacy.noise", value=noise, allowed="less, fewer rows, or a smaller model")
        return cls(step=step, length=length)

    @staticmethod
    def step_of(*, noise: float, clip: float) -> float:
        """Return the distance between the points of a grid."""
        return noise * clip / UNIT

    def hidden(self, total: Reals, draws: Draws) -> Reals:
        """Add noise to the sum (d,) on the grid."""
        found = np.rint(total / self.step)
        found += draws.noise(total.size)
        found *= self.step
        return found

    def hidden_steps(self, total: Reals, draws: Draws) -> Integers:
        """Add noise to the sum (d,), which has at most 2^62 steps of the grid; return it in steps."""
        return np.rint(total / self.step).astype(np.int64) + draws.noise(total.size)
