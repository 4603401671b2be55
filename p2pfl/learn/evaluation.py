"""Evaluate a torch model on a set of samples: loss, accuracy and the task's own metrics, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.errors import LearningError
from p2pfl.learn.devices import Device, is_shortage
from p2pfl.learn.interface import Score
from p2pfl.learn.intervals import Interval, wilson
from p2pfl.learn.metrics import ACCURACY, Measure, Metric
from p2pfl.learn.samples import Samples
from p2pfl.learn.task import Task
from p2pfl.plugins import FAILURES, describe_failure

BATCH = 1024
"""The number of samples per batch in a test."""
SMALLER = (128, 16)
"""Smaller batch sizes, tried in turn when memory runs out."""


def loss_of(task: Task) -> Callable[[Any, Any], Tensor]:
    return task.loss or functional.cross_entropy


def are_labels(outputs: Any, targets: Any) -> bool:
    """Return True if targets (n, ...) are integer class labels for outputs (n, classes, ...)."""
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and not targets.is_floating_point()
        and outputs.ndim == targets.ndim + 1
    )


def are_classes(outputs: Any, targets: Any) -> bool:
    """Return True if the predicted class is the largest of several outputs, so that accuracy is defined."""
    return are_labels(outputs, targets) and outputs.shape[1] > 1


def score(module: nn.Module, samples: Samples, task: Task, device: Device) -> Score:
    """Evaluate without gradients, in evaluation mode and full precision; the module's mode is restored afterwards.

    The loss is the task's loss per batch, averaged over samples. Raises LearningError: the task failed; UserError:
    memory is too small even for the smallest batch.
    """
    for batch in (BATCH, *SMALLER):
        try:
            with _testing(module):
                read = batches_of(samples, device, batch)
                return score_of(((module(x), y, count) for x, y, count in read), len(samples), task)
        except FAILURES as error:
            if is_shortage(error) and batch != SMALLER[-1]:
                device.free()
                continue
            raise _failed(error, task, device) from error
    raise AssertionError("no batch was tried")


def outputs_of(module: nn.Module, samples: Samples, task: Task, device: Device) -> tuple[Tensor, Tensor]:
    """Return all outputs and targets (n, ...), on the CPU. Raises the same errors as `score`."""
    try:
        with _testing(module):
            batches = batches_of(samples, device, SMALLER[0])
            kept = [(module(inputs).cpu(), targets.cpu()) for inputs, targets, _ in batches]
    except FAILURES as error:
        raise _failed(error, task, device) from error
    return torch.cat([pair[0] for pair in kept]), torch.cat([pair[1] for pair in kept])


def value_of(task: Task, measure: Measure) -> Callable[[Any, Any], float]:
    """Return the function that computes one of the task's measures from all outputs and targets of a set."""
    if measure.name in task.metrics:
        metric = task.metrics[measure.name]
        return lambda outputs, targets: float(metric(outputs, targets))
    if measure.name == ACCURACY.name:
        return lambda outputs, targets: float((outputs.argmax(dim=1) == targets).float().mean())
    return lambda outputs, targets: float(loss_of(task)(outputs, targets))


@contextmanager
def _testing(module: nn.Module) -> Iterator[None]:
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)


def _failed(error: BaseException, task: Task, device: Device) -> LearningError:
    """Make the error of a failed evaluation. Raises UserError: memory ran out."""
    device.refuse_shortage(error)
    return LearningError(f"{task.name}: evaluation failed: {describe_failure(error)}")


def score_of(outputs: Iterable[tuple[Any, Any, int]], samples: int, task: Task) -> Score:
    """Score outputs and targets, batch by batch with the number of rows in each; `samples` is their sum."""
    loss, hits, judged = 0.0, 0, 0
    kept: list[tuple[Any, Any]] = []
    for predicted, targets, count in outputs:
        loss += float(loss_of(task)(predicted, targets)) * count
        if are_classes(predicted, targets):
            hits += int((predicted.argmax(dim=1) == targets).sum())
            judged += targets.numel()
        if task.metrics:
            kept.append((predicted.cpu(), targets.cpu()))
    metrics = _metrics(task, kept)
    return Score(
        accuracy=hits / judged if judged else metrics.get(ACCURACY.name),
        loss=loss / samples,
        samples=samples,
        metrics=metrics,
        intervals=intervals_of(task, kept, hits=hits, judged=judged, samples=samples),
    )


def batches_of(samples: Samples, device: Device, batch: int) -> Iterator[tuple[Any, Any, int]]:
    """Yield inputs and targets on the device, `batch` rows at a time, and the number of rows."""
    read = device.rows(samples.rows)
    for numbers in torch.split(torch.arange(len(samples)), batch):
        inputs, targets = read(numbers)
        yield inputs, targets, len(numbers)


def intervals_of(
    task: Task, kept: list[tuple[Any, Any]], *, hits: int, judged: int, samples: int
) -> dict[str, Interval]:
    """Return the intervals of accuracy, if each row has one label, and of the metrics that have intervals. The loss has
    none.
    """
    accuracy = wilson(hits / judged, samples) if judged == samples else None
    found = {ACCURACY.name: accuracy}
    told = {name: one.interval for name, one in task.metrics.items() if isinstance(one, Metric) and one.interval}
    if kept and told:
        outputs, targets = (torch.cat([pair[place] for pair in kept]) for place in (0, 1))
        found |= {name: interval(outputs, targets) for name, interval in told.items()}
    return {name: ends for name, ends in found.items() if ends is not None and all(map(math.isfinite, ends))}


def _metrics(task: Task, kept: list[tuple[Any, Any]]) -> dict[str, float]:
    """Compute the metrics on the whole set, because not every metric is a mean over batches."""
    if not kept:
        return {}
    outputs = torch.cat([pair[0] for pair in kept])
    targets = torch.cat([pair[1] for pair in kept])
    return {name: float(metric(outputs, targets)) for name, metric in task.metrics.items()}
