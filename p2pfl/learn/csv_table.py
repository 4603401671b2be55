"""Built-in task `csv`: a table with a target column, a linear model or an MLP, classification or regression.

All nodes must have the same schema, so `[task]` declares it:

    [task]
    name = "csv"
    target = "outcome"
    numeric = ["age", "dose"]
    categories = { ward = ["a", "b"] }
    classes = ["ill", "well"]               # without classes: regression
    means = { age = 61.0 }                  # optional, with `stds`: standardize
    stds = { age = 17.5 }

`path`, and `test_path` if there is a common test set, are in a node's `[data]` or, for all nodes, in `[task]`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from p2pfl.errors import UserError
from p2pfl.learn.digits import mlp
from p2pfl.learn.partition import parse_partition
from p2pfl.learn.task import NodeContext, Pair, Task, at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A numeric column takes two inputs: (value - mean) / std, and 1.0 where it is missing. A category takes one per
    value, all 0 where it is missing. Regression targets are standardized too if a mean or std is declared for them.
    """

    target: str
    numeric: tuple[str, ...]
    categories: dict[str, tuple[str, ...]]
    classes: tuple[str, ...] | None
    """None is regression."""
    means: dict[str, float]
    stds: dict[str, float]

    @property
    def width(self) -> int:
        return 2 * len(self.numeric) + sum(len(values) for values in self.categories.values())

    @property
    def outputs(self) -> int:
        return 1 if self.classes is None else len(self.classes)

    def standardized(self, column: str, value: float) -> float:
        return (value - self.means.get(column, 0.0)) / self.stds.get(column, 1.0)


def make_schema(
    *,
    target: str,
    numeric: list[str],
    categories: dict[str, list[str]],
    classes: list[str] | None,
    means: dict[str, float],
    stds: dict[str, float],
) -> Schema:
    """Check that the declared columns make sense together.

    Raises UserError: a column is declared twice, there is none, or a list of values is too short.
    """
    columns = [target, *numeric, *categories]
    if len(columns) == 1:
        raise UserError("there are no features", key="task.numeric", allowed="columns in numeric or categories")
    for column in columns:
        if columns.count(column) > 1:
            raise UserError("this column is declared twice", key="task", value=column)
    for key, values in (*((f"categories.{name}", v) for name, v in categories.items()), ("classes", classes)):
        if values is not None and (len(values) < 2 or len(set(values)) < len(values)):
            raise UserError("wrong values", key=f"task.{key}", value=values, allowed="two or more different ones")
    _check_scales([*numeric, *([target] if classes is None else [])], means, stds)
    return Schema(
        target=target,
        numeric=tuple(numeric),
        categories={name: tuple(values) for name, values in categories.items()},
        classes=None if classes is None else tuple(classes),
        means=means,
        stds=stds,
    )


def _check_scales(numeric: list[str], means: dict[str, float], stds: dict[str, float]) -> None:
    for key, table in (("means", means), ("stds", stds)):
        for column in table:
            if column not in numeric:
                raise UserError("no numeric column", key=f"task.{key}", value=column, allowed=", ".join(numeric))
    for column, std in stds.items():
        if not std > 0:
            raise UserError("no standard deviation", key=f"task.stds.{column}", value=std, allowed="above 0")


MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Texts that count as missing, in any case, unless the schema declares them as values."""


@dataclass(frozen=True, slots=True)
class _Row:
    file: Path
    line: int
    cells: dict[str, str]

    def error(self, column: str, message: str, allowed: str) -> UserError:
        key = f"line {self.line}, column {column!r}"
        return UserError(message, file=self.file, key=key, value=self.cells[column], allowed=allowed)

    def number(self, column: str) -> float | None:
        """The number in the cell, or None if it is missing."""
        text = self.cells[column]
        if text.lower() in MISSING:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(column, "not a number", "a finite number, or empty if it is missing")
        return value

    def choice(self, column: str, values: tuple[str, ...]) -> int | None:
        """The position among `values`, or None if it is missing."""
        text = self.cells[column]
        if text in values:
            return values.index(text)
        if text.lower() in MISSING:
            return None
        raise self.error(column, "this value is not declared in [task]", ", ".join(values))


def read_table(path: Path, schema: Schema) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Inputs (n, width) float32; targets (n,) int64 classes, or (n, 1) float32 for regression.

    Raises UserError: the file cannot be read, lacks a column, or a cell holds what the schema does not allow.
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
            "the number of cells differs from the header's", file=path, key=key, value=len(cells), allowed=allowed
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


Value = str | int | float


def csv_table(
    *,
    target: str,
    numeric: list[str] | None = None,
    categories: dict[str, list[Value]] | None = None,
    classes: list[Value] | None = None,
    means: dict[str, float] | None = None,
    stds: dict[str, float] | None = None,
    model: Literal["linear", "mlp"] = "linear",
    hidden: int = 32,
    path: str = "",
    test_path: str = "",
    partition: str | None = None,
) -> Task:
    """`hidden` is for the mlp; `path` and `test_path` are relative to the federation file."""
    at_least("hidden", hidden, 1)
    if partition is not None:
        parse_partition(partition)
    schema = make_schema(
        target=target,
        numeric=numeric or [],
        categories={name: [str(value) for value in values] for name, values in (categories or {}).items()},
        classes=None if classes is None else [str(value) for value in classes],
        means=means or {},
        stds=stds or {},
    )

    def data(node: NodeContext) -> tuple[Pair, Pair | None]:
        node.check_local("path", "test_path")
        inputs, targets = read_table(node.path(), schema)
        rows = node.own_rows(targets.reshape(len(targets)), partition)
        test = read_table(node.path("test_path"), schema) if node.has("test_path") else None
        return (inputs[rows], targets[rows]), test

    del path, test_path  # NodeContext.path finds them
    return Task(name="csv", model=_model(schema, model, hidden), data=data, loss=_loss(schema))


def _model(schema: Schema, model: str, hidden: int) -> Callable[[], torch.nn.Module]:
    sizes = [schema.width, hidden, schema.outputs] if model == "mlp" else [schema.width, schema.outputs]
    return lambda: mlp(*sizes)


def _loss(schema: Schema) -> Callable[[Any, Any], Tensor] | None:
    return functional.mse_loss if schema.classes is None else None
