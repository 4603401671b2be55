"""Loss, accuracy and the user's metrics of a module on a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.learn.interface import Score
from p2pfl.learn.samples import Samples
from p2pfl.learn.task import Task

BATCH = 1024


def loss_of(task: Task) -> Callable[[Any, Any], Tensor]:
    return task.loss or functional.cross_entropy


def are_labels(outputs: Any, targets: Any) -> bool:
    """Whether targets (n, ...) are integer classes of outputs (n, classes, ...)."""
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and not targets.is_floating_point()
        and outputs.ndim == targets.ndim + 1
    )


def score(module: nn.Module, samples: Samples, task: Task) -> Score:
    """Evaluate without gradients, in evaluation mode; the module's mode is as before afterwards.

    The loss is the mean over samples of what the task's loss says of each batch.
    """
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            return _score(module, samples, task)
    finally:
        module.train(was_training)


def _score(module: nn.Module, samples: Samples, task: Task) -> Score:
    loss, hits, judged = 0.0, 0, 0
    kept: list[tuple[Any, Any]] = []
    for inputs, targets, count in _batches(samples):
        outputs = module(inputs)
        loss += float(loss_of(task)(outputs, targets)) * count
        if are_labels(outputs, targets):
            hits += int((outputs.argmax(dim=1) == targets).sum())
            judged += targets.numel()
        if task.metrics:
            kept.append((outputs, targets))
    return Score(
        accuracy=hits / judged if judged else None,
        loss=loss / len(samples),
        samples=len(samples),
        metrics=_metrics(task, kept),
    )


def _batches(samples: Samples) -> Iterator[tuple[Any, Any, int]]:
    for numbers in torch.split(torch.arange(len(samples)), BATCH):
        inputs, targets = samples.rows(numbers)
        yield inputs, targets, len(numbers)


def _metrics(task: Task, kept: list[tuple[Any, Any]]) -> dict[str, float]:
    """A metric sees the whole set at once, because not every metric is a mean over batches."""
    if not kept:
        return {}
    outputs = torch.cat([pair[0] for pair in kept])
    targets = torch.cat([pair[1] for pair in kept])
    return {name: float(metric(outputs, targets)) for name, metric in task.metrics.items()}
