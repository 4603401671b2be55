"""The keys of the task `csv`, checked, and a node's rows by them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.intervals import Interval
from p2pfl.learn.metrics import Metric, named
from p2pfl.learn.table import rows, schema
from p2pfl.learn.table.reading import Table, encode_inputs, encode_targets, held_out, read_table, say_what_is_odd
from p2pfl.learn.table.rows import Layout, make_layout
from p2pfl.learn.table.schema import ALWAYS, Schema, Weights, metrics_of, schema_of, usual_metrics
from p2pfl.learn.task import NodeContext, Pair, at_least, parse_partition

log = logging.getLogger("p2pfl")

HIDDEN = 32
OWN_KEYS: Mapping[str, tuple[Any, str]] = {
    "schema": (str, 'a file with the keys of the schema, or "agreed": the nodes agree on one, by secure sums'),
    "model": (Literal["linear", "mlp", "trees"], "the kind of model: linear, the default, mlp or trees"),
    "hidden": (int | list[int], "widths of the mlp's layers, such as 64 or [64, 32]; 32 by default"),
    "class_weights": (Weights, '"balanced", by class_counts of the schema, or a weight for each class, { ill = 2.0 }'),
    "metrics": (list[str], "the names of what the model is judged by"),
    "metric": (str, "the main one, which tables and pictures show first; by default the first of metrics"),
    "holdout": (
        float,
        "the share of its rows that each node keeps for its own test, from 0 to less than 1; 0 by default",
    ),
    "path": (
        str,
        "a table common to all nodes, relative to the federation file; in [data] the node's own, relative to that",
    ),
    "test_path": (str, "rows to test on, found as path is"),
    "partition": (str | None, 'how a common table is divided among nodes, such as "dirichlet:0.5", for demos'),
    "eta": (float, "trees: the factor of each tree's values; 0.3 by default"),
    "max_depth": (int, "trees: the levels of a tree; 6 by default"),
    "bins": (int, "trees: the most bins of a numeric column; 64 by default"),
    "reg_lambda": (float, "trees: the L2 penalty on a leaf's value; 1 by default"),
    "gamma": (float, "trees: the least gain of a split; 0 by default"),
    "min_child_weight": (float, "trees: the least sum of hessians in a leaf; 1 by default"),
    "least_rows": (int, "trees: the fewest rows in a leaf and in a bin, over all nodes; 10 by default"),
    "patience": (int, "trees: stop after so many rounds without a smaller loss on the rows that all nodes hold out"),
    "colluders": (int, "trees: how many nodes may work together without learning another's summands; 1 by default"),
}
"""The keys in `[task]` that belong neither to a schema nor to a layout: their types, and what they mean."""
TYPES = {key: kind for key, (kind, _) in OWN_KEYS.items()}
MEANS = {key: text for key, (_, text) in OWN_KEYS.items()}
OF_TREES = tuple(key for key, text in MEANS.items() if text.startswith("trees: "))
"""The keys that say something for trees alone."""
TREES = "trees"
KEYS = (*schema.KEYS, *TYPES, *rows.KEYS)
LOCAL_KEYS = ("path", "test_path", *rows.KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTask:
    """The checked contents of `[task]`, for the task and for code that reads tables without it."""

    schema: Schema
    hidden: tuple[int, ...]
    """The widths of the hidden layers; none for a linear model."""
    options: Mapping[str, Any]
    codes: Mapping[str, Any]
    """The missing codes from a schema file."""
    is_shared_file: bool
    """True if the schema is in a separate file, which the federation file's digest does not cover."""
    holdout: float
    weights: Weights | None
    metrics: Mapping[str, Metric]
    metric: str

    def layout(self, local: Mapping[str, Any]) -> Layout:
        """Return the layout for the file of a node with this `[data]`."""
        return make_layout(self.options, local, self.codes)


def table_task(options: Mapping[str, Any], base_dir: Path) -> TableTask:
    """Read `[task]` without its `name`. Raises UserError: there is a mistake in it, or in its schema file."""
    for key, value in options.items():
        if key not in (*KEYS, *rows.GONE):
            raise UserError("the task has no such option", key=f"task.{key}", value=value, allowed=", ".join(KEYS))
    own = {key: _converted(key, options[key]) for key in TYPES if options.get(key) is not None}
    _refuse_of_others(own)
    table_schema, codes = schema_of(options, base_dir)
    if own.get("partition") is not None:
        parse_partition(own["partition"])
    holdout = own.get("holdout", 0.0)
    if not 0 <= holdout < 1:
        raise UserError("not a share of the rows", key="task.holdout", value=holdout, allowed="from 0 to less than 1")
    if holdout and "test_path" in options:
        raise UserError(
            "cannot be combined with test_path", key="task.holdout", value=holdout, allowed="one of the two"
        )
    metrics, metric = _metrics(table_schema, own)
    given = TableTask(
        schema=table_schema,
        hidden=_hidden(own),
        options=options,
        codes=codes,
        is_shared_file="schema" in own,
        holdout=holdout,
        weights=own.get("class_weights"),
        metrics=metrics,
        metric=metric,
    )
    given.layout({})
    return given


