"""A look at one unknown table: what each column seems to hold. Nothing of it leaves the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from p2pfl.errors import UserError
from p2pfl.learn.table import cells, rows
from p2pfl.learn.table.column import Column
from p2pfl.learn.table.layout import Layout
from p2pfl.learn.table.mistakes import NONE_DROPPED, Dropped, TableMistakes
from p2pfl.learn.table.odd_rows import find_odd_rows

MOST_COLUMNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProfile:
    """One table. `columns` are by their names in the schema, in the order of the file."""

    path: Path
    rows: int
    columns: dict[str, Column]
    dropped: Dropped = NONE_DROPPED
    """Bad rows that were left out, as the layout says."""
    doubts: tuple[str, ...] = ()
    """Sentences about single cells that count as missing."""


def look_at(
    path: Path, layout: Layout, *, fold: bool = False, only: Iterable[str] | None = None, target: str = ""
) -> TableProfile:
    """Read a whole table, and again if there are texts among numbers. `fold`: case does not count; `only`: the columns
    to look at.

    Raises UserError: it cannot be read, or has no rows; TableError: it has bad rows, and the layout leaves none out.
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
            column.distinct = None  # names of rows cannot be predicted
    doubts = tuple(
        f"{path}: line {line}, column {name!r}: {text!r} appears only here, and is taken as missing"
        for line, name, text in sorted(odd.lone)
        if cells.spelled(text, decimal=layout.decimal, ignore_case=fold) in found[name].codes
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
    """Count the columns, by their names in the file, and the rows outside the lines `without`. `names` are those in the
    schema.
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
