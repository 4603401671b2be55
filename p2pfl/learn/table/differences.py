"""Compare the tables of several nodes on a machine that has them all: classes, columns, and oddities.

The Wasserstein-1 distance of a column, between one node and all others, is in units of the schema's standard deviation.
`p2pfl.learn.figures` measures the distance of targets, for any task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.figures import wasserstein_between
from p2pfl.learn.table.encoding import encode_targets
from p2pfl.learn.table.reading import Table
from p2pfl.learn.table.schema import Schema

OTHER_UNIT = 5.0
"""A column may be in a different unit if its distance from the others exceeds this many times the smaller of the two
standard deviations.
"""
UNSCALED = 100.0
"""The ratio between two inputs' spreads above which a warning is given."""
NEARLY_EMPTY = 0.9
LEAST_CELLS = 10
"""The fewest cells for which columns are compared."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """Facts about one node's table, as read with the schema."""

    node: str
    rows: int
    rows_dropped: int
    """The bad rows that were left out."""
    cells_missing: float
    """The share of missing cells, in columns other than the target."""
    absent: tuple[str, ...]
    classes: Mapping[str, int] | None
    """The number of rows in each class; None for a regression."""
    far_columns: tuple[tuple[str, float], ...]
    """The columns that differ most from the others', with their Wasserstein-1 distances; the largest first."""


def survey(tables: Mapping[str, Table], schema: Schema, most_columns: int = 3) -> tuple[list[SiteFacts], list[str]]:
    """Return the facts for each node, and warnings. Columns are compared only if there are at least two tables."""
    warnings = [text for node, table in tables.items() for text in _oddities(node, table, schema)]
    facts = []
    for node, table in tables.items():
        others = [other for name, other in tables.items() if name != node]
        far = _distances(table, others, schema)
        facts.append(
            SiteFacts(
                node=node,
                rows=len(table),
                rows_dropped=table.dropped.count,
                cells_missing=_missing(table, schema),
                absent=table.absent,
                classes=_counts(table, schema),
                far_columns=tuple(sorted(far.items(), key=lambda one: -one[1])[:most_columns]),
            )
        )
        warnings += _other_units(node, table, others, schema)
    return facts, [*_unscaled(tables, schema), *warnings]


def _known_values(table: Table, column: str) -> Floats:
    values = table.columns[column]
    return values[~np.isnan(values)]


def _counts(table: Table, schema: Schema) -> dict[str, int] | None:
    if schema.classes is None:
        return None
    labels = np.bincount(encode_targets(table.columns, schema).astype(np.int64), minlength=len(schema.classes))
    return dict(zip(schema.classes, labels.tolist(), strict=True))


def _missing(table: Table, schema: Schema) -> float:
    columns = [column for column in schema.columns if column != schema.target]
    return float(np.mean([np.isnan(table.columns[column]).mean() for column in columns]))


def _distances(table: Table, others: list[Table], schema: Schema) -> dict[str, float]:
    """Return the distances for numeric columns that both have, by name."""
    found = {}
    for column in schema.numeric:
        own, rest = _known_values(table, column), _rest(others, column)
        if len(own) and len(rest):
            found[column] = wasserstein_between(own, rest) / schema.scale(column)[1]
    return found


def _rest(others: list[Table], column: str) -> Floats:
    return np.concatenate([np.zeros(0), *(_known_values(other, column) for other in others)])


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


def _other_units(node: str, table: Table, others: list[Table], schema: Schema) -> list[str]:
    """Find columns that differ so much from the other nodes' that they may be in a different unit."""
    said = []
    numeric = (*schema.numeric, *(() if schema.classes is not None else (schema.target,)))
    for column in numeric:
        own, rest = _known_values(table, column), _rest(others, column)
        if min(len(own), len(rest)) < LEAST_CELLS:
            continue
        spread = min(own.std(), rest.std())
        if spread > 0 and wasserstein_between(own, rest) > OTHER_UNIT * spread:
            text = f"{table.path}: column {column!r} of node {node} may be in a different unit: its median is"
            said.append(f"{text} {np.median(own):.4g}, that of the others {np.median(rest):.4g}")
    return said


def _unscaled(tables: Mapping[str, Table], schema: Schema) -> list[str]:
    """Find inputs with a hundred times the spread of others: only those would be learned from."""
    spreads = {}
    for column in schema.numeric:
        values = _rest(list(tables.values()), column)
        if len(values) >= LEAST_CELLS and values.std() > 0:
            spreads[column] = float(values.std()) / schema.scale(column)[1]
    if not spreads:
        return []
    most, least = (choose(spreads, key=lambda name: spreads[name]) for choose in (max, min))
    usual = min(spreads[least], 1.0)  # a category's inputs are 0 or 1
    if spreads[most] <= UNSCALED * usual:
        return []
    text = f"column {most!r} spreads over {spreads[most]:.4g} as the model sees it, others over {usual:.4g}"
    return [f"{text}: give means and stds (`p2pfl schema propose` and `merge` find them), or nothing else is learned"]
