"""Algebraic connectivity and its consequences: a closed form if the family has one, else the ladder of methods; mixing
matrices on a graph, how much one mixing step contracts the distance to consensus, and how many rounds it takes.

All mixing matrices are W = I - gamma N^-1 L_c for edge weights c and node weights n (`eigen.laplacian`). The
eigenvalues of W are one minus gamma times the eigenvalues of N^-1/2 L_c N^-1/2.

Source: Xiao and Boyd, Fast linear iterations for distributed averaging, 2004 (all but `sample-weighted` and `file`).

The weights with which a graph mixes fastest are the fastest mixing Markov chain on it. The mixing rate max(|1 -
lambda_2|, |1 - lambda_max|) of W = I - L_c is convex in the edge weights c (Xiao and Boyd, Fast linear iterations for
distributed averaging, 2004; Boyd, Diaconis and Xiao, Fastest mixing Markov chain on a graph, 2004). Allowed are weights
that nodes can use: none is negative, those of a node add up to at most 1, and none is above 1/2, for an exchange that
carries two models past each other helps nobody.

It is solved as a semidefinite program, by Newton's method along the central path (Boyd and Vandenberghe, Convex
Optimization, 2004, section 11.6), with a proof of how much faster other weights could be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from topologies.eigen import TOLERANCE, ULP, Extremes, exactly, extremes, largest, require_converged
from topologies.eigen.iterations import Over, never
from topologies.eigen.laplacian import Array, Laplacian
from topologies.errors import TopologyError, nearest, refuse_gone
from topologies.graph import NetworkxGraph, Topology, component_count, require_connected, require_graph

EPSILON = 1e-3


def require_epsilon(epsilon: float) -> None:
    if not 0.0 < epsilon < 1.0:
        raise TopologyError("impossible accuracy", key="epsilon", value=epsilon, allowed="between 0 and 1")


def rounds_to_consensus(mixing_rate: float, epsilon: float = EPSILON) -> int | None:
    """Count the synchronous mixing steps until the distance to consensus is `epsilon` of the first; None if never."""
    require_epsilon(epsilon)
    if mixing_rate >= 1.0:
        return None
    if mixing_rate <= epsilon:
        return 1
    # the small subtraction keeps an exact power, such as a rate of 0.1 and 1e-3, from being rounded up
    return math.ceil(math.log(epsilon) / math.log(mixing_rate) - 1e-9)


def rate_text(rate: float, digits: int = 6) -> str:
    """Write the digits that matter: a rate below one, which has a number of rounds, must not be shown as 1."""
    rounded = f"{rate:.{digits}g}"
    return f"1 - {1.0 - rate:.{digits}g}" if rounded == "1" and rate < 1.0 else rounded


BY_DEGREE = ("metropolis", "best-constant", "sample-weighted")
"""Weights that follow from the degrees, or from the plain spectrum."""
WEIGHTS = (*BY_DEGREE, "optimal", "file")
"""`optimal`: `optimal_weights`. `file`: the graph's own, from its file."""
SLACK = 1e-9
"""By how much the weights of a node may add up to more than 1, because they were rounded."""


def default_weights(topology: Topology) -> str:
    """Return the weights with which a graph mixes unless others are named: its own if it has any."""
    return "metropolis" if topology.weights is None else "file"


def sample_weights(topology: Topology, samples: Sequence[float] | None = None) -> Array:
    """Compute c_ij = min(n_i / (deg_i + 1), n_j / (deg_j + 1)) of each edge, n = 1 by default. Shape: (edges,).

    With n = 1 these are the Metropolis weights.
    """
    share = _samples(topology, samples) / (topology.degrees + 1.0)
    return np.minimum(share[topology.ends[:, 0]], share[topology.ends[:, 1]])


class SettledWeights(NamedTuple):
    """A graph and the name of its weights, which is not `optimal` any more: the graph then carries these itself.

    No weights have a mixing rate below `bound`, as far as that is known.
    """

    topology: Topology
    weights: str
    bound: float | None


