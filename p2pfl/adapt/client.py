"""Code that trains and tests a list of arrays by itself: arrays and a round's number in, arrays and figures out.

Arrays of floating-point numbers are one float32 vector (d,), which is shared. Integer and boolean ones, such as
BatchNorm's counters, stay on the node.

A step maps the model w to another one. (w - step(w)) / rate stands for its gradient, and the method corrects that. So
what a method removes is a bias of federated learning between such steps. A bias inside a step remains, as in SCAFFOLD
with one local step (Karimireddy et al., arXiv 1910.06378).
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from numbers import Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.chance import torch_seed
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.interface import LocalRound, RoundStart, Score, Vector, shape_digest
from p2pfl.learn.metrics import ACCURACY
from p2pfl.learn.task import NodeContext
from p2pfl.methods import overrides
from p2pfl.methods.method import own_failures
from p2pfl.plugins import FAILURES, describe_failure

Arrays = list[NDArray[Any]]
EXAMPLES = "num-examples"
ACCURACIES = ("accuracy", "eval_acc", "eval-acc", "acc")
"""The names of accuracy in Flower's examples."""


@dataclass(frozen=True, slots=True)
class ClientFit:
    """The result of a `fit`: `examples` is its number of training examples, `figures` are its numbers by name."""

    arrays: Arrays
    examples: int
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class ClientScore:
    """The result of an `evaluate`."""

    loss: float
    examples: int
    figures: dict[str, float]


class Client(Protocol):
    """The client of one node; `name` names it in errors."""

    name: str

    def first(self) -> Arrays:
        """Return the arrays to start from."""
        ...

    def names(self, count: int) -> list[str]:
        """Return the names of `count` arrays in an exported model."""
        ...

    def count(self) -> int | None:
        """Return the number of training examples, or None if only a `fit` tells it."""
        ...

    def fit(self, arrays: Arrays, round_index: int) -> ClientFit:
        """Train. Raises LearningError: the client returned something else than it should."""
        ...

    def evaluate(self, arrays: Arrays) -> ClientScore | None:
        """Test; None if the client has no `evaluate`. Raises LearningError as `fit` does."""
        ...


def _number(value: Any) -> float | None:
    """Return a real number, also one of numpy; None for anything else."""
    return None if isinstance(value, bool) or not isinstance(value, Real) else float(value)


def examples_of(count: Any, what: str) -> int:
    """Return a number of examples. Raises LearningError: it is none, or not positive."""
    number = _number(count)
    if number is None or not number >= 1 or not number.is_integer():
        raise LearningError(f"{what} returned {count!r} as its number of examples; allowed: a whole number from 1")
    return int(number)


