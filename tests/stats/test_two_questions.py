"""Whoever asks with groups and without has linear equations in the counts of all bins: none of few rows follows."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.features.stats import determined
from tests.stats.stats_world import asked, figure, hospitals, pooled, surveyed


def made(seed):
    """Four hospitals with a few missing ages, and, with odd seeds, three groups."""
    rng, sites = np.random.default_rng(seed), hospitals(seed)[:4]
    for site in sites:
        rows = len(site["age"])
        site["age"] = np.round(rng.normal(60, 12, rows))
        site["age"][rng.random(rows) < rng.choice([0.01, 0.03, 0.08])] = np.nan
        if seed % 2:
            site["sex"] = rng.integers(0, 3, rows).astype(float)
    return sites


def sums_shown(one, rows, edges):
    """Yield the cells whose sum a column's figures tell: of bins between these edges, after which come the missing."""
    missing = len(edges) + 1
    if rows is not None:
        yield range(missing + 1)
    if one.rows is not None:
        yield range(missing)
    if one.missing is not None:
        yield [missing]
    for bar in one.histogram:
        if bar.rows is not None:
            first = 0 if bar.low is None else edges.index(bar.low) + 1
            yield range(first, missing if bar.high is None else edges.index(bar.high) + 1)


@pytest.mark.parametrize("seed", range(20))
def test_no_count_of_few_rows_follows_from_a_question_with_groups_and_one_without(seed):
    sites = made(seed)
    grouped, everybody = surveyed(asked("age", by="sex"), sites), surveyed(asked("age"), sites)
    figures, whole = grouped.figures, figure(everybody, "age")
    edges = sorted({bar.high for one in (*figures, whole) for bar in one.histogram if bar.high is not None})
    lines = []
    told = [([place], one, grouped.groups[one.group]) for place, one in enumerate(figures)]
    for groups, one, rows in [*told, (range(len(figures)), whole, everybody.rows)]:
        for cells in sums_shown(one, rows, edges):
            line = np.zeros((len(figures), len(edges) + 2))
            line[np.ix_(groups, cells)] = 1
            lines.append(line.ravel())
    known = determined(np.array(lines), np.ones(len(lines[0]), np.bool_)).reshape(len(figures), -1)
    ages, sexes = pooled(sites, "age"), pooled(sites, "sex")
    bins = np.where(np.isnan(ages), len(edges) + 1, np.searchsorted(edges, ages, "right"))
    for place, one in enumerate(figures):
        counts = np.bincount(bins[sexes == "fmx".index(one.group)], minlength=len(edges) + 2)
        assert not (known[place] & (counts > 0) & (counts < 10)).any()
