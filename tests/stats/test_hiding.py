"""No hidden cell of few rows can be computed from what is shown, by linear algebra."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from p2pfl.features.stats import Disclosure, SurveyAsked, TooFew, bars, determined, with_complement
from p2pfl.learn.table import make_schema

BOUNDS = SurveyAsked(columns=("kind",), by="by", least_rows=10)
COUNTS = st.integers(0, 12) | st.integers(0, 60)


def schema_of(groups, values):
    names = {"by": [f"g{place}" for place in range(groups)], "kind": [f"k{place}" for place in range(values)]}
    return make_schema({"target": "y", "numeric": ["x"], "categories": names}, prefix="")


def relations_of(rows, cells, totals):
    """Return the sums that are known of the cells (g, v) and the rows (g,), written down anew: rows first."""
    groups, width = cells.shape
    found = []
    line = np.zeros(groups * (1 + width))
    line[:groups] = 1
    found.append(line)
    for group in range(groups):
        line = np.zeros_like(line)
        line[group] = -1
        line[groups + group * width : groups + (group + 1) * width] = 1
        found.append(line)
    for value in np.flatnonzero(totals):
        line = np.zeros_like(line)
        line[groups + value :: width] = 1
        found.append(line)
    return np.array(found)


def follows(relations, hidden, place):
    """Return True if a hidden cell is a combination of what is known: its unit vector is in the relations' span."""
    places = np.flatnonzero(hidden)
    known = relations[:, places]
    unit = (places == place).astype(float)
    return np.linalg.matrix_rank(np.vstack([known, unit])) == np.linalg.matrix_rank(known)


@given(
    shape=st.tuples(st.integers(2, 5), st.integers(2, 5)),
    draw=st.data(),
)
def test_no_small_count_follows_from_the_others_and_all_totals(shape, draw):
    """Not even if a question without groups has shown the totals of each value."""
    groups, values = shape
    cells = draw.draw(arrays(np.int64, (groups + 1, values + 1), elements=COUNTS))
    spread = draw.draw(arrays(np.int64, cells.shape, elements=st.integers(1, 5)))
    sites = np.where(cells > 0, np.minimum(spread, cells), 0)
    rows = cells.sum(axis=1)
    told = {"rows": np.stack([rows, sites.max(axis=1)]), "cells kind": np.stack([cells, sites])}
    try:
        found = Disclosure(BOUNDS, schema_of(groups, values), told)
    except TooFew:
        return
    counts, _ = found.counts("kind")
    shown = np.array([[-1 if one is None else one for one in line] for line in counts])
    assert ((shown == -1) | (shown == cells)).all()
    small = BOUNDS.small(cells.ravel(), sites.ravel()).reshape(cells.shape)
    assert not (small & (shown >= 0)).any()
    small_rows = BOUNDS.small(*told["rows"])
    assert found.hidden[small_rows].all()
    totals = [not BOUNDS.is_small(cells[:, value], sites[:, value]) for value in range(values + 1)]
    relations = relations_of(rows, cells, totals)
    hidden = np.concatenate([found.hidden, (shown < 0).ravel()])
    for place in np.flatnonzero(np.concatenate([small_rows, small.ravel()])):
        assert not follows(relations, hidden, place)


@given(arrays(np.int64, st.integers(1, 8), elements=COUNTS), st.data())
def test_what_is_hidden_of_a_total_is_not_few_rows_or_few_sites(counts, draw):
    spread = draw.draw(arrays(np.int64, counts.shape, elements=st.integers(1, 5)))
    sites = np.where(counts > 0, np.minimum(spread, counts), 0)
    hidden = with_complement(counts, sites, BOUNDS)
    assert not (BOUNDS.small(counts, sites) & ~hidden).any()
    gone = counts[hidden]
    assert hidden[counts > 0].all() or not gone.any() or (gone.sum() >= 10 and sites[hidden].max() >= 3)


@given(arrays(np.int64, st.integers(1, 12), elements=COUNTS), st.data())
def test_bins_are_joined_until_each_has_enough_rows_and_sites(counts, draw):
    spread = draw.draw(arrays(np.int64, counts.shape, elements=st.integers(1, 5)))
    sites = np.where(counts > 0, np.minimum(spread, counts), 0)
    found = bars([float(edge) for edge in range(1, len(counts))], counts, sites, BOUNDS)
    assert sum(bar.rows for bar in found) == counts.sum()
    assert len(found) == 1 or all(bar.rows >= 10 for bar in found)
    assert (found[0].low, found[-1].high) == (None, None)
    assert all(one.high == other.low for one, other in pairwise(found))


def test_a_cell_is_determined_where_its_column_of_the_null_space_is_empty():
    relations = np.array([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    hidden = np.array([True, True, True, True])
    assert determined(relations, hidden).tolist() == [False, False, False, True]
    assert determined(relations, np.array([True, True, False, False])).tolist() == [True, True, True, True]


@pytest.mark.parametrize(
    ("counts", "hidden"),
    [
        ([9, 200, 300], [True, True, False]),  # 9 alone would follow from the total
        ([9, 4, 300], [True, True, False]),  # 13 together are enough
        ([3, 4, 300], [True, True, True]),  # 7 are not
        ([1, 300], [True, True]),  # all but one
        ([0, 300], [False, False]),  # nobody's rows
    ],
)
def test_the_complement_of_a_small_group_is_hidden_with_it(counts, hidden):
    found = with_complement(np.array(counts), np.where(np.array(counts) > 0, 3, 0), BOUNDS)
    assert found.tolist() == hidden
