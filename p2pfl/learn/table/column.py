"""What an unknown table seems to hold: the kind of each column, and lines that are no rows. None of this leaves the
machine.

A string among numbers may be a code for missing. It is one if it appears in a row that also has numbers, or in many
rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from p2pfl.errors import UserError
from p2pfl.learn.table import rows
from p2pfl.learn.table.rows import LEAVE_OUT, NONE_DROPPED, Cell, Dropped, Layout, TableMistakes

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
    rf"(?:.*[_\s.-])?(?:ids?|uuid|guid|mrn|(?:{PEOPLE})(?:id|no|nr)?)|id[_\s.-].*",
    re.IGNORECASE,
)
"""Names of columns that identify rows, if all values are distinct and are integers or strings."""
MAYBE_IDENTIFIER = re.compile(r"(?:.*[_\s.-])?(?:nr|no|num|number|index|key|code|barcode|serial)", re.IGNORECASE)
"""Names of columns that also identify rows, if there are enough rows."""
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
    """The cells that are not missing, in normalized spelling; if there are too many distinct values, only the first
    ones.
    """
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
        self.dates += count if rows.is_date(text) else 0
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
        found = [f"{number:g}" for number in sorted(self.sentinels)]
        return (*found, *sorted(self._odd_texts()))

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
        words = CAMEL.sub("_", self.name)
        if IDENTIFIER.fullmatch(words):
            return True
        if self.known < LEAST_ROWS:
            return False
        if MAYBE_IDENTIFIER.fullmatch(words):
            return True
        if texts:
            return all(CODE.fullmatch(text) for text in self.texts)
        pairs = self.numbers * (self.numbers - 1) / 2
        return pairs > EXPECTED_PAIRS * (self.high - self.low + 1)

    @property
    def might_name_rows(self) -> bool:
        """Return True if integers may identify rows or their subjects: all are distinct, or the column's name says
        so.
        """
        if self.kind != "number" or not self.is_whole or self.known < LEAST_ROWS:
            return False
        is_called_so = IDENTIFIER.fullmatch(CAMEL.sub("_", self.name)) and len(self.values) > MOST_LEVELS
        return self.distinct is not None or bool(is_called_so)

    @property
    def levels(self) -> dict[str, int]:
        """Count the cells with each value, if the values are few enough for a category."""
        missing = {*self.codes}
        found = {value: count for value, count in self.values.items() if value not in missing}
        if self.is_too_varied:
            return {}
        if self.kind == "number":
            return found if self.is_whole and len(found) <= MOST_LEVELS else {}
        return found if self.kind == "category" else {}


# -- lines that are no rows: the header repeated, or strings where numbers belong --------------------------------------

MOSTLY = 0.8
"""A column is numeric if at least this share of its known cells are numbers."""
NEARLY_ALL = 0.9
"""A row is odd if at least this share of its numeric cells are strings."""
LEAST_CODE_ROWS = 3
"""A string in this many rows of a column is a code, even if there are no numbers next to it."""
USUAL_CODES = frozenset({"-", ".", "n.a.", "n.d.", "nd", "missing", "unknown", "not known", "not available"})
"""Strings that are codes wherever they appear among numbers, in upper or lower case."""
Place = tuple[str, str]
"""A column's name in the file, and a string in it."""


@dataclass(slots=True)
class OddRows:
    """The results of a second look at a table."""

    lines: set[int] = field(default_factory=set)
    lone: list[tuple[int, str, str]] = field(default_factory=list)
    """The line, column and text of each string among numbers that appears once in its column, in a row that is not
    odd.
    """


@dataclass(slots=True)
class _Seen:
    """Strings found where numbers belong."""

    counts: Counter[Place] = field(default_factory=Counter)
    first: dict[Place, int] = field(default_factory=dict)
    beside: set[Place] = field(default_factory=set)
    """Strings that appear in a row with numbers."""
    doubtful: dict[int, list[Place]] = field(default_factory=dict)
    """Rows with no or almost no numbers, by line."""
    read: dict[int, int] = field(default_factory=dict)
    """The number of cells that should be numeric in each of these rows."""
    headers: list[int] = field(default_factory=list)


def find_odd_rows(
    path: Path, layout: Layout, columns: Mapping[str, Column], mistakes: TableMistakes, target: str = ""
) -> OddRows:
    """Read a table again, whose `columns`, keyed by their names in the file, have been counted. Odd rows go to
    `mistakes`.

    The target is ignored: it may be valid in a row that has nothing else.
    """
    inputs = [name for name, column in columns.items() if column.name != target and _is_number(column)]
    repeats = len(columns) > 1 and all(name in one.texts or one.is_too_varied for name, one in columns.items())
    if not repeats and not any(columns[name].texts for name in inputs):
        return OddRows()
    seen = _Seen()
    for batch in rows.batches(path, layout, list(columns), TableMistakes(path, drops=True)):
        if repeats:
            own = zip(*([text == name for text in texts] for name, texts in batch.columns.items()), strict=True)
            seen.headers += [line for line, row in zip(batch.lines, own, strict=True) if all(row)]
        _look_at(batch, inputs, columns, layout, seen)
    return _judge(seen, mistakes)


def _is_number(column: Column) -> bool:
    numbers = column.numbers + sum(column.sentinels.values())
    return 0 < MOSTLY * column.known <= numbers


