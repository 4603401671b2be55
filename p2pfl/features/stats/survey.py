"""The statistics of a question as a conversation: stage by stage what a site adds, and what the sums over all give.

    conversation = survey(asked, schema, columns)
    arrays = next(conversation)                 whole numbers within WITHIN, of the same names and shapes at all sites
    arrays = conversation.send(sums)            until StopIteration, whose value are the `Statistics`

Rows are counted first. What may not be shown is decided by these counts, so that values are only ever summed in groups
that are shown: then sums and coarse buckets, squares and finer buckets, the finest buckets and a histogram. Nothing
here knows networks, policies or files.

A cell is *small* if it has few rows, or if few sites have its rows. Small cells are hidden, and further ones with them,
until no total that is known gives a small cell, or the sum of a few (complementary suppression: Hundepool et al.,
Statistical Disclosure Control, 2012, chapter 4). An empty cell has no rows that could be learned, and is shown.

Quantiles and a histogram come from counts of values in buckets (`learn.trees.forest`). No range need be known
beforehand. Buckets are joined until each has enough rows: a quantile is known up to such a bin.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.figures import exact_digits, exact_value
from p2pfl.learn.table.schema import Schema
from p2pfl.learn.trees.forest import FINENESS, as_cells, counted, divided, edges_of, first_cuts, keys_of, number_of

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
TOLERANCE = 1e-9
LEAST_SITES = 3
"""The fewest sites of what is shown: of two, each would learn the other's part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyAsked:
    """The columns, the categorical column of the groups, if any, and the fewest rows of what is shown."""

    columns: tuple[str, ...]
    by: str | None
    least_rows: int

    def small(self, counts: Counts, sites: Counts) -> Mask:
        """Return which cells (n,) have too few rows or sites, and are not empty."""
        return (counts > 0) & ((counts < self.least_rows) | (sites < LEAST_SITES))

    def is_small(self, counts: Counts, sites: Counts) -> bool:
        """Return True if these cells (n,), of which at least one has rows, have too few together.

        The sites of each are counted, not named, so that together they are at least as many as the most of one.
        """
        return bool(counts.any() and (counts.sum() < self.least_rows or sites.max() < LEAST_SITES))


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTable:
    """Cells (v,), and totals of them that somebody may know: the rows of `relations` (r, v) hold the factor of each
    cell in one such total. `may_hide` are the cells (v,) that may be hidden besides small ones.
    """

    counts: Counts
    sites: Counts
    relations: NDArray[np.float64]
    may_hide: Mask


def with_complement(counts: Counts, sites: Counts, asked: SurveyAsked, *, forced: Mask | None = None) -> Mask:
    """Return which cells (n,) with a known total are to be hidden: the small ones, those that are `forced`, and the
    smallest others until all that is hidden is not small together.
    """
    hidden = asked.small(counts, sites) | (np.zeros(len(counts), np.bool_) if forced is None else forced)
    while asked.is_small(counts[hidden], sites[hidden]):
        place = _smallest(counts, ~hidden & (counts > 0))
        if place is None:
            break
        hidden[place] = True
    return hidden


def hidden_cells(table: CellTable, asked: SurveyAsked, *, forced: Mask) -> Mask | None:
    """Return which cells (v,) are to be hidden; None if small ones can be computed whatever is hidden.

    Cells that are `forced` are hidden.
    """
    small = asked.small(table.counts, table.sites)
    hidden = small | forced
    while True:
        lines = [line for line in table.relations if _tells_few(line, table, hidden, asked)]
        if not lines:
            known = small & determined(table.relations, hidden)
            if not known.any():
                return hidden
            lines = [line for line in table.relations if line[known].any()]
        place = _next(lines, table, hidden)
        if place is None:
            return None
        hidden[place] = True


