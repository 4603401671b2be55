"""The sorting network, against plain sorting."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.aggregate import Median, TrimmedMean
from p2pfl.aggregate.columns import BLOCK, MixedRows, PlainRows, network, sorted_blocks


@pytest.mark.parametrize("count", range(1, 11))
def test_it_sorts_every_column_of_zeros_and_ones(count):
    """The 0-1 principle: what sorts these sorts everything. For each part of the order that may be asked for."""
    columns = np.array(list(itertools.product([0.0, 1.0], repeat=count))).T
    order = np.sort(columns, axis=0)
    for start, stop in itertools.combinations(range(count + 1), 2):
        ((_, sorted_part),) = sorted_blocks(PlainRows(list(columns)), range(start, stop), in_order=True)
        assert (np.array(sorted_part) == order[start:stop]).all()
        ((_, some_part),) = sorted_blocks(PlainRows(list(columns)), range(start, stop), in_order=False)
        assert (np.sort(some_part, axis=0) == order[start:stop]).all()


def test_no_more_is_compared_than_is_asked_for():
    """Of 20 values a whole order takes 97 comparisons, a trimmed mean of f=4 fewer, one row of one value none."""
    lengths = [len(network(20, start, 20 - start, in_order=start == 0)) for start in (0, 4, 9)]
    assert lengths == [97, 84, 80]
    assert network(1, 0, 1, in_order=True) == network(5, 0, 5, in_order=False) == ()


def test_mixed_rows_lie_between_those_that_they_are_mixed_of_also_where_these_are_the_largest_floats():
    largest = np.finfo(np.float32).max
    rows = [np.array([largest, *rest], np.float32) for rest in ((1.0, -1.0), (3.0, -3.0))]
    (mixed,) = MixedRows(rows, np.array([[0.5, 0.5 + 1e-6]])).read(slice(0, 3))
    assert mixed.tolist() == [largest, pytest.approx(2.0, rel=1e-5), pytest.approx(-2.0, rel=1e-5)]


@given(st.integers(1, 30), st.sampled_from([0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 1]), st.data())
def test_median_and_trimmed_mean_are_those_of_sorted_columns(count, size, data):
    f = data.draw(st.integers(0, (count - 1) // 2))
    chance = np.random.default_rng(data.draw(st.integers(0, 100)))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    vectors = (chance.integers(-3, 4, (count, size)) + chance.standard_normal(size)).astype(dtype)
    before = vectors.copy()
    order = np.sort(vectors.astype(np.float64), axis=0)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-13, "atol": 1e-13}
    np.testing.assert_allclose(TrimmedMean(f)(vectors), order[f : count - f].mean(axis=0), **tolerance)
    np.testing.assert_allclose(Median()(vectors), np.median(order, axis=0), **tolerance)
    assert vectors.tobytes() == before.tobytes()


def test_large_models_are_not_stacked():
    """Nine models of 8 MB: beside the result only blocks of them."""
    rows = list(np.random.default_rng(0).standard_normal((9, 2_000_000), dtype=np.float32))
    tracemalloc.start()
    found = TrimmedMean(1)(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.nbytes == 8_000_000
    assert peak < 9_500_000
