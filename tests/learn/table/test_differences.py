from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from p2pfl.learn.table import Table, make_schema, survey

SCHEMA = {"target": "y", "numeric": ["a", "b"], "classes": ["no", "yes"]}
SCALED = SCHEMA | {"means": {"a": 60, "b": 0}, "stds": {"a": 10, "b": 1}}


def table(seed=0, rows=100, ill=0.5, **columns):
    rng = np.random.default_rng(seed)
    usual = {"a": rng.normal(60, 10, rows), "b": rng.normal(0, 1, rows), "y": (np.arange(rows) < ill * rows) * 1.0}
    found = {
        name: np.broadcast_to(np.asarray(values, float), rows).copy() for name, values in (usual | columns).items()
    }
    return Table(path=Path(f"{seed}.csv"), columns=found, absent=(), without_target=0, unseen=0)


def test_of_each_site_rows_gaps_classes_and_distances_are_told():
    tables = {"n": table(0, ill=0.2), "s": table(1, ill=0.6, a=np.r_[[np.nan] * 20, [61.0] * 80])}
    (north, south), warnings = survey(tables, make_schema(SCALED))
    assert (north["rows"], north["classes"]) == (100, {"no": 80, "yes": 20})
    assert south["cells_missing"] == pytest.approx(0.1)
    assert north["column_distance"].keys() == {"a", "b"}
    assert any("one value in all rows" in text for text in warnings)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"a": np.random.default_rng(5).normal(60, 10, 100) / 1.3}, None),  # within what sites differ by
        ({"a": np.r_[[np.nan] * 95, [1.0] * 5]}, "nearly empty: 95%"),
        ({"ill": 1.0}, "every row of node s has the class 'yes'"),
        ({}, None),
    ],
)
def test_what_is_odd_is_said(other, said):
    _, warnings = survey({"n": table(0), "s": table(1, **other)}, make_schema(SCALED))
    assert any(said in text for text in warnings) if said else warnings == []


def test_one_table_has_no_distances():
    (alone,), _ = survey({"n": table()}, make_schema(SCALED))
    assert alone["column_distance"] == {}
