"""Made hospitals, and a survey of them whose sums are plain additions."""

from __future__ import annotations

import numpy as np

from p2pfl.features.stats import SurveyAsked
from p2pfl.features.stats.survey import survey
from p2pfl.learn.table import make_schema

SITES = ("north", "east", "south", "west", "coast")
SCHEMA = make_schema(
    {
        "target": "ill",
        "classes": ["no", "yes"],
        "numeric": ["age", "chol"],
        "categories": {"sex": ["f", "m", "x"], "ward": ["a", "b"]},
    },
    prefix="",
)


def hospital(place, rng, rows):
    """Return one site's columns; in a sixth of the rows chol is missing."""
    chol = rng.normal(240, 45, rows)
    chol[::6] = np.nan
    return {
        "age": rng.integers(25 + place, 90, rows).astype(np.float64),
        "chol": chol,
        "sex": rng.integers(0, 2, rows).astype(np.float64),
        "ward": rng.integers(0, 2, rows).astype(np.float64),
        "ill": (rng.random(rows) < 0.3).astype(np.float64),
    }


def hospitals(seed=0):
    rng = np.random.default_rng(seed)
    return [hospital(place, rng, 60 + 15 * place) for place in range(len(SITES))]


def pooled(sites, column):
    return np.concatenate([site[column] for site in sites])


def asked(*columns, by=None, least_rows=10):
    return SurveyAsked(columns=columns, by=by, least_rows=least_rows)


def surveyed(question, sites, *, stages=None, spoil=None):
    """Return the statistics; `stages` collects what is summed, `spoil` changes it."""
    talks = [survey(question, SCHEMA, site) for site in sites]
    parts = [next(talk) for talk in talks]
    while True:
        shapes = [{name: array.shape for name, array in part.items()} for part in parts]
        assert all(each == shapes[0] for each in shapes)
        assert all(array.dtype == np.int64 for part in parts for array in part.values())
        sums = {name: sum(part[name] for part in parts) for name in parts[0]}
        if spoil is not None:
            spoil(sums)
        if stages is not None:
            stages.append(sums)
        found = [_sent(talk, sums) for talk in talks]
        if not isinstance(found[0], dict):
            assert all(one == found[0] for one in found)
            return found[0]
        parts = found


def _sent(talk, sums):
    try:
        return talk.send(sums)
    except StopIteration as end:
        return end.value


def figure(statistics, column, group=None):
    return next(one for one in statistics.figures if (one.column, one.group) == (column, group))
