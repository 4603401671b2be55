"""Contraction of schedules with too many nodes for dense matrices: Lanczos' method on D^T D, never certified."""

from __future__ import annotations

import math

import numpy as np

from topologies.eigen.lanczos import Krylov
from topologies.schedules.contraction import ROUNDING, Contraction
from topologies.schedules.schedule import Array, Mixing, Schedule

METHOD = "lanczos"
WORK = 1_000_000_000
"""links followed in all products together: about half a minute."""
PRODUCTS = 100
"""with D^T D for one norm; for more, the eigenvalues of the small matrix would need scipy."""
SETTLED = 1e-6
"""relative residual at which a norm is taken: its own error is far less."""


class _Probe:
    """D_t and its transpose, applied to vectors; counts the links followed."""

    def __init__(self, schedule: Schedule) -> None:
        self.mixings = schedule.mixings
        self.transposed = [mixing.transposed() for mixing in schedule.mixings]
        self.mean = np.full(schedule.nodes, 1.0 / math.sqrt(schedule.nodes))
        self.spent = 0

    def norm(self, t: int, enough: float = math.inf) -> tuple[float, float]:
        """Of D_t, from below, and the residual of D_t^T D_t. Ends early where it is above `enough`."""
        krylov = Krylov(lambda x: self._back(t, self._product(t, x)), self.mean)
        while True:
            krylov.extend(krylov.size + 4)
            top = krylov.highest()
            found = math.sqrt(max(0.0, top.value))
            if found < ROUNDING:
                return 0.0, found
            settled = top.residual <= SETTLED * top.value or krylov.dead or krylov.size >= PRODUCTS
            if settled or found > enough or self.spent > WORK:
                return found, top.residual

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


def by_lanczos(schedule: Schedule, epsilon: float) -> Contraction:
    """Bisects for the first round with a norm of at most `epsilon` while the work allows; beyond that the rounds
    follow from the norm over one period, as an upper bound. Norms are found from below.
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
        method=METHOD if exact else f"{METHOD}, rounds bounded by the rate",
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
