"""The settings of boosted trees, the same at all nodes, and the bins of all columns, agreed on by sums of counts.

A float32 is mapped to a whole number in the same order, so that no range need be known: buckets of these numbers are
counted over all nodes, full buckets are divided, and after two divisions the cuts at the quantiles are chosen. A
category has one bin for each value in the schema. Each column's last bin is for missing values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.table.schema import Schema

KEYS = 1 << 32
ZERO = 1 << 31
LARGEST_BITS = 0x7F7FFFFF
"""The bits of the largest finite float32."""
EXPONENTS = 512
"""The first buckets: one for each sign and exponent of a float32."""
DIVISIONS = 2
FINENESS = 8
"""A bucket with this part of a bin's rows is not divided further."""
MOST_PARTS = 256
"""The most buckets that replace one."""
Cells = NDArray[np.float32]
Counts = NDArray[np.int64]


def raw_cells(columns: Mapping[str, NDArray[np.float64]], schema: Schema) -> Cells:
    """Return the cells (columns, n) as trees compare them, numeric columns first: float32, NaN if missing."""
    return as_cells(np.stack([columns[name] for name in (*schema.numeric, *schema.categories)]))


def as_cells(values: NDArray[np.float64]) -> Cells:
    """Return the nearest finite float32 of each value."""
    largest = float(np.finfo(np.float32).max)
    return np.asarray(np.clip(values, -largest, largest) + 0.0, np.float32)  # turns -0.0 into 0.0


def keys_of(values: Cells) -> Counts:
    """Return whole numbers (n,) from 1 to 2^32 - 1 in the order of the values, which are not NaN; that of 0 is 2^31."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)
    return ZERO + np.where(bits < 0, -(bits + ZERO), bits)


def number_of(key: int) -> float:
    """Return the float32 with this key, or the nearest finite one."""
    bits = min(abs(key - ZERO), LARGEST_BITS)
    return math.copysign(float(np.array([bits], np.uint32).view(np.float32)[0]), key - ZERO)


def most_buckets(bins: int) -> int:
    """Return the most buckets of a column: those of a bucket are fewer than twice what its rows call for, or one."""
    return EXPONENTS + DIVISIONS * 2 * FINENESS * bins


def first_cuts() -> list[int]:
    """Return the first key of each of the first buckets."""
    return [place * (KEYS // EXPONENTS) for place in range(EXPONENTS)]


def counted(values: Cells, cuts: Sequence[int]) -> Counts:
    """Count the values (n,) in each bucket; missing ones are in none."""
    places = np.searchsorted(np.array(cuts, np.int64), keys_of(values[~np.isnan(values)]), "right") - 1
    return np.bincount(places, minlength=len(cuts)).astype(np.int64)


def divided(cuts: Sequence[int], counts: Counts, bins: int) -> list[int]:
    """Divide the full buckets, and join the empty ones."""
    found, rows = list[int](), max(1, int(counts.sum()))
    was_empty = False
    for start, end, count in zip(cuts, [*cuts[1:], KEYS], counts.tolist(), strict=True):
        if not count:
            found += [] if was_empty else [start]
        else:
            parts, most = 1, min(MOST_PARTS, end - start)
            while 2 * parts <= most and parts * rows < count * bins * FINENESS:
                parts *= 2
            found += [start + (end - start) * place // parts for place in range(parts)]
        was_empty = not count
    return found


def edges_of(cuts: Sequence[int], counts: Counts, bins: int, least_rows: int) -> list[float]:
    """Return the first value of each bin but the lowest: bins of about equally many rows, `least_rows` at least."""
    rest = int(counts.sum())
    left, rows, edges = max(1, min(bins, rest // least_rows)), 0, list[float]()
    for start, count in zip(cuts, counts.tolist(), strict=True):
        is_due = max(rows, count) * left >= rest
        if count and left > 1 and rows >= least_rows and is_due:
            edges.append(number_of(start))
            left, rest, rows = left - 1, rest - rows, 0
        rows += count
    return edges[:-1] if edges and rows < least_rows else edges


class BinGrid(msgspec.Struct, frozen=True, kw_only=True):
    """The bins of all columns, numeric ones first."""

    edges: tuple[tuple[float, ...], ...]
    """For each numeric column the float32 values at which the second and later bins begin."""
    sizes: tuple[int, ...]
    """For each category the number of its values."""

    def is_right(self, bins: int) -> bool:
        """Return True if each numeric column has at most so many bins, one above the other."""
        largest = float(np.finfo(np.float32).max)
        return all(
            len(edges) < bins
            and all(abs(edge) <= largest for edge in edges)
            and all(one <= other for one, other in pairwise(edges))
            for edges in self.edges
        )

    @property
    def splits(self) -> list[int]:
        """The number of ways to split each column: between two bins, or one value from all others."""
        return [*map(len, self.edges), *self.sizes]

    @property
    def widths(self) -> list[int]:
        """The number of bins of each column; the last is for missing values."""
        return [*(len(edges) + 2 for edges in self.edges), *(size + 1 for size in self.sizes)]

    def codes(self, cells: Cells) -> NDArray[np.uint16] | NDArray[np.uint8]:
        """Return the bin (columns, n) of each cell."""
        widths = self.widths
        codes = np.empty(cells.shape, np.uint8 if max(widths) <= 256 else np.uint16)
        for place, values in enumerate(cells):
            is_missing = np.isnan(values)
            if place < len(self.edges):
                found = np.searchsorted(np.array(self.edges[place], np.float32), values, "right")
            else:
                found = np.where(is_missing, 0, values).astype(np.int64)
            codes[place] = np.where(is_missing, widths[place] - 1, found)
        return codes


Objective = Literal["logistic", "softmax", "squared"]

MOST_ENTRIES = 1 << 20
"""The most entries of one part, as many as a secure sum has."""
LOSSES = 4
"""The entries for losses: sum and rows, trained on and held out."""
SUMS = 3
"""The numbers of a bin: gradients, hessians and rows."""
BOUNDS: Mapping[str, tuple[float, float]] = {
    "rounds": (1, 10_000),
    "eta": (1e-6, 1.0),
    "max_depth": (1, 16),
    "bins": (2, 255),
    "reg_lambda": (0.0, 1e9),
    "gamma": (0.0, 1e9),
    "min_child_weight": (0.0, 1e9),
    "least_rows": (1, 1e9),
    "patience": (1, 10_000),
}


class TreeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names and defaults are those of XGBoost, apart from `least_rows`, `patience` and `class_weights`."""

    objective: Objective
    classes: int = 0
    """The number of classes; 0 for numbers."""
    rounds: int = 100
    """A round grows one tree, or with three and more classes a tree for each."""
    eta: float = 0.3
    """The factor of each tree's values."""
    max_depth: int = 6
    bins: int = 64
    """The most bins of a numeric column, apart from the one for missing values."""
    reg_lambda: float = 1.0
    """The L2 penalty on a leaf's value."""
    gamma: float = 0.0
    """The least gain of a split."""
    min_child_weight: float = 1.0
    """The least sum of hessians in a leaf."""
    least_rows: int = 10
    """The least number of rows in a leaf and in a bin, over all nodes."""
    patience: int | None = None
    """Stop after so many rounds without a better loss on the held-out rows of all nodes, and keep the best round."""
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None

    @property
    def outputs(self) -> int:
        """The number of trees in a round."""
        return self.classes if self.objective == "softmax" else 1


