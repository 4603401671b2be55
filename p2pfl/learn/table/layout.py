"""The layout of one node's file: settings that may differ from site to site, in a node's `[data]` or in `[task]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from p2pfl.errors import UserError
from p2pfl.learn.table.cells import spelled

Code = str | int | float
OnBadRow = Literal["refuse", "drop"]
EVERY = "*"
"""Stands for every column in a table of missing codes."""
LIMIT_MB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a file. `missing` are texts, spelled, that mean a missing cell, by column; `*` is for
    every column.
    """

    separator: str = ","
    """The separator between two cells."""
    decimal: str = "."
    """The decimal sign of numbers."""
    encoding: str = "utf-8"
    """The encoding of the file, such as cp1252 or latin-1."""
    header: bool = True
    """True if the first line has the names of the columns."""
    columns: tuple[str, ...] = ()
    """The names of the columns where there is no header."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """The names that columns have in this file, by their names in the schema."""
    absent: tuple[str, ...] = ()
    """Columns of the schema that this file lacks on purpose."""
    missing: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Further codes that mean a missing cell, by column; "*" is for every column."""
    leave_out: tuple[str, ...] = ()
    """Columns that are left out of proposals when nodes agree on a schema."""
    id: str = ""
    """The column of this file that names each row, no two alike; it is no input. Empty: there is none."""
    on_bad_row: OnBadRow = "refuse"
    """A row that cannot be read is a mistake ("refuse"), or left out and counted ("drop")."""
    limit_mb: float = LIMIT_MB
    """The largest file that is read, in megabytes."""

    def codes(self, column: str) -> frozenset[str]:
        """The further codes that mean a missing cell of that column."""
        return self.missing.get(EVERY, frozenset()) | self.missing.get(column, frozenset())

    def name_in_file(self, column: str) -> str:
        return self.rename.get(column, column)


TYPES: Mapping[str, Any] = {
    "separator": str,
    "decimal": str,
    "encoding": str,
    "header": bool,
    "columns": list[str],
    "rename": dict[str, str],
    "absent": list[str],
    "leave_out": list[str],
    "missing": list[Code] | dict[str, list[Code] | Code] | Code,
    "id": str,
    "on_bad_row": OnBadRow,
    "limit_mb": float,
}
"""The keys of a layout, and their types."""
KEYS = tuple(TYPES)
IN_WORDS = {
    "separator": 'one character, such as ";" or "\\t"',
    "decimal": '"." or ","',
    "encoding": "utf-8, latin-1, cp1252 or another of Python's",
    "header": "true or false",
    "columns": "a list of names, one for each column of the file",
    "rename": '{ name = "name in the file" }',
    "absent": "a list of columns",
    "leave_out": "a list of columns",
    "missing": "a list of codes, or { column = [codes] }",
    "id": "the name of a column in the file",
    "on_bad_row": '"refuse" or "drop"',
    "limit_mb": "a number above 0",
}


def make_layout(task: Mapping[str, Any], local: Mapping[str, Any], schema: Mapping[str, Any] | None = None) -> Layout:
    """Make the layout from `[task]` and a node's `[data]`, which has precedence. Missing codes of all three add up.

    Raises UserError: a wrong type or value.
    """
    values: dict[str, Any] = {}
    missing: dict[str, frozenset[str]] = {}
    for prefix, table in (("schema.", schema or {}), ("task.", task), ("data.", local)):
        found = {key: _converted(prefix, key, table[key]) for key in KEYS if key in table}
        for column, codes in _codes(found.pop("missing", {})).items():
            missing[column] = missing.get(column, frozenset()) | codes
        _check(found, prefix)
        values |= found
    for key in ("columns", "absent", "leave_out"):
        if key in values:
            values[key] = tuple(values[key])
    if values.get("decimal", ".") == values.get("separator", ","):
        text = "the decimal sign is the separator too"
        raise UserError(text, key="data.decimal", value=values.get("decimal", "."), allowed='separator = ";", say')
    if not values.get("header", True) and not values.get("columns"):
        raise UserError("without a header this is needed", key="data.columns", allowed=IN_WORDS["columns"])
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
    """True for an encoding of text: Python has others, from bytes to bytes."""
    try:
        return isinstance(b"a".decode(name), str)
    except (LookupError, ValueError):
        return False


FITS: Mapping[str, Callable[[Any], bool]] = {
    "separator": lambda text: len(text) == 1 and text not in '\r\n"',
    "decimal": lambda text: text in (".", ","),
    "encoding": _is_encoding,
    "columns": lambda names: len(set(names)) == len(names) and all(names),
    "limit_mb": lambda number: number > 0,
}
"""The allowed values among those of the right type."""


def _check(values: Mapping[str, Any], prefix: str) -> None:
    for key, is_right in FITS.items():
        if key in values and not is_right(values[key]):
            raise UserError("wrong value", key=prefix + key, value=values[key], allowed=IN_WORDS[key])
