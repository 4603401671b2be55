"""The matrix whose spectrum decides how fast a graph mixes: N^-1/2 L_c N^-1/2.

L_c = sum over edges of c_ij (e_i - e_j)(e_i - e_j)^T for edge weights c, N the diagonal of node weights n. With c = 1
and n = 1 it is the Laplacian itself. It is symmetric and positive semidefinite, and N^1/2 1 is in its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.graph import Ends, Topology

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Laplacian:
    """A weighted Laplacian. `c` has shape (edges,), `n` shape (nodes,); all values are positive."""

    ends: Ends
    c: Array
    n: Array

    @classmethod
    def plain(cls, topology: Topology) -> Laplacian:
        return cls(topology.ends, np.ones(topology.edge_count), np.ones(topology.nodes))

    @property
    def nodes(self) -> int:
        return len(self.n)

    @cached_property
    def root(self) -> Array:
        """The diagonal of N^1/2. Shape (nodes,)."""
        return np.sqrt(self.n)

    @cached_property
    def kernel(self) -> Array:
        """The unit vector that mixing does not change. Shape (nodes,)."""
        return np.asarray(self.root / np.linalg.norm(self.root))

    @cached_property
    def diagonal(self) -> Array:
        """The diagonal of the matrix. Shape (nodes,)."""
        sums = np.bincount(self.ends[:, 0], self.c, self.nodes) + np.bincount(self.ends[:, 1], self.c, self.nodes)
        return np.asarray(sums / self.n)

    @cached_property
    def off_diagonal(self) -> Array:
        """The off-diagonal entry of each edge, negative. Shape (edges,)."""
        return np.asarray(-self.c / np.sqrt(self.n[self.ends[:, 0]] * self.n[self.ends[:, 1]]))

    @cached_property
    def largest(self) -> float:
        """An upper bound on the largest eigenvalue: the largest d_i + d_j over edges, d the diagonal.

        Gershgorin for C B^T N^-1 B, which has the same eigenvalues up to zeros (Anderson, Morley 1985, for C = N = 1).
        """
        d = self.diagonal
        most = float((d[self.ends[:, 0]] + d[self.ends[:, 1]]).max(initial=0.0))
        return most * (1.0 + 1e-12)

    def dense(self) -> Array:
        """The matrix as an array of shape (nodes, nodes)."""
        matrix = np.diag(self.diagonal)
        matrix[self.ends[:, 0], self.ends[:, 1]] = matrix[self.ends[:, 1], self.ends[:, 0]] = self.off_diagonal
        return matrix

    def sparse(self) -> Any:
        """The matrix as a `scipy.sparse.csr_array`."""
        from scipy.sparse import coo_array  # noqa: PLC0415 - not needed for small graphs, and not available on a small board

        i, j = self.ends[:, 0], self.ends[:, 1]
        node = np.arange(self.nodes)
        values = np.concatenate([self.off_diagonal, self.off_diagonal, self.diagonal])
        places = (np.concatenate([i, j, node]), np.concatenate([j, i, node]))
        return coo_array((values, places), shape=(self.nodes, self.nodes)).tocsr()

    def times(self, x: Array) -> Array:
        """Compute A x by differences over edges, (nodes,): no matrix, and no cancellation for a smooth x."""
        y = x / self.root
        i, j = self.ends[:, 0], self.ends[:, 1]
        flow = self.c * (y[i] - y[j])
        return np.asarray((np.bincount(i, flow, self.nodes) - np.bincount(j, flow, self.nodes)) / self.root)

    def quotient(self, x: Array) -> float:
        """Compute the Rayleigh quotient x^T A x / x^T x as a sum of squares, so that a tiny one keeps its relative
        accuracy.
        """
        y = x / self.root
        return float(self.c @ (y[self.ends[:, 0]] - y[self.ends[:, 1]]) ** 2 / (x @ x))
