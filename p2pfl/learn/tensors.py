"""A node's rows, and a model's parameters, as tensors and as one vector.

`Samples`: a node's data for the trainer, checked once when the node starts: rows by number, and the choice of rows for
each step. Arrays become tensors that stay in memory. Any other map-style torch Dataset is read lazily, so it may be
larger than memory and may augment its samples.

`FlatModule`: a torch module as one flat float32 vector, and back. The vector contains every floating-point parameter
and buffer (such as BatchNorm's running mean and variance) that the patterns of `sharing` select, in the order of the
module's `state_dict`. Tensors that occupy the same memory (tied weights) count once, under their first name. float16,
bfloat16 and float64 tensors are cast to float32 for the vector and back to their own dtype when it is loaded. A
`running_var` is clamped to at least 0 on loading, because mixing quantized models can push it just below.

With `NOT_FROZEN` among the patterns, parameters that are not trained are left out: they stay as the task makes them,
and nodes compare a digest of their values.

Local tensors stay on the node and change there: personal floating-point tensors, and all integer and boolean ones
(such as BatchNorm's num_batches_tracked). A frozen personal parameter is not saved: the task rebuilds it on every
start. Non-persistent buffers are not saved either, because they are not in the `state_dict`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import Dataset, TensorDataset, default_collate
from xxhash import xxh3_128

from p2pfl.config.model import NOT_FROZEN, TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.interface import WHOLE, Vector, batch_sizes, draw_rows, shape_digest, shared_names
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
    try:
        returned: Any = task.data(context)
    except UserError:
        raise
    except FAILURES as error:
        raise UserError(f"data failed: {describe_failure(error)}", file=task.name, key="data") from error
    if not (isinstance(returned, tuple | list) and len(returned) == 2):
        raise _refused(task, "data", f"data returned {_kind(returned)}", RETURNED)
    train, test = returned
    if train is None:
        raise _refused(task, "training set", "there is none", SET)
    return _samples(task, "training set", train), None if test is None else _samples(task, "test set", test)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """A tensor's position in the vector, and whether it is trained."""

    name: str
    part: slice
    shape: torch.Size
    dtype: torch.dtype
    trained: bool


