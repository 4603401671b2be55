"""Evaluate a torch model on a set of samples: loss, accuracy and the task's own metrics, each with its interval.

A `Device` is where a node trains and tests: the CPU, or an accelerator that torch supports. Gossip stays on the host.
A model is built on the host, so that all nodes of a federation start from the same bits, and is then moved to the
device. The data for a step are moved when the step needs them. Vectors (d,) enter and leave as float32 on the host.
Nothing here touches an accelerator before a node uses one, because a process that forks must not have.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from p2pfl.config.model import Compute
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.interface import Score
from p2pfl.learn.task import Task, scored
from p2pfl.learn.tensors import Samples
from p2pfl.plugins import FAILURES, describe_failure

HOST = "cpu"
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""Phrases in torch's out-of-memory errors on the host and on MPS, which have no exception class of their own."""


class Device:
    """The device of a node; `torch` is torch's name for it. On the host, moving does nothing."""

    def __init__(self, compute: Compute | None = None) -> None:
        """Choose the device. Raises UserError if there is no such device; the error lists the existing ones."""
        self.compute = compute or Compute()
        self.torch = _choose(self.compute)
        self.is_host = self.torch.type == HOST
        self.is_mixed = self.compute.precision == "bf16"

    def __str__(self) -> str:
        return describe(self.torch) + (", bf16" if self.is_mixed else "")

    def place(self, module: nn.Module) -> nn.Module:
        """Move the tensors of the module to the device; return the module itself.

        Raises UserError: the module does not fit in memory, or uses a dtype that the device does not support.
        """
        if self.is_host:
            return module
        try:
            return module.to(self.torch)
        except (RuntimeError, TypeError, MemoryError) as error:
            self.refuse_shortage(error)
            reason = " ".join(str(error).split())[:300]
            raise self.mistake(f"the model cannot be placed there: {reason}", None) from error

    def move(self, value: Any) -> Any:
        """Move a tensor, or tensors in lists, tuples and dictionaries; return anything else as it is."""
        return value if self.is_host else over_tensors(lambda tensor: tensor.to(self.torch), value)

    def rows(self, read: Callable[[Tensor], tuple[Any, Any]]) -> Callable[[Tensor], tuple[Any, Any]]:
        """Wrap a reader of rows so that it returns them on the device."""
        if self.is_host:
            return read

        def moved(numbers: Tensor) -> tuple[Any, Any]:
            inputs, targets = read(numbers)
            return self.move(inputs), self.move(targets)

        return moved

    def loss(self, module: Callable[[Any], Any], loss: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
        """Wrap `loss` as a function of (inputs, targets), in mixed precision if asked: parameters keep their type."""
        if not self.is_mixed:
            return lambda inputs, targets: loss(module(inputs), targets)

        def mixed(inputs: Any, targets: Any) -> Tensor:
            with self.precision():
                return loss(module(inputs), targets)

        return mixed

    def compiled(self, module: nn.Module) -> Callable[[Any], Any]:
        """Return the module, or a translation of it that computes with the same parameters, if configured.

        Raises UserError: there is no C++ compiler.
        """
        if not self.compute.compile:
            return module
        if self.is_host and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
            text, allowed = "there is no C++ compiler, which torch.compile needs", "false, or a compiler such as g++"
            raise UserError(text, file=self.compute.file, key="node.compile", value=True, allowed=allowed)
        return cast("Callable[[Any], Any]", torch.compile(module))

    def precision(self) -> AbstractContextManager[Any]:
        """Return the context in which outputs and losses are computed: mixed precision if configured."""
        return torch.autocast(self.torch.type, dtype=torch.bfloat16) if self.is_mixed else nullcontext()

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Seed torch's default generators on host and device with `seed`, and restore their states afterwards."""
        with seeded(seed):
            if self.is_host:
                yield
                return
            module = torch.get_device_module(self.torch)
            on_it = () if self.torch.index is None else (self.torch,)
            before = module.get_rng_state(*on_it)
            with torch.cuda.device(self.torch) if self.torch.type == "cuda" else nullcontext():
                module.manual_seed(seed)  # of the current device alone
            try:
                yield
            finally:
                module.set_rng_state(before, *on_it)

    def refuse_shortage(self, error: BaseException) -> None:
        """Raise UserError if the error means that memory ran out."""
        if is_shortage(error):
            self.free()
            allowed = "a smaller batch_size or model, another device, or fewer nodes on this one"
            raise self.mistake("the memory of the device is too small", allowed) from error

    def free(self) -> None:
        """Free the device memory that torch keeps cached."""
        if not self.is_host:
            torch.get_device_module(self.torch).empty_cache()

    def mistake(self, text: str, allowed: str | None) -> UserError:
        """Make an error that points the user to the node file."""
        return UserError(text, file=self.compute.file, key="node.device", value=str(self), allowed=allowed)


def over_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply `function` to a tensor, or to tensors in lists, tuples and dictionaries; return other values unchanged."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: over_tensors(function, part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(over_tensors(function, part) for part in value))
    return type(value)(over_tensors(function, part) for part in value) if isinstance(value, list | tuple) else value


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's default CPU generator with `seed`, and restore its state afterwards."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def available_devices() -> list[torch.device]:
    """All devices of this machine, the fastest kind first, with the host last."""
    devices: list[torch.device] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # drivers may be too old: then there is no device
        if torch.cuda.is_available():
            devices += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        if torch.backends.mps.is_available():
            devices.append(torch.device("mps"))
    return [*devices, torch.device(HOST)]


def describe(device: torch.device) -> str:
    """Return the device's name, including the model of the card."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def is_shortage(error: BaseException) -> bool:
    """Return True if an error means that memory ran out, on the host or on a device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in OUT_OF_MEMORY)


