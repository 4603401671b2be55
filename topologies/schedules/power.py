"""Contraction of schedules with too many nodes for dense matrices: power iteration on D^T D, never certified."""

from __future__ import annotations

import math

import numpy as np

from topologies.schedules.contraction import ROUNDING, Contraction
from topologies.schedules.schedule import Array, Mixing, Schedule

WORK = 1_000_000_000
"""links followed in all products together: about half a minute."""
TURNS = 300
SETTLED = 1e-6
"""relative change of the norm at which the iteration ends."""


class _Probe:
    """D_t and its transpose, applied to vectors; remembers the last vector found and counts the links followed."""

    def __init__(self, schedule: Schedule) -> None:
        self.mixings = schedule.mixings
        self.transposed = [mixing.transposed() for mixing in schedule.mixings]
        self.x = np.random.default_rng(0).standard_normal(schedule.nodes)
        self.spent = 0

    def norm(self, t: int, enough: float = math.inf) -> tuple[float, float]:
        """Of D_t, from below, and the residual of D_t^T D_t. Ends early where it is above `enough`."""
        x, before, residual = _unit(self.x), 0.0, 0.0
        for _ in range(TURNS):
            y = self._product(t, x)
            found = float(np.linalg.norm(y))
            if found < ROUNDING:
                return 0.0, found
            back = self._back(t, y)
            residual = float(np.linalg.norm(back - found * found * x))
            x = _unit(back)
            if found > enough or found - before <= SETTLED * found or self.spent > WORK:
                break
            before = found
        self.x = x
        return found, residual

    def _product(self, t: int, x: Array) -> Array:
        for s in range(t):
            x = self._follow(self.mixings[s % len(self.mixings)], x)
        return _centered(x)

    def _back(self, t: int, x: Array) -> Array:
        for s in reversed(range(t)):
            x = self._follow(self.transposed[s % len(self.mixings)], x)
        return _centered(x)

    def _follow(self, mixing: Mixing, x: Array) -> Array:
        self.spent += mixing.messages + mixing.nodes
        return mixing.apply(x)


def by_power_iteration(schedule: Schedule, epsilon: float) -> Contraction:
    """Bisects for the first round with a norm of at most `epsilon` while the work allows; beyond that the rounds
    follow from the norm over one period, as an upper bound. Norms are found from below: where `epsilon` is just below
    one, the rounds can be one or two too few.
    """
    probe = _Probe(schedule)
    norm, residual = probe.norm(schedule.period)
    rounds = _bisected(probe, epsilon)
    exact = rounds is not None
    if rounds is None and norm < 1.0:
        rounds = schedule.period * max(1, math.ceil(math.log(epsilon) / math.log(norm)))
    return Contraction(
        norm=norm,
        rounds=rounds,
        method="power iteration" if exact else "power iteration, rounds bounded by the rate",
        residual=residual,
        certified=False,
        asymptotic=None,
        rounds_exact=exact,
    )


def _bisected(probe: _Probe, epsilon: float) -> int | None:
    """None where the work is spent before it is found."""
    high = 1
    while probe.norm(high, epsilon)[0] > epsilon:
        high *= 2
        if probe.spent > WORK:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if probe.norm(middle, epsilon)[0] > epsilon:
            low = middle
        else:
            high = middle
        if probe.spent > WORK:
            return None
    return high


def _centered(x: Array) -> Array:
    return np.asarray(x - x.mean())


def _unit(x: Array) -> Array:
    x = _centered(x)
    return np.asarray(x / np.linalg.norm(x))
