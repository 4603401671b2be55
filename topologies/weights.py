"""Mixing matrices on a graph, and how much one mixing step contracts the distance to consensus.

All are W = I - gamma N^-1 L_c for edge weights c and node weights n (`laplacian`). The eigenvalues of W are one minus
gamma times those of N^-1/2 L_c N^-1/2.

Source: Xiao and Boyd, Fast linear iterations for distributed averaging, 2004 (all but `sample-weighted`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topologies.eigen.extremes import required
from topologies.eigen.ladder import extremes, largest
from topologies.errors import TopologyError, nearest
from topologies.graph import Topology, component_count, require_graph
from topologies.laplacian import Array, Laplacian

WEIGHTS = ("metropolis", "max-degree", "best-constant", "sample-weighted")


def sample_weights(topology: Topology, samples: Sequence[float] | None = None) -> Array:
    """c_ij = min(n_i / (deg_i + 1), n_j / (deg_j + 1)) of each edge, n = 1 by default. Shape: (edges,).

    With n = 1 these are the Metropolis weights.
    """
    share = _samples(topology, samples) / (topology.degrees + 1.0)
    return np.minimum(share[topology.ends[:, 0]], share[topology.ends[:, 1]])


def weighted(topology: Topology, weights: str = "metropolis", samples: Sequence[float] | None = None) -> Laplacian:
    """The Laplacian L_c with N such that W = I - N^-1 L_c. `samples` are for `sample-weighted`.

    Raises:
        TopologyError: unknown weights, or samples that are not one positive number for each node.
    """
    require_graph(topology)
    match check_weights(weights):
        case "sample-weighted":
            n = _samples(topology, samples)
            return Laplacian(topology.ends, sample_weights(topology, samples), n)
        case "metropolis":
            return Laplacian(topology.ends, sample_weights(topology), np.ones(topology.nodes))
        case "max-degree":
            constant = 1.0 / (float(topology.degrees.max()) + 1.0)
        case _:
            constant = _best_constant(topology)
    return Laplacian(topology.ends, np.full(topology.edge_count, constant), np.ones(topology.nodes))


def _best_constant(topology: Topology) -> float:
    """2 / (lambda_2 + lambda_max) of the Laplacian."""
    if not topology.edge_count:
        return 0.0
    if component_count(topology) > 1:
        return 1.0 / (float(topology.degrees.max()) + 1.0)
    found = required(extremes(Laplacian.plain(topology)))
    return 2.0 / (found.low + found.high)


def mixing_matrix(
    topology: Topology,
    weights: str = "metropolis",
    samples: Sequence[float] | None = None,
    gamma: float = 1.0,
) -> Array:
    """W = I - gamma N^-1 L_c, rows sum to 1. Shape: (nodes, nodes). `samples` are for `sample-weighted`."""
    laplacian = weighted(topology, weights, samples)
    root = np.sqrt(laplacian.n)
    return np.eye(topology.nodes) - gamma * laplacian.dense() / root[:, None] * root


def contraction(topology: Topology, samples: Sequence[float] | None = None, gamma: float = 1.0) -> float:
    """max(|1 - gamma l2|, |1 - gamma lmax|) of N^-1/2 L_c N^-1/2: the factor by which one mixing step of all
    nodes shrinks the n-weighted distance to consensus. 1 on a disconnected graph; above 1 mixing diverges.

    Raises:
        NotConverged: it is not known.
    """
    laplacian = weighted(topology, "sample-weighted", samples)
    if topology.nodes == 1:
        return 0.0
    if component_count(topology) > 1:
        return max(1.0, abs(1.0 - gamma * largest(laplacian)[0]))
    found = required(extremes(laplacian))
    return max(abs(1.0 - gamma * found.low), abs(1.0 - gamma * found.high))


def check_weights(name: str) -> str:
    if name not in WEIGHTS:
        raise TopologyError("unknown mixing weights", key="weights", value=name, allowed=nearest(name, WEIGHTS))
    return name


def _samples(topology: Topology, samples: Sequence[float] | None) -> Array:
    n = np.ones(topology.nodes) if samples is None else np.asarray(samples, dtype=np.float64)
    if n.shape != (topology.nodes,) or not np.all(np.isfinite(n)) or np.any(n <= 0.0):
        allowed = f"{topology.nodes} positive numbers"
        raise TopologyError("impossible sample counts", key="samples", value=samples, allowed=allowed)
    return n
