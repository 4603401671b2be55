"""The weights of classes in the loss (`class_weights` in `[task]`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from p2pfl.errors import UserError
from p2pfl.learn.table.schema import Schema

BALANCED = "balanced"
Weights = Literal["balanced"] | dict[str, float]


def class_weights(schema: Schema, classes: tuple[str, ...], weights: Weights) -> list[float]:
    """Return the weights of the classes. If they are balanced, their mean over all rows is 1."""
    if weights == BALANCED:
        counts = [schema.class_counts.get(name, 0) for name in classes]
        if not all(counts):
            allowed = "class_counts in the schema, which `p2pfl new --task csv` and `p2pfl schema` write; or weights"
            text = "the nodes do not know how many rows each class has on all of them"
            raise UserError(text, key="task.class_weights", value=weights, allowed=f"{allowed} such as {{ ill = 2.0 }}")
        return [sum(counts) / (len(counts) * count) for count in counts]
    return weights_given(schema, classes, weights if isinstance(weights, Mapping) else {})


def weights_given(schema: Schema, classes: tuple[str, ...], weights: Mapping[str, float]) -> list[float]:
    """Return the weights of the classes, 1 for those that have none. Raises UserError."""
    given = _by_class(schema, weights)
    return [given.get(name, 1.0) for name in classes]


def _by_class(schema: Schema, weights: Mapping[str, float]) -> dict[str, float]:
    for name, weight in weights.items():
        known = ", ".join(schema.classes or ())
        if schema.spell(name) not in (schema.classes or ()) or not weight > 0:
            raise UserError(
                "not a weight of a class",
                key=f"task.class_weights.{name}",
                value=weight,
                allowed=f"above 0, for {known}",
            )
    return {schema.spell(name): weight for name, weight in weights.items()}