def determined(relations: NDArray[np.float64], hidden: Mask) -> Mask:
    """Return which cells (v,) follow from the relations (r, v) and the cells that are not hidden."""
    known, places = ~hidden, np.flatnonzero(hidden)
    if not places.size:
        return known
    _, sizes, basis = np.linalg.svd(relations[:, places], full_matrices=True)
    rank = int((sizes > TOLERANCE * max(1.0, *sizes.tolist())).sum()) if sizes.size else 0
    free = basis[rank:]
    known[places] = ~(np.abs(free) > TOLERANCE).any(axis=0) if len(free) else True
    return known


def _tells_few(line: NDArray[np.float64], table: CellTable, hidden: Mask, asked: SurveyAsked) -> bool:
    """Return True if a total, less what is shown of it, is the sum of hidden cells that are small together."""
    inside = hidden & (line != 0) & (table.counts > 0)
    return len(set(np.sign(line[inside]))) == 1 and asked.is_small(table.counts[inside], table.sites[inside])


def _next(lines: list[NDArray[np.float64]], table: CellTable, hidden: Mask) -> int | None:
    """Choose one more cell to hide: the smallest in these totals, else the smallest at all, else an empty one."""
    inside = np.any([line != 0 for line in lines], axis=0)
    free, full = table.may_hide & ~hidden, table.counts > 0
    for choice in (free & inside & full, free & full, free & inside, free):
        place = _smallest(table.counts, choice)
        if place is not None:
            return place
    return None


def _smallest(counts: Counts, among: Mask) -> int | None:
    places = np.flatnonzero(among)
    return int(places[np.argmin(counts[places])]) if places.size else None


SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The quantiles."""
MOST_BINS, HISTOGRAM_BINS = 64, 10
ROUNDING = 2.0**-23
"""The largest relative difference between a value and the float32 in whose place it is counted, twice."""
MOST_FLOAT = 3e38
"""Larger numbers are counted as the largest float32, and so have no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A quantile lies from `low` to `high`. None: too few rows lie beyond for a bound."""

    share: float
    low: float | None
    high: float | None

    @property
    def value(self) -> float | None:
        return None if self.low is None or self.high is None else (self.low + self.high) / 2

    @property
    def bound(self) -> float | None:
        """The most by which `value` is off."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The rows with values from `low` to below `high`; None: without end. `rows` None: hidden."""

    low: float | None
    high: float | None
    rows: int | None


def fineness(rows: int, least_rows: int) -> int:
    """Return the bins for which full buckets are divided: no finer than the rows that a bin must have."""
    return max(1, min(MOST_BINS, rows // (FINENESS * least_rows)))


def quantiles(cuts: Sequence[int], counts: Counts, least_rows: int) -> tuple[Quantile, ...]:
    """Return what the counts (k,) in buckets that begin at these keys tell of the quantiles."""
    edges, inside = _bins(cuts, counts, least_rows)
    ends = np.cumsum(inside)
    rows, bounds = int(ends[-1]), []
    for share in SHARES:
        place = (rows - 1) * share
        low, high = (int(np.searchsorted(ends, spot, "right")) for spot in (math.floor(place), math.ceil(place)))
        bounds.append(Quantile(share=share, low=_wider(edges[low], -1), high=_wider(edges[high + 1], 1)))
    return tuple(bounds)


def histogram_edges(cuts: Sequence[int], counts: Counts, least_rows: int) -> list[float]:
    """Return round numbers, about ten of them, between the first and the last bin."""
    edges, _ = _bins(cuts, counts, least_rows)
    known = [edge for edge in edges if edge is not None]
    if not known:
        return []
    low, high = known[0], known[-1]
    if not high - low > 0:
        return [low]
    step = _round_step((high - low) / HISTOGRAM_BINS)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [place * step for place in range(first, last + 1)] or [low]


def bars(edges: Sequence[float], counts: Counts, sites: Counts, asked: SurveyAsked) -> tuple[Bar, ...]:
    """Join neighboring bins, of counts (len(edges) + 1,), until none has too few rows or sites."""
    spans: list[tuple[int, int]] = []
    start, rest = 0, len(counts)
    for place in range(len(counts)):
        here, after = slice(start, place + 1), slice(place + 1, rest)
        if _is_enough(counts[here], sites[here], asked) and _is_enough(counts[after], sites[after], asked):
            spans.append((start, place + 1))
            start = place + 1
    spans.append((start, rest))
    ends = [None, *edges, None]
    return tuple(Bar(low=ends[first], high=ends[end], rows=int(counts[first:end].sum())) for first, end in spans)


def _is_enough(counts: Counts, sites: Counts, asked: SurveyAsked) -> bool:
    return bool(counts.any()) and not asked.is_small(counts, sites)


def _bins(cuts: Sequence[int], counts: Counts, least_rows: int) -> tuple[list[float | None], Counts]:
    """Return the edges (b + 1,) of bins with enough rows each, and their counts (b,)."""
    inner = edges_of(cuts, counts, int(counts.sum()), least_rows)
    keys = keys_of(as_cells(np.array(inner)))
    places = [0, *np.searchsorted(np.array(cuts, np.int64), keys).tolist()]
    full = np.flatnonzero(counts)
    first, last = int(full[0]), int(full[-1])
    low = number_of(cuts[first]) if counts[first] >= least_rows else None
    high = number_of(cuts[last + 1]) if counts[last] >= least_rows and last + 1 < len(cuts) else None
    ends = [None if end is None or not abs(end) < MOST_FLOAT else end for end in (low, high)]
    return [ends[0], *inner, ends[1]], np.add.reduceat(counts, places)


def _wider(edge: float | None, sign: int) -> float | None:
    return None if edge is None or not math.isfinite(edge) else edge + sign * abs(edge) * ROUNDING


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))


