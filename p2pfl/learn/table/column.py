"""The columns of an unknown table, and the kind that each seems to be. None of this leaves the machine.

A string among numbers is taken as a code for missing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from p2pfl.errors import UserError
from p2pfl.learn.table import rows
from p2pfl.learn.table.rows import NONE_DROPPED, Dropped, Layout, TableMistakes

Kind = Literal["number", "category", "text", "date", "identifier", "empty"]

MOST_VALUES = 1000
"""The most distinct values that are counted in one column."""
MOST_CATEGORIES = 30
"""A column with more distinct strings than this is free text."""
MOST_LEVELS = 10
"""A column with more distinct integers than this is not a category."""
SENTINELS = (0.0, -9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0)
"""Numbers that often stand for a missing value, if they are far from the others."""
FAR = 2.0
"""A number is far from the others if it is at least this many times as large as the next largest."""
FAR_FROM_ZERO = 3.0
"""Zero is far from the other numbers if their mean is this many standard deviations from it."""
MOST_CODE_SHARE = 0.5
"""A string among numbers is not a code for missing if it fills a larger share of the cells than this."""
MOST_CODES = 2
PEOPLE = "patient|person|subject|participant|respondent|case|record|sample|row|user|customer|client"
IDENTIFIER = re.compile(
    rf"(?:.*[_\s.-])?(?:ids?|uuid|guid|mrn|(?:{PEOPLE})(?:[_\s.-]?(?:id|no|nr|number))?)|id[_\s.-].*",
    re.IGNORECASE,
)
"""Names of columns that identify rows, if all values are distinct and are integers or strings."""
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
CODE = re.compile(r"(?=.*\d)(?=.*[A-Za-z_#/-])[\w#/:-]{2,64}", re.ASCII)
"""Strings that look like codes."""
LEAST_ROWS = 20
"""The fewest rows for which it is surprising that all values are distinct."""
LEAST_NAMED_ROWS = 5
"""The same limit for a column whose name suggests that it identifies rows."""
EXPECTED_PAIRS = 7.0
"""Integers without duplicates were assigned, not measured, if this many pairs of equal values would be expected by
chance: then the probability of no pair is below one in a thousand.
"""
MOST_DISTINCT = 1 << 17
"""The most distinct values that are stored to look for duplicates."""


@dataclass(slots=True)
class Column:
    """The statistics of one column. Sums exclude the sentinels, which are counted separately."""

    name: str
    rows: int = 0
    missing: int = 0
    numbers: int = 0
    dates: int = 0
    total: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    is_whole: bool = True
    sentinels: Counter[float] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    """The cells that are not numbers, in normalized spelling."""
    values: Counter[str] = field(default_factory=Counter)
    """The cells that are not missing, in normalized spelling; of too many distinct values only the first."""
    is_too_varied: bool = False
    distinct: set[int] | None = field(default_factory=set)
    """Hashes of all cells that are not missing, in normalized spelling, as long as all are distinct and none is a
    fraction; None afterwards.
    """

    def see(self, text: str, count: int, layout: Layout, codes: frozenset[str], *, fold: bool) -> None:
        """Count `count` cells that contain this text."""
        self.rows += count
        if rows.is_missing(text, codes, layout.decimal):
            self.missing += count
            return
        value = rows.spelled(text, decimal=layout.decimal, ignore_case=fold)
        if value in self.values or len(self.values) < MOST_VALUES:
            self.values[value] += count
        else:
            self.is_too_varied = True
        number = rows.number(text, layout.decimal)
        self._see_whether_distinct(value, number, count)
        if number is None:
            self._see_text(value, text, count)
        elif number in SENTINELS:
            self.sentinels[number] += count
        else:
            self._see_number(number, count)

    def _see_whether_distinct(self, value: str, number: float | None, count: int) -> None:
        if self.distinct is None:
            return
        if count > 1 or hash(value) in self.distinct or (number is not None and not number.is_integer()):
            self.distinct = None
        elif len(self.distinct) < MOST_DISTINCT:
            self.distinct.add(hash(value))

    def _see_text(self, value: str, text: str, count: int) -> None:
        self.dates += count if rows.DATE.fullmatch(text) else 0
        if value in self.texts or len(self.texts) < MOST_VALUES:
            self.texts[value] += count

    def _see_number(self, number: float, count: int) -> None:
        self.numbers += count
        self.total += number * count
        self.squares += number * number * count
        self.low, self.high = min(self.low, number), max(self.high, number)
        self.is_whole = self.is_whole and number.is_integer()

    @property
    def known(self) -> int:
        return self.rows - self.missing

    def decide(self) -> None:
        """Treat sentinels that are far from the other numbers as missing, and count the other sentinels as ordinary
        numbers.
        """
        for number in sorted(self.sentinels):
            count = self.sentinels[number]
            if not (self.numbers and self._is_far(number)):
                del self.sentinels[number]
                self._see_number(number, count)

    def _is_far(self, number: float) -> bool:
        """Return True for a negative code among numbers that are not negative, for a number far above all others, or
        for 0 far below most of them.
        """
        if number < 0:
            return self.low >= 0
        if number == 0:
            mean = self.total / self.numbers
            std = math.sqrt(max(0.0, self.squares / self.numbers - mean**2))
            return len(self.values) > MOST_LEVELS and self.low >= std > 0 and mean >= FAR_FROM_ZERO * std
        return self.low >= 0 and 0 < self.high * FAR <= number

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the values that seem to mean missing: a far-off number, or a rare string among numbers."""
        numbers = [f"{number:g}" for number in sorted(self.sentinels)]
        return (*numbers, *sorted(self._odd_texts()))

    def _odd_texts(self) -> Iterable[str]:
        words, count = len(self.texts), sum(self.texts.values())
        few = words <= MOST_CODES and count <= MOST_CODE_SHARE * self.known
        return self.texts if self.numbers and few and not self.dates else ()

    @property
    def kind(self) -> Kind:
        odd = set(self._odd_texts())
        texts = sum(count for text, count in self.texts.items() if text not in odd)
        if not self.numbers and not texts:
            return "empty"
        if self.dates > MOST_CODE_SHARE * self.known:
            return "date"
        if self._names_rows(texts):
            return "identifier"
        if not texts:
            return "number"
        few = not self.is_too_varied and len(self.values) <= min(MOST_CATEGORIES, max(2, self.known // 2))
        return "category" if few else "text"

    def _names_rows(self, texts: int) -> bool:
        """Return True if the column identifies rows: all values are distinct, and its name says so, or the values look
        like codes, or duplicates would have been expected by chance. `texts` counts its cells that are neither numbers
        nor codes for missing.
        """
        if self.distinct is None or self.known < LEAST_NAMED_ROWS:
            return False
        if IDENTIFIER.fullmatch(CAMEL.sub("_", self.name)):
            return True
        if self.known < LEAST_ROWS:
            return False
        if texts:
            return all(CODE.fullmatch(text) for text in self.texts)
        pairs = self.numbers * (self.numbers - 1) / 2
        return pairs > EXPECTED_PAIRS * (self.high - self.low + 1)

    @property
    def levels(self) -> dict[str, int]:
        """Count the cells with each value, if the values are few enough for a category."""
        missing = {*self.codes}
        counts = {value: count for value, count in self.values.items() if value not in missing}
        if self.is_too_varied:
            return {}
        if self.kind == "number":
            return counts if self.is_whole and len(counts) <= MOST_LEVELS else {}
        return counts if self.kind == "category" else {}


# -- the whole table ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProfile:
    """One table. `columns` are keyed by their names in the schema, in the order of the file."""

    path: Path
    rows: int
    columns: dict[str, Column]
    dropped: Dropped = NONE_DROPPED
    """The bad rows that were left out, if the layout says so."""


def look_at(
    path: Path, layout: Layout, *, fold: bool = False, only: Collection[str] | None = None, target: str = ""
) -> TableProfile:
    """Read a whole table. `fold` ignores case; `only` has the columns to read.

    Raises UserError: it cannot be read, or has no rows; MistakesError: it has bad rows, and the layout does not leave
    them out.
    """
    header = rows.read_header(path, layout)
    mistakes = TableMistakes(path, drops=layout.on_bad_row == "drop")
    _check_header(header, mistakes)
    in_schema = {name: column for column, name in layout.rename.items()}
    names = {name: in_schema.get(name, name) for name in header}
    columns = {name: Column(column) for name, column in names.items() if only is None or column in only}
    count = 0
    for batch in rows.batches(path, layout, list(columns), mistakes):
        count += len(batch.lines)
        for name, texts in batch.columns.items():
            codes = layout.codes(names[name])
            for text, times in Counter(texts).items():
                columns[name].see(text, times, layout, codes, fold=fold)
    mistakes.raise_any()
    if not count:
        why = f"; {mistakes.dropped.first}" if mistakes.bad else ""
        raise UserError(f"the table has no rows{why}", file=path)
    for column in columns.values():
        column.decide()
        if column.name == target:
            column.distinct = None  # the values that identify rows cannot be predicted
    by_name = {column.name: column for column in columns.values()}
    return TableProfile(path=path, rows=count, columns=by_name, dropped=mistakes.dropped)


def _check_header(header: list[str], mistakes: TableMistakes) -> None:
    for name, times in Counter(header).items():
        if times > 1:
            mistakes.add("the table has this column twice", key="line 1", value=name)
        if not name:
            mistakes.add("a column has no name", key="line 1", allowed="a name for each column")
    if len(header) == 1:
        text = "the table has one column"
        mistakes.add(text, key="line 1", value=header[0][:40], allowed='two or more; or another separator, such as ";"')
    mistakes.raise_any()
