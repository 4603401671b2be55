"""What is asked of all sites' tables, and the figures that answer it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from p2pfl.learn.statistics.hiding import CountBounds
from p2pfl.learn.statistics.value_spread import Bar, Quantile
from p2pfl.learn.table.schema import Schema

LEAST_SITES = 3
"""What fewer sites have is hidden: of two, each would learn the other's part."""
MISSING = "(missing)"
"""The name of the group of rows whose value in the column of the groups is missing."""


class TooFew(Exception):  # noqa: N818 - a result, not a failure
    """Nothing may be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyAsked:
    """The columns, the categorical column of the groups, if any, and the fewest rows of a cell."""

    columns: tuple[str, ...]
    by: str | None
    least_rows: int

    @property
    def bounds(self) -> CountBounds:
        return CountBounds(rows=self.least_rows, sites=LEAST_SITES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyFigures:
    """A column's figures in one group. None: hidden, or not defined."""

    column: str
    group: str | None
    """The group's value; None: all rows."""
    rows: int | None
    """The rows whose value is known."""
    missing: int | None
    mean: float | None = None
    deviation: float | None = None
    """The standard deviation, of a sample (n - 1)."""
    quantiles: tuple[Quantile, ...] = ()
    histogram: tuple[Bar, ...] = ()
    categories: Mapping[str, int | None] | None = None
    """The rows with each value of a categorical column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    asked: SurveyAsked
    rows: int
    """All rows of all sites."""
    groups: Mapping[str, int | None]
    """The rows of each group, None: hidden; empty without groups."""
    figures: tuple[SurveyFigures, ...]


def categories_of(schema: Schema, column: str) -> tuple[str, ...] | None:
    """Return a categorical column's values; None for a numeric one."""
    return schema.classes if column == schema.target else schema.categories.get(column)


def group_names(schema: Schema, by: str | None) -> tuple[str | None, ...]:
    """Return the values of the column of the groups; None is the one group of all rows."""
    return (None,) if by is None else (*(categories_of(schema, by) or ()), MISSING)


def cells_asked(schema: Schema, columns: Iterable[str], by: str | None) -> int:
    """Return how many counts of categories in groups a question is about; a missing value is one of the categories."""
    values = (categories_of(schema, column) for column in columns)
    return len(group_names(schema, by)) * sum(len(each) + 1 for each in values if each is not None)