def settled_weights(topology: Topology, weights: str | None = None) -> SettledWeights:
    """Find the optimal weights, if these are asked for, once for all who need them. None: the `default_weights`."""
    name = check_weights(default_weights(topology) if weights is None else weights)
    if name != "optimal" or topology.nodes < 2 or component_count(topology) > 1:
        return SettledWeights(topology, "metropolis" if name == "optimal" else name, None)
    optimal = optimal_weights(topology)
    return SettledWeights(topology.with_weights(optimal.weights), "file", optimal.bound)


def own_weights(topology: Topology, samples: Sequence[float] | None = None) -> Array:
    """Return c_ij = min(n_i, n_j) w_ij of each edge, w its own weight, n = 1 by default. Shape: (edges,).

    So each end moves by at most w_ij of the difference, as nodes do. Raises TopologyError if the graph has no weights,
    or if those of a node add up to more than 1: it would move beyond its neighbors, further each time.
    """
    if topology.weights is None:
        text = f"the edges of {topology.spec} have no weights"
        allowed = ", ".join((*BY_DEGREE, "optimal")) + "; or a graph file with weights"
        raise TopologyError(text, key="weights", value="file", allowed=allowed)
    i, j = topology.ends[:, 0], topology.ends[:, 1]
    sums = np.bincount(i, topology.weights, topology.nodes) + np.bincount(j, topology.weights, topology.nodes)
    if sums.max(initial=0.0) > 1.0 + SLACK:
        node = int(np.argmax(sums))
        text = f"the weights of node {topology.names[node] if topology.names else node} add up to {sums[node]:.6g}"
        allowed = f"at most 1 at each node: divide all by {sums[node]:.6g}, or use other weights, such as metropolis"
        raise TopologyError(text, key="weights", allowed=allowed)
    n = _samples(topology, samples)
    return np.asarray(np.minimum(n[i], n[j]) * topology.weights)


def weighted(topology: Topology, weights: str = "metropolis", samples: Sequence[float] | None = None) -> Laplacian:
    """Build the Laplacian L_c with N such that W = I - N^-1 L_c. `samples` are for `sample-weighted` and `file`.

    Raises TopologyError for unknown weights, if samples are not one positive number per node, or if the weights of a
    file are none to mix with.
    """
    require_graph(topology)
    match check_weights(weights):
        case "file":
            return Laplacian(topology.ends, own_weights(topology, samples), _samples(topology, samples))
        case "optimal":
            return weighted(*settled_weights(topology, weights)[:2])
        case "sample-weighted":
            n = _samples(topology, samples)
            return Laplacian(topology.ends, sample_weights(topology, samples), n)
        case "metropolis":
            return Laplacian(topology.ends, sample_weights(topology), np.ones(topology.nodes))
    constant = _best_constant(topology)
    return Laplacian(topology.ends, np.full(topology.edge_count, constant), np.ones(topology.nodes))


def _best_constant(topology: Topology) -> float:
    """Compute 2 / (lambda_2 + lambda_max) of the Laplacian."""
    if not topology.edge_count:
        return 0.0
    if component_count(topology) > 1:
        return 1.0 / (float(topology.degrees.max()) + 1.0)
    eigen = require_converged(extremes(Laplacian.plain(topology)))
    return 2.0 / (eigen.low + eigen.high)


def mixing_matrix(
    topology: Topology, weights: str = "metropolis", samples: Sequence[float] | None = None, gamma: float = 1.0
) -> Array:
    """Return W = I - gamma N^-1 L_c, whose rows sum to 1. Shape: (nodes, nodes). `samples` are for `sample-weighted`
    and `file`.
    """
    laplacian = weighted(topology, weights, samples)
    root = np.sqrt(laplacian.n)
    return np.eye(topology.nodes) - gamma * laplacian.dense() / root[:, None] * root


