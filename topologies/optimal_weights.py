"""The mixing weights with which a given graph mixes fastest: the fastest mixing Markov chain on it.

The mixing rate max(|1 - lambda_2|, |1 - lambda_max|) of W = I - L_c is convex in the edge weights c (Xiao and Boyd,
Fast linear iterations for distributed averaging, 2004; Boyd, Diaconis and Xiao, Fastest mixing Markov chain on a graph,
2004). Allowed are weights that nodes can use: none is negative, those of a node add up to at most 1, and none is above
1/2, for an exchange that carries two models past each other helps nobody.

It is solved as a semidefinite program, by Newton's method along the central path (Boyd and Vandenberghe, Convex
Optimization, 2004, section 11.6), with a proof of how much faster other weights could be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topologies.eigen.extremes import Tell, silent
from topologies.errors import TopologyError
from topologies.graph import Ends, Topology, require_connected
from topologies.laplacian import Array, Laplacian

LARGEST_WEIGHT = 0.5
"""The largest weight of an edge: an exchange then ends with both models equal."""
EDGES_LIMIT = 1_500
"""Up to this many edges a Newton step takes less than a second."""


@dataclass(frozen=True, slots=True)
class OptimalWeights:
    """The weights, shape (edges,), in the order of the topology's `ends`, and their mixing `rate`. No other allowed
    weights have a rate below `bound`; None if that is not known.
    """

    weights: Array
    rate: float
    bound: float | None


def optimal_weights(topology: Topology, *, tell: Tell = silent) -> OptimalWeights:
    """Find the allowed weights with which the connected graph mixes fastest. All are positive.

    Raises DisconnectedError if it is not connected, TopologyError if it is too large.
    """
    require_connected(topology)
    if topology.edge_count > EDGES_LIMIT:
        text = "too many edges to find the optimal weights"
        allowed = f"up to {EDGES_LIMIT}, or other weights, such as metropolis"
        raise TopologyError(text, key="weights", value=topology.edge_count, allowed=allowed)
    return _CentralPath(topology.nodes, topology.ends).follow(tell)


def _start(topology_ends: Ends, nodes: int) -> Array:
    """Return the Metropolis weights, shape (edges,)."""
    degrees = np.bincount(topology_ends.ravel(), minlength=nodes)
    return np.asarray(1.0 / (np.maximum(degrees[topology_ends[:, 0]], degrees[topology_ends[:, 1]]) + 1.0))


GAP = 1e-5
"""The share of the spectral gap, 1 minus the rate, by which other weights could be better."""
GROWTH = 12.0
"""The factor between two points of the central path."""
NEAR = 0.3
"""The Newton decrement at which a point counts as on the path."""
MARGIN = 1.2
"""How many times its value on the path the gap of such a point is at most: 1 + (sqrt(v) + d) d / ((1 - d) v), with d
the decrement and v, the barrier's parameter, at least 8.
"""
STEPS = 400


class _CentralPath:
    """Minimizes t s plus a barrier, for growing t: -s I < W(c) - J < s I, with J the matrix of 1/n, and c in bounds."""

    def __init__(self, nodes: int, ends: Ends) -> None:
        self.nodes, self.ends = nodes, ends
        self.parameter = 3 * nodes + 2 * len(ends)
        """The parameter of the barrier: on the path the duality gap is that many times 1/t."""
        at = np.arange(len(ends))
        self.incidence = np.zeros((nodes, len(ends)))
        self.incidence[ends[:, 0], at] = self.incidence[ends[:, 1], at] = 1.0

    def follow(self, tell: Tell) -> OptimalWeights:
        c = 0.9 * np.minimum(_start(self.ends, self.nodes), LARGEST_WEIGHT)
        rate, bound = self._rate(c), None
        s, t = (rate + 1.0) / 2.0, float(self.parameter)
        for _ in range(STEPS):
            gap = MARGIN * self.parameter / t
            tell(f"optimal weights: at most {gap:.1e} above the lowest rate")
            step, decrement = self._newton_step(s, c, t)
            size = self._size(s, c, t, step, decrement)
            s, c = s + size * float(step[0]), c + size * step[1:]
            if decrement < NEAR:
                rate, bound = self._rate(c), max(0.0, s - gap)
                if gap <= GAP * (1.0 - rate) or t > 1e14:
                    break
                t *= GROWTH
            elif not size:
                break  # rounding spoils every further step
        return OptimalWeights(c, self._rate(c), bound)

    def _laplacian(self, c: Array) -> Laplacian:
        return Laplacian(self.ends, c, np.ones(self.nodes))

    def _rate(self, c: Array) -> float:
        values = np.linalg.eigvalsh(self._laplacian(c).dense())
        return float(max(1.0 - values[1], values[-1] - 1.0))

    def _parts(self, s: float, c: Array) -> tuple[Array, Array, Array]:
        """Return s I - (W - J) and s I + (W - J), and what is left of each node's weight."""
        laplacian = self._laplacian(c)
        dense = laplacian.dense() + 1.0 / self.nodes
        unit = np.eye(self.nodes)
        return (s - 1.0) * unit + dense, (s + 1.0) * unit - dense, 1.0 - laplacian.diagonal

    def _value(self, s: float, c: Array, t: float) -> float:
        """Return the function that is minimized; infinite out of bounds."""
        above, below, spare = self._parts(s, c)
        if min(c.min(), (LARGEST_WEIGHT - c).min(), spare.min()) <= 0.0:
            return math.inf
        try:
            logs = sum(2.0 * np.log(np.diag(np.linalg.cholesky(matrix))).sum() for matrix in (above, below))
        except np.linalg.LinAlgError:
            return math.inf
        return float(t * s - logs - np.log(c).sum() - np.log(LARGEST_WEIGHT - c).sum() - np.log(spare).sum())

    def _newton_step(self, s: float, c: Array, t: float) -> tuple[Array, float]:
        """Return the Newton step, shape (1 + edges,) with s first, and the Newton decrement."""
        i, j = self.ends[:, 0], self.ends[:, 1]
        above, below, spare = self._parts(s, c)
        rest = LARGEST_WEIGHT - c
        slope = np.concatenate([[t], -1.0 / c + 1.0 / rest + 1.0 / spare[i] + 1.0 / spare[j]])
        hessian = np.zeros((len(slope), len(slope)))
        for matrix, sign in ((above, 1.0), (below, -1.0)):
            inverse = np.linalg.inv(matrix)
            rows = inverse[i] - inverse[j]
            between = rows[:, i] - rows[:, j]
            slope[0] -= np.trace(inverse)
            slope[1:] -= sign * np.diag(between)
            hessian[0, 0] += (inverse**2).sum()
            hessian[0, 1:] += sign * (rows**2).sum(axis=1)
            hessian[1:, 1:] += between**2
        hessian[1:, 0] = hessian[0, 1:]
        scaled = self.incidence / spare[:, None]
        hessian[1:, 1:] += scaled.T @ scaled
        own = np.arange(1, len(slope))
        hessian[own, own] += 1.0 / c**2 + 1.0 / rest**2
        scale = 1.0 / np.sqrt(hessian[range(len(slope)), range(len(slope))])
        step = -scale * np.linalg.solve(scale[:, None] * hessian * scale, scale * slope)
        return step, math.sqrt(max(0.0, float(-slope @ step)))

    def _size(self, s: float, c: Array, t: float, step: Array, decrement: float) -> float:
        """Return the share of the step to take: the largest that helps, or else the one that is known to, if rounding
        did not make it leave the bounds; 0 if it did.
        """
        safe = 1.0 / (1.0 + decrement)
        value, size = self._value(s, c, t), 1.0
        while size > safe:
            if self._value(s + size * float(step[0]), c + size * step[1:], t) < value - 1e-3 * size * decrement**2:
                return size
            size *= 0.7
        return safe if math.isfinite(self._value(s + safe * float(step[0]), c + safe * step[1:], t)) else 0.0
