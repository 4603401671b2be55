"""Does a schedule average exactly, and after how many rounds? By whole numbers where there are few nodes.

With D the least common denominator of a round, D W is a matrix of whole numbers; so is the product of several, over the
product of their denominators. It is compared with J/n, the matrix that gives everybody the mean, without rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.schedules.schedule import Mixing, Schedule

RATIONAL_LIMIT = 128
"""nodes; above, exactness is told from the fall of a random start's disagreement."""
PROBES = 3
ZERO = 1e-12
AWAY = 1e-6
"""A geometric decay does not pass from above AWAY to below ZERO in one round: only an exact schedule does."""

Whole = NDArray[np.object_]


def exact_after(schedule: Schedule) -> int | None:
    """The least t with W_t ... W_1 = J/n, looked for up to one period or 2 log2 n rounds, whichever is more.

    Proven by rational arithmetic up to `RATIONAL_LIMIT` nodes.
    """
    if schedule.nodes == 1:
        return 0
    rounds = max(schedule.period, 2 * schedule.nodes.bit_length())
    if schedule.nodes <= RATIONAL_LIMIT:
        return _by_fractions(schedule, rounds)
    return _by_probes(schedule, rounds)


def product(schedule: Schedule, rounds: int) -> tuple[Whole, int]:
    """W_rounds ... W_1 as a matrix of Python's whole numbers, shape (nodes, nodes), over one denominator."""
    matrix, below = _identity(schedule.nodes), 1
    for t in range(rounds):
        matrix, factor = _applied(schedule.mixing(t), matrix)
        below *= factor
    return matrix, below


def _identity(nodes: int) -> Whole:
    matrix = np.zeros((nodes, nodes), dtype=object)
    matrix[np.diag_indices(nodes)] = 1
    return matrix


def _applied(mixing: Mixing, matrix: Whole) -> tuple[Whole, int]:
    """D W times `matrix`, and D."""
    below = math.lcm(1, *set(mixing.denominators.tolist()))
    shares: Any = mixing.numerators.astype(object) * (below // mixing.denominators.astype(object))
    moved = matrix * below
    for layer in mixing.layers:
        to = mixing.receivers[layer]
        moved[to] += shares[layer, None] * (matrix[mixing.senders[layer]] - matrix[to])
    return moved, below


def _by_fractions(schedule: Schedule, rounds: int) -> int | None:
    matrix, below = _identity(schedule.nodes), 1
    for t in range(rounds):
        matrix, factor = _applied(schedule.mixing(t), matrix)
        below *= factor
        # one entry first: comparing all of them costs as much as the round
        if matrix[0, 0] * schedule.nodes == below and bool((matrix * schedule.nodes == below).all()):
            return t + 1
    return None


def _by_probes(schedule: Schedule, rounds: int) -> int | None:
    x = np.random.default_rng(0).standard_normal((PROBES, schedule.nodes))
    before = 1.0
    for t in range(rounds):
        x = np.stack([schedule.mixing(t).apply(row) for row in x])
        away = float(np.abs(x - x.mean(axis=1, keepdims=True)).max())
        if away < ZERO:
            return t + 1 if before > AWAY else None
        before = away
    return None
