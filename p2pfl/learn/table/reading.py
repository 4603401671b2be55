"""A node's file, read by the schema into columns of numbers, with every mistake in it; the inputs and targets made of
these; and a comparison of several nodes' tables on a machine that has them all.

The Wasserstein-1 distance of a column, between one node and all others, is in units of the schema's standard deviation.
`p2pfl.learn.figures` measures the distance of targets, for any task.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.figures import wasserstein
from p2pfl.learn.table import rows
from p2pfl.learn.table.rows import LEAVE_OUT, NONE_DROPPED, Cell, Dropped, Layout, TableMistakes, mistakes_of
from p2pfl.learn.table.schema import Schema

Columns = Mapping[str, NDArray[np.float64]]


def encode_inputs(columns: Columns, schema: Schema) -> NDArray[np.float32]:
    """Return the inputs (n, width), float32. A missing number becomes the declared mean: 0 once standardized."""
    rows = len(next(iter(columns.values())))
    inputs = np.zeros((rows, schema.width), dtype=np.float32)
    place = 0
    for column in schema.numeric:
        mean, std = schema.scale(column)
        values = columns[column]
        is_missing = np.isnan(values)
        inputs[:, place] = np.where(is_missing, 0.0, (values - mean) / std)
        if schema.indicators:
            inputs[:, place + 1] = is_missing
        place += 2 if schema.indicators else 1
    for column, choices in schema.categories.items():
        known = np.flatnonzero(~np.isnan(columns[column]))
        inputs[known, place + columns[column][known].astype(np.int64)] = 1.0
        place += len(choices)
    return inputs


def encode_targets(columns: Columns, schema: Schema) -> NDArray[np.float32] | NDArray[np.int64]:
    """Return the targets: classes (n,) int64, or (n, 1) float32 for a regression, standardized as declared.

    No target may be missing.
    """
    values = columns[schema.target]
    if schema.classes is not None:
        return values.astype(np.int64)
    mean, std = schema.scale(schema.target)
    return ((values - mean) / std).astype(np.float32).reshape(-1, 1)


def held_out(columns: Columns, share: float, *, key: bytes) -> NDArray[np.bool_]:
    """Return the mask (n,) of rows held out for testing, each with probability `share`, by a hash keyed with the
    32-byte `key`.

    Which side a row is on depends on the row alone: on all its values and on the number of equal rows before it. So
    adding or removing a row moves no other row, except among equal rows, which are indistinguishable.
    """
    limit = math.ceil(share * (1 << 64))
    return np.fromiter((_draw(key, name) < limit for name in _names(columns)), np.bool_)


def _draw(key: bytes, name: bytes) -> int:
    """Return 64 bits that are uniformly random to anyone without the key."""
    return int.from_bytes(hashlib.blake2b(name, key=key, digest_size=8, person=b"p2pfl-holdout").digest(), "little")


def _names(columns: Columns) -> Iterator[bytes]:
    """Yield a distinct name for each row."""
    table = np.column_stack([columns[name] for name in sorted(columns)]) + 0.0  # turns -0.0 into 0.0
    table[np.isnan(table)] = np.nan
    seen = Counter[bytes]()
    for row in table.astype("<f8"):
        content = row.tobytes()
        yield content + seen[content].to_bytes(8, "little")
        seen[content] += 1


# -- the file ----------------------------------------------------------------------------------------------------------

NOTHING = float("nan")
UNSEEN = float("inf")
"""The placeholder for undeclared values until they are counted."""
CLOSE = 0.75
"""The least similarity between two names for one to count as a misspelling of the other."""
LEAST_ALIKE = 3
"""The fewest letters that a name needs to count as an abbreviation of a longer one."""
MOST_REMEMBERED = 1024
"""The most strings of a category whose meaning is cached."""
MOST_NAMED = 12
"""The most values or columns that an error lists."""
Parse = Callable[[str], "float | Cell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as read by its schema. Each of `columns` is (n,) float64: numbers or indices of values, NaN if missing.

    If the file lacks a column, it is missing in every row.
    """

    path: Path
    columns: dict[str, NDArray[np.float64]]
    absent: tuple[str, ...]
    without_target: int
    """The rows that were left out because their target is missing."""
    unseen: int
    """The number of cells with undeclared values, which count as missing."""
    dropped: Dropped = NONE_DROPPED
    """The bad rows that were left out."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def read_table(path: Path, schema: Schema, layout: Layout, *, scoring: bool = False, testing: bool = False) -> Table:
    """Read a file.

    With `scoring`, rows need no target, undeclared values count as missing, and no row is left out. With `testing` it
    is the same, except that there is a target, and rows without it are left out. Raises UserError: it cannot be read;
    MistakesError: it lacks a column, or cells hold what the schema does not allow.
    """
    header = rows.read_header(path, layout)
    present = _present(path, header, schema, layout, scoring=scoring)
    scoring = scoring or testing
    parsers = {name: _parser(column, name, schema, layout, scoring=scoring) for column, name in present.items()}
    mistakes = TableMistakes(path, drops=layout.on_bad_row == "drop" and not scoring)
    by_name = _read_plainly(path, layout, parsers, mistakes)
    columns, unseen = {column: by_name[name] for column, name in present.items()}, 0
    for values in columns.values():
        is_unseen = np.isposinf(values)
        unseen += int(is_unseen.sum())
        values[is_unseen] = NOTHING
    count, left_out = len(next(iter(columns.values()))), mistakes.dropped
    if left_out.count and not count:
        raise UserError(f"no row of the table can be read: {left_out.first}", file=path, value=left_out.count)
    absent = tuple(column for column in schema.columns if column not in present)
    columns |= {column: np.full(count, NOTHING) for column in absent}
    dropped = 0
    if testing or (not scoring and schema.missing_target == "drop"):
        known = ~np.isnan(columns[schema.target])
        dropped = int(count - known.sum())
        columns = {column: values[known] for column, values in columns.items()}
    if count == dropped:
        raise UserError("no row of the table has a target" if count else "the table has no rows", file=path)
    return Table(
        path=path,
        columns=columns,
        absent=absent,
        without_target=dropped,
        unseen=unseen,
        dropped=left_out,
    )


def _present(path: Path, header: list[str], schema: Schema, layout: Layout, *, scoring: bool) -> dict[str, str]:
    """Map the columns of the schema that exist in the file to their names there. Raises UserError: one is missing."""
    mistakes = TableMistakes(path)
    unused = set(header) - {layout.name_in_file(column) for column in schema.columns}
    present = {}
    for column in schema.columns:
        name = layout.name_in_file(column)
        if header.count(name) > 1:
            mistakes.add("the table has this column twice", key="line 1", value=name, allowed=listed(header))
        elif name in header and column not in layout.absent:
            present[column] = name
        elif column == schema.target and not scoring:
            mistakes.add("the table lacks this column", key="line 1", value=name, allowed=listed(header))
        elif column not in layout.absent and column != schema.target:
            _look_for_another_name(mistakes, name, header, unused)
    if not present or (not mistakes.whole and set(present) <= {schema.target}):
        allowed = listed(schema.columns)
        mistakes.add("the table has no column of the schema", key="line 1", value=listed(header), allowed=allowed)
    mistakes.raise_any()
    return present


def _look_for_another_name(mistakes: TableMistakes, name: str, header: Sequence[str], unused: set[str]) -> None:
    """Report a column that the file has under a similar name, instead of one that is absent."""
    by_case = {other.casefold(): other for other in sorted(unused)}
    meant = difflib.get_close_matches(name.casefold(), list(by_case), n=1, cutoff=CLOSE)
    meant += [other for other in by_case if _begins(name.casefold(), other)]
    if meant:
        other = by_case[meant[0]]
        text = f"the table lacks this column, and has {other!r}"
        advice = f'rename = {{ "{name}" = "{other}" }} in [data] if that is it, absent = ["{name}"] if it is not'
        mistakes.add(text, key="line 1", value=name, allowed=f"{listed(header)}; {advice}")


def _begins(first: str, other: str) -> bool:
    """Return True if one is a prefix of the other, as chol is of cholesterol."""
    short, long = sorted((first, other), key=len)
    return len(short) >= LEAST_ALIKE and long.startswith(short)


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (", ".join(names[:MOST_NAMED]) + more) or "nothing"


def _read_plainly(
    path: Path, layout: Layout, parsers: dict[str, Parse], mistakes: TableMistakes
) -> dict[str, NDArray[np.float64]]:
    parts: dict[str, list[NDArray[np.float64]]] = {name: [np.zeros(0)] for name in parsers}
    for batch in rows.batches(path, layout, list(parsers), mistakes):
        wrong: dict[int, list[Cell]] = {}
        columns = {name: _parsed(texts, parsers[name], wrong) for name, texts in batch.columns.items()}
        kept = np.ones(len(batch.lines), np.bool_)
        for place in sorted(wrong):
            kept[place] = not mistakes.judge(batch.lines[place], wrong[place], len(parsers))
        for name, values in columns.items():
            parts[name].append(values[kept])
    mistakes.raise_any()
    return {name: np.concatenate(pieces) for name, pieces in parts.items()}


def _parsed(texts: Sequence[str], parse: Parse, wrong: dict[int, list[Cell]]) -> NDArray[np.float64]:
    """Parse the numbers (n,) of one column; mistakes go to `wrong`, by row. A column without mistakes takes a single
    pass.
    """
    try:
        return np.fromiter(map(parse, texts), np.float64, len(texts))
    except TypeError:
        numbers = np.full(len(texts), NOTHING)
        for place, value in enumerate(map(parse, texts)):
            if isinstance(value, Cell):
                wrong.setdefault(place, []).append(value)
            else:
                numbers[place] = value
        return numbers


def _parser(column: str, name: str, schema: Schema, layout: Layout, *, scoring: bool) -> Parse:
    """Return the function that converts a cell of one column to a number, or describes what is wrong with it."""
    if column == schema.target:
        return _target_parser(name, schema, layout, optional=scoring or schema.missing_target == "drop")
    codes = layout.codes(column)
    if column in schema.categories:
        return _category_parser(column, name, schema, layout, lenient=scoring or schema.unseen == "missing")
    return _number_parser(name, codes, layout.decimal)


def _number_parser(name: str, codes: frozenset[str], decimal: str) -> Parse:
    """Make the parser for numbers. Numeric codes are compared as numbers."""
    words = rows.MISSING | {code.lower() for code in codes}
    values = {float(code) for code in codes if rows.NUMBER.fullmatch(code)}

    def parse(text: str) -> float | Cell:
        value = rows.number(text, decimal)
        if value is not None:
            return NOTHING if value in values else value
        return NOTHING if text.lower() in words else _no_number(name, text)

    return parse


def _no_number(name: str, text: str) -> Cell:
    if rows.DATE.fullmatch(text):
        advice = "a number, such as the days since an event, or an age: a model cannot use a date"
        return Cell(name, "a date, not a number", text, f"{advice}; or leave the column out of numeric; or {LEAVE_OUT}")
    allowed = f"a finite number, or empty if it is missing; or a code in `missing`; or {LEAVE_OUT}"
    return Cell(name, "not a number", text, allowed)


def _category_parser(column: str, name: str, schema: Schema, layout: Layout, *, lenient: bool) -> Parse:
    values = {value: float(place) for place, value in enumerate(schema.categories[column])}
    codes = layout.codes(column)
    allowed = f'{listed(schema.categories[column])}; or unseen = "missing"; or {LEAVE_OUT}'

    @lru_cache(MOST_REMEMBERED)
    def parse(text: str) -> float | Cell:
        place = values.get(schema.spell(text, layout.decimal))
        if place is not None:
            return place
        if rows.is_missing(text, codes, layout.decimal):
            return NOTHING
        return UNSEEN if lenient else Cell(name, "this value is not declared in [task]", text, allowed)

    return parse


def _target_parser(name: str, schema: Schema, layout: Layout, *, optional: bool) -> Parse:
    codes = layout.codes(schema.target)

    def missing(text: str, allowed: str) -> float | Cell:
        advice = 'or missing_target = "drop" to leave such rows out'
        return NOTHING if optional else Cell(name, "the target is missing", text, f"{allowed}; {advice}", is_gap=True)

    number = _number_parser(name, codes, layout.decimal)
    declared = schema.positive + schema.negative or schema.classes or ()

    def parse_number(text: str) -> float | Cell:
        value = number(text)
        return missing(text, "a number") if not isinstance(value, Cell) and math.isnan(value) else value

    @lru_cache(MOST_REMEMBERED)
    def parse_class(text: str) -> float | Cell:
        value = schema.spell(text, layout.decimal)
        if value not in declared and rows.is_missing(text, codes, layout.decimal):
            return missing(text, listed(_targets(schema)))
        place = schema.class_of(value)
        if place is None or (schema.positive and not _fits(value, schema)):
            allowed = f"{listed(_targets(schema))}; or {LEAVE_OUT}"
            return Cell(name, "this value is not declared in [task]", text, allowed)
        return float(place)

    return parse_number if schema.classes is None else parse_class


def _fits(value: str, schema: Schema) -> bool:
    """Return True if a target value is possible: if the positive values are numbers, a string is a mistake."""
    return value in schema.positive or bool(rows.NUMBER.fullmatch(value)) or not rows.all_numbers(schema.positive)


def _targets(schema: Schema) -> tuple[str, ...]:
    if not schema.positive:
        return schema.classes or ()
    others = schema.negative or (("another number",) if rows.all_numbers(schema.positive) else ("any other value",))
    return (*schema.positive, *others)


def say_what_is_odd(table: Table, node: str) -> list[str]:
    """Warn about the table, for the node's log and for `check`."""
    said = []
    if table.absent:
        text = f"{table.path}: no column {', '.join(map(repr, table.absent))}: missing in every row of node {node}"
        said.append(text)
    if table.dropped.count:
        said.append(f"{table.path}: {table.dropped.as_sentence(len(table) + table.without_target)} (node {node})")
    if table.without_target:
        count = table.without_target
        many = "1 row without a target is" if count == 1 else f"{count} rows without a target are"
        said.append(f"{table.path}: {many} left out")
    if table.unseen:
        said.append(f"{table.path}: {table.unseen} cells with values that the schema does not have count as missing")
    return said


