"""Bins are agreed on by sums of counts: no range is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pfl.learn.trees import (
    DIVISIONS,
    BinGrid,
    as_cells,
    counted,
    divided,
    edges_of,
    first_cuts,
    keys_of,
    most_buckets,
    number_of,
)

NAN = np.float32("nan")
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def edges(values: np.ndarray, most: int = 64, least_rows: int = 10) -> list[float]:
    cuts = first_cuts()
    for _ in range(DIVISIONS):
        cuts = divided(cuts, counted(values, cuts), most)
        assert cuts == sorted(set(cuts))
        assert cuts[0] == 0
        assert len(cuts) <= most_buckets(most)
    return edges_of(cuts, counted(values, cuts), most, least_rows)


def of_each(values: np.ndarray, found: list[float]) -> np.ndarray:
    codes = BinGrid(edges=(tuple(found),), sizes=()).codes(values[None])[0]
    return np.bincount(codes[~np.isnan(values)], minlength=len(found) + 1)


@given(first=FLOATS, second=FLOATS)
def test_keys_are_in_the_order_of_the_numbers_and_lead_back(first, second):
    values = as_cells(np.array([first, second]))
    keys = keys_of(values).tolist()
    assert (keys[0] < keys[1]) == (values[0] < values[1])
    assert (keys[0] == keys[1]) == (values[0] == values[1])
    assert [number_of(key) for key in keys] == values.tolist()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_each_bin_has_about_as_many_rows(scale, shift):
    values = as_cells((np.random.default_rng(0).normal(size=20_000) + shift) * scale)
    found = of_each(values, edges(values))
    assert 60 <= len(found) <= 64
    assert found.max() <= 1.5 * 20_000 / 64
    assert found.min() >= 0.5 * 20_000 / 64


def test_a_number_that_many_rows_have_is_a_bin_of_its_own():
    rng = np.random.default_rng(0)
    values = as_cells(np.where(rng.random(5000) < 0.5, 0.0, rng.normal(size=5000)))
    found = edges(values)
    assert 0.0 in found
    assert of_each(values, found)[found.index(0.0) + 1] == pytest.approx((values == 0).sum(), rel=0.02)
    assert len(found) > 55


def test_few_different_numbers_have_a_bin_each():
    values = as_cells(np.random.default_rng(0).integers(-9, 10, size=2000))
    assert edges(values) == list(range(-8, 10))


@settings(max_examples=50)
@given(values=st.lists(FLOATS | st.just(float("nan")), max_size=80), most=st.integers(2, 64), least=st.integers(1, 20))
def test_no_bin_has_fewer_than_the_least_rows_and_there_are_not_more_bins_than_rows(values, most, least):
    array = as_cells(np.array(values, np.float64))
    found = edges(array, most, least)
    known = int((~np.isnan(array)).sum())
    assert len(found) + 1 <= max(1, min(most, known // least))
    assert found == sorted(set(found))
    assert not found or of_each(array, found).min() >= least


@pytest.mark.parametrize("values", [[], [NAN] * 9, [3.5] * 50])
def test_a_column_without_numbers_or_with_only_one_has_one_bin(values):
    assert edges(np.array(values, np.float32)) == []


def test_what_is_beyond_a_float32_counts_as_the_largest():
    assert as_cells(np.array([1e300, -1e300, -0.0])).tolist() == [
        np.finfo(np.float32).max,
        np.finfo(np.float32).min,
        0.0,
    ]


def test_missing_cells_and_values_of_categories_have_their_own_bins():
    grid = BinGrid(edges=((0.0, 2.0),), sizes=(3,))
    cells = np.array([[-1, 0, 1.5, 2, NAN], [0, 1, 2, NAN, NAN]], np.float32)
    assert grid.codes(cells).tolist() == [[0, 1, 1, 2, 3], [0, 1, 2, 3, 3]]
    assert grid.widths == [4, 4]
    assert grid.splits == [2, 3]
