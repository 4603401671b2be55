"""Mixing matrices on a graph, and how much one mixing step contracts the distance to consensus.

All are W = I - N^-1 L_c for edge weights c and node weights N. The eigenvalues of W are those of the
symmetric I - N^-1/2 L_c N^-1/2, which is what is computed here.

Source: Xiao and Boyd, Fast linear iterations for distributed averaging, 2004 (all but `sample-weighted`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topologies.dense import DENSE_LIMIT, eigenvalues
from topologies.errors import TopologyError, nearest
from topologies.graph import Topology, components

Array = NDArray[np.float64]

WEIGHTS = ("metropolis", "max-degree", "best-constant", "sample-weighted")


def laplacian(topology: Topology, edge_weights: Array | None = None) -> Array:
    """L_c = sum over edges of c_ij (e_i - e_j)(e_i - e_j)^T, all c 1 by default. Shape: (nodes, nodes)."""
    if topology.nodes > DENSE_LIMIT:
        raise TopologyError(
            f"{topology.spec} has no formula for this, and the general method is dense",
            key="nodes",
            value=topology.nodes,
            allowed=f"up to {DENSE_LIMIT}",
        )
    ends = np.array(topology.edges, dtype=np.int64).reshape(-1, 2)
    c = np.ones(len(ends)) if edge_weights is None else edge_weights
    matrix = np.zeros((topology.nodes, topology.nodes))
    matrix[ends[:, 0], ends[:, 1]] = matrix[ends[:, 1], ends[:, 0]] = -c
    np.fill_diagonal(matrix, -matrix.sum(axis=1))
    return matrix


def sample_weights(topology: Topology, samples: Sequence[float] | None = None) -> Array:
    """c_ij = min(n_i / (deg_i + 1), n_j / (deg_j + 1)) of each edge, n = 1 by default. Shape: (edges,)."""
    ends = np.array(topology.edges, dtype=np.int64).reshape(-1, 2)
    share = _samples(topology, samples) / (np.array(topology.degrees()) + 1.0)
    return np.minimum(share[ends[:, 0]], share[ends[:, 1]])


def step(name: str, low: float, high: float, max_degree: int) -> float | None:
    """The one weight of every edge for the names that have one, from lambda_2 and lambda_max; else None."""
    match check_weights(name):
        case "max-degree":
            return 1.0 / (max_degree + 1)
        case "best-constant":
            return 2.0 / (low + high) if high > 0.0 else 0.0
        case _:
            return None


def mixing_matrix(
    topology: Topology,
    weights: str = "metropolis",
    samples: Sequence[float] | None = None,
    gamma: float = 1.0,
) -> Array:
    """W = I - gamma N^-1 L_c, rows sum to 1. Shape: (nodes, nodes). `samples` are for `sample-weighted`."""
    identity = np.eye(topology.nodes)
    if check_weights(weights) == "sample-weighted":
        n = _samples(topology, samples)
        return identity - gamma / n[:, None] * laplacian(topology, sample_weights(topology, samples))
    if weights == "metropolis":
        return identity - gamma * laplacian(topology, sample_weights(topology))
    plain = laplacian(topology)
    values = eigenvalues(plain).values
    constant = step(weights, _second(values), float(values[-1]), max(topology.degrees()))
    return identity - gamma * (constant or 0.0) * plain


def contraction(topology: Topology, samples: Sequence[float] | None = None, gamma: float = 1.0) -> float:
    """max(|1 - gamma l2|, |1 - gamma lmax|) of N^-1/2 L_c N^-1/2: the factor by which one mixing step of all
    nodes shrinks the n-weighted distance to consensus. 1 on a disconnected graph; above 1 mixing diverges.
    """
    n = _samples(topology, samples)
    if topology.nodes == 1:
        return 0.0
    scale = 1.0 / np.sqrt(n)
    matrix = scale[:, None] * laplacian(topology, sample_weights(topology, samples)) * scale
    values = eigenvalues(matrix).values
    low = _second(values) if len(components(topology)) == 1 else 0.0
    return max(abs(1.0 - gamma * low), abs(1.0 - gamma * float(values[-1])))


def check_weights(name: str) -> str:
    if name not in WEIGHTS:
        raise TopologyError("unknown mixing weights", key="weights", value=name, allowed=nearest(name, WEIGHTS))
    return name


def _second(values: Array) -> float:
    return float(values[1]) if len(values) > 1 else 0.0


def _samples(topology: Topology, samples: Sequence[float] | None) -> Array:
    n = np.ones(topology.nodes) if samples is None else np.asarray(samples, dtype=np.float64)
    if n.shape != (topology.nodes,) or not np.all(np.isfinite(n)) or np.any(n <= 0.0):
        allowed = f"{topology.nodes} positive numbers"
        raise TopologyError("impossible sample counts", key="samples", value=samples, allowed=allowed)
    return n
