"""What is known of the two ends of a Laplacian's spectrum, and how well; all eigenvalues of a small matrix; and how
long eigenvalues take, roughly and before they are asked for, so that a command can refuse what would take hours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.laplacian import Array, Laplacian

DENSE_LIMIT = 1_000
"""nodes: above, importing scipy and taking another method is faster."""
ULP = 2.0**-52


@dataclass(frozen=True, slots=True)
class Eigenvalues:
    """`values` ascending, (n,). Each lies within `bound` of the true eigenvalue of the same rank.

    `vectors[:, k]` belongs to `values[k]`.
    """

    values: NDArray[np.float64]
    vectors: NDArray[np.float64]
    bound: float


def eigenvalues(matrix: NDArray[np.float64]) -> Eigenvalues:
    """All eigenvalues of a symmetric (n, n) matrix.

    The bound is ||A V - V D|| / sigma_min(V) (Kahan; Parlett, The Symmetric Eigenvalue Problem, 11.10), with
    sigma_min(V)^2 >= 1 - ||V^T V - I||. It holds for all eigenvalues in order, so it certifies their rank. To each
    norm that is computed comes what computing it may have rounded away: n units of ||A|| ||V||.
    """
    values, vectors = np.linalg.eigh(matrix)
    size = len(values)
    rounded = (size + 2) * ULP / 2.0
    residual = float(np.linalg.norm(matrix @ vectors - vectors * values))
    residual += 1.01 * rounded * math.sqrt(size) * float(np.linalg.norm(matrix))
    skew = float(np.linalg.norm(vectors.T @ vectors - np.eye(size))) + 1.01 * rounded * size
    return Eigenvalues(values, vectors, residual / math.sqrt(1.0 - skew) if skew < 1.0 else math.inf)


TOLERANCE = 1e-6
"""relative: an eigenvalue is certified when it is proven to lie within this of the one that is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """The second smallest (`low`) and the largest eigenvalue (`high`) of a connected graph's Laplacian.

    Both are Rayleigh quotients or Ritz values: lambda_2 is at most `low`, the largest at least `high` (up to rounding
    in the last digits).

    `residual`: norm of A x - low x for the unit vector x that was found. `lower`: what lambda_2 is proven not to be
    below, None where nothing is proven. `certified`: low - lower <= TOLERANCE * low. `probable`: a lower bound that is
    wrong with a probability of `lanczos.UNLIKELY` only, over the random start vectors and in exact arithmetic; never
    the ground of `certified`. `converged`: certified, or the residual is at most TOLERANCE * low, so that some
    eigenvalue is as near to `low`; where it is False, `low` is an upper bound and nothing more.
    `highest`: what the largest eigenvalue is proven not to be above; `high_residual` as `residual`, of `high`.
    `vector`: the eigenvector of `low` (Fiedler's, for the plain Laplacian), shape (nodes,); empty where no
    eigensolver ran.
    """

    low: float
    high: float
    method: str
    residual: float
    lower: float | None
    certified: bool
    converged: bool
    products: int
    """matrix-vector products, and solutions of a linear system."""
    vector: Array
    probable: float | None = None
    high_residual: float = 0.0
    highest: float

    @property
    def high_converged(self) -> bool:
        """Either some eigenvalue is within TOLERANCE of `high`, or none can be much above it."""
        return min(self.high_residual, self.highest - self.high) <= TOLERANCE * self.high


class NotConverged(TopologyError):  # noqa: N818 - what it says
    """An eigenvalue that was needed is not known."""

    exit_code = 4


def required(found: Extremes) -> Extremes:
    """`found` itself, for a caller who has no place for a doubt.

    Raises:
        NotConverged: it is not known to `TOLERANCE`.
    """
    if found.converged:
        return found
    raise NotConverged(f"no eigenvalue converged; lambda_2 is at most {found.low:.6g}", key="topology")


def exactly(low: float, high: float, method: str) -> Extremes:
    """By a formula."""
    return Extremes(
        low=low,
        high=high,
        method=method,
        residual=0.0,
        lower=low,
        certified=True,
        converged=True,
        products=0,
        vector=np.zeros(0),
        highest=high,
    )


def from_vector(
    laplacian: Laplacian, vector: Array, method: str, *, high: float, high_residual: float, products: int
) -> Extremes:
    """Judges a vector, (nodes,), that some method found: its Rayleigh quotient and its true residual."""
    vector = vector - laplacian.kernel * (laplacian.kernel @ vector)
    vector /= np.linalg.norm(vector)
    low = laplacian.quotient(vector)
    residual = float(np.linalg.norm(laplacian.times(vector) - low * vector))
    return Extremes(
        low=low,
        high=high,
        method=method,
        residual=residual,
        lower=None,
        certified=False,
        converged=residual <= TOLERANCE * low,
        products=products,
        vector=vector,
        high_residual=high_residual,
        highest=max(high, laplacian.largest),
    )


def proven(found: Extremes, lower: float) -> Extremes:
    """With a bound from below that a certificate gave."""
    certified = found.low - lower <= TOLERANCE * found.low * (1.0 + 1e-9)
    return replace(found, lower=lower, certified=certified, converged=certified or found.converged)


EFFORT_LIMIT = 50_000_000
"""of one command: a few minutes."""
CALLS = 50
"""what numpy takes for a graph of a few nodes."""

Tell = Callable[[str], None]
"""Hears how far a long computation is."""


def silent(_text: str) -> None:
    """Tells nobody."""


def effort(nodes: int, edges: int) -> int:
    """Of the algebraic connectivity: dense up to `DENSE_LIMIT` nodes; above, edges beyond those of a ring cost most."""
    if nodes <= DENSE_LIMIT:
        return CALLS + nodes**2 // 10 + edges // 20
    return DENSE_LIMIT**2 // 10 + 2 * nodes + edges + 10 * max(0, edges - nodes)
