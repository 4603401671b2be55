"""How much a schedule shrinks the distance to consensus: the spectral norm of D_t = W_t ... W_1 - J/n.

All matrices have rows and columns that sum to one, so the norm never grows with t and the first round with a norm below
some value is found by bisection. There are two methods: in the Fourier basis if all matrices are circulant (any size,
up to rounding); and as dense matrices, up to `DENSE_LIMIT` nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from topologies.eigen.extremes import eigenvalues
from topologies.schedules.schedule import Array, MixingMatrix, Schedule

DENSE_LIMIT = 2_000
DOUBLINGS = 48
"""How many times the number of periods is doubled before a schedule counts as never reaching consensus."""
TOLERANCE = 1e-6
TIE = 1e-9
"""The relative distance at which a norm counts as equal to epsilon: it is rounding error."""
ROUNDING = 1e-12
"""A norm below this may be zero: the products have an error of that size."""
RELIABLE = 1e-9
"""A norm above this is known to TOLERANCE despite rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodContraction:
    """The contraction of one period. `norm` is the norm of D over the period.

    `residual`: of the eigenvector of D^T D for that norm, or the bound on all its eigenvalues. `rounds`: the smallest t
    with a norm of at most epsilon, None if never.
    """

    norm: float
    rounds: int | None
    method: str
    residual: float
    certified: bool


class Algebra(Protocol):
    """Products of a schedule's matrices without their common part J/n, in some basis."""

    def start(self) -> NDArray[Any]:
        """Return I - J/n."""

    def step(self, t: int, value: NDArray[Any]) -> NDArray[Any]:
        """Return W_t times `value`."""

    def times(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]: ...

    def above(self, value: NDArray[Any], epsilon: float) -> bool:
        """Return True if the spectral norm is larger than `epsilon`."""


def contraction(schedule: Schedule, epsilon: float) -> PeriodContraction | None:
    """Compute the contraction of a schedule on two or more nodes whose union is connected; None if it is too large."""
    shapes = [circulant_row(mixing) for mixing in schedule.mixings]
    rows = [row for row in shapes if row is not None]
    if len(rows) == schedule.period:
        return _circulant(_Fourier(rows), schedule.period, epsilon)
    return _dense(schedule, epsilon) if schedule.nodes <= DENSE_LIMIT else None


def first_below(algebra: Algebra, period: int, whole: NDArray[Any], epsilon: float) -> int | None:
    """Find the smallest t with ||D_t|| <= epsilon; `whole` is D over one period.

    The number of periods is doubled until it is enough, then bisected, then reduced round by round within at most one
    period: no round removes the rounding error in the direction of the mean.
    """
    epsilon *= 1.0 + TIE
    powers = [whole]
    while algebra.above(powers[-1], epsilon):
        if len(powers) > DOUBLINGS:
            return None
        powers.append(algebra.times(powers[-1], powers[-1]))
    value, periods = algebra.start(), 0
    for exponent in range(len(powers) - 2, -1, -1):
        further = algebra.times(powers[exponent], value)
        if algebra.above(further, epsilon):
            value, periods = further, periods + (1 << exponent)
    rounds = 0
    while rounds < period and algebra.above(value, epsilon):
        value = algebra.step(rounds, value)
        rounds += 1
    return periods * period + rounds


def circulant_row(mixing: MixingMatrix) -> Array | None:
    """Return row 0 of W, shape (nodes,), if W_ij depends only on j - i modulo n; otherwise None."""
    n, links = mixing.nodes, len(mixing.receivers)
    if links % n:
        return None
    shift = (mixing.senders - mixing.receivers) % n
    used = np.flatnonzero(np.bincount(shift, minlength=n))
    if len(used) * n != links:
        return None
    number = np.zeros(n, np.int64)
    number[used] = np.arange(len(used))
    seen = np.zeros(links, dtype=bool)
    seen[number[shift] * n + mixing.receivers] = True
    row = np.zeros(n)
    row[shift] = mixing.weights
    if not seen.all() or not np.array_equal(row[shift], mixing.weights):
        return None
    row[0] = 1.0 - row[1:].sum()
    return row


class _Fourier:
    """Circulant matrices by their eigenvalues, all in the same basis. J/n's is the first."""

    def __init__(self, rows: list[Array]) -> None:
        self.values = [np.fft.ifft(row, norm="forward") for row in rows]

    def start(self) -> NDArray[Any]:
        ones = np.ones(len(self.values[0]), dtype=complex)
        ones[0] = 0.0
        return ones

    def step(self, t: int, value: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.values[t] * value)

    def times(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(left * right)

    def norm(self, value: NDArray[Any]) -> float:
        return float(np.abs(value).max())

    def above(self, value: NDArray[Any], epsilon: float) -> bool:
        return self.norm(value) > epsilon


class _Dense:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def start(self) -> NDArray[Any]:
        n = self.schedule.nodes
        return np.eye(n) - 1.0 / n

    def step(self, t: int, value: NDArray[Any]) -> NDArray[Any]:
        return self.schedule.mixing(t).apply(value)

    def times(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(left @ right)

    def above(self, value: NDArray[Any], epsilon: float) -> bool:
        """Compare bounds first; compute all singular values only if the bounds do not decide."""
        size = float(np.linalg.norm(value))
        if size <= epsilon or size > epsilon * math.sqrt(len(value)):
            return size > epsilon
        x = np.random.default_rng(0).standard_normal(len(value))
        for _ in range(8):
            y = value @ x
            if np.linalg.norm(y) > epsilon * np.linalg.norm(x):
                return True
            x = value.T @ y
        return bool(np.linalg.eigvalsh(value.T @ value)[-1] > epsilon * epsilon)


def _period(algebra: Algebra, period: int) -> NDArray[Any]:
    value = algebra.start()
    for t in range(period):
        value = algebra.step(t, value)
    return value


def _circulant(algebra: _Fourier, period: int, epsilon: float) -> PeriodContraction:
    whole = _period(algebra, period)
    norm = algebra.norm(whole)
    return PeriodContraction(
        norm=norm,
        rounds=first_below(algebra, period, whole, epsilon),
        method="circulant",
        residual=0.0,
        certified=True,
    )


def _dense(schedule: Schedule, epsilon: float) -> PeriodContraction:
    algebra = _Dense(schedule)
    whole = _period(algebra, schedule.period)
    found = eigenvalues(whole.T @ whole)
    square = max(0.0, float(found.values[-1]))
    return PeriodContraction(
        norm=math.sqrt(square),
        rounds=first_below(algebra, schedule.period, whole, epsilon),
        method="dense",
        residual=found.bound,
        certified=square > RELIABLE**2 and found.bound <= TOLERANCE * square,
    )