MISSING = "(missing)"
"""The name of the group of rows whose value in the column of the groups is missing."""


class TooFew(Exception):  # noqa: N818 - a result, not a failure
    """Nothing may be shown."""


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


ShownCounts: TypeAlias = tuple[list[list[int | None]], list[int | None]]


class Disclosure:
    """`counts` are the sums of what `SiteSums.counts` gives.

    Raises TooFew: no group may be shown; ValueError: the counts are those of no tables.
    """

    def __init__(self, asked: SurveyAsked, schema: Schema, counts: Mapping[str, Counts]) -> None:
        self._asked = asked
        self.rows, self._sites = counts["rows"]
        self.cells = {column: counts[f"cells {column}"] for column in asked.columns}
        """(2, groups, values + 1): rows, and sites that have any."""
        if any((table[0].sum(axis=1) != self.rows).any() for table in self.cells.values()):
            raise ValueError("the rows of a column are not those of its groups")
        few = f"{asked.least_rows} rows, at {LEAST_SITES} sites or more"
        if not self.rows.any() or self._asked.is_small(self.rows, self._sites):
            raise TooFew(f"all sites together have fewer than {few}")
        self.hidden = with_complement(self.rows, self._sites, self._asked)
        """The groups (groups,) of which nothing is shown."""
        if self.hidden[self.rows > 0].all():
            raise TooFew(f"no group by {asked.by} can be shown: too few have {few}")
        self._unsummed: dict[str, Mask] = {}
        """The groups (groups,) of which no sum of a numeric column's values is made."""
        for column in asked.columns:
            if categories_of(schema, column) is None:
                known, sites = self.cells[column][:, :, 0]
                self._unsummed[column] = with_complement(known, sites, self._asked, forced=self.hidden)
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

    def counts(self, column: str, bars: Sequence[Bar] = ()) -> ShownCounts:
        """Return the counts of a column, None where hidden: cells (groups, values + 1), and, without groups, bars."""
        cells, sites = self.cells[column]
        table = self._table(cells, sites, bars)
        forced = self._forced(column, cells.shape, len(table.counts))
        hidden = hidden_cells(table, self._asked, forced=forced)
        if hidden is None:
            hidden = np.ones(len(table.counts), np.bool_)
        shown = [None if gone else count for count, gone in zip(table.counts.tolist(), hidden.tolist(), strict=True)]
        groups, width = cells.shape
        rows = [shown[groups + group * width :][:width] for group in range(groups)]
        return rows, shown[groups * (1 + width) :]

    def _forced(self, column: str, shape: tuple[int, ...], size: int) -> Mask:
        """Return the cells of hidden groups, and of those in which the column is hidden."""
        groups, width = shape
        forced = np.zeros(size, np.bool_)
        forced[:groups] = self.hidden
        gone = self._unsummed.get(column, self.hidden)
        forced[groups : groups * (1 + width)] = np.repeat(gone, width)
        return forced

    def _table(self, cells: Counts, sites: Counts, bars: Sequence[Bar]) -> CellTable:
        """Return the rows of the groups, the cells, and the bars, with all totals that another question may show."""
        groups, width = cells.shape
        extra = [bar.rows for bar in bars]
        counts = np.concatenate([self.rows, cells.ravel(), np.array(extra, np.int64)])
        first, size = groups, len(counts)
        lines = [_line(size, range(groups))]
        lines += [_line(size, range(first + g * width, first + (g + 1) * width), g) for g in range(groups)]
        if groups > 1:
            lines += [
                _line(size, range(first + value, first + groups * width, width))
                for value in range(width)
                if not self._asked.is_small(cells[:, value], sites[:, value])
            ]
        if bars:
            lines.append(_line(size, range(groups * (1 + width), size), first))
        may_hide = np.ones(size, np.bool_)
        may_hide[:groups] = False
        reach = np.full(len(extra), LEAST_SITES)
        every = np.concatenate([self._sites, sites.ravel(), reach])
        return CellTable(counts=counts, sites=every, relations=np.stack(lines), may_hide=may_hide)


