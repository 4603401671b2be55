"""Recovers the input of a gradient exactly, where a layer of weights and biases sees it: x = dW_i / db_i.

The gradient of such a layer for one row is the outer product of the gradient that reaches unit i and of the input x, so
each of its rows is a multiple of x. Phong et al. 2018 (IEEE TIFS 13(5), section 3); Geiping et al. 2020 (arXiv
2003.14053, proposition 3.1). For the gradient of several rows this gives a weighted mean of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from p2pfl.learn.params import TensorPlace

Values = NDArray[np.floating[Any]]
TRANSPARENT = (nn.Flatten, nn.Identity, nn.Dropout)
"""Modules before a first linear layer that leave the input as it is."""


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """The place of a model's first linear layer in a vector (d,)."""

    weight: slice
    bias: slice
    outputs: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """The input (inputs,) as unit `unit` reveals it. `rank_one` is the share of the layer's gradient that it explains,
    1 for the gradient of one row.
    """

    inputs: Values
    unit: int
    rank_one: float


def first_layer(module: nn.Module, places: list[TensorPlace]) -> FirstLayer | str:
    """Find the linear layer that sees the inputs as they are, or say why there is none. `places` is the layout of a
    vector.
    """
    names = {place.name: place for place in places}
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            at = name + "." if name else ""
            weight, bias = names.get(f"{at}weight"), names.get(f"{at}bias")
            if weight is None or bias is None:
                return "the first layer has no bias, or is not shared"
            return FirstLayer(weight.part, bias.part, part.out_features, part.in_features)
        if not any(part.children()) and not isinstance(part, TRANSPARENT):
            return f"the first layer is no linear one ({type(part).__name__})"
    return "the model has no linear layer"


def rank_one(gradient: Values, layer: FirstLayer) -> Reconstruction | None:
    """Recover the input from a gradient (d,), or any multiple of it; None if no bias has moved."""
    weights = gradient[layer.weight].reshape(layer.outputs, layer.inputs).astype(np.float64)
    biases = gradient[layer.bias].astype(np.float64)
    unit = int(np.abs(biases).argmax())
    if not biases[unit]:
        return None
    inputs = weights[unit] / biases[unit]
    total = float((weights**2).sum())
    left = float(((weights - np.outer(biases, inputs)) ** 2).sum())
    return Reconstruction(inputs, unit, max(0.0, 1.0 - left / total) if total else 0.0)
