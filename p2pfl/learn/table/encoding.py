"""Encode columns as a model's inputs, and choose the rows that a node keeps for its own test.

A column is an array (n,) of float64: a number, or the place of a value in its list; NaN is missing.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

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


def held_out(columns: Columns, share: float, *, key: bytes, ids: Sequence[str] | None = None) -> NDArray[np.bool_]:
    """The mask (n,) of rows kept for testing, each with the probability `share` by a hash under the 32-byte `key`.

    A row's side depends on the row alone: on its id where `ids` (n,) are given, else on all its values and on how many
    equal rows stand before it. So one row more or less moves no other row, except among equal ones, which nobody can
    tell apart.
    """
    limit = math.ceil(share * (1 << 64))
    return np.fromiter((_draw(key, name) < limit for name in _names(columns, ids)), np.bool_)


def _draw(key: bytes, name: bytes) -> int:
    """Compute 64 bits that are uniform to anyone without the key."""
    return int.from_bytes(hashlib.blake2b(name, key=key, digest_size=8, person=b"p2pfl-holdout").digest(), "little")


def _names(columns: Columns, ids: Sequence[str] | None) -> Iterator[bytes]:
    """Yield a different name for each row."""
    if ids is not None:
        yield from (text.encode() for text in ids)
        return
    table = np.column_stack([columns[name] for name in sorted(columns)]) + 0.0  # turns -0.0 into 0.0
    table[np.isnan(table)] = np.nan
    seen = Counter[bytes]()
    for row in table.astype("<f8"):
        content = row.tobytes()
        yield content + seen[content].to_bytes(8, "little")
        seen[content] += 1
