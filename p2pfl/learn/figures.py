"""Figures over nodes and over rounds: exact sums, and what a person should doubt.

An exact sum has real numbers as a few whole numbers that can be summed one by one, whatever their size. A number is
rounded to a multiple of 2^-256 and written in base 2^32, from 2^-256 to 2^512, each digit with the number's sign.
Digits add up without carries, and their sums give the exact sum. This suits secure sums, whose entries are whole
numbers within bounds.

A gauge reads the figure that must keep improving for training to continue (`training.stop`), from a local round and
the latest test. Doubts are problems in a node's own data that make a good result unlikely: nothing here changes what
is computed, and nothing leaves the node: each problem becomes a log line and an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import liars_of
from p2pfl.config.model import TrainingConfig
from p2pfl.config.sections import parse_stop
from p2pfl.errors import UserError
from p2pfl.learn.interface import Learner, Score
from p2pfl.learn.metrics import Floats, as_floats

EXACT_DIGITS, DIGIT_BITS, UNIT_BITS = 24, 32, 256
MOST = 2.0 ** (EXACT_DIGITS * DIGIT_BITS - UNIT_BITS)


def exact_digits(value: float) -> NDArray[np.int64]:
    """Return the digits (EXACT_DIGITS,) of a number. Raises ValueError: it is not finite, or above 2^512 in size."""
    if not (math.isfinite(value) and abs(value) < MOST):
        raise ValueError(f"{value:g} cannot be summed: allowed are finite numbers up to {MOST:.3g}")
    whole = round(Fraction(abs(value)) * 2**UNIT_BITS)
    sign, mask = -1 if value < 0 else 1, 2**DIGIT_BITS - 1
    return np.array([sign * (whole >> DIGIT_BITS * place & mask) for place in range(EXACT_DIGITS)], np.int64)


def exact_value(digits: Iterable[int]) -> float:
    """Return the number, correctly rounded, that digits or sums of digits (EXACT_DIGITS,) stand for."""
    whole = sum(int(digit) << DIGIT_BITS * place for place, digit in enumerate(digits))
    return float(Fraction(whole, 2**UNIT_BITS))


OF_ROUND = "loss"
"""The figure that comes from local rounds; all others are measured on the common test set."""
FALLING = (OF_ROUND, "test_loss")
"""Figures for which lower is better. Each of the task's metrics states its own direction."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """Reads a figure and orients it so that lower is better, as the core expects. `sign` is -1 if higher is better."""

    of: str
    sign: float = 1.0

    @property
    def is_tested(self) -> bool:
        return self.of != OF_ROUND

    def read(self, loss: float, score: Score | None) -> float | None:
        """Return the figure, or None if there is none yet. `loss` comes from a local round, `score` is the latest on
        the common test set.
        """
        figure = loss if not self.is_tested else None if score is None else figures(score).get(self.of)
        return None if figure is None else self.sign * figure


def figures(score: Score) -> dict[str, float]:
    """Return the figures in a score, by name."""
    known = {"test_loss": score.loss, "accuracy": score.accuracy, **score.metrics}
    return {name: value for name, value in known.items() if value is not None}


def gauge_of(training: TrainingConfig, learner: Learner) -> Gauge | None:
    """Make the gauge for a stop condition; return None if nothing has to improve. For a test figure, the initial model
    is tested once, to check that the figure exists.

    Raises UserError: the task has no such figure.
    """
    stop = None if training.stop is None else parse_stop(training.stop)
    if stop is None or stop.patience is None:
        return None
    if stop.of != OF_ROUND:
        score = learner.evaluate(learner.initial(), "test")
        known = [] if score is None else list(figures(score))
        if stop.of not in known:
            text = "the task has no such test metric" if known else "this node has no test data"
            raise UserError(text, key="training.stop", value=stop.of, allowed=", ".join([OF_ROUND, *known]))
    return Gauge(stop.of, 1.0 if _is_falling(stop.of, learner) else -1.0)


