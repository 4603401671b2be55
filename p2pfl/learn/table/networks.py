"""The models for tables, and their losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.errors import UserError
from p2pfl.learn.digits import mlp
from p2pfl.learn.table.schema import Schema

BALANCED = "balanced"
Weights = Literal["balanced"] | dict[str, float]


def make_model(schema: Schema, hidden: Sequence[int]) -> Callable[[], nn.Module]:
    """A linear model, or an MLP with `hidden` layers: inputs (n, width) to logits (n, classes) or values (n, 1)."""
    sizes = [schema.width, *hidden, schema.outputs]
    return lambda: mlp(*sizes)


def layer_names(hidden: Sequence[int]) -> list[str]:
    """The names in the `state_dict` of the linear layers of such a model, in order."""
    return [str(2 * place + 1) for place, _ in enumerate(pairwise([0, *hidden, 0]))]


def make_loss(schema: Schema, weights: Weights | None) -> Callable[[Any, Any], Tensor] | None:
    """Make the loss: mean squared error for a regression; None, cross entropy, unless classes have weights.

    Raises UserError: weights for a regression, of unknown classes, or balanced without counts.
    """
    if schema.classes is None:
        if weights is not None:
            raise UserError("a regression has no classes", key="task.class_weights", value=weights, allowed="none")
        return functional.mse_loss
    if weights is None:
        return None
    weight = torch.tensor(_class_weights(schema, schema.classes, weights), dtype=torch.float32)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the weighted loss. Torch's weighted mean divides by the weights of the batch, which cancels them in a
        batch of one class.
        """
        each = functional.cross_entropy(outputs, targets, reduction="none")
        return (each * weight[targets]).mean()

    return loss


def _class_weights(schema: Schema, classes: tuple[str, ...], weights: Weights) -> list[float]:
    """The weights of the classes, with mean 1 over all rows where they are balanced."""
    if weights == BALANCED:
        counts = [schema.class_counts.get(name, 0) for name in classes]
        if not all(counts):
            allowed = "class_counts in the schema, which `p2pfl new --task csv` and `p2pfl schema` write; or weights"
            text = "the nodes do not know how many rows each class has on all of them"
            raise UserError(text, key="task.class_weights", value=weights, allowed=f"{allowed} such as {{ ill = 2.0 }}")
        return [sum(counts) / (len(counts) * count) for count in counts]
    given = _by_class(schema, weights if isinstance(weights, Mapping) else {})
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
