"""The iterations that find the ends of a large spectrum; `extremes` chooses the one that suits a graph.

- Lanczos' method: both ends from one random start vector. The kernel is projected out of every vector. There is no
  reorthogonalization: a converged eigenvalue may appear twice, which does not matter for the two ends (Paige 1980).
- The pseudoinverse by elimination: its largest eigenvalue is one over the smallest of the Laplacian. For graphs with
  a small gap and small separators: paths, rings, trees, tori and planar graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from topologies.eigen.certificate import FactorBudget, QuadraticForm, factor, shrink
from topologies.eigen.laplacian import Array, Laplacian

Over = Callable[[], bool]
"""True when the time to search is over."""
FEWEST = 20
"""The dimensions of a space that are there, whatever the time."""
BASIS_BYTES = 100_000_000
"""The maximum size of a basis that is kept in memory; the vectors of a larger one are recomputed on request."""
UNLIKELY = 1e-9
"""The probability with which `slack` may be exceeded."""


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Ritz:
    """An approximate eigenvalue; `residual` estimates ||A x - value x||; `mix` has the coefficients of its vector."""

    value: float
    residual: float
    mix: Array = field(default_factory=lambda: np.zeros(0))


class Krylov:
    """A Krylov space. `apply` maps a vector of shape (n,) to another; `kernel` is a unit vector (n,) that it maps to 0.

    `dead` becomes True when the space is invariant: then all its eigenvalues are the operator's. When it is `over`, a
    space of a few dimensions grows no more.
    """

    def __init__(self, apply: Callable[[Array], Array], kernel: Array, over: Over = never) -> None:
        self._apply = apply
        self._kernel = kernel
        self._over = over
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

    @property
    def ended(self) -> bool:
        return self.dead or self._over()

    def extend(self, size: int) -> None:
        """Extend the space to `size` dimensions, or until it is invariant."""
        while self.size < size and not self.dead and (self.size < FEWEST or not self._over()):
            if self._basis is not None:
                self._basis.append(self._now)
                self._basis = self._basis if len(self._basis) * self._now.nbytes <= BASIS_BYTES else None
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
            total = np.zeros(len(self._kernel))
            for part, vector in zip(ritz.mix, self._basis, strict=False):
                total += part * vector
        else:
            total = self._second_pass(ritz.mix)
        return np.asarray(total / np.linalg.norm(total))

    def slack(self) -> float:
        """The lowest Ritz value may lie above the lowest eigenvalue by this fraction of the largest eigenvalue.

        It is exceeded with probability at most `UNLIKELY`, over the start vectors, in exact arithmetic: Kuczynski and
        Wozniakowski, Estimating the largest eigenvalue by the power and Lanczos algorithms with a random start, 1992,
        theorem 4.1, for (lambda_max I - A) without its kernel.
        """
        dimension = len(self._kernel) - 1
        return (math.log(1.648 * math.sqrt(dimension) / UNLIKELY) / (2 * self.size - 1)) ** 2

    def _start(self) -> Array:
        vector = np.random.default_rng(0).standard_normal(len(self._kernel))
        vector -= self._kernel * (self._kernel @ vector)
        return np.asarray(vector / np.linalg.norm(vector))

    def _second_pass(self, mix: Array) -> Array:
        before, now = np.zeros(len(self._kernel)), self._start()
        total = np.zeros(len(self._kernel))
        for k, part in enumerate(mix):
            total += part * now
            if k + 1 == len(mix):
                break
            after = self._apply(now)
            self.products += 1
            after -= (self._across[k - 1] if k else 0.0) * before
            after -= self._along[k] * now
            after -= self._kernel * (self._kernel @ after)
            before, now = now, after / self._across[k]
        return total

    def _ritz(self, which: int) -> Ritz:
        value, mix = _tridiagonal(np.array(self._along), np.array(self._across[:-1]), which)
        residual = 0.0 if self.dead else self._across[-1] * abs(float(mix[-1]))
        return Ritz(value, residual, mix)


def _tridiagonal(diagonal: Array, beside: Array, which: int) -> tuple[float, Array]:
    """Return the eigenvalue of that rank, and its vector."""
    if len(diagonal) <= 100:
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        return float(values[which]), vectors[:, which]
    from scipy.linalg import eigh_tridiagonal  # noqa: PLC0415 - not needed for small graphs

    values, vectors = eigh_tridiagonal(diagonal, beside, select="i", select_range=(which, which))
    return float(values[0]), vectors[:, 0]


def inverse_of(laplacian: Laplacian, budget: FactorBudget) -> Callable[[Array], Array] | None:
    """Return the operator N^1/2 L_c^+ N^1/2 on vectors (n,) that are orthogonal to the kernel N^1/2 1.

    None if its factors would not fit into the budget, or do not exist.
    """
    if (core := shrink(QuadraticForm.of(laplacian), budget, keep=True)) is None:
        return None
    form, dense = core
    if (solve := _dense_core(form) if dense else _sparse_core(form)) is None:
        return None

    def apply(y: Array) -> Array:
        b = laplacian.root * y
        for step in form.steps:
            np.add.at(b, step.neighbor, step.share * b[step.gone][step.owner])
        x = np.zeros(len(b))
        x[form.nodes] = solve(b[form.nodes])
        for step in reversed(form.steps):
            x[step.gone] = b[step.gone] / step.pivot + np.add.reduceat(step.share * x[step.neighbor], step.starts)
        x *= laplacian.root
        x -= laplacian.kernel * (laplacian.kernel @ x)
        return x

    return apply


def _dense_core(form: QuadraticForm) -> Callable[[Array], Array] | None:
    """Factor the core densely; None if the weights differ so much that the rounded matrix is singular."""
    matrix = np.diag(form.sums)
    matrix[form.i, form.j] = matrix[form.j, form.i] = -form.c
    try:
        inverse = np.linalg.inv(matrix[1:, 1:])
    except np.linalg.LinAlgError:
        return None

    def solve(b: Array) -> Array:
        return np.concatenate([[0.0], inverse @ b[1:]])

    return solve


def _sparse_core(form: QuadraticForm) -> Callable[[Array], Array] | None:
    ground = int(np.argmax(form.degrees))
    factored = factor(form, ground)
    if factored is None:
        return None
    lu, scale = factored
    stay = np.flatnonzero(np.arange(form.size) != ground)

    def solve(b: Array) -> Array:
        x = np.zeros(form.size)
        x[stay] = scale[stay] * lu.solve(scale[stay] * b[stay])
        return x

    return solve
