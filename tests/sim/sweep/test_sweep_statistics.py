"""Confidence intervals over few seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sim.sweep.statistics import estimate, student_t


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)]
)
def test_quantiles_are_those_of_the_printed_tables(freedom, t):
    assert student_t(freedom) == pytest.approx(t, abs=5e-4)


def test_quantiles_agree_with_scipy_for_every_number_of_seeds():
    stats = pytest.importorskip("scipy.stats")
    ours = [student_t(freedom) for freedom in range(1, 300)]
    assert ours == pytest.approx(list(stats.t.ppf(0.975, range(1, 300))), rel=1e-10)


def test_the_interval_covers_the_truth_in_95_of_100_samples_of_three():
    """With the normal quantile it would be 81: the reason for Student's t."""
    chance = np.random.default_rng(0)
    found = [estimate(list(chance.normal(5.0, 2.0, 3))) for _ in range(4000)]
    covered = np.mean([one.low <= 5.0 <= one.high for one in found])
    assert 0.94 < covered < 0.96


def test_one_value_has_a_mean_and_no_interval():
    one = estimate([0.5])
    assert (one.mean, one.low, one.high, one.count) == (0.5, None, None, 1)


def test_no_values_have_no_estimate():
    assert estimate([]) is None


def test_equal_values_have_an_interval_of_no_width():
    same = estimate([0.25, 0.25, 0.25])
    assert (same.low, same.high) == (0.25, 0.25)


def test_the_half_width_is_t_times_the_standard_error():
    found = estimate([1.0, 2.0, 3.0])
    assert found.half == pytest.approx(student_t(2) / math.sqrt(3))