def _choose(compute: Compute) -> torch.device:
    if compute.device == HOST:
        return torch.device(HOST)
    known = available_devices()
    if compute.device == "auto":
        return known[0]
    named = torch.device(compute.device)
    for device in known:
        if device.type == named.type and named.index in (None, device.index):
            return device
    names = ", ".join(["auto", *map(describe, known)])
    raise UserError("no such device here", file=compute.file, key="node.device", value=compute.device, allowed=names)


BATCH = 1024
"""The number of samples per batch in a test."""
SMALLER = (128, 16)
"""Smaller batch sizes, tried in turn when memory runs out."""


def loss_of(task: Task) -> Callable[[Any, Any], Tensor]:
    return task.loss or functional.cross_entropy


def with_prior(outputs: Tensor, prior: Tensor) -> Tensor:
    """Add `prior` (classes,) to outputs (n, classes, ...) for a logit-adjusted loss (Menon et al. 2021, arXiv
    2007.07314): a model need not learn how often the node's own rows have a class.
    """
    return outputs + prior.view(-1, *(1 for _ in outputs.shape[2:]))


def log_shares(targets: Tensor, classes: int, weight: float) -> Tensor:
    """Return `weight` times the logarithm of each class's share of the labels (classes,), each counted once more."""
    known = targets[(targets >= 0) & (targets < classes)]
    counts = 1.0 + torch.bincount(known.flatten(), minlength=classes)
    return weight * (counts / counts.sum()).log()


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
                read, parts = device.rows(samples.rows), torch.split(torch.arange(len(samples)), batch)
                tested = ((module(inputs), y, len(part)) for part in parts for inputs, y in [read(part)])
                return score_of(tested, len(samples), task)
        except FAILURES as error:
            if is_shortage(error) and batch != SMALLER[-1]:
                device.free()
                continue
            device.refuse_shortage(error)
            raise LearningError(f"{task.name}: evaluation failed: {describe_failure(error)}") from error
    raise AssertionError("no batch was tried")


@contextmanager
def _testing(module: nn.Module) -> Iterator[None]:
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)


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
    # Metrics are computed on the whole set, because not every one is a mean over batches.
    whole = tuple(torch.cat(parts) for parts in zip(*kept, strict=True))
    return scored(task, whole, loss / samples, samples, hits=hits, judged=judged)