def _converted(key: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, TYPES[key])
    except msgspec.ValidationError:
        words = {"model": "linear, mlp, trees", "class_weights": '"balanced", or { class = weight }'}
        of_type = {int: "a whole number", float: "a number", str: "a string", list[str]: "a list of strings"}
        allowed = words.get(key) or of_type.get(TYPES[key])
        raise UserError("impossible value", key=f"task.{key}", value=value, allowed=allowed) from None


def _refuse_of_others(own: Mapping[str, Any]) -> None:
    """Raises UserError: a key belongs to another kind of model."""
    is_trees = own.get("model") == TREES
    for key in ("hidden",) if is_trees else OF_TREES:
        if key in own:
            kind = "mlp" if is_trees else TREES
            raise UserError(f'says something only with model = "{kind}"', key=f"task.{key}", value=own[key])


def _hidden(own: Mapping[str, Any]) -> tuple[int, ...]:
    given = own.get("hidden", HIDDEN)
    sizes = tuple(given) if isinstance(given, list) else (given,)
    for size in sizes or (0,):
        at_least("hidden", size, 1)
    return sizes if own.get("model", "linear") == "mlp" else ()


def _metrics(schema: Schema, own: Mapping[str, Any]) -> tuple[dict[str, Metric], str]:
    """Return the task's metrics, which for a regression are in the unit of the target, and the name of the main one."""
    names = own.get("metrics") or usual_metrics(schema)
    main = own.get("metric") or names[0]
    known = named([*names, *([main] if main not in (*names, *ALWAYS) else [])])
    allowed = metrics_of(schema)
    for name in known:
        if name not in allowed:
            what = "classes" if schema.classes is None else "numbers"
            raise UserError(f"a metric of {what}", key="task.metrics", value=name, allowed=", ".join(allowed))
    if schema.classes is None:
        known = {name: _in_unit(metric, *schema.scale(schema.target)) for name, metric in known.items()}
    return known, main


def _in_unit(metric: Metric, mean: float, std: float) -> Metric:
    """Wrap a metric so that standardized outputs and targets are converted to their own unit."""

    def compute(outputs: Any, targets: Any) -> float:
        return metric.compute(outputs * std + mean, targets * std + mean)

    def interval(outputs: Any, targets: Any) -> Interval | None:
        return metric.interval and metric.interval(outputs * std + mean, targets * std + mean)

    return replace(metric, compute=compute, interval=interval)


def data_of(task: TableTask, partition: str | None) -> Callable[[NodeContext], tuple[Pair, Pair | None]]:
    def data(node: NodeContext) -> tuple[Pair, Pair | None]:
        own = split_rows(task, node, partition)
        pair = _pair(own.table, task.schema)
        train, test = ((pair[0][rows], pair[1][rows]) for rows in (own.train, own.held))
        if own.tests is not None:
            return train, _pair(own.tests, task.schema)
        return train, test if len(test[1]) else None

    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRows:
    """A node's table, the numbers of its rows to train on and of those held out, and a table of test rows, if any."""

    table: Table
    train: NDArray[np.int64]
    held: NDArray[np.int64]
    tests: Table | None


def split_rows(task: TableTask, node: NodeContext, partition: str | None) -> OwnRows:
    """Read a node's table. Raises UserError: there is a mistake in it."""
    task.layout(node.local)
    node.check_local(*LOCAL_KEYS)
    table = read_own(task, node.path(), node.local)
    for text in say_what_is_odd(table, node.name):
        log.warning("%s", text)
    targets = encode_targets(table.columns, task.schema).reshape(len(table))
    rows = node.own_rows(targets, partition)
    kept = np.zeros(len(rows), np.bool_)
    if task.holdout:
        kept = held_out(table.columns, task.holdout, key=node.key_for("holdout"))[rows]
    train, held = rows[~kept], rows[kept]
    if task.schema.classes is not None and len(train) and len(np.unique(targets[train])) == 1:
        only = task.schema.classes[int(targets[train][0])]
        log.warning("%s: every row of node %s has the class %r", table.path, node.name, only)
    for text in untested(task, targets[train], targets[held]):
        log.warning("%s: node %s: %s", table.path, node.name, text)
    tests = None
    if node.has("test_path"):
        if task.holdout:
            text = "cannot be combined with data.test_path"
            raise UserError(text, key="task.holdout", value=task.holdout, allowed="one of the two")
        tests = read_own(task, node.path("test_path"), node.local)
    return OwnRows(table=table, train=train, held=held, tests=tests)


def read_own(task: TableTask, path: Path, local: Mapping[str, Any]) -> Table:
    """Read one file of a node with this `[data]`. Raises UserError: there is a mistake in it."""
    return read_table(path, task.schema, task.layout(local))


def untested(task: TableTask, trained: Any, tested: Any) -> list[str]:
    """Return a sentence for each class that a node trains on but holds out no test row of. Targets are (n,)."""
    if task.schema.classes is None or not task.holdout:
        return []
    have, kept = (np.bincount(np.asarray(some, np.int64), minlength=task.schema.outputs) for some in (trained, tested))
    return [
        f"no row of the class {name!r} is held out for the test, of {count}"
        for name, count, left in zip(task.schema.classes, have.tolist(), kept.tolist(), strict=True)
        if count and not left
    ]


def _pair(table: Table, schema: Schema) -> Pair:
    return encode_inputs(table.columns, schema), encode_targets(table.columns, schema)
