"""Linear layers of few samples, one product after the other, with the bits of a model alone.

Below 400 multiplications torch's batched product uses another kernel than its single one, which rounds otherwise
(ATen/native/LinearAlgebra.cpp, bmm_out_or_baddbmm_). Nodes with a single sample live there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_FEW = 400


class OneByOne(TorchFunctionMode):
    """While it is entered, linear layers with few multiplications are not batched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is functional.linear and len(args) == 3 and not kwargs and _is_small(*args):
            return _Linear.apply(*args)  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _is_small(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return bias is not None and inputs.ndim == 2 and inputs.shape[0] * weight.numel() < _FEW


class _Linear(torch.autograd.Function):
    """Inputs (n, k), weight (m, k) and bias (m,) of one model; under vmap of each of c models."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear(inputs, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return _product(gradient, weight), _product(gradient.t(), inputs), gradient.sum(0)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, int]:
        return torch.stack([functional.linear(*row) for row in _rows(info, in_dims, tensors)]), 0


class _Product(torch.autograd.Function):
    """(n, k) by (k, m), only ever used where nothing more is differentiated."""

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        return left.mm(right)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Tensor, int]:
        return torch.stack([torch.mm(*row) for row in _rows(info, in_dims, tensors)]), 0


def _product(left: Tensor, right: Tensor) -> Tensor:
    return _Product.apply(left, right)  # type: ignore[no-untyped-call, no-any-return]


def _rows(info: Any, in_dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors of one model after the other."""
    columns = (
        [tensor] * info.batch_size if dim is None else tensor.unbind(dim)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    )
    return zip(*columns, strict=True)
