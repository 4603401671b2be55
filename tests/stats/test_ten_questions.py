"""Somebody at north asks all that might tell one row of east: docs/how-to/statistics.md has the table of it.

What each site decides alone is in `test_desk`: columns and groups (1, 2), rows that change (7), and how often (10).
"""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.features.stats import TooFew
from p2pfl.features.sums import SumHistory
from tests.stats.desks import Clock, cells_of, desk_of, made_ward, write_table
from tests.stats.stats_world import SITES, asked, figure, hospitals, pooled, surveyed


class Curious:
    """Asks all five sites, each of which decides by its own files; sums are plain additions."""

    def __init__(self, folder, sites):
        self.folder, self.clock, self.serial = folder, Clock(), 0
        self.place = made_ward(folder)
        self.desks = {site: desk_of(self.place, site, self.clock) for site in SITES}
        for site, columns in zip(SITES, sites, strict=True):
            self.write(site, columns)

    def write(self, site, columns):
        write_table(self.folder, site, cells_of(columns))

    def ask(self, *columns, by=None):
        """Return the statistics."""
        self.serial += 1
        answers = {site: self.desks[site].answer("north", self.serial, columns, by) for site in SITES}
        assert not any(one.refusal for one in answers.values())
        least = max(one.least_rows for one in answers.values())
        tables = [one.table.columns for one in answers.values()]
        return surveyed(asked(*columns, by=by, least_rows=least), tables)


@pytest.fixture
def sites():
    return hospitals()


def test_3_a_group_that_has_one_row(tmp_path, sites):
    sites[1]["sex"][0] = 2
    found = Curious(tmp_path, sites).ask("age", by="sex")
    assert found.groups["x"] is None
    assert figure(found, "age", "x").mean is None


def test_4_a_group_that_has_all_rows_but_one(tmp_path, sites):
    for one in sites:
        one["sex"][:] = 0
    sites[1]["sex"][0] = 1
    with pytest.raises(TooFew):
        Curious(tmp_path, sites).ask("age", by="sex")


def test_5_the_oldest_patient(tmp_path, sites):
    """One of 117 years at east: neither the outer bin nor a quantile is of fewer than ten rows."""
    sites[1]["age"][0] = 117
    found = figure(Curious(tmp_path, sites).ask("age"), "age")
    assert found.histogram[-1].high is None
    assert found.histogram[-1].rows >= 10
    edges = [edge for one in found.quantiles for edge in (one.low, one.high) if edge is not None]
    assert (pooled(sites, "age") >= max(edges)).sum() == 0 or max(edges) < 100


def test_6_all_rows_less_those_of_the_groups_that_are_shown(tmp_path, sites):
    sites[1]["sex"][0] = 2
    curious = Curious(tmp_path, sites)
    grouped, everybody = curious.ask("age", by="sex"), curious.ask("age")
    (shown,) = [one for one in grouped.figures if one.mean is not None]
    rest = everybody.rows - shown.rows
    total = figure(everybody, "age").mean * everybody.rows - shown.mean * shown.rows
    assert rest >= 10
    others = np.concatenate([one["age"][one["sex"] != {"f": 0, "m": 1}[shown.group]] for one in sites])
    assert total == pytest.approx(others.sum())


def test_8_with_an_empty_table_of_its_own(tmp_path, sites):
    """It learns no more than by subtracting its own rows: the sum over four others."""
    curious = Curious(tmp_path, sites)
    before = figure(curious.ask("age"), "age")
    curious.write("north", {name: column[:1] for name, column in sites[0].items()})
    after = figure(curious.ask("age"), "age")
    own = sites[0]["age"][1:].sum()
    assert before.mean * before.rows - after.mean * after.rows == pytest.approx(own)


def test_9_the_same_question_without_east(tmp_path, sites):
    """A question is answered by all members; when one was removed, the others' histories refuse the sum."""
    curious = Curious(tmp_path, sites)
    names = [curious.desks[site].answer("north", 1, ("age",), None).data for site in SITES]
    again = [curious.desks[site].answer("north", 2, ("chol",), "sex").data for site in SITES]
    assert names == again
    past = [(names[2], frozenset(range(5)))]
    assert not SumHistory(4, past).allows(again[2], frozenset({0, 2, 3, 4}))
    assert SumHistory(5, past).allows(again[2], frozenset(range(5)))
