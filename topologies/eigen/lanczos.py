"""Lanczos' method: both ends of the spectrum of a symmetric operator from one random start vector.

The kernel is projected out of every vector. Nothing is made orthogonal again: a converged eigenvalue may then appear
twice, which does not matter for the two ends (Paige 1980), and a pair is accepted by its true residual only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from topologies.laplacian import Array

BASIS_BYTES = 400_000_000
"""a larger basis is not kept: vectors are then computed a second time when one is asked for."""
UNLIKELY = 1e-9
"""the probability with which `slack` may be exceeded."""


@dataclass(frozen=True, slots=True)
class Ritz:
    """An approximate eigenvalue; `residual` estimates ||A x - value x||; `mix` says how its vector is combined."""

    value: float
    residual: float
    mix: Array


class Krylov:
    """`apply` maps a vector of shape (n,) to another; `kernel` is a unit vector (n,) that it maps to 0.

    `dead` becomes True when the space is invariant: then all its eigenvalues are the operator's.
    """

    def __init__(self, apply: Callable[[Array], Array], kernel: Array, *, seed: int = 0) -> None:
        self._apply = apply
        self._kernel = kernel
        self._seed = seed
        self._along: list[float] = []
        self._across: list[float] = []
        self._basis: list[Array] | None = []
        self._before = np.zeros(len(kernel))
        self._now = self._start()
        self.dead = False
        self.products = 0

    @property
    def size(self) -> int:
        return len(self._along)

    def extend(self, size: int) -> None:
        """Until the space has `size` dimensions, or is invariant."""
        while self.size < size and not self.dead:
            self._keep(self._now)
            after = self._apply(self._now)
            self.products += 1
            if self._across:
                after -= self._across[-1] * self._before
            along = float(after @ self._now)
            after -= along * self._now
            after -= self._kernel * (self._kernel @ after)
            across = float(np.linalg.norm(after))
            self._along.append(along)
            self._across.append(across)
            scale = max(map(abs, self._along)) + across
            self.dead = bool(across <= 100.0 * 2.0**-52 * scale)
            self._before, self._now = self._now, after / across if across else after

    def lowest(self) -> Ritz:
        return self._ritz(0)

    def highest(self) -> Ritz:
        return self._ritz(self.size - 1)

    def vector(self, ritz: Ritz) -> Array:
        """The unit vector of `ritz`, shape (n,)."""
        if self._basis is not None:
            found = np.zeros(len(self._kernel))
            for part, vector in zip(ritz.mix, self._basis, strict=False):
                found += part * vector
        else:
            found = self._second_pass(ritz.mix)
        return np.asarray(found / np.linalg.norm(found))

    def slack(self) -> float:
        """The share of the largest eigenvalue by which the lowest Ritz value may lie above the lowest eigenvalue.

        It is more with probability `UNLIKELY` at most, over the start vectors, in exact arithmetic: Kuczynski and
        Wozniakowski, Estimating the largest eigenvalue by the power and Lanczos algorithms with a random start, 1992,
        theorem 4.1, for (lambda_max I - A) without its kernel.
        """
        dimension = len(self._kernel) - 1
        return (math.log(1.648 * math.sqrt(dimension) / UNLIKELY) / (2 * self.size - 1)) ** 2

    def _start(self) -> Array:
        vector = np.random.default_rng(self._seed).standard_normal(len(self._kernel))
        vector -= self._kernel * (self._kernel @ vector)
        return np.asarray(vector / np.linalg.norm(vector))

    def _keep(self, vector: Array) -> None:
        if self._basis is None:
            return
        self._basis.append(vector)
        if len(self._basis) * vector.nbytes > BASIS_BYTES:
            self._basis = None

    def _second_pass(self, mix: Array) -> Array:
        before, now = np.zeros(len(self._kernel)), self._start()
        found = np.zeros(len(self._kernel))
        for k, part in enumerate(mix):
            found += part * now
            if k + 1 == len(mix):
                break
            after = self._apply(now)
            self.products += 1
            after -= (self._across[k - 1] if k else 0.0) * before
            after -= self._along[k] * now
            after -= self._kernel * (self._kernel @ after)
            before, now = now, after / self._across[k]
        return found

    def _ritz(self, which: int) -> Ritz:
        values, vectors = _tridiagonal(np.array(self._along), np.array(self._across[:-1]), which)
        residual = 0.0 if self.dead else self._across[-1] * abs(float(vectors[-1]))
        return Ritz(values, residual, vectors)


def _tridiagonal(diagonal: Array, beside: Array, which: int) -> tuple[float, Array]:
    if len(diagonal) <= 100:
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        return float(values[which]), vectors[:, which]
    from scipy.linalg import eigh_tridiagonal  # noqa: PLC0415 - not needed for small graphs

    values, vectors = eigh_tridiagonal(diagonal, beside, select="i", select_range=(which, which))
    return float(values[0]), vectors[:, 0]
