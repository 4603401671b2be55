"""What the counts over all sites allow to show: groups, columns in groups, and single counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.statistics.hiding import CellTable, Counts, Mask, hidden_cells, with_complement
from p2pfl.learn.statistics.survey_figures import LEAST_SITES, SurveyAsked, TooFew, categories_of, group_names
from p2pfl.learn.statistics.value_spread import Bar
from p2pfl.learn.table.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCounts:
    """The counts of one column, None where hidden: `cells` (groups, values + 1), and of each group's bars."""

    cells: list[list[int | None]]
    bars: Mapping[int, tuple[int | None, ...]]


class Disclosure:
    """`counts` are the sums of what `SiteSums.counts` gives.

    Raises TooFew: no group may be shown; ValueError: the counts are those of no tables.
    """

    def __init__(self, asked: SurveyAsked, schema: Schema, counts: Mapping[str, Counts]) -> None:
        self._bounds = asked.bounds
        self.rows, self._sites = counts["rows"]
        self.cells = {column: counts[f"cells {column}"] for column in asked.columns}
        """(2, groups, values + 1): rows, and sites that have any."""
        if any((table[0].sum(axis=1) != self.rows).any() for table in self.cells.values()):
            raise ValueError("the rows of a column are not those of its groups")
        few = f"{asked.least_rows} rows, at {LEAST_SITES} sites or more"
        if not self.rows.any() or self._bounds.is_small(self.rows, self._sites):
            raise TooFew(f"all sites together have fewer than {few}")
        self.hidden = with_complement(self.rows, self._sites, self._bounds)
        """The groups (groups,) of which nothing is shown."""
        if self.hidden[self.rows > 0].all():
            raise TooFew(f"no group by {asked.by} can be shown: too few have {few}")
        numeric = [column for column in asked.columns if categories_of(schema, column) is None]
        self._unsummed = {column: self._hidden_sums(column) for column in numeric}
        self.names = group_names(schema, asked.by)

    @property
    def groups(self) -> list[int]:
        """The groups that have rows."""
        return np.flatnonzero(self.rows).tolist()

    def summed(self) -> Iterator[tuple[str, int, int]]:
        """Yield column, group and known rows wherever values may be summed."""
        for column, hidden in self._unsummed.items():
            known = self.cells[column][0, :, 0]
            for group in np.flatnonzero(~hidden & (known > 0)).tolist():
                yield column, group, int(known[group])

    def whole(self) -> Iterator[tuple[str, int]]:
        """Yield each column that is hidden in no group, and its known rows."""
        for column, hidden in self._unsummed.items():
            known = self.cells[column][0, :, 0]
            if not (hidden & (self.rows > 0)).any() and known.any():
                yield column, int(known.sum())

    def _hidden_sums(self, column: str) -> Mask:
        """Return the groups (groups,) of which no sum of a numeric column's values is made."""
        known, sites = self.cells[column][:, :, 0]
        return with_complement(known, sites, self._bounds, forced=self.hidden)

    def counts(self, column: str, bars: Mapping[int, tuple[Bar, ...]]) -> ShownCounts:
        """Return which counts of a column may be shown, with these bars of groups."""
        cells, sites = self.cells[column]
        table = self._table(cells, sites, bars)
        forced = self._forced(column, cells.shape, len(table.counts))
        hidden = hidden_cells(table, self._bounds, forced=forced)
        if hidden is None:
            hidden = np.ones(len(table.counts), np.bool_)
        shown = [None if gone else count for count, gone in zip(table.counts.tolist(), hidden.tolist(), strict=True)]
        groups, width = cells.shape
        rows = [shown[groups + group * width :][:width] for group in range(groups)]
        found, start = {}, groups * (1 + width)
        for group, some in bars.items():
            found[group] = tuple(shown[start : start + len(some)])
            start += len(some)
        return ShownCounts(cells=rows, bars=found)

    def _forced(self, column: str, shape: tuple[int, ...], size: int) -> Mask:
        """Return the cells of hidden groups, and of those in which the column is hidden."""
        groups, width = shape
        forced = np.zeros(size, np.bool_)
        forced[:groups] = self.hidden
        gone = self._unsummed.get(column, self.hidden)
        forced[groups : groups * (1 + width)] = np.repeat(gone, width)
        return forced

    def _table(self, cells: Counts, sites: Counts, bars: Mapping[int, tuple[Bar, ...]]) -> CellTable:
        """Return the rows of the groups, the cells, and the bars, with all totals that another question may show."""
        groups, width = cells.shape
        extra = [bar.rows for some in bars.values() for bar in some]
        counts = np.concatenate([self.rows, cells.ravel(), np.array(extra, np.int64)])
        first, size = groups, len(counts)
        lines = [_line(size, range(groups))]
        lines += [_line(size, range(first + g * width, first + (g + 1) * width), g) for g in range(groups)]
        if groups > 1:
            lines += [
                _line(size, range(first + value, first + groups * width, width))
                for value in range(width)
                if not self._bounds.is_small(cells[:, value], sites[:, value])
            ]
        start = groups * (1 + width)
        if len(bars) > 1:
            each = max(len(some) for some in bars.values())
            lines += [_line(size, range(start + place, size, each)) for place in range(each)]
        for group, some in bars.items():
            lines.append(_line(size, range(start, start + len(some)), first + group * width))
            start += len(some)
        may_hide = np.ones(size, np.bool_)
        may_hide[:groups] = False
        reach = np.full(len(extra), LEAST_SITES)
        every = np.concatenate([self._sites, sites.ravel(), reach])
        return CellTable(counts=counts, sites=every, relations=np.stack(lines), may_hide=may_hide)


def _line(size: int, places: range, total: int | None = None) -> NDArray[np.float64]:
    """Return the factors of a sum of cells, which is the cell `total`, or a number known besides."""
    found = np.zeros(size)
    found[list(places)] = 1.0
    if total is not None:
        found[total] = -1.0
    return found