def numbers_of(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among a client's metrics; accuracy by the name that it has here."""
    numbers = {
        name: number for name, value in figures.items() if (number := _number(value)) is not None and name != EXAMPLES
    }
    known = next((name for name in ACCURACIES if name in numbers), None)
    if known is not None:
        numbers[ACCURACY.name] = numbers.pop(known)
    return numbers


Layout = Sequence[NDArray[np.generic]]


class ArrayLayout:
    """The places of `arrays` in the vector. `size` is d; `source` names the code that they come from, in errors."""

    def __init__(self, names: Sequence[str], arrays: Layout, source: str) -> None:
        """Lay out the arrays. Raises UserError: none has floating-point numbers."""
        self.names, self.source = tuple(names), source
        self._shapes = [array.shape for array in arrays]
        self._types = [array.dtype for array in arrays]
        self._shared = [index for index, array in enumerate(arrays) if array.dtype.kind == "f" and array.size]
        if not self._shared:
            text, allowed = "there are no floating-point arrays to share", "at least one"
            raise UserError(text, file=source, value=len(arrays), allowed=allowed)
        ends = np.cumsum([0, *(arrays[index].size for index in self._shared)])
        self._parts = {index: slice(ends[k], ends[k + 1]) for k, index in enumerate(self._shared)}
        self.size = int(ends[-1])
        self.digest = shape_digest((names[i], arrays[i].shape, str(arrays[i].dtype)) for i in self._shared)

    def joined(self, arrays: Layout) -> Vector:
        """Return the shared arrays as one new vector (d,).

        Raises LearningError: there are more or fewer arrays than at first, or one has another shape.
        """
        if len(arrays) != len(self.names):
            text = f"{self.source} returned {len(arrays)} arrays, and got {len(self.names)}"
            raise LearningError(text)
        vector = np.empty(self.size, np.float32)
        for index, (name, array) in enumerate(zip(self.names, arrays, strict=True)):
            if np.shape(array) != self._shapes[index]:
                text = f"{self.source} returned {name} in shape {np.shape(array)}, and got {self._shapes[index]}"
                raise LearningError(text)
            if index in self._parts:
                vector[self._parts[index]] = np.ravel(array)
        return vector

    def split(
        self, vector: Vector, local: Mapping[str, NDArray[np.generic]] | None = None
    ) -> list[NDArray[np.generic]]:
        """Return all arrays, new and in their own types. Those that are not shared come from `local`, by name."""
        return [
            vector[self._parts[index]].reshape(self._shapes[index]).astype(self._types[index])
            if index in self._parts
            else np.array((local or {})[name])
            for index, name in enumerate(self.names)
        ]

    def local(self, arrays: Layout) -> dict[str, NDArray[np.generic]]:
        """Return copies of the arrays that are not shared, by name."""
        named = enumerate(zip(self.names, arrays, strict=True))
        return {name: np.array(array) for index, (name, array) in named if index not in self._parts}

    def state(
        self, vector: Vector, local: Mapping[str, NDArray[np.generic]] | None = None
    ) -> dict[str, NDArray[np.generic]]:
        """Return all arrays by name."""
        return dict(zip(self.names, self.split(vector, local), strict=True))


def corrected(start: RoundStart, before: Vector, after: Vector, rate: float) -> Vector:
    """Return the model (d,) after a step from `before` to `after` (d,), as the round's method has it."""
    method = start.method
    if method is None or not overrides(method, "gradient"):
        return after
    gradient = (before - after) / np.float32(rate)
    steered = method.gradient(gradient, before, {"anchor": start.model, **start.given})
    return np.asarray(before - np.float32(rate) * steered, dtype=before.dtype)


def refuse_optimizer(training: TrainingConfig, whose: str) -> None:
    """Refuse settings of an optimizer, because the code has its own. Raises UserError."""
    usual = TrainingConfig()
    for key in ("optimizer", "momentum", "weight_decay", "schedule", "keep_optimizer", "closing"):
        if (value := getattr(training, key)) != getattr(usual, key):
            text = f"{whose} has its own optimizer, and this would change nothing"
            raise UserError(text, key=f"training.{key}", value=value, allowed=f"{getattr(usual, key)}")


@contextmanager
def common_chance(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, numpy and, if it is loaded, torch; restore them afterwards."""
    torch = sys.modules.get("torch")
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' code draws from it
    tensors = None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - as above
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002 - as above
        if torch is not None:
            torch.set_rng_state(tensors)


def needed(module: str, extra: str, what: str) -> Any:
    """Import and return a module. Raises UserError: it is not installed, or cannot be imported."""
    try:
        return import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        text = f"needs {what}, which " + ("is not installed" if missing else f"cannot be imported: {error}")
        raise UserError(text, file=f"p2pfl.adapt.{extra}", allowed=f"pip install '.[{extra}]' in a checkout") from error


LOSSES = ("train_loss", "train-loss", "loss")
"""The names under which a client's `fit` may return the loss of its training."""


class ClientLearner:
    """The learner of one node, which `make` gives its client."""

    personal = 0
    round_is = "one fit"
    """The length of a round, whatever `local_steps` says."""
    stays_in_process = True
    """The client may keep something in its process from round to round."""
    tests_own = True
    """The test set is the client's own, so that no `[privacy]` counts it as public."""

    def __init__(self, make: Callable[[], Client], context: NodeContext, training: TrainingConfig, what: str) -> None:
        """Make the client and its first arrays, from the federation's seed. `what` it is says an error.

        Raises UserError: the client fails, or `[training]` has an optimizer.
        """
        refuse_optimizer(training, what)
        self.context, self.training = context, training
        try:
            with common_chance(torch_seed(context.seed, "model")):
                self.client = make()
                first = self.client.first()
        except UserError:
            raise
        except FAILURES as error:
            raise UserError(f"failed: {describe_failure(error)}", file="client", key="first arrays") from error
        self.layout = ArrayLayout([f"array {k}" for k in range(len(first))], first, self.client.name)
        self.size, self.shape_digest = self.layout.size, self.layout.digest
        self._first, self._local = self.layout.joined(first), self.layout.local(first)
        self.digest = hashlib.blake2b(self._first.tobytes(), digest_size=32, person=b"p2pfl-client").digest()
        """Nodes that would start from different models refuse to connect."""
        self._ahead: tuple[Vector, ClientFit] | None = None
        """The first round, done ahead to learn the number of samples."""
        try:
            self.samples = self._count()
        except LearningError as error:
            raise UserError(str(error), file=self.client.name, key="fit") from error.__cause__

    def _count(self) -> int:
        if (known := self.client.count()) is not None:
            return known
        fitted = self._fit(self._first, 0)
        self._ahead = (self.layout.joined(fitted.arrays), fitted)
        return fitted.examples

    def initial(self) -> Vector:
        return self._first.copy()

    def train(self, start: RoundStart, round_index: int) -> LocalRound:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and round_index == 0 and np.array_equal(start.model, self._first):
            after, fitted = ahead
        else:
            fitted = self._fit(start.model, round_index)
            after = self.layout.joined(fitted.arrays)
        rate = self.training.learning_rate
        vector = corrected(start, start.model, after, rate)
        self._local, self.samples = self.layout.local(fitted.arrays), fitted.examples
        loss = next((fitted.figures[name] for name in LOSSES if name in fitted.figures), math.nan)
        return LocalRound(vector=vector, steps=1, learning_rate=rate, samples=fitted.examples, loss=loss)

    def _fit(self, model: Vector, round_index: int) -> ClientFit:
        """Let the client fit once. Raises LearningError: it fails, or returns something else than it should."""
        seed = torch_seed(self.context.seed, "fit", self.context.node, round_index)
        arrays = self.layout.split(model, self._local)
        with own_failures(f"{self.client.name}.fit"), common_chance(seed):
            return self.client.fit(arrays, round_index)

    def evaluate(self, vector: Vector, part: str) -> Score | None:
        """Score the model on the client's own test data. There is no score on its training data."""
        if part != "test":
            return None
        with own_failures(f"{self.client.name}.evaluate"), common_chance(torch_seed(self.context.seed, "evaluate")):
            results = self.client.evaluate(self.layout.split(vector, self._local))
        if results is None:
            return None
        figures = results.figures
        own = {name: value for name, value in figures.items() if name != ACCURACY.name}
        accuracy = figures.get(ACCURACY.name)
        return Score(accuracy=accuracy, loss=results.loss, samples=results.examples, metrics=own)

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return dict(self._local)

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        self._local = dict(state)

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:
        return dict(zip(self.client.names(len(self.layout.names)), self.layout.split(vector, self._local), strict=True))
