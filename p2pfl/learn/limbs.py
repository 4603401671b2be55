"""Real numbers as a few whole numbers that can be summed one by one, so that the sum is exact whatever their size.

A number is rounded to a multiple of 2^-256 and written in base 2^32, from 2^-256 to 2^512, each digit with the number's
sign. Digits add up without carries, and their sums give the exact sum. This suits secure sums, whose entries are whole
numbers within bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

LIMBS, LIMB_BITS, UNIT_BITS = 24, 32, 256
MOST = 2.0 ** (LIMBS * LIMB_BITS - UNIT_BITS)


def limbs_of(value: float) -> NDArray[np.int64]:
    """Return the digits (LIMBS,) of a number. Raises ValueError: it is not finite, or its size is above 2^512."""
    if not (math.isfinite(value) and abs(value) < MOST):
        raise ValueError(f"{value:g} cannot be summed: allowed are finite numbers up to {MOST:.3g}")
    whole = round(Fraction(abs(value)) * 2**UNIT_BITS)
    sign = -1 if value < 0 else 1
    return np.array([sign * (whole >> LIMB_BITS * place & (2**LIMB_BITS - 1)) for place in range(LIMBS)], np.int64)


def value_of(limbs: Iterable[int]) -> float:
    """Return the number, correctly rounded, that digits or sums of digits (LIMBS,) stand for."""
    whole = sum(int(limb) << LIMB_BITS * place for place, limb in enumerate(limbs))
    return float(Fraction(whole, 2**UNIT_BITS))