def contraction(topology: Topology, samples: Sequence[float] | None = None, gamma: float = 1.0) -> float:
    """Compute max(|1 - gamma l2|, |1 - gamma lmax|) of N^-1/2 L_c N^-1/2: the factor by which one mixing step of all
    nodes shrinks the n-weighted distance to consensus, with the graph's own weights if it has any, else those of the
    degrees. It is 1 on a disconnected graph; above 1 mixing diverges.

    Raises NotConverged if it is not known.
    """
    topology = require_graph(topology)
    laplacian = weighted(topology, "sample-weighted" if topology.weights is None else "file", samples)
    if topology.nodes == 1:
        return 0.0
    if component_count(topology) > 1:
        return max(1.0, abs(1.0 - gamma * largest(laplacian)[0]))
    eigen = require_converged(extremes(laplacian))
    return max(abs(1.0 - gamma * eigen.low), abs(1.0 - gamma * eigen.high))


def check_weights(name: str, known: Sequence[str] = WEIGHTS) -> str:
    if name not in known:
        refuse_gone("weights", name)
        text = "weights of this kind are of no use here" if name in WEIGHTS else "unknown mixing weights"
        raise TopologyError(text, key="weights", value=name, allowed=nearest(name, known))
    return name


def _samples(topology: Topology, samples: Sequence[float] | None) -> Array:
    n = np.ones(topology.nodes) if samples is None else np.asarray(samples, dtype=np.float64)
    if n.shape != (topology.nodes,) or not np.all(np.isfinite(n)) or np.any(n <= 0.0):
        allowed = f"{topology.nodes} positive numbers"
        raise TopologyError("impossible sample counts", key="samples", value=samples, allowed=allowed)
    return n


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """The spectrum of a graph. `mixing_rate`: the second largest modulus of the mixing matrix.

    `mixing_certified`: its distance from 1 is proven to within a millionth; `mixing_converged`: the eigenvalues that
    determine it converged. `residual`, `lower_bound`, `probable_bound`, `certified`, `converged` are about the
    algebraic connectivity: see `eigen.Extremes`. A closed form is certified, with residual 0.
    """

    algebraic_connectivity: float
    laplacian_max_eigenvalue: float
    mixing_rate: float
    method: str
    residual: float
    lower_bound: float | None
    certified: bool
    converged: bool
    products: int = 0
    probable_bound: float | None = None
    mixing_certified: bool
    mixing_converged: bool


def spectrum(
    topology: Topology | NetworkxGraph,
    weights: str | None = None,
    *,
    certify: bool = False,
    plain: Extremes | None = None,
    over: Over = never,
) -> Spectrum:
    """Compute the spectrum of the Laplacian, and the mixing rate under `weights`, of a graph or a `networkx.Graph`.

    The Laplacian is that of the edges, whatever their weights; `weights` None means the graph's own, or `metropolis`.

    `certify` spends time and memory to prove a result that is otherwise reported as uncertified. `plain` is the result
    of `plain_extremes` if already known. Raises TopologyError for unknown weights, or if the argument is not a graph
    but, for example, a spec.
    """
    topology = require_graph(topology)
    weights = check_weights(default_weights(topology) if weights is None else weights)
    plain = plain or plain_extremes(topology, certify=certify, over=over)
    rate = _mixing_rate(topology, weights, plain, over, certify=certify)
    return Spectrum(
        algebraic_connectivity=plain.low,
        laplacian_max_eigenvalue=plain.high,
        mixing_rate=rate.value,
        method=plain.method,
        residual=plain.residual,
        lower_bound=plain.lower,
        certified=plain.certified,
        converged=plain.converged,
        products=plain.products,
        probable_bound=plain.probable,
        mixing_certified=rate.certified,
        mixing_converged=rate.converged,
    )


def plain_extremes(topology: Topology, *, certify: bool = False, over: Over = never) -> Extremes:
    """Compute lambda_2 and lambda_max of the Laplacian of any graph; when it is `over`, an upper bound on lambda_2."""
    topology = require_graph(topology)
    form = topology.formula
    if form is not None:
        return exactly(form.low, form.high, "closed form")
    if topology.edge_count == 0:
        return exactly(0.0, 0.0, "no edges")
    if component_count(topology) > 1:
        high, residual = largest(plain := Laplacian.plain(topology), over)
        return replace(exactly(0.0, high, "disconnected"), high_residual=residual, highest=plain.largest)
    return extremes(Laplacian.plain(topology), certify=certify, over=over)


