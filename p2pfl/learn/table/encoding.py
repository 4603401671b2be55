"""From the columns that were read to what a model learns from, and which rows a node keeps for its own test.

A column that was read is an array (n,) of float64: a number, or the place of a value in its list; NaN is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import generator
from p2pfl.learn.table.schema import Schema

Columns = Mapping[str, NDArray[np.float64]]


def encode_inputs(columns: Columns, schema: Schema) -> NDArray[np.float32]:
    """Inputs (n, width) float32. A missing number becomes the declared mean, which is 0 once standardized."""
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
    """Targets (n,) int64 classes, or (n, 1) float32 for a regression, standardized as declared. None is missing."""
    values = columns[schema.target]
    if schema.classes is not None:
        return values.astype(np.int64)
    mean, std = schema.scale(schema.target)
    return ((values - mean) / std).astype(np.float32).reshape(-1, 1)


def held_out(targets: NDArray[np.generic], share: float, *, seed: int, node: int) -> NDArray[np.bool_]:
    """Which rows (n,) of `targets` (n,) or (n, 1) are kept for testing: of each class one row in 1/share, at random.

    Which ones depends on the order of the rows and on the node alone, and rows that are appended do not change it.
    """
    labels = np.zeros(len(targets), dtype=np.int64) if targets.ndim > 1 else targets
    kept = np.zeros(len(targets), dtype=np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rng = generator(seed, "holdout", node, int(label))
        blocks = int(np.ceil(len(rows) * share))
        starts = np.floor(np.arange(blocks + 1) / share).astype(np.int64)
        chosen = starts[:-1] + np.floor(rng.random(blocks) * np.diff(starts)).astype(np.int64)
        kept[rows[chosen[chosen < len(rows)]]] = True
    return kept
