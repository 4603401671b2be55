"""The statistics of a question as a conversation: stage by stage what a site adds, and what the sums over all give.

    conversation = survey(asked, schema, columns)
    arrays = next(conversation)                 whole numbers within WITHIN, of the same names and shapes at all sites
    arrays = conversation.send(sums)            until StopIteration, whose value are the `Statistics`

Rows are counted first. What may not be shown is decided by these counts, so that values are only ever summed in groups
that are shown: then sums and coarse buckets, squares and finer buckets, the finest buckets and a histogram. Nothing
here and in `disclosure` knows networks, policies or files.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.features.stats.disclosure import (
    Bar,
    Disclosure,
    Quantile,
    ShownCounts,
    Statistics,
    SurveyAsked,
    SurveyFigures,
    bars,
    categories_of,
    fineness,
    group_names,
    histogram_edges,
    quantiles,
)
from p2pfl.learn.figures import limbs_of, value_of
from p2pfl.learn.table.schema import Schema
from p2pfl.learn.trees.bins import as_cells, counted, divided, first_cuts

WITHIN = (-(2**48), 2**48)
MOST_SIZE = 1e70
"""The largest number that is summed."""

Values = NDArray[np.float64]
Arrays = dict[str, Counts]
Columns = Mapping[str, Values]


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

    def sums(self, spreads: Sequence[_Spread]) -> Arrays:
        """Return `sums` (spreads, LIMBS), and the first buckets."""
        values = list(self._known(spreads))
        sums = np.stack([limbs_of(math.fsum(one)) for one in values])
        return {"sums": sums} | self._buckets(values, spreads)

    def squares(self, spreads: Sequence[_Spread]) -> Arrays:
        """Return `squares` (spreads, LIMBS), about the mean of all sites, and finer buckets."""
        values = list(self._known(spreads))
        squares = [math.fsum((one - each.mean) ** 2) for one, each in zip(values, spreads, strict=True)]
        return {"squares": np.stack([limbs_of(one) for one in squares])} | self._buckets(values, spreads)

    def histograms(self, spreads: Sequence[_Spread]) -> Arrays:
        """Return the finest buckets, and without groups `bins PLACE` (2, edges + 1): rows, and 1 where this site has
        any.
        """
        values, found = list(self._known(spreads)), Arrays()
        for place, (one, each) in enumerate(zip(values, spreads, strict=True) if self._groups == 1 else ()):
            bins = np.bincount(np.searchsorted(each.edges, one, "right"), minlength=len(each.edges) + 1)
            found[f"bins {place}"] = _and_sites(bins)
        return found | self._buckets(values, spreads)

    @staticmethod
    def _buckets(values: Sequence[Values], spreads: Sequence[_Spread]) -> Arrays:
        """Return `buckets PLACE` (cuts,)."""
        pairs = enumerate(zip(values, spreads, strict=True))
        return {f"buckets {place}": counted(as_cells(one), each.cuts) for place, (one, each) in pairs}

    def _known(self, spreads: Sequence[_Spread]) -> Iterator[Values]:
        for one in spreads:
            values = self._columns[one.column]
            yield values[~np.isnan(values) & (self._group == one.group)]


def _places(values: Values, width: int) -> Counts:
    """Return the places of categories (n,), of which the last is for missing ones."""
    return np.where(np.isnan(values), width - 1, values).astype(np.int64)


def _and_sites(counts: Counts) -> Counts:
    return np.stack([counts, counts > 0]).astype(np.int64)


STAGES = 4
"""The most sums of a question."""
MOST_SPREADS = 200
"""The most pairs of a numeric column and a group in one question."""
MOST_CELLS = 3000
"""The most counts of categories in groups in one question: which are to be hidden is decided in seconds."""

Sums = Mapping[str, NDArray[Any]]
Conversation = Generator[Arrays, Sums, Statistics]


def survey(asked: SurveyAsked, schema: Schema, columns: Columns) -> Conversation:
    """Carry on the conversation of one site, whose columns are (n,), NaN where missing.

    Raises TooFew: too few rows for any figure; ValueError: the sums are those of no tables.
    """
    site = SiteSums(asked, schema, columns)
    sums = yield site.counts()
    shown = Disclosure(asked, schema, {name: _counts(each) for name, each in sums.items()})
    spreads = [_Spread(column=column, group=group, rows=rows) for column, group, rows in shown.summed()]
    if spreads:
        sums = yield site.sums(spreads)
        for place, one in enumerate(spreads):
            one.take_sum(sums["sums"][place], sums[f"buckets {place}"], asked)
        sums = yield site.squares(spreads)
        for place, one in enumerate(spreads):
            one.take_squares(sums["squares"][place], sums[f"buckets {place}"], asked)
        sums = yield site.histograms(spreads)
        for place, one in enumerate(spreads):
            one.take_histogram(sums[f"buckets {place}"], sums.get(f"bins {place}"), asked)
    return _statistics(asked, schema, shown, {(one.column, one.group): one for one in spreads})


@dataclass(slots=True, kw_only=True)
class _Spread:
    """A numeric column in one group, and what is known of it so far."""

    column: str
    group: int
    rows: int
    mean: float = 0.0
    deviation: float | None = None
    cuts: list[int] = field(default_factory=first_cuts)
    edges: list[float] = field(default_factory=list)
    quantiles: tuple[Quantile, ...] = ()
    bars: tuple[Bar, ...] = ()

    def take_sum(self, total: Any, buckets: Any, asked: SurveyAsked) -> None:
        self.mean = value_of(total) / self.rows
        self._divide(self._of_all(buckets), asked)

    def take_squares(self, total: Any, buckets: Any, asked: SurveyAsked) -> None:
        self.deviation = math.sqrt(max(0.0, value_of(total)) / (self.rows - 1)) if self.rows > 1 else None
        counts = self._of_all(buckets)
        self.edges = histogram_edges(self.cuts, counts, asked.least_rows)
        self._divide(counts, asked)

    def take_histogram(self, buckets: Any, bins: Any, asked: SurveyAsked) -> None:
        """Take the rows in the bins between the edges, and the sites that have any; None: there are groups."""
        self.quantiles = quantiles(self.cuts, self._of_all(buckets), asked.least_rows)
        if bins is not None:
            self.bars = bars(self.edges, self._of_all(bins[0]), _counts(bins[1]), asked.bounds)

    def _divide(self, counts: Counts, asked: SurveyAsked) -> None:
        self.cuts = divided(self.cuts, counts, fineness(self.rows, asked.least_rows))

    def _of_all(self, counts: Any) -> Counts:
        """Raises ValueError: the counts are not those of all rows."""
        found = _counts(counts)
        if found.sum() != self.rows:
            raise ValueError(f"{found.sum()} rows of {self.column} are counted in place of {self.rows}")
        return found

    def blurred(self, value: float | None) -> float | None:
        """Round to a tenth of the mean's standard error, so that the value does not tell how many rows are known."""
        error = (self.deviation or 0.0) / math.sqrt(self.rows) / 10
        return round(value, -math.floor(math.log10(error))) if value is not None and error > 0 else value


