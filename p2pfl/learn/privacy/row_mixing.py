"""Refuses models that mix rows: clipping a row's own gradient does not bound that row's effect there.

A layer that normalizes over a batch is refused by its name. Others are recognized by their effect: an output that
changes with another row of the batch, or a tensor that changes as rows pass by.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from p2pfl.errors import UserError
from p2pfl.learn.devices import Device, over_tensors
from p2pfl.plugins import FAILURES, describe_failure

ALLOWED = "layers that treat each row separately: torch.nn.GroupNorm or torch.nn.LayerNorm for normalization"
CLOSE = 1e-4
"""The relative difference allowed between outputs of one row in two batches: products round by the shape of a batch."""


def refuse_mixing(module: nn.Module, inputs: Any, device: Device, source: str) -> None:
    """Try the module, as it is in training, on the inputs of one or two rows. `source` names the task in errors.

    Raises UserError: it mixes rows, or remembers them.
    """
    was_training = module.training
    module.train()
    try:
        for name, layer in module.named_modules():
            if _normalizes(layer):
                raise _mistake(
                    source, f"{name or 'the model'}: {type(layer).__name__}", "works across the rows of a batch"
                )
        _check(module, inputs, device, source)
    finally:
        module.train(was_training)


def _check(module: nn.Module, inputs: Any, device: Device, source: str) -> None:
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        outputs = [_outputs(module, batch, device) for batch in _beside_others(inputs)]
    except FAILURES as error:
        text = f"the model fails in training: {describe_failure(error)}"
        raise UserError(text, file=source, key="model") from error
    with suppress(*FAILURES):  # the model may not accept these numbers
        outputs.append(_outputs(module, _beside_strange(inputs), device))
    changed = [name for name, buffer in module.named_buffers() if not _same(before.get(name), buffer)]
    for name, buffer in module.named_buffers():
        if name in before:
            buffer.data.copy_(before[name])
    if changed:
        raise _mistake(source, changed[0], "changes with the rows of each batch, and would reveal them without noise")
    if any(not _close(outputs[0], other) for other in outputs[1:]):
        raise _mistake(source, type(module).__name__, "its outputs for a row change with the other rows of the batch")


def _normalizes(layer: nn.Module) -> bool:
    across = isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.track_running_stats)
    return layer.training and across


def _beside_others(inputs: Any) -> Iterator[Any]:
    """Yield batches of two rows, of which the first is always the same."""
    yield over_tensors(lambda one: one[[0, -1]], inputs)
    yield over_tensors(lambda one: one[[0, 0]], inputs)


def _beside_strange(inputs: Any) -> Any:
    """Put the row beside one that nobody has, for data whose rows are alike."""

    def beside(tensor: Tensor) -> Tensor:
        return torch.stack([tensor[0], 1 - 2 * tensor[0]]) if tensor.is_floating_point() else tensor[[0, 0]]

    return over_tensors(beside, inputs)


def _outputs(module: nn.Module, batch: Any, device: Device) -> list[Tensor]:
    """Compute the outputs of the first row, each time from the same state of torch's generators."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.ndim and len(tensor) == 2:
            found.append(tensor[0].double())
        return tensor

    with torch.no_grad(), device.seeded(0):
        over_tensors(keep, module(batch))
    return found


def _same(first: Tensor | None, other: Tensor) -> bool:
    return first is not None and torch.equal(first, other)


def _close(first: list[Tensor], other: list[Tensor]) -> bool:
    return len(first) == len(other) and all(
        torch.allclose(a, b, rtol=CLOSE, atol=CLOSE, equal_nan=True) for a, b in zip(first, other, strict=True)
    )


def _mistake(source: str, value: str, text: str) -> UserError:
    return UserError(f"not with [privacy] by record: {text}", file=source, key="model", value=value, allowed=ALLOWED)
