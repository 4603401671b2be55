"""Evaluate a torch model on a set of samples: loss, accuracy and the task's own metrics, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.learn.devices import Device
from p2pfl.learn.interface import Score
from p2pfl.learn.intervals import Interval, wilson
from p2pfl.learn.metrics import ACCURACY, Metric
from p2pfl.learn.samples import Samples
from p2pfl.learn.task import Task

BATCH = 1024
"""How many samples are tested at a time."""
SMALLER = (128, 16)
"""The same where the memory is too small for more."""


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


def are_classes(outputs: Any, targets: Any) -> bool:
    """Whether the largest of several outputs says which class it is, so that there is an accuracy."""
    return are_labels(outputs, targets) and outputs.shape[1] > 1


def score(
    module: nn.Module, samples: Samples, task: Task, device: Device | None = None, batch: int | None = None
) -> Score:
    """Evaluate without gradients, in evaluation mode and full precision; the module's mode is as before afterwards.

    The loss is the mean over samples of what the task's loss says of each batch.
    """
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            return _score(module, batches_of(samples, device or Device(), batch or BATCH), len(samples), task)
    finally:
        module.train(was_training)


def _score(module: nn.Module, batches: Iterator[tuple[Any, Any, int]], samples: int, task: Task) -> Score:
    loss, hits, judged = 0.0, 0, 0
    kept: list[tuple[Any, Any]] = []
    for inputs, targets, count in batches:
        outputs = module(inputs)
        loss += float(loss_of(task)(outputs, targets)) * count
        if are_classes(outputs, targets):
            hits += int((outputs.argmax(dim=1) == targets).sum())
            judged += targets.numel()
        if task.metrics:
            kept.append((outputs.cpu(), targets.cpu()))
    metrics = _metrics(task, kept)
    return Score(
        accuracy=hits / judged if judged else metrics.get(ACCURACY.name),
        loss=loss / samples,
        samples=samples,
        metrics=metrics,
        intervals=intervals_of(task, kept, hits=hits, judged=judged, samples=samples),
    )


def batches_of(samples: Samples, device: Device, batch: int) -> Iterator[tuple[Any, Any, int]]:
    """Inputs and targets on the device, so many rows at a time, and how many they are."""
    read = device.rows(samples.rows)
    for numbers in torch.split(torch.arange(len(samples)), batch):
        inputs, targets = read(numbers)
        yield inputs, targets, len(numbers)


def intervals_of(
    task: Task, kept: list[tuple[Any, Any]], *, hits: int, judged: int, samples: int
) -> dict[str, Interval]:
    """Of accuracy, where each row has one label, and of the metrics that have one; nothing is said of the loss."""
    accuracy = wilson(hits / judged, samples) if judged == samples else None
    found = {ACCURACY.name: accuracy}
    told = {name: one.interval for name, one in task.metrics.items() if isinstance(one, Metric) and one.interval}
    if kept and told:
        outputs, targets = (torch.cat([pair[place] for pair in kept]) for place in (0, 1))
        found |= {name: interval(outputs, targets) for name, interval in told.items()}
    return {name: ends for name, ends in found.items() if ends is not None and all(map(math.isfinite, ends))}


def _metrics(task: Task, kept: list[tuple[Any, Any]]) -> dict[str, float]:
    """A metric sees the whole set at once, because not every metric is a mean over batches."""
    if not kept:
        return {}
    outputs = torch.cat([pair[0] for pair in kept])
    targets = torch.cat([pair[1] for pair in kept])
    return {name: float(metric(outputs, targets)) for name, metric in task.metrics.items()}
