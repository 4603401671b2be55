"""The settings of boosted trees. All nodes must have the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from p2pfl.errors import UserError
from p2pfl.learn.table.schema import Schema
from p2pfl.learn.trees.bins import most_buckets

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
    def are_possible(self) -> bool:
        """False if a number is out of its bounds."""
        return all((value := getattr(self, key)) is None or low <= value <= high for key, (low, high) in BOUNDS.items())

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
