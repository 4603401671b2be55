"""The rows of a table as strings, read by Python's own reader in batches, so that memory does not grow with the
file.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2pfl.errors import UserError
from p2pfl.foreign import refuse_special
from p2pfl.learn.table.layout import Layout
from p2pfl.learn.table.mistakes import LEAVE_OUT, Cell, TableMistakes

BATCH_ROWS = 8192
MEGABYTE = 1_000_000
BEHIND_A_QUOTE = "expected after"
"""The csv module's phrase for a cell that continues after its closing quote."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows. `columns` has the strings (n,) in the requested columns, keyed by their names in the file."""

    lines: list[int]
    """The line (n,) of the file on which each row ends."""
    columns: dict[str, list[str]]


def check_size(path: Path, layout: Layout) -> None:
    """Refuse a file that is too large. Raises UserError, also if the file cannot be opened."""
    refuse_special(path)
    try:
        size_mb = path.stat().st_size / MEGABYTE
    except OSError as error:
        raise UserError(f"the table cannot be read: {error}", file=path) from error
    if size_mb > layout.limit_mb:
        text = f"the table has {size_mb:,.0f} MB; its rows stay in memory, as 4 bytes for each input"
        allowed = f"at most {layout.limit_mb:,.0f} MB, or a larger limit_mb in [data]"
        raise UserError(text, file=path, key="data.limit_mb", allowed=allowed)


def read_header(path: Path, layout: Layout) -> list[str]:
    """Return the names of the columns, from the file or its layout. Raises UserError: it cannot be read."""
    if not layout.header:
        return list(layout.columns)
    check_size(path, layout)
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
    check_size(path, layout)
    header = read_header(path, layout)
    places = [header.index(column) for column in columns]
    try:
        with path.open(encoding=_encoding(layout), newline="") as file:
            reader = csv.reader(file, delimiter=layout.separator, strict=True)
            if layout.header:
                next(reader, None)
            lines, rows = list[int](), list[list[str]]()
            for cells in _records(reader, mistakes):
                if not cells:
                    continue
                if len(cells) != len(header):
                    mistakes.add_row(reader.line_num, _wrong_length(len(cells), layout, header))
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


def _wrong_length(count: int, layout: Layout, header: list[str]) -> Cell:
    what = "header" if layout.header else "columns"
    allowed = f"{len(header)} cells; or {LEAVE_OUT}; or, if all rows are like that, separator and decimal in [data]"
    return Cell("", f"the number of cells differs from the {what}'s", count, allowed)


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
