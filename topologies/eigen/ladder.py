"""Which method finds the second smallest and the largest eigenvalue of a Laplacian of any size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.eigen.dense import DENSE_LIMIT, eigenvalues
from topologies.errors import TopologyError
from topologies.laplacian import Array, Laplacian

TOLERANCE = 1e-6
"""relative: an eigenvalue is certified when it is proven to lie within this of the one that is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """The second smallest (`low`) and the largest eigenvalue (`high`) of a connected graph's Laplacian.

    `residual`: norm of A x - low x for the unit vector x that was found, or the bound on the error of all eigenvalues
    where the method gives one. `lower`: what `low` is proven not to be below, None where nothing is proven; above
    it cannot be: a Rayleigh quotient is an upper bound. `certified`: low - lower <= TOLERANCE * low.
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
    """matrix-vector products."""
    vector: Array


def extremes(laplacian: Laplacian, *, certify: bool = False) -> Extremes:
    """Of a connected graph with at least two nodes. `certify` spends time and memory to prove the result."""
    if laplacian.nodes > DENSE_LIMIT:
        raise TopologyError("too large", key="nodes", value=laplacian.nodes, allowed=f"up to {DENSE_LIMIT}")
    return dense_extremes(laplacian)


def dense_extremes(laplacian: Laplacian) -> Extremes:
    found = eigenvalues(laplacian.dense())
    vector = np.array(found.vectors[:, 1])
    low = laplacian.quotient(vector)
    lower = max(0.0, float(found.values[1]) - found.bound)
    return Extremes(
        low=low,
        high=float(found.values[-1]),
        method="dense",
        residual=found.bound,
        lower=lower,
        certified=low - lower <= TOLERANCE * low,
        converged=True,
        products=0,
        vector=vector,
    )