class FlatModule:
    """Copies vectors (d,) into and out of a module, in place: it keeps no second copy of that size.

    `size` is d, `frozen` the number of values of parameters that match the patterns and are not trained, `personal` the
    number of floating-point values that match none. Tensors are looked up each time, because a module may replace a
    buffer's tensor.
    """

    def __init__(self, module: nn.Module, source: str, share: Sequence[str] = WHOLE) -> None:
        """Lay out the tensors of a module. `source` names the task in errors; `share` are patterns as in `sharing`.

        Raises UserError: the module has nothing to share, has a tensor that cannot be shared, or a pattern matches
        nothing.
        """
        tensors = {name: t for name, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
        self._lookups = {name: _lookup(module, name, tensor) for name, tensor in tensors.items()}
        names = _distinct_floats(tensors, source)
        if not names:
            raise UserError("the model has no floating parameters to share", file=source, key="model")
        named = {name: tensors[name] for name in shared_names(names, share)}
        own = [name for name in names if name not in named]
        frozen = {name: t for name, t in named.items() if not any(_may_change(tensors[a]) for a in names[name])}
        self.frozen = sum(tensor.numel() for tensor in frozen.values())
        self._fixed = frozen if NOT_FROZEN in share else {}
        named = {name: tensor for name, tensor in named.items() if name not in self._fixed}
        if not named:
            raise UserError("nothing of the model is trained", file=source, key="model", allowed="a trained parameter")
        self.size = sum(tensor.numel() for tensor in named.values())
        self.personal = sum(tensors[name].numel() for name in own)
        self._local = {name: self._lookups[name] for name in tensors if _is_local(name, tensors[name], own)}
        self.digest = shape_digest((name, t.shape, str(t.dtype).removeprefix("torch.")) for name, t in named.items())
        self.places = _places(named)
        self._trained = [(named[p.name], p) for p in self.places if p.trained]
        self._variances = [self._lookups[name] for name in named if name.rpartition(".")[2] == "running_var"]

    def frozen_digest(self) -> bytes:
        """Return a 32-byte digest of the parameters that `NOT_FROZEN` excludes; empty if there are none."""
        if not self._fixed:
            return b""
        values = xxh3_128(shape_digest((name, t.shape, str(t.dtype)) for name, t in self._fixed.items()))
        for tensor in self._fixed.values():
            values.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return hashlib.blake2b(values.digest(), digest_size=32, person=b"p2pfl-frozen").digest()

    def load(self, vector: Vector) -> None:
        """Write `vector` (d,) into the module."""
        flat = self._checked(vector)
        with torch.no_grad():
            for place in self.places:
                self._lookups[place.name]().copy_(_part(flat, place))
            for variance in self._variances:
                variance().clamp_(min=0)

    def vector(self) -> NDArray[np.float32]:
        """Return the module as a new (d,) array."""
        vector = np.empty(self.size, np.float32)
        flat = torch.from_numpy(vector)
        with torch.no_grad():
            for place in self.places:
                _part(flat, place).copy_(self._lookups[place.name]())
        return vector

    def parts(self, vectors: Mapping[str, Vector]) -> list[tuple[nn.Parameter, dict[str, Tensor]]]:
        """Pair each trained parameter with its part of each of the `vectors` (d,), in its shape and dtype; a float32
        part is a view. Buffers and frozen parameters are left out.
        """
        flat = {name: self._checked(vector) for name, vector in vectors.items()}
        return [
            (
                cast("nn.Parameter", parameter),
                {name: _part(vector, place).to(parameter.device, place.dtype) for name, vector in flat.items()},
            )
            for parameter, place in self._trained
        ]

    @property
    def trained_parts(self) -> list[tuple[nn.Parameter, slice]]:
        """Return each trained parameter in the vector, and its part of it."""
        return [(cast("nn.Parameter", parameter), place.part) for parameter, place in self._trained]

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        """Return copies of the tensors that are not shared and may change, by name."""
        return {name: _as_array(lookup()) for name, lookup in self._local.items()}

    def is_finite(self) -> bool:
        """Return True if all local tensors are finite."""
        return all(bool(torch.isfinite(lookup()).all()) for lookup in self._local.values())

    def load_local_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore what `local_state` returned. Raises UserError: it came from another model."""
        local = {name: lookup() for name, lookup in self._local.items()}
        for name in sorted(local.keys() | state.keys()):
            expected = str(tuple(local[name].shape)) if name in local else "no such tensor"
            saved = str(tuple(state[name].shape)) if name in state else "no such tensor"
            if saved != expected:
                text = "the saved state belongs to another model: a tensor that is not shared differs"
                raise UserError(text, key=name, value=saved, allowed=expected)
        with torch.no_grad():
            for name, tensor in local.items():
                tensor.copy_(torch.from_numpy(np.array(state[name])))

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Return copies of all tensors under all their names. bfloat16, which numpy lacks, becomes float32."""
        return {name: _as_array(lookup()) for name, lookup in self._lookups.items()}

    def _checked(self, vector: Vector) -> Tensor:
        """Return a tensor that shares the memory of `vector` if torch can read it, else a copy."""
        if vector.shape != (self.size,):
            raise ValueError(f"a vector of shape {vector.shape}, but the model has {(self.size,)}")
        plain = np.ascontiguousarray(vector, np.float32)
        return torch.from_numpy(plain if plain.flags.writeable else plain.copy())


def _places(named: Mapping[str, Tensor]) -> list[TensorPlace]:
    """Lay out the tensors one after the other."""
    places, start = [], 0
    for name, tensor in named.items():
        part = slice(start, start + tensor.numel())
        trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
        places.append(TensorPlace(name=name, part=part, shape=tensor.shape, dtype=tensor.dtype, trained=trained))
        start = part.stop
    return places


def _part(flat: Tensor, place: TensorPlace) -> Tensor:
    return flat[place.part].view(place.shape)


def _lookup(module: nn.Module, name: str, tensor: Tensor) -> Callable[[], Tensor]:
    """Return a function that fetches the module's current tensor, or `tensor` itself if its `state_dict` name is not an
    attribute path.
    """
    path = attrgetter(name)
    try:
        is_attribute = path(module) is tensor
    except AttributeError:
        is_attribute = False
    return (lambda: cast("Tensor", path(module))) if is_attribute else (lambda: tensor)


def _as_array(tensor: Tensor) -> NDArray[np.generic]:
    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:
        plain = plain.float()
    return plain.numpy().copy()


def _may_change(tensor: Tensor) -> bool:
    return tensor.requires_grad or not isinstance(tensor, nn.Parameter)


def _is_local(name: str, tensor: Tensor, personal: Sequence[str]) -> bool:
    if not tensor.is_floating_point():
        return True
    return name in personal and _may_change(tensor)


def _distinct_floats(tensors: Mapping[str, Tensor], source: str) -> dict[str, list[str]]:
    """Group the names of each floating-point tensor under its first name."""
    names: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in tensors.items():
        if is_lazy(tensor) or tensor.is_complex():
            raise UserError(
                "this tensor of the model cannot be shared",
                file=source,
                key=name,
                value="not initialized" if is_lazy(tensor) else str(tensor.dtype),
                allowed="real tensors with a known shape",
            )
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.is_floating_point() and tensor.numel():
            names.setdefault(place, []).append(name)
    return {aliases[0]: aliases for aliases in names.values()}
