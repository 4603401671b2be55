"""A CSV file with a header line, read by a schema into model inputs and targets."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.csv_schema import Schema

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""what counts as missing, in any case, unless the schema declares it as a value."""


@dataclass(frozen=True, slots=True)
class _Row:
    file: Path
    line: int
    cells: dict[str, str]

    def error(self, column: str, message: str, allowed: str) -> UserError:
        key = f"line {self.line}, column {column!r}"
        return UserError(message, file=self.file, key=key, value=self.cells[column], allowed=allowed)

    def number(self, column: str) -> float | None:
        """None where it is missing."""
        text = self.cells[column]
        if text.lower() in MISSING:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(column, "this is no number", "a finite number, or nothing where it is missing")
        return value

    def choice(self, column: str, values: tuple[str, ...]) -> int | None:
        """Place among `values`; None where it is missing."""
        text = self.cells[column]
        if text in values:
            return values.index(text)
        if text.lower() in MISSING:
            return None
        raise self.error(column, "this value is not declared in [task]", ", ".join(values))


def read_table(path: Path, schema: Schema) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Inputs (n, width) float32; targets (n,) int64 classes, or (n, 1) float32 for regression.

    Raises:
        UserError: the file cannot be read, lacks a column, or a cell holds what the schema does not allow.
    """
    inputs, targets = [], []
    for row in _rows(path, schema):
        inputs.append(np.asarray(_inputs(row, schema), dtype=np.float32))
        targets.append(_target(row, schema))
    if not targets:
        raise UserError("the table has no rows", file=path)
    if schema.classes is None:
        return np.stack(inputs), np.asarray(targets, dtype=np.float32).reshape(-1, 1)
    return np.stack(inputs), np.asarray(targets, dtype=np.int64)


def _rows(path: Path, schema: Schema) -> Iterator[_Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header, schema)
            for cells in reader:
                if cells:
                    yield _row(path, reader.line_num, header, cells)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"the table cannot be read: {error}", file=path) from error


def _check_header(path: Path, header: list[str], schema: Schema) -> None:
    for column in (schema.target, *schema.numeric, *schema.categories):
        if header.count(column) != 1:
            text = "the table has this column twice" if column in header else "the table lacks this column"
            raise UserError(text, file=path, key="line 1", value=column, allowed=", ".join(header) or "nothing")


def _row(path: Path, line: int, header: list[str], cells: list[str]) -> _Row:
    if len(cells) != len(header):
        key, allowed = f"line {line}", f"{len(header)} cells"
        raise UserError(
            "another number of cells than in the header", file=path, key=key, value=len(cells), allowed=allowed
        )
    return _Row(path, line, {name: cell.strip() for name, cell in zip(header, cells, strict=True)})


def _inputs(row: _Row, schema: Schema) -> list[float]:
    """A missing number becomes the declared mean, which is 0 once standardized."""
    inputs: list[float] = []
    for column in schema.numeric:
        value = row.number(column)
        inputs += [0.0, 1.0] if value is None else [schema.standardized(column, value), 0.0]
    for column, values in schema.categories.items():
        place = row.choice(column, values)
        inputs += [float(place == other) for other in range(len(values))]
    return inputs


def _target(row: _Row, schema: Schema) -> float:
    if schema.classes is None:
        value = row.number(schema.target)
        if value is not None:
            return schema.standardized(schema.target, value)
        raise row.error(schema.target, "the target is missing", "a number")
    place = row.choice(schema.target, schema.classes)
    if place is None:
        raise row.error(schema.target, "the target is missing", ", ".join(schema.classes))
    return place
