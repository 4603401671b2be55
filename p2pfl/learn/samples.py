"""A node's data for the trainer, checked once when the node starts: rows by number, and the choice of rows for each
step.

Arrays become tensors that stay in memory. Any other map-style torch Dataset is read lazily, so it may be larger than
memory and may augment its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.batches import batch_sizes, draw_rows
from p2pfl.learn.task import NodeContext, Task
from p2pfl.plugins import FAILURES, describe_failure

SET = "a pair (inputs, targets) of arrays or tensors with one row per sample, or a torch Dataset of such pairs"
RETURNED = f"two values (training set, test set or None); a set is {SET}"


class Samples(Protocol):
    """A data set of `__len__` samples."""

    def __len__(self) -> int: ...

    def rows(self, numbers: Tensor) -> tuple[Any, Any]:
        """Return inputs and targets of the rows with these `numbers` (b,), int64."""
        ...


class TensorSamples:
    """Inputs (n, ...) and targets (n, ...) in memory."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.targets.nbytes

    def rows(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs.index_select(0, numbers), self.targets.index_select(0, numbers)


class DatasetSamples:
    """A map-style Dataset, read row by row."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(cast("Sized", self._dataset))

    def rows(self, numbers: Tensor) -> tuple[Any, Any]:
        inputs, targets = default_collate([self._dataset[int(row)] for row in numbers])
        return inputs, targets


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSets:
    """The training set of a node, and its test set if it has one."""

    train: Samples
    test: Samples | None

    def differ_from(self, other: DataSets) -> bool:
        """Return True if one of the two sets differs, as far as can be known: for a Dataset only the length is
        compared.
        """
        return not (are_equal(self.train, other.train) and are_equal(self.test, other.test))

    def compare_with(self, earlier: DataSets) -> bool:
        """Return True if scores are comparable with earlier ones: the test set is the same, or has only grown at its
        end.
        """
        return earlier.test is None or (self.test is not None and begins_with(self.test, earlier.test))


def are_equal(first: Samples | None, other: Samples | None) -> bool:
    """Return True if both have the same rows in the same order; for a Dataset, the same number of rows."""
    if first is None or other is None:
        return first is other
    return len(first) == len(other) and begins_with(first, other)


def begins_with(samples: Samples, other: Samples) -> bool:
    """Return True if `samples` begins with all rows of `other`, as far as can be known."""
    if not (isinstance(samples, TensorSamples) and isinstance(other, TensorSamples)):
        return len(samples) >= len(other)
    pairs = ((samples.inputs, other.inputs), (samples.targets, other.targets))
    return all(a.dtype == b.dtype and torch.equal(a[: len(b)], b) for a, b in pairs)


class Distinct:
    """Sets of samples, each stored only once however often it is added."""

    def __init__(self) -> None:
        self.sets: list[Samples] = []
        self._known: dict[tuple[object, ...], int] = {}

    def add(self, samples: Samples | None) -> int:
        """Store a set if it is new. Return its number, or -1 for None."""
        if samples is None:
            return -1
        place = place_in_memory(samples)
        if place in self._known:
            return self._known[place]
        if self.sets and _same(self.sets[-1], samples):  # common data, rebuilt each time
            return len(self.sets) - 1
        self._known[place] = len(self.sets)
        self.sets.append(samples)
        return self._known[place]


def _same(first: Samples, other: Samples) -> bool:
    if not (isinstance(first, TensorSamples) and isinstance(other, TensorSamples)):
        return False
    pairs = ((first.inputs, other.inputs), (first.targets, other.targets))
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def place_in_memory(samples: Samples) -> tuple[object, ...]:
    """Return a key that is equal for two sets in the same memory, as long as both are alive."""
    if not isinstance(samples, TensorSamples):
        return (id(samples),)
    both = (samples.inputs, samples.targets)
    return tuple(what for t in both for what in (t.data_ptr(), t.shape, t.stride(), t.dtype))


def read_samples(task: Task, context: NodeContext) -> tuple[Samples, Samples | None]:
    """Call the task's `data` and check its result: a training set and possibly a test set.

    Raises UserError: it failed, or returned something that cannot be trained on.
    """
    returned = _call_data(task, context)
    if not (isinstance(returned, tuple | list) and len(returned) == 2):
        raise _refused(task, "data", f"data returned {_kind(returned)}", RETURNED)
    train, test = returned
    if train is None:
        raise _refused(task, "training set", "there is none", SET)
    return _samples(task, "training set", train), None if test is None else _samples(task, "test set", test)


def _call_data(task: Task, context: NodeContext) -> Any:
    try:
        return task.data(context)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"data failed: {describe_failure(error)}", file=task.name, key="data") from error


def _samples(task: Task, what: str, value: Any) -> Samples:
    if isinstance(value, TensorDataset) and len(value.tensors) == 2:
        value = value.tensors
    if isinstance(value, Dataset):
        return _dataset(task, what, value)
    if not (isinstance(value, tuple | list) and len(value) == 2):
        raise _refused(task, what, f"it is {_kind(value)}", SET)
    inputs, targets = _tensor(task, f"{what}, inputs", value[0]), _tensor(task, f"{what}, targets", value[1])
    if len(inputs) != len(targets):
        raise _refused(task, what, f"{len(inputs)} inputs and {len(targets)} targets", "as many targets as inputs")
    if len(inputs) == 0:
        raise _refused(task, what, "it is empty", "at least one sample")
    return TensorSamples(inputs, targets if targets.is_floating_point() else targets.to(torch.int64))


def _dataset(task: Task, what: str, dataset: Dataset[Any]) -> Samples:
    samples = DatasetSamples(dataset)
    try:
        empty = len(samples) == 0
        if not empty:
            samples.rows(torch.zeros(1, dtype=torch.int64))
    except FAILURES as error:
        raise _refused(task, what, f"reading its first sample failed: {describe_failure(error)}", SET) from error
    if empty:
        raise _refused(task, what, "it is empty", "at least one sample")
    return samples


def _tensor(task: Task, what: str, value: Any) -> Tensor:
    """Return a torch tensor unchanged; convert anything else through numpy, with floating-point values to float32."""
    tensor = value.detach() if isinstance(value, Tensor) else _from_numpy(task, what, value)
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise _refused(task, what, f"its type is {tensor.dtype}", "floating or integer numbers")
    if tensor.ndim == 0:
        raise _refused(task, what, "it is a single number", "one row per sample")
    if tensor.is_floating_point():
        finite = torch.isfinite(tensor).flatten(1).all(dim=1) if tensor.ndim > 1 else torch.isfinite(tensor)
        if not bool(finite.all()):
            row = int(torch.nonzero(~finite)[0])
            raise _refused(task, what, f"row {row} holds a value that is not finite", "finite numbers")
    return tensor


def _from_numpy(task: Task, what: str, value: Any) -> Tensor:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise _refused(task, what, str(error), "rows of equal length") from error
    copy = not array.flags.writeable  # torch does not accept read-only memory
    convert: dict[str, Callable[[], Any]] = {
        "f": lambda: array.astype(np.float32, copy=copy),
        "i": lambda: array.astype(np.int64, copy=copy),
        "u": lambda: array.astype(np.uint8 if array.dtype.itemsize == 1 else np.int64, copy=copy),
    }
    if array.dtype.kind not in convert:
        raise _refused(task, what, f"its type is {array.dtype}", "floating or integer numbers")
    return torch.from_numpy(convert[array.dtype.kind]())


def _kind(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def _refused(task: Task, key: str, message: str, allowed: str) -> UserError:
    return UserError(message, file=task.name, key=key, allowed=allowed)


def draw_batches(training: TrainingConfig, samples: int, rng: np.random.Generator) -> list[Tensor]:
    """Draw the row numbers (b,) for each step, with a new permutation for each pass.

    With `local_steps` every batch is full, so a batch may span two passes. With `local_epochs` a pass ends with the
    remaining rows, and a single remaining row joins the batch before it, because BatchNorm cannot learn from one
    sample. If the batch size exceeds the number of samples, a batch has them all.
    """
    sizes = batch_sizes(training, samples)
    return list(torch.split(torch.from_numpy(draw_rows(samples, sum(sizes), rng)), sizes))
