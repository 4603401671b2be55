"""Choose the edge with which the mixing rate is lowest, and with it the rounds to consensus.

It is another one than that which raises lambda_2 most, because an edge also changes the mixing weights around its ends,
and the largest eigenvalue. Rayleigh quotients of the present eigenvectors bound the rate with each edge from below: so
candidates are evaluated exactly, the most promising first, until no other can be better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topologies.design.goal import adjacency_of, mixing_rate, rate_between, weighted_laplacian
from topologies.graph import Edge, Ends, Topology
from topologies.laplacian import Array

WORK = 400_000_000
"""The work for one edge, in cubes of nodes: about two seconds of eigenvalues."""
FEWEST = 20
LIMIT = 500
"""The maximum number of nodes."""


def best_for_rounds(topology: Topology, pairs: Ends, weights: str, present: Edge, work: int = WORK) -> tuple[int, str]:
    """Return the position in `pairs` of the edge with the lowest mixing rate, and how it was found. `present`, one of
    `pairs`, is kept on ties.
    """
    adjacency = adjacency_of(topology.nodes, topology.ends)
    bounds = _bounds(adjacency, pairs, weights)
    order = np.argsort(np.round(bounds, 12), kind="stable").tolist()
    most = max(FEWEST, work // topology.nodes**3)
    place = int(np.flatnonzero((pairs == present).all(axis=1))[0])
    best = _rate_with(adjacency, present, weights)
    for done, candidate in enumerate(order):
        if bounds[candidate] >= best - 1e-12:
            return place, "exact"
        if done == most:
            return place, f"the best of {most} tried"
        rate = _rate_with(adjacency, pairs[candidate].tolist(), weights)
        if rate < best - 1e-12:
            best, place = rate, candidate
    return place, "exact"


def _rate_with(adjacency: Array, pair: Sequence[int], weights: str) -> float:
    i, j = pair
    adjacency[i, j] = adjacency[j, i] = 1.0
    rate = mixing_rate(adjacency, weights)
    adjacency[i, j] = adjacency[j, i] = 0.0
    return rate


def _bounds(adjacency: Array, pairs: Ends, weights: str) -> Array:
    """Return a lower bound on the rate with each of `pairs` added. Shape (pairs,)."""
    laplacian = weighted_laplacian(adjacency, weights)
    vectors = np.linalg.eigh(laplacian)[1]
    low, high = (_quotients(adjacency, vectors[:, k], pairs, weights) for k in (1, -1))
    return np.array([rate_between(a, b, weights) for a, b in zip(low.tolist(), high.tolist(), strict=True)])


def _quotients(adjacency: Array, vector: Array, pairs: Ends, weights: str) -> Array:
    """Return x^T L x for the unit vector x (n,) and the graph with each of `pairs` added. Shape (pairs,)."""
    i, j = pairs.T
    degrees = adjacency.sum(axis=0)
    squares = (vector[:, None] - vector) ** 2 * adjacency
    fresh = (vector[i] - vector[j]) ** 2
    if weights in {"best-constant", "max-degree"}:
        total = squares.sum() / 2.0 + fresh
        if weights == "best-constant":
            return np.asarray(total)
        return np.asarray(total / (np.maximum(degrees.max(), np.maximum(degrees[i], degrees[j]) + 1.0) + 1.0))
    before = squares / (np.maximum(degrees[:, None], degrees) + 1.0)
    after = squares / (np.maximum(degrees[:, None] + 1.0, degrees) + 1.0)
    change = (after - before).sum(axis=1)  # by one more neighbor of the node in this row
    own = fresh / (np.maximum(degrees[i], degrees[j]) + 2.0)
    return np.asarray(before.sum() / 2.0 + change[i] + change[j] + own)
