"""What is drawn from a stream of chance: the same in every version of Python.

Everything is computed from `random()` alone. Where the mathematics library of the machine takes part (log, exp), the
result is rounded to nine digits: two machines whose libraries differ in the last bit agree on it.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from random import Random
from typing import TypeVar

from sim.worlds.model import Spread

T = TypeVar("T")


def quantized(value: float) -> float:
    """`value` to nine significant digits."""
    return float(f"{value:.8e}")


def uniform(rng: Random, low: float, high: float) -> float:
    return low + (high - low) * rng.random()


def log_uniform(rng: Random, low: float, high: float) -> float:
    """Between `low` and `high`, both above 0, each factor as likely as any other."""
    share = rng.random()
    return min(high, max(low, quantized(low * math.exp(share * math.log(high / low)))))


def exponential(rng: Random, mean: float) -> float:
    return quantized(-mean * math.log(1.0 - rng.random()))


def below(rng: Random, bound: int) -> int:
    """A whole number from 0 to `bound` - 1; the bias is under `bound` / 2^53."""
    return int(rng.random() * bound)


def choice(rng: Random, items: Sequence[T]) -> T:
    return items[below(rng, len(items))]


def shuffle(rng: Random, items: MutableSequence[T]) -> None:
    """Fisher and Yates, in place."""
    for last in range(len(items) - 1, 0, -1):
        other = below(rng, last + 1)
        items[last], items[other] = items[other], items[last]


def permutation(rng: Random, count: int) -> list[int]:
    order = list(range(count))
    shuffle(rng, order)
    return order


def some(rng: Random, items: Sequence[T], count: int) -> list[T]:
    """`count` different ones, in the order in which they stand in `items`."""
    return [items[place] for place in sorted(permutation(rng, len(items))[:count])]


def draw(rng: Random, spread: Spread) -> float:
    """One value; a constant draws nothing from `rng`."""
    match spread.kind:
        case "constant":
            return spread.low
        case "uniform":
            return uniform(rng, spread.low, spread.high)
        case "log-uniform":
            return log_uniform(rng, spread.low, spread.high)
    raise ValueError(f"a spread is constant, uniform or log-uniform, not {spread.kind!r}")
