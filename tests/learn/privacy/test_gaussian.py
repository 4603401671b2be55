"""The table gives each number with its probability, exactly, and sums of its numbers are discrete Gaussians."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from p2pfl.learn.privacy import (
    COLUMN_BITS,
    COLUMNS,
    FACTOR,
    HALF,
    LEVELS,
    REST_BITS,
    UNIT,
    WIDTH,
    WORD_BITS,
    _small,
    _table,
    weights,
)

WHOLE = 1 << (REST_BITS + COLUMN_BITS)


def test_every_number_has_the_probability_of_a_discrete_gaussian():
    table, found = _table(), [0] * COLUMNS
    for column in range(COLUMNS):
        own = ((int(table.limits[column]) - (column << WORD_BITS)) << (REST_BITS - WORD_BITS)) + table.rests[column]
        assert 0 <= own <= 1 << REST_BITS
        alias, same = table.numbers[2 * column] + HALF, table.numbers[2 * column + 1] + HALF
        assert same == column
        found[same] += own
        found[alias] += (1 << REST_BITS) - own
    assert found == weights()
    assert sum(found) == WHOLE
    numbers = range(1 - HALF, HALF)
    ideal = [math.exp(-number * number / (2 * WIDTH**2)) / (WIDTH * math.sqrt(2 * math.pi)) for number in numbers]
    measured = [float(Fraction(one, WHOLE)) for one in found[1:]]
    np.testing.assert_allclose(measured, ideal, rtol=1e-12, atol=2.0**-130)
    assert found[1:] == found[:0:-1]


def test_the_sum_of_small_ones_has_all_numbers_as_a_discrete_gaussian_has():
    """Of two, where all can be counted: the next ones lie as densely or more."""
    chance = np.array([float(Fraction(one, WHOLE)) for one in weights()])
    numbers = np.arange(-4000, 4000)
    found = np.zeros(len(numbers))
    for second in range(-200, 201):
        first = numbers - FACTOR * second
        seen = (first >= -HALF) & (first < HALF)
        found[seen] += chance[second + HALF] * chance[first[seen] + HALF]
    variance = WIDTH**2 * (1 + FACTOR**2)
    ideal = np.exp(-(numbers**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
    np.testing.assert_allclose(found, ideal, rtol=1e-12)


def test_the_unit_is_below_the_standard_deviation():
    variance = sum(WIDTH**2 * FACTOR ** (2 * level) for level in range(LEVELS))
    assert 2.0**-18 < 1.0 - UNIT / math.sqrt(variance) < 1e-4
    assert WIDTH >= 2 * FACTOR


@pytest.mark.parametrize("below", [True, False])
def test_a_word_that_does_not_decide_is_followed_by_more(below):
    table = _table()
    column = next(one for one in range(COLUMNS) if table.numbers[2 * one] != one - HALF and table.rests[one] > 0)
    asked = []

    def draw(count):
        asked.append(count)
        if count == REST_BITS // 8:
            rest = table.rests[column] - below
            return np.frombuffer((rest << WORD_BITS).to_bytes(count, "little"), np.uint8)
        return np.full(count // 4, table.limits[column], np.uint32).view(np.uint8)

    found = _small(2, draw)
    assert asked == [8, 16, 16]
    assert set(found.tolist()) == {int(table.numbers[2 * column + below])}