def tree_settings(schema: Schema, options: Mapping[str, Any], prefix: str = "task.") -> TreeSettings:
    """Make the settings for a schema's target. Raises UserError."""
    classes = 0 if schema.classes is None else len(schema.classes)
    objective = "squared" if not classes else "logistic" if classes == 2 else "softmax"
    try:
        made = msgspec.convert({**options, "objective": objective, "classes": classes}, TreeSettings)
    except msgspec.ValidationError as error:
        raise UserError(str(error), key=prefix.rstrip(".")) from None
    for key, (low, high) in BOUNDS.items():
        value = getattr(made, key)
        if value is not None and not low <= value <= high:
            where = "training." if key == "rounds" else prefix
            raise UserError("impossible value", key=where + key, value=value, allowed=f"from {low:g} to {high:g}")
    _check_weights(made, prefix)
    _check_size(schema, made, prefix)
    return made


def _check_weights(made: TreeSettings, prefix: str) -> None:
    weights = made.class_weights
    if weights is None:
        return
    if made.objective == "squared":
        raise UserError("the target has no classes", key=f"{prefix}class_weights", value=weights, allowed="nothing")
    if not isinstance(weights, str) and not (
        len(weights) == made.classes and all(math.isfinite(weight) and 0 < weight <= 1e6 for weight in weights)
    ):
        allowed = f'"balanced", or {made.classes} numbers above 0, at most a million'
        raise UserError("not a weight for each class", key=f"{prefix}class_weights", value=weights, allowed=allowed)


def _check_size(schema: Schema, made: TreeSettings, prefix: str) -> None:
    """Raises UserError: the buckets of all columns and of the target do not fit in a part, or not one leaf does."""
    widest = max([made.bins, *map(len, schema.categories.values())]) + 1
    columns = len(schema.numeric) + len(schema.categories)
    buckets = (len(schema.numeric) + 1) * most_buckets(made.bins) + made.classes
    if buckets > MOST_ENTRIES or columns * widest * SUMS + LOSSES > MOST_ENTRIES:
        text = f"{columns} columns of up to {widest - 1} bins do not fit in one sum"
        most = (MOST_ENTRIES - made.classes) // most_buckets(made.bins) - 1
        allowed = f"at most {most} numeric columns, or fewer bins or values"
        raise UserError(text, key=f"{prefix}numeric", allowed=allowed)