def _look_at(
    batch: rows.Batch, inputs: Sequence[str], columns: Mapping[str, Column], layout: Layout, seen: _Seen
) -> None:
    by_row: dict[int, list[Place]] = {}
    for name in inputs:
        if not columns[name].texts:
            continue
        texts = batch.columns[name]
        codes = layout.codes(columns[name].name)
        odd = {text for text in set(texts) if _is_text(text, codes, layout.decimal)}
        for row, text in enumerate(texts) if odd else ():
            if text in odd:
                by_row.setdefault(row, []).append((name, text))
    for row, places in by_row.items():
        line = batch.lines[row]
        for place in places:
            seen.counts[place] += 1
            seen.first.setdefault(place, line)
        known = [name for name in inputs if _is_known(batch.columns[name][row], layout, columns[name])]
        is_alone = not any(texts[row] for name, texts in batch.columns.items() if (name, texts[row]) not in places)
        if len(places) >= NEARLY_ALL * len(known) and (len(places) > 1 or is_alone):
            seen.doubtful[line], seen.read[line] = places, len(known)
        else:
            seen.beside.update(places)


def _is_text(text: str, codes: frozenset[str], decimal: str) -> bool:
    return rows.number(text, decimal) is None and not rows.is_missing(text, codes, decimal)


def _is_known(text: str, layout: Layout, column: Column) -> bool:
    return not rows.is_missing(text, layout.codes(column.name), layout.decimal)


def _judge(seen: _Seen, mistakes: TableMistakes) -> OddRows:
    found = OddRows(lines=set(seen.headers))
    for line in seen.headers:
        mistakes.add_row(line, Cell("", "the header is repeated here", None, f"a row; or {LEAVE_OUT}"))
    for line, places in seen.doubtful.items():
        if line in found.lines or all(_is_code(place, seen) for place in places):
            continue
        found.lines.add(line)
        wrong = [Cell(name, "not a number", text, LEAVE_OUT) for name, text in places]
        mistakes.add_odd_row(line, wrong, seen.read[line])
    for place, line in seen.first.items():
        if seen.counts[place] == 1 and line not in found.lines:
            found.lone.append((line, *place))
    return found


def _is_code(place: Place, seen: _Seen) -> bool:
    name, text = place
    is_usual = place in seen.beside or seen.counts[place] >= LEAST_CODE_ROWS or text.lower() in USUAL_CODES
    return name != text and is_usual


# -- the whole table ---------------------------------------------------------------------------------------------------

MOST_COLUMNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProfile:
    """One table. `columns` are keyed by their names in the schema, in the order of the file."""

    path: Path
    rows: int
    columns: dict[str, Column]
    dropped: Dropped = NONE_DROPPED
    """The bad rows that were left out, if the layout says so."""
    doubts: tuple[str, ...] = ()
    """Sentences about single cells that were taken as missing."""


def look_at(
    path: Path, layout: Layout, *, fold: bool = False, only: Iterable[str] | None = None, target: str = ""
) -> TableProfile:
    """Read a whole table, and read it again if there are strings among numbers. `fold` ignores case; `only` has the
    columns to read.

    Raises UserError: it cannot be read, or has no rows; MistakesError: it has bad rows, and the layout does not leave
    them out.
    """
    header = rows.read_header(path, layout)
    mistakes = TableMistakes(path, drops=layout.on_bad_row == "drop")
    _check_header(header, mistakes)
    in_schema = {name: column for column, name in layout.rename.items()}
    wanted = [name for name in header if only is None or in_schema.get(name, name) in set(only)]
    names = {name: in_schema.get(name, name) for name in wanted}
    found, count = _see(path, layout, names, mistakes, fold=fold)
    odd = find_odd_rows(path, layout, found, mistakes, target)
    mistakes.raise_any()
    if odd.lines:
        found, count = _see(path, layout, names, TableMistakes(path, drops=True), fold=fold, without=odd.lines)
    if not count:
        why = f"; {mistakes.dropped.first}" if mistakes.bad else ""
        raise UserError(f"the table has no rows{why}", file=path)
    for column in found.values():
        column.decide()
        if column.name == target:
            column.distinct = None  # the values that identify rows cannot be predicted
    doubts = tuple(
        f"{path}: line {line}, column {name!r}: {text!r} appears only here, and is taken as missing"
        for line, name, text in sorted(odd.lone)
        if rows.spelled(text, decimal=layout.decimal, ignore_case=fold) in found[name].codes
    )
    by_name = {column.name: column for column in found.values()}
    return TableProfile(path=path, rows=count, columns=by_name, dropped=mistakes.dropped, doubts=doubts)


def _see(
    path: Path,
    layout: Layout,
    names: Mapping[str, str],
    mistakes: TableMistakes,
    *,
    fold: bool,
    without: Collection[int] = (),
) -> tuple[dict[str, Column], int]:
    """Examine the columns, keyed by their names in the file, and count the rows, leaving out the lines `without`.
    `names` are the names in the schema.
    """
    found, count = {name: Column(column) for name, column in names.items()}, 0
    for batch in rows.batches(path, layout, list(names), mistakes):
        kept = [place for place, line in enumerate(batch.lines) if line not in without] if without else None
        count += len(batch.lines if kept is None else kept)
        for name, texts in batch.columns.items():
            codes = layout.codes(names[name])
            chosen = texts if kept is None else [texts[place] for place in kept]
            for text, times in Counter(chosen).items():
                found[name].see(text, times, layout, codes, fold=fold)
    return found, count


def _check_header(header: list[str], mistakes: TableMistakes) -> None:
    for name, times in Counter(header).items():
        if times > 1:
            mistakes.add("the table has this column twice", key="line 1", value=name)
        if not name:
            mistakes.add("a column has no name", key="line 1", allowed="a header, or header = false in [data]")
    if len(header) > MOST_COLUMNS:
        mistakes.add("too many columns", key="line 1", value=len(header), allowed=f"at most {MOST_COLUMNS}")
    if len(header) == 1:
        text = "the table has one column"
        mistakes.add(text, key="line 1", value=header[0][:40], allowed='two or more; or another separator, such as ";"')
    mistakes.raise_any()
