"""Finds the lines of a table without a schema that are no rows: its header once more, or texts where numbers belong.

A text among numbers may be a code for missing. It is one if it stands in a row that has numbers too, or in many rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p2pfl.learn.table import cells, rows
from p2pfl.learn.table.column import Column
from p2pfl.learn.table.layout import Layout
from p2pfl.learn.table.mistakes import LEAVE_OUT, Cell, TableMistakes

MOSTLY = 0.8
"""The least share of numbers among a column's known cells for a column of numbers."""
NEARLY_ALL = 0.9
"""The least share of texts among a row's numbers for an odd row."""
LEAST_CODE_ROWS = 3
"""A text in this many rows of a column is a code, even where no number stands beside it."""
USUAL_CODES = frozenset({"-", ".", "n.a.", "n.d.", "nd", "missing", "unknown", "not known", "not available"})
"""Texts that are codes wherever they stand among numbers, in any case."""
Place = tuple[str, str]
"""A column's name in the file, and a text in it."""


@dataclass(slots=True)
class OddRows:
    """The results of a second look at a table."""

    lines: set[int] = field(default_factory=set)
    lone: list[tuple[int, str, str]] = field(default_factory=list)
    """Line, column and text of each text among numbers that stands once in its column, in a row that is not odd."""


@dataclass(slots=True)
class _Seen:
    """Texts where numbers belong."""

    counts: Counter[Place] = field(default_factory=Counter)
    first: dict[Place, int] = field(default_factory=dict)
    beside: set[Place] = field(default_factory=set)
    """Texts that stand in a row with numbers."""
    doubtful: dict[int, list[Place]] = field(default_factory=dict)
    """Rows without numbers, or nearly, by line."""
    read: dict[int, int] = field(default_factory=dict)
    """Cells of these rows that should hold numbers."""
    headers: list[int] = field(default_factory=list)


def find_odd_rows(
    path: Path, layout: Layout, columns: Mapping[str, Column], mistakes: TableMistakes, target: str = ""
) -> OddRows:
    """Look again at a table whose `columns`, by their names in the file, have been counted. Odd rows go to `mistakes`.

    The target is ignored: it may be right in a row that has nothing else.
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
    return cells.number(text, decimal) is None and not cells.is_missing(text, codes, decimal)


def _is_known(text: str, layout: Layout, column: Column) -> bool:
    return not cells.is_missing(text, layout.codes(column.name), layout.decimal)


def _judge(seen: _Seen, mistakes: TableMistakes) -> OddRows:
    found = OddRows(lines=set(seen.headers))
    for line in seen.headers:
        mistakes.add_row(line, Cell("", "the header appears here again", None, f"a row; or {LEAVE_OUT}"))
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
