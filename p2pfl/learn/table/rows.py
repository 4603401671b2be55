"""A table as text: what a cell may hold, how a node's file is written, and its rows, read in batches by Python's own
reader, so that memory does not grow with the file.

Mistakes are collected in one error; the same mistake on many lines counts as one.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from p2pfl.errors import UserError
from p2pfl.foreign import refuse_special

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Strings that count as missing, in upper or lower case, unless the schema declares them as values."""
PLAIN = re.compile(r"[+-]?(?:0|[1-9]\d*)(?:\.\d*)?", re.ASCII)
"""Numbers with more than one spelling. `007` and `1E5` are excluded, because they may be codes."""
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
DATE = re.compile(r"(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4})(?:[T ].*)?", re.ASCII)
"""A calendar date in one of the usual orders, with or without a time."""


def spelled(text: str, *, decimal: str = ".", ignore_case: bool = False) -> str:
    """Normalize a value's spelling: `1.0`, `+1` and `1` become the same, and so do `a` and `A` if case is ignored."""
    text = text.strip()
    plain = text.replace(decimal, ".") if decimal != "." else text
    if PLAIN.fullmatch(plain):
        whole, _, fraction = plain.lstrip("+").partition(".")
        fraction = fraction.rstrip("0")
        return f"{whole}.{fraction}" if fraction else "0" if whole == "-0" else whole
    return text.casefold() if ignore_case else text


def number(text: str, decimal: str = ".") -> float | None:
    """Return the finite number in a cell, or None if there is none."""
    if decimal != ".":
        text = text.replace(decimal, ".")
    try:
        value = float(text)
    except ValueError:
        return None
    # Python accepts more than a table's numbers: 1_000, and the digits of all scripts.
    return value if math.isfinite(value) and "_" not in text and text.isascii() else None


def is_missing(text: str, codes: Collection[str], decimal: str = ".") -> bool:
    """Return True if a cell counts as missing. `codes`, in normalized spelling, are other values that mean missing in
    this column.
    """
    text = text.strip()
    return text.lower() in MISSING or (bool(codes) and spelled(text, decimal=decimal) in codes)


def all_numbers(values: Sequence[str]) -> bool:
    """Return True if all of these values are numbers."""
    return all(NUMBER.fullmatch(value) for value in values)


# -- the layout of one node's file, in its `[data]` or in `[task]` -----------------------------------------------------

Code = str | int | float
OnBadRow = Literal["refuse", "drop"]
EVERY = "*"
"""Stands for all columns in a table of missing codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a file. `missing` has the strings that mean a missing cell, in normalized spelling, by column; `*`
    stands for every column.
    """

    separator: str = ","
    """The separator between cells."""
    decimal: str = "."
    """The decimal sign of numbers."""
    encoding: str = "utf-8"
    """The encoding of the file, such as cp1252 or latin-1."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """The names of columns in this file, keyed by their names in the schema."""
    absent: tuple[str, ...] = ()
    """The columns of the schema that this file intentionally lacks."""
    missing: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Other codes that mean a missing cell, by column; "*" stands for every column."""
    leave_out: tuple[str, ...] = ()
    """The columns to leave out of proposals when nodes agree on a schema."""
    show_figures: bool = False
    """True if the other of two nodes that agree on a schema may see this table's statistics."""
    on_bad_row: OnBadRow = "refuse"
    """The treatment of a row that cannot be read: a mistake ("refuse"), or left out and counted ("drop")."""

    def codes(self, column: str) -> frozenset[str]:
        """Return the other codes that mean a missing cell in that column."""
        return self.missing.get(EVERY, frozenset()) | self.missing.get(column, frozenset())

    def name_in_file(self, column: str) -> str:
        return self.rename.get(column, column)


