"""Real numbers as whole numbers that add up one by one give the exact sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.learn import EXACT_DIGITS, exact_digits, exact_value


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e150, max_value=1e150), max_size=9))
def test_digits_add_up_to_the_exact_sum(values):
    """Numbers of 2^-203 and more have no bit below 2^-256."""
    values = [value for value in values if not value or abs(value) > 2.0**-203]
    total = sum((exact_digits(value) for value in values), np.zeros(EXACT_DIGITS, np.int64))
    assert exact_value(total) == math.fsum(values)


@pytest.mark.parametrize("value", [math.inf, math.nan, 2.0**512, -1e200])
def test_what_is_too_large_is_refused(value):
    with pytest.raises(ValueError, match="cannot be summed"):
        exact_digits(value)