def _is_falling(figure: str, learner: Learner) -> bool:
    metric = getattr(getattr(learner, "task", None), "metrics", {}).get(figure)
    return figure in FALLING or not getattr(metric, "higher_is_better", True)


UNEVEN = 100.0
"""Warn if a feature's spread is at least this many times another's."""
ROWS = 10_000
"""The number of rows to check, from the start of the table."""
MOST_LONE_CLASSES = 1_000


def unscaled(learner: Learner) -> str | None:
    """Warn if some of the node's inputs spread far more widely than others. Return None also if that is unknown: for
    images, text, and data that are not in memory.
    """
    inputs = getattr(getattr(learner, "train_set", None), "inputs", None)
    if inputs is None or inputs.ndim != 2 or "float" not in str(inputs.dtype):
        return None
    spread = _spreads(as_floats(inputs[:ROWS]))
    known = [(value, column) for column, value in enumerate(spread.tolist(), start=1) if value > 0]
    if not known:
        return None
    (least, narrow), (most, wide) = min(known), max(known)
    if most < UNEVEN * least:
        return None
    called = getattr(getattr(learner, "task", None), "preprocessing", {}).get("inputs")
    first = f"input {wide} of {len(spread)}" if called is None else f"input {called[wide - 1]!r}"
    second = f"input {narrow}" if called is None else f"input {called[narrow - 1]!r}"
    return f"{first} spreads {most:.3g} around its median, {second} only {least:.2g}"


def _spreads(inputs: Floats) -> Floats:
    """Compute the root mean square distance of each column of (n, d) to its median, over the rows that differ from it:
    (d,).

    In this measure a rare indicator, or a pixel that is mostly empty, spreads as widely as a frequent one. A constant
    column has spread 0.
    """
    middle = (len(inputs) - 1) // 2
    away = (inputs - np.partition(inputs, middle, axis=0)[middle]) ** 2
    return np.asarray(np.sqrt(away.sum(axis=0) / np.maximum((away > 0).sum(axis=0), 1)))


def own_classes(learner: Learner) -> list[int] | None:
    """Return the classes in the node's own data, in ascending order. Return None if there are none, if there are too
    many, or if the data are not in memory.
    """
    targets: Any = getattr(getattr(learner, "train_set", None), "targets", None)
    if targets is None or targets.ndim != 1 or "float" in str(targets.dtype):
        return None
    classes: list[int] = np.unique(targets.cpu() if hasattr(targets, "cpu") else targets).tolist()
    return classes if len(classes) <= MOST_LONE_CLASSES else None


def lone_classes(held: Mapping[str, Iterable[int]]) -> dict[int, str]:
    """Return the classes that only one node has, each with that node's name. `held` maps each node to its classes."""
    holders: dict[int, list[str]] = {}
    for node, classes in held.items():
        for label in classes:
            holders.setdefault(label, []).append(node)
    return {label: nodes[0] for label, nodes in sorted(holders.items()) if len(nodes) == 1}


def about_lone_classes(rule: str, classes: Mapping[str, Iterable[int]]) -> str | None:
    """Warn about classes that only one node has; call this where the classes of all nodes are known. Return None if the
    `rule` is not robust, or if there is no such class.
    """
    lone = lone_classes(classes) if liars_of(rule) and len(classes) > 1 else {}
    if not lone:
        return None
    some = ", ".join(f"{label} ({node})" for label, node in list(lone.items())[:5])
    more = f" and {len(lone) - 5} more" if len(lone) > 5 else ""
    what = "a class is on one node alone" if len(lone) == 1 else "classes are on one node alone"
    return f"{what}: {some}{more}; to {rule} such a node looks like a liar, and the others may never learn them"


def wasserstein(first: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the Wasserstein-1 distance between two sets of numbers (n,) and (m,), the integral of |F - G|."""
    places = np.sort(np.concatenate([first, other]).astype(np.float64))
    below, beside = (
        np.searchsorted(np.sort(numbers.astype(np.float64)), places[:-1], side="right") / len(numbers)
        for numbers in (first, other)
    )
    return float(np.diff(places) @ np.abs(below - beside))