def _statistics(
    asked: SurveyAsked, schema: Schema, shown: Disclosure, spreads: Mapping[tuple[str, int], _Spread]
) -> Statistics:
    figures = list[SurveyFigures]()
    for column in asked.columns:
        here = {group: one for (name, group), one in spreads.items() if name == column}
        counts = shown.counts(column, here[0].bars if asked.by is None and here else ())
        values = categories_of(schema, column)
        figures += _categories(column, values, shown, counts) if values else _numbers(column, shown, counts, here)
    rows = {group: None if shown.hidden[group] else int(shown.rows[group]) for group in shown.groups}
    return Statistics(
        asked=asked,
        rows=int(shown.rows.sum()),
        groups={str(shown.names[group]): count for group, count in rows.items()} if asked.by is not None else {},
        figures=tuple(figures),
    )


def _categories(
    column: str, values: tuple[str, ...], shown: Disclosure, counts: ShownCounts
) -> Iterator[SurveyFigures]:
    for group in shown.groups:
        *cells, missing = counts.cells[group]
        rows = None if missing is None or shown.hidden[group] else int(shown.rows[group]) - missing
        told = dict(zip(values, cells, strict=True))
        yield SurveyFigures(column=column, group=shown.names[group], rows=rows, missing=missing, categories=told)


def _numbers(
    column: str, shown: Disclosure, counts: ShownCounts, spreads: Mapping[int, _Spread]
) -> Iterator[SurveyFigures]:
    for group in shown.groups:
        rows, missing = counts.cells[group]
        found = SurveyFigures(column=column, group=shown.names[group], rows=rows, missing=missing)
        one = spreads.get(group)
        if one is not None:
            found = replace(
                found,
                mean=one.mean if rows is not None else one.blurred(one.mean),
                deviation=one.deviation if rows is not None else one.blurred(one.deviation),
                quantiles=one.quantiles,
                histogram=tuple(replace(bar, rows=count) for bar, count in zip(one.bars, counts.bars, strict=True)),
            )
        yield found


def _counts(sums: Any) -> Counts:
    """Raises ValueError: these are no counts."""
    found = np.asarray(sums, np.int64)
    if (found < 0).any():
        raise ValueError("a count below zero")
    return found
