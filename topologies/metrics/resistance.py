"""Effective resistance: the graph as a network of one-ohm resistors. It is what noise adds up to when nodes average.

Source: Klein and Randic, Resistance distance (1993); Ghosh, Boyd and Saberi, Minimizing effective resistance of a
graph (SIAM Review 50, 2008). The Kirchhoff index is the sum over unordered pairs, n times the sum of 1 / lambda_k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.families.classic import sides
from topologies.family import GraphRequest
from topologies.graph import Topology
from topologies.laplacian import Array, Laplacian
from topologies.metrics.distance import distances, tree_sizes
from topologies.metrics.known import is_complete, is_connected, is_transitive
from topologies.specs import parse

Nodes = NDArray[np.int64]
DENSE_LIMIT = 2_000
SUM_WORK = 50_000_000
"""sines that are summed for the eigenvalues: about half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resistance:
    """In units of one edge's resistance; `average` and `largest` over pairs of different nodes, 0 for one node."""

    kirchhoff: float
    average: float
    largest: float
    method: str


def resistance(topology: Topology, limit: int = DENSE_LIMIT) -> Resistance | None:
    """Exact, or None: on a disconnected graph, where it is infinite, and where no formula holds above `limit` nodes.

    Complete graphs and trees have a formula; rings, tori, hypercubes and circulants a Fourier transform.
    """
    n = topology.nodes
    if n == 1:
        return Resistance(kirchhoff=0.0, average=0.0, largest=0.0, method="one node")
    if is_complete(topology):
        return _of(n, n - 1.0, 2.0 / n, "complete")
    if topology.implicit or not is_connected(topology):
        return None
    if topology.edge_count == n - 1:
        return _tree(topology)
    shape = _group(topology)
    if shape is not None:
        return _by_fourier(topology, shape)
    return _dense(topology) if n <= limit else None


def _of(n: int, kirchhoff: float, largest: float, method: str) -> Resistance:
    return Resistance(kirchhoff=kirchhoff, average=2.0 * kirchhoff / n / (n - 1), largest=largest, method=method)


def _tree(topology: Topology) -> Resistance:
    """Resistances are distances. Each edge is on the way of all pairs that it separates."""
    below = tree_sizes(topology)
    longest = distances(topology).diameter
    kirchhoff = sum(size * (topology.nodes - size) for size in below.tolist())
    return _of(topology.nodes, float(kirchhoff), float(longest.upper if longest else 0), "tree")


def _group(topology: Topology) -> tuple[int, ...] | None:
    """The cyclic groups whose product numbers the nodes row by row, if adding in it maps the graph onto itself."""
    shapes: list[tuple[int, ...]] = [(topology.nodes,)]
    if is_transitive(topology):
        spec = parse(topology.spec)
        if spec.name == "torus":
            wanted = GraphRequest(spec=topology.spec, nodes=topology.nodes, parameters=spec.parameters)
            shapes.append(sides("torus", wanted))
        elif spec.name == "hypercube":
            shapes.append((2,) * (topology.nodes.bit_length() - 1))
    return next((shape for shape in shapes if _is_cayley(topology, shape)), None)


def _is_cayley(topology: Topology, shape: tuple[int, ...]) -> bool:
    """Whether an edge joins every two nodes that differ as node 0 and one of its neighbors do, and no others."""
    starts, neighbors = topology.rows
    offsets = neighbors[: starts[1]]
    if 2 * topology.edge_count != topology.nodes * len(offsets):
        return False
    allowed = np.zeros(topology.nodes, dtype=bool)
    allowed[offsets] = True
    back = _apart(offsets, np.zeros_like(offsets), shape)
    steps = _apart(topology.ends[:, 0], topology.ends[:, 1], shape)
    return bool(allowed[back].all() and allowed[steps].all())


def _apart(i: Nodes, j: Nodes, shape: tuple[int, ...]) -> Nodes:
    """The node that is j - i."""
    if set(shape) == {2}:
        return i ^ j
    places = zip(np.unravel_index(i, shape), np.unravel_index(j, shape), shape, strict=True)
    return np.asarray(np.ravel_multi_index([(b - a) % side for a, b, side in places], shape))


def _by_fourier(topology: Topology, shape: tuple[int, ...]) -> Resistance:
    """The transform of the reciprocal eigenvalues is the first row of the pseudo-inverse."""
    starts, neighbors = topology.rows
    values = _eigenvalues(neighbors[: starts[1]], shape)
    values.flat[0] = np.inf
    inverse = np.fft.ifftn(1.0 / values).real.ravel()
    kirchhoff = topology.nodes * float((1.0 / values).sum())
    return _of(topology.nodes, kirchhoff, 2.0 * float(inverse[0] - inverse.min()), "Fourier transform")


def _eigenvalues(offsets: Nodes, shape: tuple[int, ...]) -> Array:
    """Shape `shape`. lambda_k is the sum over offsets s of 2 sin^2(pi (k_1 s_1 / n_1 + k_2 s_2 / n_2 + ...)): no
    cancellation where it is tiny. With many offsets none is, and a transform is quicker.
    """
    nodes = math.prod(shape)
    if len(offsets) * nodes > SUM_WORK:
        row = np.zeros(nodes)
        row[offsets] = -1.0
        row[0] = len(offsets)
        return np.asarray(np.fft.fftn(row.reshape(shape)).real)
    values = np.zeros(shape)
    for steps in zip(*np.unravel_index(offsets, shape), strict=True):
        turns = np.zeros((1,) * len(shape))
        for axis, (step, side) in enumerate(zip(steps, shape, strict=True)):
            if step:
                along = np.arange(side) * int(step) % side / side
                turns = turns + along.reshape([-1 if other == axis else 1 for other in range(len(shape))])
        values += 2.0 * np.sin(np.pi * turns) ** 2
    return values


def _dense(topology: Topology) -> Resistance:
    """R_ij = P_ii + P_jj - 2 P_ij for P the inverse of L + J / n: the pseudo-inverse and a constant."""
    n = topology.nodes
    inverse = np.linalg.inv(Laplacian.plain(topology).dense() + 1.0 / n)
    own: Array = np.diag(inverse)
    pairs = own[:, None] + own - 2.0 * inverse
    kirchhoff = n * (float(own.sum()) - 1.0)
    return _of(n, kirchhoff, float(pairs.max()), "dense inverse")