TYPES: Mapping[str, Any] = get_type_hints(Layout) | {"missing": list[Code] | dict[str, list[Code] | Code] | Code}
"""The keys of a layout, and their types in a file."""
KEYS = tuple(TYPES)
GONE = {
    "header": "write a first line with the names of the columns",
    "columns": "write a first line with the names of the columns",
    "id": "all cells of a row decide whether it is held out",
    "limit_mb": "a table of any size is read",
}
"""Keys of the version before, and what to write in their place."""
IN_WORDS = {
    "separator": 'one character, such as ";" or "\\t"',
    "decimal": '"." or ","',
    "encoding": "utf-8, latin-1, cp1252 or another of Python's",
    "rename": '{ name = "name in the file" }',
    "absent": "a list of columns",
    "leave_out": "a list of columns",
    "show_figures": "true or false",
    "missing": "a list of codes, or { column = [codes] }",
    "on_bad_row": '"refuse" or "drop"',
}


def make_layout(task: Mapping[str, Any], local: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> Layout:
    """Make the layout from `[task]` and a node's `[data]`, which has precedence. Missing codes from all three are
    combined.

    Raises UserError: a wrong type or value.
    """
    values: dict[str, Any] = {}
    missing: dict[str, frozenset[str]] = {}
    for prefix, table in (("schema.", schema or {}), ("task.", task), ("data.", local)):
        for key in GONE.keys() & table.keys():
            raise UserError(f"is gone: {GONE[key]}", key=prefix + key, value=table[key])
        given = {key: _converted(prefix, key, table[key]) for key in KEYS if key in table}
        for column, codes in _codes(given.pop("missing", {})).items():
            missing[column] = missing.get(column, frozenset()) | codes
        _check(given, prefix)
        values |= given
    if values.get("decimal", ".") == values.get("separator", ","):
        text = "the decimal sign is also the separator"
        raise UserError(text, key="data.decimal", value=values.get("decimal", "."), allowed='separator = ";", say')
    return Layout(**values, missing=missing)


def _converted(prefix: str, key: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, TYPES[key])
    except msgspec.ValidationError as error:
        raise UserError(str(error), key=prefix + key, value=value, allowed=IN_WORDS[key]) from None


def _codes(given: Code | Sequence[Code] | Mapping[str, Any]) -> dict[str, frozenset[str]]:
    by_column = given if isinstance(given, Mapping) else {EVERY: given}
    return {
        column: frozenset(spelled(str(code)) for code in (codes if isinstance(codes, list) else [codes]))
        for column, codes in by_column.items()
    }


def _is_encoding(name: str) -> bool:
    """Return True for a text encoding; Python also has encodings from bytes to bytes."""
    try:
        return isinstance(b"a".decode(name), str)
    except (LookupError, ValueError):
        return False


FITS: Mapping[str, Callable[[Any], bool]] = {
    "separator": lambda text: len(text) == 1 and text not in '\r\n"',
    "decimal": lambda text: text in (".", ","),
    "encoding": _is_encoding,
}
"""The checks for values of the right type."""


def _check(values: Mapping[str, Any], prefix: str) -> None:
    for key, is_right in FITS.items():
        if key in values and not is_right(values[key]):
            raise UserError("wrong value", key=prefix + key, value=values[key], allowed=IN_WORDS[key])


# -- a guess at the layout of an unknown file --------------------------------------------------------------------------

SAMPLE_BYTES = 1 << 18
SAMPLE_LINES = 200
SEPARATORS = (",", ";", "\t", "|")
ENCODINGS = ("utf-8", "cp1252", "latin-1")
COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+", re.ASCII)


def guess_layout(path: Path) -> Layout:
    """Guess the layout from the beginning of the file. Raises UserError: it cannot be read."""
    refuse_special(path)
    try:
        with path.open("rb") as file:
            raw = file.read(SAMPLE_BYTES)
    except OSError as error:
        raise UserError(f"the table cannot be read: {error.strerror}", file=path) from None
    if b"\0" in raw:
        raise UserError("the table cannot be read: this is not text", file=path, allowed="a table as text (CSV)")
    encoding, text = _decoded(raw, is_whole=len(raw) < SAMPLE_BYTES)
    lines = text.splitlines()[:SAMPLE_LINES]
    separator = max(SEPARATORS, key=lambda sign: _columns(lines, sign))
    return Layout(encoding=encoding, separator=separator, decimal=_decimal(lines, separator))


def _decoded(raw: bytes, *, is_whole: bool) -> tuple[str, str]:
    """Decode the sample, whose last character may be truncated."""
    for encoding in ENCODINGS[:-1]:
        for end in (len(raw), *(() if is_whole else range(len(raw) - 1, len(raw) - 4, -1))):
            try:
                return encoding, raw[:end].decode(encoding)
            except UnicodeDecodeError:
                continue
    return ENCODINGS[-1], raw.decode(ENCODINGS[-1])


def _columns(lines: list[str], separator: str) -> int:
    """Return the number of columns in the header with this separator, or 0 if the other lines differ."""
    try:
        widths = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
    except csv.Error:
        return 0
    if not widths or widths[0] == 1:
        return 0
    fitting = sum(width == widths[0] for width in widths)
    return widths[0] if 2 * fitting > len(widths) else 0


def _decimal(lines: list[str], separator: str) -> str:
    if separator == ",":
        return "."
    cells = [cell.strip() for row in csv.reader(lines[1:], delimiter=separator) for cell in row]
    return "," if any(COMMA_NUMBER.fullmatch(cell) for cell in cells) else "."


# -- mistakes ----------------------------------------------------------------------------------------------------------

MOST_LINES = 3
"""The most lines that are listed for one mistake."""
MOST_MISTAKES = 100
"""The most different mistakes that are kept for one file."""
LEAST_ODD = 2
"""The fewest wrong cells for which a row is reported as a whole."""
LEAVE_OUT = 'on_bad_row = "drop" in [data], to leave such rows out'
"""The alternative remedy for a bad row."""


class MistakesError(UserError):
    """The mistakes of one table, or of another `place`. Its text is the first of `all`, plus the number of others, of
    which `more` were counted and not kept.
    """

    def __init__(self, mistakes: Sequence[UserError], more: int = 0, *, place: str = "table") -> None:
        first, others = mistakes[0], len(mistakes) - 1 + more
        text = first.message
        if others:
            text += f" (and {others} other mistake{'s' * (others > 1)} in this {place}: `p2pfl check` lists them)"
        super().__init__(text, file=first.file, key=first.key, value=first.value, allowed=first.allowed)
        self.all, self.more = tuple(mistakes), more


def mistakes_of(error: UserError) -> list[UserError]:
    """Return every mistake that an error represents."""
    if not isinstance(error, MistakesError):
        return [error]
    for mistake in error.all:
        mistake.file = mistake.file or error.file  # the caller, who knows the file, sets it on the outer error only
    rest = UserError(f"{error.more} more mistakes with other values", file=error.file)
    return [*error.all, *([rest] if error.more else [])]


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of mistake. `column` is the name in the file, or empty if a whole row is wrong."""

    column: str
    message: str
    value: object
    allowed: str
    is_gap: bool = False
    """True for an empty cell that the schema requires, which does not make the row bad."""

    @property
    def text(self) -> str:
        where = f"column {self.column!r}: " if self.column else ""
        shown = "" if self.value is None else f" (found {self.value!r})"
        return f"{where}{self.message}{shown}"


@dataclass(frozen=True, slots=True)
class Dropped:
    """The bad rows of a file that were left out."""

    count: int = 0
    lines: tuple[int, ...] = ()
    """The numbers of the first few lines."""
    first: str = ""
    """The mistake in the first row."""

    def as_sentence(self, rows: int) -> str:
        """Return a sentence about the dropped rows; `rows` is the number of rows that are left."""
        many = f"{self.count} rows of {rows + self.count} are" if self.count > 1 else f"1 row of {rows + 1} is"
        return f"{many} left out, because on_bad_row is drop: {_lines(self.lines, self.count)}; the first: {self.first}"


NONE_DROPPED = Dropped()


@dataclass(slots=True)
class TableMistakes:
    """Collects the mistakes of one file. With `drops`, bad rows are counted, not reported."""

    file: Path
    drops: bool = False
    whole: list[UserError] = field(default_factory=list)
    """Mistakes in the file as a whole or in its header."""
    cells: dict[Cell, list[int]] = field(default_factory=dict)
    """The first few lines with each mistake."""
    counts: dict[Cell, int] = field(default_factory=dict)
    more: int = 0
    odd: Cell | None = None
    """The mistake that stands for all rows in which most cells are wrong; it describes the first one."""
    bad: list[tuple[int, str]] = field(default_factory=list)
    """The first rows that were left out, each with its line and its mistake."""
    bad_rows: int = 0

    def add(self, message: str, *, key: str | None = None, value: object = None, allowed: str | None = None) -> None:
        if len(self.whole) < MOST_MISTAKES:
            self.whole.append(UserError(message, file=self.file, key=key, value=value, allowed=allowed))
        else:
            self.more += 1

    def add_row(self, line: int, row: Cell) -> None:
        """Add a bad row without examining its cells."""
        if self.drops:
            self._drop(line, row.text)
        else:
            self.add_cell(line, row)

    def judge(self, line: int, wrong: Sequence[Cell], count: int) -> bool:
        """Decide what to do with a row in which these of its `count` cells are wrong. Return True if it is left out;
        otherwise the cells are recorded as mistakes.
        """
        unreadable = [cell for cell in wrong if not cell.is_gap]
        if self.drops and unreadable:
            self._drop(line, unreadable[0].text)
            return True
        is_odd = len(unreadable) >= LEAST_ODD and 2 * len(unreadable) > count
        if is_odd and self.odd is None:
            said = ", ".join(f"column {cell.column!r}: {cell.value!r}" for cell in unreadable[:MOST_LINES])
            more = ", ..." if len(unreadable) > MOST_LINES else ""
            text = f"{len(unreadable)} of {count} cells do not fit their columns: {said}{more}"
            self.odd = Cell("", text, None, f"a row like the others; or another separator or decimal; or {LEAVE_OUT}")
        for cell in [self.odd] if is_odd and self.odd else wrong:
            self.add_cell(line, cell)
        return False

    def _drop(self, line: int, why: str) -> None:
        self.bad_rows += 1
        self.bad = sorted([*self.bad, (line, why)])[:MOST_LINES]

    def add_cell(self, line: int, cell: Cell) -> None:
        if cell not in self.cells and len(self.cells) == MOST_MISTAKES:
            self.more += 1
            return
        lines = self.cells.setdefault(cell, [])
        self.counts[cell] = self.counts.get(cell, 0) + 1
        if len(lines) < MOST_LINES:
            lines.append(line)

    @property
    def dropped(self) -> Dropped:
        if not self.bad:
            return NONE_DROPPED
        return Dropped(self.bad_rows, tuple(line for line, _ in self.bad), f"line {self.bad[0][0]}, {self.bad[0][1]}")

    def raise_any(self) -> None:
        """Raise MistakesError if there are mistakes."""
        mistakes = self.whole + [self._error(cell) for cell in sorted(self.cells, key=lambda cell: self.cells[cell][0])]
        if mistakes:
            raise MistakesError(mistakes, self.more)

    def _error(self, cell: Cell) -> UserError:
        key = _lines(self.cells[cell], self.counts[cell]) + (f", column {cell.column!r}" if cell.column else "")
        return UserError(cell.message, file=self.file, key=key, value=cell.value, allowed=cell.allowed)


def _lines(lines: Sequence[int], count: int) -> str:
    said = f"line {lines[0]}" if count == 1 else f"lines {', '.join(map(str, lines))}"
    return said + (f" and {count - len(lines)} more" if count > len(lines) else "")


# -- rows --------------------------------------------------------------------------------------------------------------

BATCH_ROWS = 8192
BEHIND_A_QUOTE = "expected after"
"""The csv module's phrase for a cell that continues after its closing quote."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows. `columns` has the strings (n,) in the requested columns, keyed by their names in the file."""

    lines: list[int]
    """The line (n,) of the file on which each row ends."""
    columns: dict[str, list[str]]


def read_header(path: Path, layout: Layout) -> list[str]:
    """Return the names of the columns. Raises UserError: the file cannot be read."""
    refuse_special(path)
    try:
        with path.open(encoding=_encoding(layout), newline="") as file:
            reader = csv.reader(file, delimiter=layout.separator, strict=True)
            header = [name.strip() for name in next(reader, [])]
    except (OSError, UnicodeError, csv.Error) as error:
        raise _unreadable(path, layout, error) from error
    if not any(header):
        raise UserError("the table has no header", file=path, key="line 1", allowed="a line with the columns' names")
    return header


def batches(path: Path, layout: Layout, columns: Sequence[str], mistakes: TableMistakes) -> Iterator[Batch]:
    """Yield the rows, without empty lines. A row with too few or too many cells, or with text after the quote that ends
    a cell, goes to `mistakes` and is left out.

    Raises UserError: the file cannot be read.
    """
    header = read_header(path, layout)
    places = [header.index(column) for column in columns]
    try:
        with path.open(encoding=_encoding(layout), newline="") as file:
            reader = csv.reader(file, delimiter=layout.separator, strict=True)
            next(reader, None)
            lines, rows = list[int](), list[list[str]]()
            for cells in _records(reader, mistakes):
                if not cells:
                    continue
                if len(cells) != len(header):
                    mistakes.add_row(reader.line_num, _wrong_length(len(cells), header))
                    continue
                lines.append(reader.line_num)
                rows.append(cells)
                if len(rows) == BATCH_ROWS:
                    yield _batch(lines, rows, columns, places)
                    lines, rows = [], []
            if rows:
                yield _batch(lines, rows, columns, places)
    except (OSError, UnicodeError, csv.Error) as error:
        raise _unreadable(path, layout, error) from error


def _records(reader: Any, mistakes: TableMistakes) -> Iterator[list[str]]:
    """Yield the records of a csv reader; after text behind a closing quote, continue with the next line.

    Raises UserError: an unclosed quote would swallow the rest of the file.
    """
    while True:
        first_line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if BEHIND_A_QUOTE not in str(error):
                text = f"the table cannot be read: {error}"
                allowed = 'a quote (") at both ends of a cell, or at none'
                raise UserError(text, file=mistakes.file, key=f"line {first_line}", allowed=allowed) from error
            allowed = f'a quote (") within a cell is written twice; or {LEAVE_OUT}'
            mistakes.add_row(reader.line_num, Cell("", "text follows the quote that ends a cell", None, allowed))
            continue
        yield cells


def _batch(lines: list[int], rows: list[list[str]], names: Sequence[str], places: Sequence[int]) -> Batch:
    columns = {column: [row[place].strip() for row in rows] for column, place in zip(names, places, strict=True)}
    return Batch(lines, columns)


def _wrong_length(count: int, header: list[str]) -> Cell:
    allowed = f"{len(header)} cells; or {LEAVE_OUT}; or, if all rows are like that, separator and decimal in [data]"
    return Cell("", "the number of cells differs from the header's", count, allowed)


def _encoding(layout: Layout) -> str:
    """Return the name of the encoding; for UTF-8, the variant that also accepts a byte order mark."""
    plain = layout.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    return "utf-8-sig" if plain else layout.encoding


def _unreadable(path: Path, layout: Layout, error: Exception) -> UserError:
    if isinstance(error, UnicodeError):
        allowed = f"text in {layout.encoding}, or another encoding in [data], such as latin-1 or cp1252"
        return UserError(f"the table cannot be read: {error}", file=path, key="data.encoding", allowed=allowed)
    text = f"the table cannot be read: {error}"
    if isinstance(error, csv.Error):
        return UserError(text, file=path, allowed=f'cells between {layout.separator!r}, quoted with " where need be')
    return UserError(text, file=path)
