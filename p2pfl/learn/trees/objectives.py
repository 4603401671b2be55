"""What trees are fitted to: gradients, hessians and losses of rows, as whole numbers.

As in XGBoost. A row's numbers are rounded before they are added, so that the sum is exact, whatever the order of rows
and whichever node has them. `exp` is made of operations that IEEE 754 rounds correctly, so that every processor gets
the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal

import numpy as np
from numpy.typing import NDArray

from p2pfl.learn.trees.tree_settings import Objective, TreeSettings

Floats = NDArray[np.float64]

BITS = 27
"""A row's entry is at most 2^27 steps."""
MOST_ROWS = 1 << 24
"""The most rows of one node."""
BOUND = MOST_ROWS << BITS
"""No entry of a part is larger: 2^51."""
CLIP_BITS = 6
"""Squared error: a residual counts as at most 2^6 times the target's scale."""
LOSS_BITS = {"logistic": 5, "softmax": 5, "squared": 12}
"""A row's loss counts as at most this power of two."""
SMALLEST = 2.0**-40
"""The least hessian, and the least share of a class."""
FURTHEST = 700.0
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
TERMS = tuple(1.0 / math.factorial(power) for power in range(14))


def exp(values: Floats) -> Floats:
    """Return e to these powers, clipped to -700 and 700."""
    values = np.clip(values, -FURTHEST, FURTHEST)
    whole = np.rint(values * (1.0 / LN2_HIGH))
    rest = values - whole * LN2_HIGH - whole * LN2_LOW
    found = np.full_like(rest, TERMS[-1])
    for term in reversed(TERMS[:-1]):
        found = found * rest + term
    return np.ldexp(found, whole.astype(np.int32))


def log(value: float) -> float:
    """Return the natural logarithm, correctly rounded to 28 digits and then to a double."""
    return float(Decimal(value).ln(Context(prec=28)))


def shares(margins: Floats) -> Floats:
    """Return each class's probability (outputs, n) from margins (outputs, n); of one output, the second class's."""
    if len(margins) == 1:
        return 1.0 / (1.0 + exp(-margins))
    powers = exp(margins - margins.max(axis=0))
    total = powers[0]
    for more in powers[1:]:
        total = total + more
    return np.asarray(powers / total)


def gradients(objective: Objective, margins: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Return first and second derivatives (outputs, n) of the loss by the margins (outputs, n)."""
    if objective == "squared":
        most = 2.0**CLIP_BITS
        return np.clip(margins - targets, -most, most), np.ones_like(margins)
    found = shares(margins)
    is_class = targets == (np.arange(len(margins))[:, None] if objective == "softmax" else 1.0)
    factor = 2.0 if objective == "softmax" else 1.0
    return found - is_class, np.maximum(factor * found * (1.0 - found), SMALLEST)


def losses(objective: Objective, margins: Floats, targets: Floats) -> Floats:
    """Return the loss (n,) of each row, clipped."""
    if objective == "squared":
        found: Floats = (margins[0] - targets) ** 2
    elif objective == "logistic":
        found = np.logaddexp(0.0, np.where(targets == 1.0, -margins[0], margins[0]))
    else:
        own = margins[targets.astype(np.int64), np.arange(len(targets))]
        top = margins.max(axis=0)
        found = np.log(np.exp(margins - top).sum(axis=0)) + top - own
    return np.asarray(np.minimum(found, 2.0 ** LOSS_BITS[objective]), np.float64)


def in_steps(values: Floats, bits: int) -> Floats:
    """Return the values as whole numbers of steps of 2^-bits, in float64, which holds their sums exactly."""
    return np.rint(np.ldexp(values, bits))


def step_bits(settings: TreeSettings, weights: Sequence[float]) -> int:
    """Return the bits behind the point of gradients and hessians: their bound is 2^27 steps."""
    if settings.objective == "squared":
        return BITS - CLIP_BITS
    most = max(weights)
    return BITS - max(0, math.frexp(most)[1] - (math.frexp(most)[0] == 0.5))


def weights_of(settings: TreeSettings, class_counts: Sequence[int]) -> list[float]:
    """Return the weight of each class."""
    given = settings.class_weights
    if given is None or settings.objective == "squared":
        return [1.0] * max(1, settings.classes)
    if given == "balanced":
        rows = sum(class_counts)
        return [rows / (settings.classes * count) if count else 1.0 for count in class_counts]
    return [float(weight) for weight in given]


def base_margins(settings: TreeSettings, class_counts: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Return the margins of a model without trees: the logarithms of the classes' weighted shares."""
    mass = [count * weight for count, weight in zip(class_counts, weights, strict=True)]
    total = math.fsum(mass)
    found = [log(max(each / total, SMALLEST)) for each in mass]
    return found if settings.objective == "softmax" else [found[1] - found[0]]
