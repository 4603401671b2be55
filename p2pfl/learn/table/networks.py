"""The layers and loss functions of models for tables. Torch is imported when a loss is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.table.schema import Schema, Weights, class_weights
from p2pfl.learn.task import Gradient

if TYPE_CHECKING:
    from torch import Tensor


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
        return _squared
    if weights is None:
        return None
    given = class_weights(schema, schema.classes, weights)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the weighted loss. Torch's weighted mean divides by the sum of weights in the batch, which cancels
        the weights if the batch has one class only.
        """
        import torch  # noqa: PLC0415 - `p2pfl check` needs none

        each = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
        return (each * torch.tensor(given, dtype=torch.float32)[targets]).mean()

    return loss


def make_gradient(schema: Schema, weights: Weights | None) -> Gradient:
    """Make the same of arrays, without torch, for a schema and weights that `make_loss` has taken."""
    if schema.classes is None:
        return _squared_gradient
    given = np.array([1.0] * schema.outputs if weights is None else class_weights(schema, schema.classes, weights))

    def gradient(outputs: NDArray[np.float32], targets: NDArray[np.int64]) -> tuple[float, NDArray[np.float32]]:
        rows, shares = np.arange(len(targets)), (given[targets] / len(targets)).astype(np.float32)
        logits = outputs - outputs.max(axis=1, keepdims=True)
        powers = np.exp(logits)
        sums = powers.sum(axis=1, keepdims=True)
        loss = shares @ (np.log(sums[:, 0]) - logits[rows, targets])
        powers /= sums
        powers[rows, targets] -= 1
        return float(loss), powers * shares[:, None]

    return gradient


def _squared_gradient(outputs: NDArray[np.float32], targets: NDArray[np.float32]) -> tuple[float, NDArray[np.float32]]:
    away = outputs - targets
    return float(np.mean(away * away)), away * np.float32(2 / away.size)


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    import torch  # noqa: PLC0415 - as above

    return torch.nn.functional.mse_loss(outputs, targets)