@dataclass(slots=True)
class Looked:
    """The tables that could be read, by node, and the mistakes in the others."""

    tables: dict[str, Table] = field(default_factory=dict)
    mistakes: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_tables(schema: Schema, paths: Mapping[str, Path], layouts: Mapping[str, Layout]) -> Looked:
    """Read the tables; `paths` and `layouts` are by node. Every mistake of every table is reported."""
    looked = Looked()
    for node, path in paths.items():
        try:
            table = read_table(path, schema, layouts[node])
        except UserError as error:
            for mistake in mistakes_of(error):
                mistake.message += f" (node {node})"
                looked.mistakes.append(mistake)
            continue
        looked.tables[node] = table
        looked.warnings += say_what_is_odd(table, node)
    return looked


# -- several tables ----------------------------------------------------------------------------------------------------

NEARLY_EMPTY = 0.9
LEAST_CELLS = 10
"""The fewest cells for which columns are compared."""

MOST_COLUMNS = 3
"""The most columns of a node that are said to differ from the others'."""
Floats = NDArray[np.float64]


def survey(tables: Mapping[str, Table], schema: Schema) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a row of facts for each node, and warnings.

    `cells_missing` is a share, without the target. `column_distance` has the Wasserstein-1 distances of the columns
    that differ most from the others', the largest first; columns are compared if there are at least two tables.
    """
    warnings = [text for node, table in tables.items() for text in _oddities(node, table, schema)]
    rows, inputs = [], [column for column in schema.columns if column != schema.target]
    for node, table in tables.items():
        others = [other for name, other in tables.items() if name != node]
        far = _distances(table, others, schema)
        rows.append(
            {
                "node": node,
                "rows": len(table),
                "rows_dropped": table.dropped.count,
                "cells_missing": float(np.mean([np.isnan(table.columns[name]).mean() for name in inputs])),
                "columns_absent": list(table.absent),
                "classes": _counts(table, schema),
                "column_distance": dict(sorted(far.items(), key=lambda item: -item[1])[:MOST_COLUMNS]),
            }
        )
    return rows, warnings


def _known_values(table: Table, column: str) -> Floats:
    values = table.columns[column]
    return values[~np.isnan(values)]


def _counts(table: Table, schema: Schema) -> dict[str, int] | None:
    if schema.classes is None:
        return None
    labels = np.bincount(encode_targets(table.columns, schema).astype(np.int64), minlength=len(schema.classes))
    return dict(zip(schema.classes, labels.tolist(), strict=True))


def _distances(table: Table, others: list[Table], schema: Schema) -> dict[str, float]:
    """Return the distances for numeric columns that both have, by name."""
    distances = {}
    for column in schema.numeric:
        own = _known_values(table, column)
        rest = np.concatenate([np.zeros(0), *(_known_values(other, column) for other in others)])
        if len(own) and len(rest):
            distances[column] = wasserstein(own, rest) / schema.scale(column)[1]
    return distances


def _oddities(node: str, table: Table, schema: Schema) -> list[str]:
    """Return the oddities of a single table."""
    said = []
    counts = _counts(table, schema)
    if counts is not None and len(table) == max(counts.values()):
        only = max(counts, key=lambda name: counts[name])
        said.append(f"{table.path}: every row of node {node} has the class {only!r}")
    for column in (*schema.numeric, *schema.categories):
        if column in table.absent:
            continue
        known = _known_values(table, column)
        if len(known) < (1 - NEARLY_EMPTY) * len(table):
            share = 1 - len(known) / len(table)
            said.append(f"{table.path}: column {column!r} of node {node} is nearly empty: {share:.0%} is missing")
        elif len(known) >= LEAST_CELLS and np.ptp(known) == 0:
            said.append(f"{table.path}: column {column!r} of node {node} has one value in all rows")
    return said