def fiedler_vector(topology: Topology) -> Array:
    """Compute the unit Fiedler vector (nodes,), its largest entry positive. Raises NotConverged."""
    vector = require_converged(extremes(Laplacian.plain(topology))).vector
    return vector if vector[np.argmax(np.abs(vector))] > 0 else -vector


@dataclass(frozen=True, slots=True)
class _Rate:
    value: float
    certified: bool
    converged: bool


def _mixing_rate(topology: Topology, weights: str, eigen: Extremes, over: Over, *, certify: bool) -> _Rate:
    if topology.nodes == 1:
        return _Rate(0.0, certified=True, converged=True)
    if eigen.low == 0.0:
        return _Rate(1.0, certified=True, converged=True)
    constant = _constant(topology, weights, eigen)
    if constant is not None:
        return _rate(eigen, constant)
    return _rate(extremes(weighted(topology, weights), certify=certify, beyond=eigen.beyond, over=over), 1.0)


def _rate(extremes: Extremes, factor: float) -> _Rate:
    """Return the rate of W = I - factor A. Eigenvalues lie between `lower` and `highest`, some at `low` and `high` or
    beyond.
    """

    def shrinking(*ends: float) -> float:
        return max(abs(1.0 - factor * end) for end in ends)

    value = shrinking(extremes.low, extremes.high)
    worst = shrinking(extremes.low, extremes.high, extremes.lower or 0.0, extremes.highest)
    decided = extremes.high_converged or shrinking(extremes.highest) <= shrinking(extremes.low)
    # slightly more than `certified` allows, because the rate itself is rounded
    close = worst - value <= 1.01 * TOLERANCE * abs(1.0 - value) + 4.0 * ULP
    return _Rate(value, certified=bool(close), converged=extremes.converged and decided)


def _constant(topology: Topology, weights: str, extremes: Extremes) -> float | None:
    """Return the single weight of all edges, if they have one; the plain spectrum then gives the rate."""
    if weights not in BY_DEGREE:
        return None
    if weights == "best-constant":
        return 2.0 / (extremes.low + extremes.high)
    form = topology.formula
    most = form.degrees[1] if form is not None else int(topology.degrees.max())
    if topology.implicit:
        return 1.0 / (most + 1)
    full = topology.degrees == most
    everywhere = bool((full[topology.ends[:, 0]] | full[topology.ends[:, 1]]).all())
    return 1.0 / (most + 1) if everywhere else None


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


def optimal_weights(topology: Topology) -> OptimalWeights:
    """Find the allowed weights with which the connected graph mixes fastest. All are positive.

    Raises DisconnectedError if it is not connected, TopologyError if it is too large.
    """
    require_connected(topology)
    if topology.edge_count > EDGES_LIMIT:
        text = "too many edges to find the optimal weights"
        allowed = f"up to {EDGES_LIMIT}, or other weights, such as metropolis"
        raise TopologyError(text, key="weights", value=topology.edge_count, allowed=allowed)
    return _CentralPath(topology).follow()


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

    def __init__(self, topology: Topology) -> None:
        self.nodes, self.ends = topology.nodes, topology.ends
        self.start = np.minimum(sample_weights(topology), LARGEST_WEIGHT)
        self.parameter = 3 * self.nodes + 2 * len(self.ends)
        """The parameter of the barrier: on the path the duality gap is that many times 1/t."""
        at = np.arange(len(self.ends))
        self.incidence = np.zeros((self.nodes, len(self.ends)))
        self.incidence[self.ends[:, 0], at] = self.incidence[self.ends[:, 1], at] = 1.0

    def follow(self) -> OptimalWeights:
        c = 0.9 * self.start
        rate, bound = self._rate(c), None
        s, t = (rate + 1.0) / 2.0, float(self.parameter)
        for _ in range(STEPS):
            gap = MARGIN * self.parameter / t
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
