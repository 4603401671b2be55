"""The symmetric eigenproblem with a bound on its own error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