def _line(size: int, places: range, total: int | None = None) -> NDArray[np.float64]:
    """Return the factors of a sum of cells, which is the cell `total`, or a number known besides."""
    factors = np.zeros(size)
    factors[list(places)] = 1.0
    if total is not None:
        factors[total] = -1.0
    return factors


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
        tables = {"rows": np.bincount(self._group, minlength=self._groups)}
        for column, values in self._values.items():
            width = 2 if values is None else len(values) + 1
            known = self._columns[column]
            places = np.isnan(known).astype(np.int64) if values is None else _places(known, width)
            table = np.bincount(self._group * width + places, minlength=self._groups * width)
            tables[f"cells {column}"] = table.reshape(self._groups, width)
        return {name: _and_sites(table) for name, table in tables.items()}

    def sums(self, spreads: Sequence[_Spread]) -> Arrays:
        """Return `sums` (spreads, EXACT_DIGITS), and the first buckets."""
        values = list(self._known(spreads))
        sums = np.stack([exact_digits(math.fsum(numbers)) for numbers in values])
        return {"sums": sums} | self._buckets(values, spreads)

    def squares(self, spreads: Sequence[_Spread]) -> Arrays:
        """Return `squares` (spreads, EXACT_DIGITS), about the mean of all sites, and finer buckets."""
        values = list(self._known(spreads))
        squares = [math.fsum((numbers - each.mean) ** 2) for numbers, each in zip(values, spreads, strict=True)]
        return {"squares": np.stack([exact_digits(square) for square in squares])} | self._buckets(values, spreads)

    def histograms(self, spreads: Sequence[_Spread]) -> Arrays:
        """Return the finest buckets, and without groups `bins PLACE` (2, edges + 1): rows, and 1 where this site has
        any.
        """
        values, tables = list(self._known(spreads)), Arrays()
        for place, (numbers, each) in enumerate(zip(values, spreads, strict=True) if self._groups == 1 else ()):
            bins = np.bincount(np.searchsorted(each.edges, numbers, "right"), minlength=len(each.edges) + 1)
            tables[f"bins {place}"] = _and_sites(bins)
        return tables | self._buckets(values, spreads)

    @staticmethod
    def _buckets(values: Sequence[Values], spreads: Sequence[_Spread]) -> Arrays:
        """Return `buckets PLACE` (cuts,)."""
        pairs = enumerate(zip(values, spreads, strict=True))
        return {f"buckets {place}": counted(as_cells(numbers), each.cuts) for place, (numbers, each) in pairs}

    def _known(self, spreads: Sequence[_Spread]) -> Iterator[Values]:
        for spread in spreads:
            values = self._columns[spread.column]
            yield values[~np.isnan(values) & (self._group == spread.group)]


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
        for place, spread in enumerate(spreads):
            spread.take_sum(sums["sums"][place], sums[f"buckets {place}"], asked)
        sums = yield site.squares(spreads)
        for place, spread in enumerate(spreads):
            spread.take_squares(sums["squares"][place], sums[f"buckets {place}"], asked)
        sums = yield site.histograms(spreads)
        for place, spread in enumerate(spreads):
            spread.take_histogram(sums[f"buckets {place}"], sums.get(f"bins {place}"), asked)
    return _statistics(asked, schema, shown, {(spread.column, spread.group): spread for spread in spreads})


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
        self.mean = exact_value(total) / self.rows
        self._divide(self._of_all(buckets), asked)

    def take_squares(self, total: Any, buckets: Any, asked: SurveyAsked) -> None:
        self.deviation = math.sqrt(max(0.0, exact_value(total)) / (self.rows - 1)) if self.rows > 1 else None
        counts = self._of_all(buckets)
        self.edges = histogram_edges(self.cuts, counts, asked.least_rows)
        self._divide(counts, asked)

    def take_histogram(self, buckets: Any, bins: Any, asked: SurveyAsked) -> None:
        """Take the rows in the bins between the edges, and the sites that have any; None: there are groups."""
        self.quantiles = quantiles(self.cuts, self._of_all(buckets), asked.least_rows)
        if bins is not None:
            self.bars = bars(self.edges, self._of_all(bins[0]), _counts(bins[1]), asked)

    def _divide(self, counts: Counts, asked: SurveyAsked) -> None:
        self.cuts = divided(self.cuts, counts, fineness(self.rows, asked.least_rows))

    def _of_all(self, counts: Any) -> Counts:
        """Raises ValueError: the counts are not those of all rows."""
        numbers = _counts(counts)
        if numbers.sum() != self.rows:
            raise ValueError(f"{numbers.sum()} rows of {self.column} are counted in place of {self.rows}")
        return numbers

    def blurred(self, value: float | None) -> float | None:
        """Round to a tenth of the mean's standard error, so that the value does not tell how many rows are known."""
        error = (self.deviation or 0.0) / math.sqrt(self.rows) / 10
        return round(value, -math.floor(math.log10(error))) if value is not None and error > 0 else value


