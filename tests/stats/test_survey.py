"""The figures are those of the pooled table, and what few rows or few sites have is hidden."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from p2pfl.features.stats import MISSING, TooFew
from tests.stats.stats_world import asked, figure, hospitals, pooled, surveyed

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


def test_figures_are_those_of_pooled_pandas():
    """Counts exactly, mean and deviation to the last digits, quantiles within their bound."""
    sites = hospitals()
    frame = pd.concat([pd.DataFrame(site) for site in sites])
    found = surveyed(asked("age", "chol", "ill", by="sex"), sites)
    assert found.rows == len(frame) == 450
    for place, name in enumerate(("f", "m")):
        group = frame[frame.sex == place]
        assert found.groups[name] == len(group)
        for column in ("age", "chol"):
            one, values = figure(found, column, name), group[column]
            assert (one.rows, one.missing) == (values.count(), values.isna().sum())
            assert one.mean == pytest.approx(values.mean(), rel=1e-14)
            assert one.deviation == pytest.approx(values.std(), rel=1e-13)
            for quantile, true in zip(one.quantiles, values.quantile(SHARES), strict=True):
                assert quantile.low is None or quantile.low <= true
                assert quantile.high is None or true <= quantile.high
                assert quantile.value is None or abs(quantile.value - true) <= quantile.bound
        ill = figure(found, "ill", name)
        assert ill.categories == {"no": (group.ill == 0).sum(), "yes": (group.ill == 1).sum()}
    assert "x" not in found.groups
    (one,) = surveyed(asked("chol"), sites).figures
    known = frame.chol.dropna().to_numpy()
    for bar in one.histogram:
        low, high = (-np.inf if bar.low is None else bar.low), (np.inf if bar.high is None else bar.high)
        assert bar.rows == ((known >= low) & (known < high)).sum() >= 10


@pytest.mark.parametrize("rows", [400, 8000])
def test_quantiles_are_the_finer_the_more_rows(rows):
    rng = np.random.default_rng(1)
    sites = [{"age": rng.lognormal(4, 0.5, rows)} for _ in range(5)]
    found = figure(surveyed(asked("age"), sites), "age")
    width = found.quantiles[2].bound / found.deviation
    assert width < (0.05 if rows == 400 else 0.015)
    values = pooled(sites, "age")
    assert abs(found.quantiles[2].value - np.median(values)) <= found.quantiles[2].bound


def test_a_value_that_one_site_alone_has_is_hidden_whatever_its_rows():
    sites = hospitals()
    sites[0]["sex"][:40] = 2
    found = surveyed(asked("age", by="sex"), sites)
    assert found.groups["x"] is None
    assert None in (found.groups["f"], found.groups["m"])
    assert figure(found, "age", "x").mean is None
    counted = figure(surveyed(asked("sex"), sites), "sex")
    assert counted.categories["x"] is None
    assert sum(count is None for count in counted.categories.values()) == 2


def test_a_column_that_is_all_missing_has_no_figures():
    sites = hospitals()
    for site in sites:
        site["chol"][:] = np.nan
    found = figure(surveyed(asked("chol"), sites), "chol")
    assert (found.rows, found.missing, found.mean, found.quantiles, found.histogram) == (0, 450, None, (), ())


def test_a_column_that_two_sites_have_is_hidden():
    sites = hospitals()
    for site in sites[2:]:
        site["chol"][:] = np.nan
    found = figure(surveyed(asked("chol"), sites), "chol")
    assert (found.rows, found.missing, found.mean, found.histogram) == (None, None, None, ())


def test_the_sums_of_a_small_group_are_not_even_made():
    sites = hospitals()
    for site in sites:
        site["sex"][0] = 2
    stages = []
    found = surveyed(asked("age", "chol", by="sex"), sites, stages=stages)
    shown = [name for name, rows in found.groups.items() if rows is not None]
    assert len(shown) == 1
    assert [len(stages[1]["sums"]), len(stages[2]["squares"])] == [2, 2]
    assert figure(found, "age", "x").mean is None


def test_rows_without_a_group_are_a_group():
    sites = hospitals()
    for site in sites:
        site["sex"][:10] = np.nan
    found = surveyed(asked("age", by="sex"), sites)
    assert found.groups[MISSING] == 50
    values = np.concatenate([site["age"][:10] for site in sites])
    assert figure(found, "age", MISSING).mean == pytest.approx(values.mean())


def test_few_missing_values_are_hidden_and_the_mean_does_not_tell_them():
    """The mean of whole numbers, with all its digits, would tell by how many rows it was divided."""
    sites = hospitals()
    sites[0]["age"][:3] = np.nan
    found = figure(surveyed(asked("age"), sites), "age")
    assert (found.rows, found.missing) == (None, None)
    assert sum(bar.rows is None for bar in found.histogram) == 1
    values = pooled(sites, "age")
    values = values[~np.isnan(values)]
    assert abs(found.mean - values.mean()) <= values.std() / np.sqrt(len(values)) / 10
    fits = [rows for rows in range(440, 450) if round(round(found.mean * rows) / rows, 1) == round(found.mean, 1)]
    assert len(fits) == 10


@pytest.mark.parametrize("rows", [2, 3])
def test_too_few_rows_at_all_are_refused(rows):
    sites = [{"age": np.arange(rows) * 1.0} for _ in range(3)]
    with pytest.raises(TooFew, match="all sites together have fewer than 10 rows, at 3 sites or more"):
        surveyed(asked("age"), sites)


@pytest.mark.parametrize("values", [[7.0], [0.0, 1.0], [-1e60, 0.0, 1e60], [-3.5, -1e-30, 1e-30, 2.0]])
def test_odd_columns_have_figures(values):
    sites = [{"age": np.resize(np.array(values), 40)} for _ in range(3)]
    found = figure(surveyed(asked("age"), sites), "age")
    true = pooled(sites, "age")
    assert found.mean == pytest.approx(true.mean(), abs=1e-9 * np.abs(true).max())
    assert found.deviation == pytest.approx(true.std(ddof=1))
    for quantile, one in zip(found.quantiles, np.quantile(true, SHARES), strict=True):
        assert quantile.low is None or quantile.low <= one
        assert quantile.high is None or one <= quantile.high
    assert sum(bar.rows for bar in found.histogram) == len(true)


@pytest.mark.parametrize(
    ("name", "by"), [("rows", -10_000), ("cells age", 1), ("buckets 0", 1), ("buckets 0", -999), ("bins 0", 1)]
)
def test_sums_of_no_tables_are_a_value_error(name, by):
    def spoil(sums):
        if name in sums:
            sums[name] = sums[name] + by

    with pytest.raises(ValueError):
        surveyed(asked("age"), hospitals(), spoil=spoil)
