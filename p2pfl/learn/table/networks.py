"""The models for tables, and their loss functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.errors import UserError
from p2pfl.learn.digits import mlp
from p2pfl.learn.table.schema import Schema, Weights, class_weights


def make_model(schema: Schema, hidden: Sequence[int]) -> Callable[[], nn.Module]:
    """Return a linear model, or an MLP with `hidden` layers. It maps inputs (n, width) to logits (n, classes) or values
    (n, 1).
    """
    sizes = [schema.width, *hidden, schema.outputs]
    return lambda: mlp(*sizes)


def layer_names(hidden: Sequence[int]) -> list[str]:
    """Return the names that the linear layers of such a model have in the `state_dict`, in order."""
    return [str(2 * place + 1) for place, _ in enumerate(pairwise([0, *hidden, 0]))]


def make_loss(schema: Schema, weights: Weights | None) -> Callable[[Any, Any], Tensor] | None:
    """Make the loss function: mean squared error for a regression, else weighted cross entropy. None means plain cross
    entropy, where classes have no weights.

    Raises UserError: there are weights for a regression or for unknown classes, or they are to be balanced and there
    are no counts.
    """
    if schema.classes is None:
        if weights is not None:
            raise UserError("a regression has no classes", key="task.class_weights", value=weights, allowed="none")
        return functional.mse_loss
    if weights is None:
        return None
    weight = torch.tensor(class_weights(schema, schema.classes, weights), dtype=torch.float32)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the weighted loss. Torch's weighted mean divides by the sum of weights in the batch, which cancels
        the weights if the batch has one class only.
        """
        each = functional.cross_entropy(outputs, targets, reduction="none")
        return (each * weight[targets]).mean()

    return loss
