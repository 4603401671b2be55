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

`path`, and where there is a common test set `test_path`, stand in a node's `[data]` or, for all nodes, in `[task]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from p2pfl.learn.csv_reader import read_table
from p2pfl.learn.csv_schema import Schema, make_schema
from p2pfl.learn.networks import mlp
from p2pfl.learn.options import at_least
from p2pfl.learn.partition import parse_partition
from p2pfl.learn.task import NodeContext, Pair, Task

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
