"""The loss of each of many models, with the bits that torch gives for one alone.

Under vmap the mean over a batch is summed in another order than torch's own cross entropy sums it. Gradients do not
notice, the value does in its last bit. So it is computed again from the outputs, in that order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from p2pfl.learn.task import Task
from p2pfl.learn.trainer import are_labels, loss_of

_LEVELS = 8


def own_order(task: Task, outputs: Any, targets: Any) -> bool:
    """Whether `means` knows this loss: outputs (n, classes) and integer targets (n,) of one model."""
    return task.loss is None and are_labels(outputs, targets) and outputs.ndim == 2


def means(each: Tensor) -> Tensor:
    """Mean losses (c,) of the cross entropies (c, n) of single samples."""
    return _sums(each.t().contiguous()) / each.shape[1]


def losses_of(task: Task, outputs: Tensor, targets: Tensor, *, common: bool) -> Tensor:
    """Losses (c,) of outputs (c, n, ...) for targets (c, n, ...), or (n, ...) `common` to all models."""
    if own_order(task, outputs[0], targets if common else targets[0]):
        c, n, classes = outputs.shape
        labels = targets.repeat(c) if common else targets.reshape(c * n)
        return means(functional.cross_entropy(outputs.reshape(c * n, classes), labels, reduction="none").view(c, n))
    return vmap(loss_of(task), in_dims=(0, None if common else 0))(outputs, targets)


def _sums(rows: Tensor) -> Tensor:
    """Sum (c,) of rows (n, c) as torch's negative log likelihood adds: a cascade of partial sums.

    ATen/native/LossNLL.cpp, nll_loss_out_frame.
    """
    step = 1 << max(4, (len(rows) - 1).bit_length() // _LEVELS)
    total = torch.zeros_like(rows[0])
    for part in _partial_sums(rows, step, _LEVELS):
        total = total + part
    return total


def _partial_sums(rows: Tensor, step: int, levels: int) -> list[Tensor]:
    """The first row goes up a level alone, then the sum of each `step` rows does; the sum of what is left stays."""
    if levels == 1 or len(rows) == 1:
        return [_one_by_one(rows)]
    end = 1 + (len(rows) - 1) // step * step
    blocks = rows[1:end].view(-1, step, rows.shape[1]).transpose(0, 1)
    above = torch.cat([rows[:1], _one_by_one(blocks)])
    stays = [_one_by_one(rows[end:])] if end < len(rows) else []
    return [*stays, *_partial_sums(above, step, levels - 1)]


def _one_by_one(rows: Tensor) -> Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