def _statistics(
    asked: SurveyAsked, schema: Schema, shown: Disclosure, spreads: Mapping[tuple[str, int], _Spread]
) -> Statistics:
    figures = list[SurveyFigures]()
    for column in asked.columns:
        here = {group: spread for (name, group), spread in spreads.items() if name == column}
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
        *cells, missing = counts[0][group]
        rows = None if missing is None or shown.hidden[group] else int(shown.rows[group]) - missing
        categories = dict(zip(values, cells, strict=True))
        yield SurveyFigures(column=column, group=shown.names[group], rows=rows, missing=missing, categories=categories)


def _numbers(
    column: str, shown: Disclosure, counts: ShownCounts, spreads: Mapping[int, _Spread]
) -> Iterator[SurveyFigures]:
    for group in shown.groups:
        rows, missing = counts[0][group]
        figures = SurveyFigures(column=column, group=shown.names[group], rows=rows, missing=missing)
        spread = spreads.get(group)
        if spread is not None:
            figures = replace(
                figures,
                mean=spread.mean if rows is not None else spread.blurred(spread.mean),
                deviation=spread.deviation if rows is not None else spread.blurred(spread.deviation),
                quantiles=spread.quantiles,
                histogram=tuple(replace(bar, rows=count) for bar, count in zip(spread.bars, counts[1], strict=True)),
            )
        yield figures


def _counts(sums: Any) -> Counts:
    """Raises ValueError: these are no counts."""
    counts = np.asarray(sums, np.int64)
    if (counts < 0).any():
        raise ValueError("a count below zero")
    return counts
