"""What `p2pfl.learn.trainer.score` says of one model, for many models at once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.learn.interface import Score
from p2pfl.learn.task import Task
from p2pfl.learn.trainer import BATCH, are_labels
from sim.learning.losses import losses_of
from sim.learning.stacked import StackedModel


def scores(
    stack: StackedModel, models: Tensor, inputs: Tensor, targets: Tensor, *, common: bool, careful: bool = False
) -> list[Score]:
    """Scores of `models` (c, d) on inputs and targets (c, n, ...), or on the same (n, ...), `common` to all."""
    task, rows = stack.task, 0 if common else 1
    n = targets.shape[rows]
    loss, hits, judged = np.zeros(len(models)), np.zeros(len(models), dtype=np.int64), 0
    kept: list[tuple[Tensor, Tensor]] = []
    for x, y in zip(torch.split(inputs, BATCH, dim=rows), torch.split(targets, BATCH, dim=rows), strict=True):
        outputs = stack.outputs(models, x, common=common, careful=careful)
        with torch.no_grad():
            loss += losses_of(task, outputs, y, common=common).double().numpy() * y.shape[rows]
        if are_labels(outputs[0], y if common else y[0]):
            hits += _hits(outputs, y)
            judged += y.numel() if common else y[0].numel()
        if task.metrics:
            kept.append((outputs, y))
    metrics = _metrics(task, kept, len(models), common=common)
    return [
        Score(
            accuracy=int(hits[row]) / judged if judged else None,
            loss=float(loss[row]) / n,
            samples=n,
            metrics=metrics[row],
        )
        for row in range(len(models))
    ]


def _hits(outputs: Tensor, targets: Tensor) -> NDArray[np.int64]:
    """How often each model's largest output (c, n, classes, ...) is the target's, (c,).

    The same as by argmax, which is slow along few classes: that decides where two are equal, none is a
    number, or a target is no class.
    """
    classes = outputs.movedim(2, 0).contiguous()
    top = classes == classes.amax(dim=0)
    known = int(targets.min()) >= 0 and int(targets.max()) < len(classes)
    if not known or bool((top.sum(dim=0) != 1).any()):
        right = outputs.argmax(dim=2) == targets
    else:
        wanted = targets.expand(classes.shape[1:])[None]
        right = top.gather(0, wanted)[0]
    found: NDArray[np.int64] = right.flatten(1).sum(dim=1).numpy()
    return found


def _metrics(task: Task, kept: list[tuple[Tensor, Tensor]], count: int, *, common: bool) -> list[dict[str, float]]:
    """The user's functions see one model at a time: they need not be fit for vmap."""
    if not kept:
        return [{} for _ in range(count)]
    outputs = torch.cat([pair[0] for pair in kept], dim=1)
    targets = torch.cat([pair[1] for pair in kept], dim=0 if common else 1)
    return [
        {
            name: float(metric(outputs[row], targets if common else targets[row]))
            for name, metric in task.metrics.items()
        }
        for row in range(count)
    ]
