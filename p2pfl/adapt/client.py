"""Code that trains and tests a list of arrays by itself: arrays and a round's number in, arrays and figures out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from numpy.typing import NDArray

from p2pfl.errors import LearningError
from p2pfl.learn.metrics import ACCURACY

Arrays = list[NDArray[Any]]
EXAMPLES = "num-examples"
ACCURACIES = ("accuracy", "eval_acc", "eval-acc", "acc")
"""The names of accuracy in Flower's examples."""


@dataclass(frozen=True, slots=True)
class ClientFit:
    """What a `fit` returned: `examples` is its number of training examples, `figures` are its numbers by name."""

    arrays: Arrays
    examples: int
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class ClientScore:
    """What an `evaluate` returned."""

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
    found = {
        name: number for name, value in figures.items() if (number := _number(value)) is not None and name != EXAMPLES
    }
    known = next((name for name in ACCURACIES if name in found), None)
    if known is not None:
        found[ACCURACY.name] = found.pop(known)
    return found
