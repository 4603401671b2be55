"""The mixing rate of small dense graphs, fast: the search asks for tens of thousands of them."""

from __future__ import annotations

import numpy as np

from topologies.graph import Ends, Topology
from topologies.laplacian import Array
from topologies.spectral import spectrum

DENSE_LIMIT = 500
"""nodes: up to so many all eigenvalues are found faster than the two that matter."""


def weighted_laplacian(adjacency: Array, weights: str) -> Array:
    """L with W = I - L, or the plain Laplacian for `best-constant`. Shape (n, n), as `adjacency` of zeros and ones.

    All nodes have the same number of samples, so that `sample-weighted` is `metropolis`.
    """
    degrees = adjacency.sum(axis=0)
    if weights == "best-constant":
        shares = adjacency
    elif weights == "max-degree":
        shares = adjacency / (degrees.max() + 1.0)
    else:
        shares = adjacency / (np.maximum(degrees[:, None], degrees) + 1.0)
    laplacian: Array = -shares
    np.fill_diagonal(laplacian, shares.sum(axis=0))
    return laplacian


def rate_between(low: float, high: float, weights: str) -> float:
    """The mixing rate from the second smallest and the largest eigenvalue of `weighted_laplacian`.

    It falls with `low` and grows with `high`, so that bounds on them bound it.
    """
    if weights == "best-constant":
        return (high - low) / (high + low) if high > 0.0 else 1.0
    return max(1.0 - low, high - 1.0)


def mixing_rate(adjacency: Array, weights: str) -> float:
    """1 on a disconnected graph."""
    values = np.linalg.eigvalsh(weighted_laplacian(adjacency, weights))
    if values[1] < 1e-10 * max(1.0, values[-1]):
        return 1.0
    return rate_between(float(values[1]), float(values[-1]), weights)


def rate_of(topology: Topology, weights: str) -> float:
    """As `spectrum` finds it, without what it proves."""
    if topology.formula is not None or topology.nodes > DENSE_LIMIT:
        return spectrum(topology, weights).mixing_rate
    return mixing_rate(adjacency_of(topology.nodes, topology.ends), weights)


def adjacency_of(nodes: int, ends: Ends) -> Array:
    """Zeros and ones, shape (nodes, nodes)."""
    adjacency = np.zeros((nodes, nodes))
    adjacency[ends[:, 0], ends[:, 1]] = adjacency[ends[:, 1], ends[:, 0]] = 1.0
    return adjacency
