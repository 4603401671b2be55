"""What one site adds to the sums: whole numbers, of the same names and shapes at all sites."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.limbs import limbs_of
from p2pfl.learn.statistics.survey_figures import SurveyAsked, categories_of, group_names
from p2pfl.learn.table.schema import Schema
from p2pfl.learn.trees.bins import as_cells, counted

WITHIN = (-(2**48), 2**48)
MOST_SIZE = 1e70
"""The largest number that is summed."""

ALL = -1
"""In place of a group: the rows of all groups."""

Counts = NDArray[np.int64]
Values = NDArray[np.float64]
Arrays = dict[str, Counts]
Columns = Mapping[str, Values]


class Counting(Protocol):
    """A numeric column in one group, the mean of all sites' values, and where buckets and bins begin."""

    column: str
    group: int
    mean: float
    cuts: list[int]
    edges: list[float]


class SiteSums:
    """One site's `columns` (n,), whose missing values are NaN and whose categories are indices."""

    def __init__(self, asked: SurveyAsked, schema: Schema, columns: Columns) -> None:
        self._columns = columns
        self._values = {column: categories_of(schema, column) for column in asked.columns}
        rows = len(next(iter(columns.values())))
        self._groups = len(group_names(schema, asked.by))
        self._group = np.zeros(rows, np.int64) if asked.by is None else _places(columns[asked.by], self._groups)

    def counts(self) -> Arrays:
        """Return `rows` (2, groups), and `cells COLUMN` (2, groups, values + 1), or (2, groups, 2) of a numeric column:
        rows, and 1 where this site has any. The last value is missing.
        """
        found = {"rows": np.bincount(self._group, minlength=self._groups)}
        for column, values in self._values.items():
            width = 2 if values is None else len(values) + 1
            known = self._columns[column]
            places = np.isnan(known).astype(np.int64) if values is None else _places(known, width)
            table = np.bincount(self._group * width + places, minlength=self._groups * width)
            found[f"cells {column}"] = table.reshape(self._groups, width)
        return {name: _and_sites(table) for name, table in found.items()}

    def sums(self, spreads: Sequence[Counting]) -> Arrays:
        """Return `sums` (spreads, LIMBS), and the first buckets."""
        values = list(self._known(spreads))
        sums = np.stack([limbs_of(math.fsum(one)) for one in values])
        return {"sums": sums} | self._buckets(values, spreads)

    def squares(self, spreads: Sequence[Counting]) -> Arrays:
        """Return `squares` (spreads, LIMBS), about the mean of all sites, and finer buckets."""
        values = list(self._known(spreads))
        squares = [math.fsum((one - each.mean) ** 2) for one, each in zip(values, spreads, strict=True)]
        return {"squares": np.stack([limbs_of(one) for one in squares])} | self._buckets(values, spreads)

    def histograms(self, spreads: Sequence[Counting]) -> Arrays:
        """Return the finest buckets, and `bins PLACE` (2, edges + 1): rows, and 1 where this site has any."""
        values, found = list(self._known(spreads)), Arrays()
        for place, (one, each) in enumerate(zip(values, spreads, strict=True)):
            bins = np.bincount(np.searchsorted(each.edges, one, "right"), minlength=len(each.edges) + 1)
            found[f"bins {place}"] = _and_sites(bins)
        return found | self._buckets(values, spreads)

    @staticmethod
    def _buckets(values: Sequence[Values], spreads: Sequence[Counting]) -> Arrays:
        """Return `buckets PLACE` (cuts,)."""
        pairs = enumerate(zip(values, spreads, strict=True))
        return {f"buckets {place}": counted(as_cells(one), each.cuts) for place, (one, each) in pairs}

    def _known(self, spreads: Sequence[Counting]) -> Iterator[Values]:
        for one in spreads:
            values = self._columns[one.column]
            yield values[~np.isnan(values) & ((self._group == one.group) | (one.group == ALL))]


def _places(values: Values, width: int) -> Counts:
    """Return the places of categories (n,), of which the last is for missing ones."""
    return np.where(np.isnan(values), width - 1, values).astype(np.int64)


def _and_sites(counts: Counts) -> Counts:
    return np.stack([counts, counts > 0]).astype(np.int64)
