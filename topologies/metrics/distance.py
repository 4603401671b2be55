"""Distances of nodes: in hops, and in ohms of the graph as a network of one-ohm resistors (effective resistance).

Resistance is what noise adds up to when nodes average. Source: Klein and Randic, Resistance distance (1993); Ghosh,
Boyd and Saberi, Minimizing effective resistance of a graph (SIAM Review 50, 2008). The Kirchhoff index is the sum over
unordered pairs, n times the sum of 1 / lambda_k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.building import parse
from topologies.families.classic import sides
from topologies.family import GraphRequest
from topologies.graph import Topology
from topologies.laplacian import Array, Laplacian
from topologies.metrics import IntegerBounds, is_complete, is_connected, is_transitive

EXACT_LIMIT = 2_000
SPREADING_WORK = 4_000_000
"""The most set unions in `_spread`: about half a second."""
SEARCH_WORK = 24_000_000
"""The most arcs that all searches of one diameter may follow together."""
MOST_SEARCHES = 256
FEWEST_SEARCHES = 3
NARROW = 24
"""A front of fewer nodes is searched node by node: a call of numpy costs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Distances in hops. `diameter` is None if disconnected or unbounded; `average` (ordered pairs) is None where it
    takes long.
    """

    diameter: IntegerBounds | None
    average: float | None


def diameter(topology: Topology) -> int | None:
    """Return the longest shortest path; None on a disconnected graph, and where computing it would take too long."""
    found = distances(topology).diameter
    return found.upper if found is not None and found.exact else None


def distances(topology: Topology) -> Distances:
    """Compute distances: exact with a formula, for transitive graphs, trees and up to 2,000 nodes; else a range from a
    few searches.
    """
    form = topology.formula
    closed = form.diameter if form is not None else None
    if topology.implicit or topology.nodes == 1:
        average = 1.0 if closed == 1 else None
        known = 0 if topology.nodes == 1 else closed
        return Distances(diameter=_exact_bounds(known, "closed form"), average=average)
    first = hops(topology, 0)
    if (first < 0).any():
        return Distances(diameter=None, average=None)
    if is_transitive(topology):
        average = float(first.sum() / (topology.nodes - 1))
        return Distances(diameter=_exact_bounds(int(first.max()), "every node sees the same"), average=average)
    average = _average_in_tree(topology) if topology.edge_count == topology.nodes - 1 else None
    if closed is None or (average is None and topology.nodes <= EXACT_LIMIT):
        found = _search(topology, first, average)
        if closed is None:
            return found
        average = found.average
    return Distances(diameter=_exact_bounds(closed, "closed form"), average=average)


def _exact_bounds(value: int | None, method: str) -> IntegerBounds | None:
    return None if value is None else IntegerBounds(int(value), int(value), method)


def _search(topology: Topology, first: NDArray[np.int64], average: float | None) -> Distances:
    if topology.edge_count == topology.nodes - 1:
        longest = int(hops(topology, int(np.argmax(first))).max())
        return Distances(diameter=_exact_bounds(longest, "two searches of a tree"), average=average)
    turns = 2 * int(first.max())
    if topology.nodes <= EXACT_LIMIT and turns * topology.edge_count <= SPREADING_WORK:
        longest, total = _spread(topology.adjacency())
        mean = total / (topology.nodes * (topology.nodes - 1))
        return Distances(diameter=_exact_bounds(longest, "all pairs"), average=mean)
    return Distances(diameter=bound_diameter(topology, first), average=None)


def bound_diameter(topology: Topology, first: NDArray[np.int64]) -> IntegerBounds:
    """Bound the diameter by searches.

    A search from v that reaches as far as e puts the eccentricity of a node d hops away between max(d, e - d) and d +
    e. Searches alternate between where it may be largest and where it may be least. `first`: the hops from node 0 of a
    connected graph, (nodes,). Source: Takes and Kosters, Determining the diameter of small world networks (CIKM 2011).
    """
    arcs = 2 * topology.edge_count + topology.nodes
    searches = min(MOST_SEARCHES, max(FEWEST_SEARCHES, SEARCH_WORK // arcs))
    least, most = np.zeros_like(first), np.full_like(first, topology.nodes - 1)
    start, lower, upper = first, 0, topology.nodes - 1
    for turn in range(searches):
        reach = int(start.max())
        least = np.maximum(least, np.maximum(start, reach - start))
        most = np.minimum(most, start + reach)
        lower, upper = int(least.max()), min(int(most.max()), 2 * int(most.min()))
        if lower == upper or turn == searches - 1:
            break
        rank = np.where(most > lower, most, -1) if turn % 2 == 0 else -least
        if turn == 0:
            rank = start  # the far end of the first search, whose eccentricity is the best early lower bound
        start = hops(topology, int(np.argmax(rank)))
    return IntegerBounds(lower, upper, f"{turn + 1} searches")


def hops(topology: Topology, start: int) -> NDArray[np.int64]:
    """Count the hops from `start` to each node, -1 where there is no path. Shape (nodes,).

    Wide fronts advance by numpy; narrow ones node by node, or a path of a million nodes would take half a minute.
    """
    starts, neighbors = topology.rows
    found = np.full(topology.nodes, -1)
    found[start] = 0
    front = np.array([start])
    distance = 0
    while len(front):
        if len(front) < NARROW:
            front, distance = _walk(topology, found, front.tolist(), distance)
            continue
        distance += 1
        counts = starts[front + 1] - starts[front]
        offsets = np.repeat(starts[front] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        reached = neighbors[offsets + np.arange(counts.sum())]
        reached = reached[found[reached] < 0]
        found[reached] = distance
        front = np.flatnonzero(found == distance) if 16 * len(reached) > topology.nodes else np.unique(reached)
    return found


def _walk(
    topology: Topology, found: NDArray[np.int64], front: list[int], distance: int
) -> tuple[NDArray[np.int64], int]:
    """Advance from a narrow front until it is wide or empty; `found` is filled in."""
    starts, neighbors = topology.rows[0].data, topology.rows[1].data
    hops_to = found.data
    while front and len(front) < NARROW:
        distance += 1
        fresh = []
        for node in front:
            for place in range(starts[node], starts[node + 1]):
                other = neighbors[place]
                if hops_to[other] < 0:
                    hops_to[other] = distance
                    fresh.append(other)
        front = fresh
    return np.array(front, dtype=np.int64), distance


def _spread(neighbors: list[list[int]]) -> tuple[int, int]:
    """Compute the diameter, and the sum of all distances over ordered pairs.

    Every node's ball grows by one hop per turn, as the bits of one integer, until all balls are full. A pair at
    distance d is missing from a ball at the start of d turns.
    """
    everyone = (1 << len(neighbors)) - 1
    balls = [1 << node for node in range(len(neighbors))]
    turns = total = 0
    while missing := sum(len(neighbors) - ball.bit_count() for ball in balls):
        grown = []
        for node, ball in enumerate(balls):
            reached = ball
            if ball != everyone:
                for neighbor in neighbors[node]:
                    reached |= balls[neighbor]
            grown.append(reached)
        balls = grown
        turns += 1
        total += missing
    return turns, total


def _average_in_tree(topology: Topology) -> float:
    """Average the distances in a tree: an edge lies on the path of every pair that it separates."""
    n = topology.nodes
    below = tree_sizes(topology)
    return float(2 * sum(size * (n - size) for size in below.tolist()) / (n * (n - 1)))


def tree_sizes(topology: Topology) -> NDArray[np.int64]:
    """Count the nodes below each node of a tree with root 0, itself included; 0 for the root. (nodes,)."""
    starts, neighbors = (part.tolist() for part in topology.rows)
    parent = [-1] * topology.nodes
    order = [0]
    for node in order:
        for other in neighbors[starts[node] : starts[node + 1]]:
            if other != parent[node]:
                parent[other] = node
                order.append(other)
    sizes = [1] * topology.nodes
    for node in reversed(order[1:]):
        sizes[parent[node]] += sizes[node]
    sizes[0] = 0
    return np.array(sizes)


Nodes = NDArray[np.int64]
DENSE_LIMIT = 2_000
SUM_WORK = 50_000_000
"""The most sines summed for the eigenvalues: about half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resistance:
    """Resistances in units of one edge's resistance; `average` and `largest` are over pairs of different nodes, 0 for
    one node.
    """

    kirchhoff: float
    average: float
    largest: float
    method: str


def resistance(topology: Topology, limit: int = DENSE_LIMIT) -> Resistance | None:
    """Compute resistances exactly, or None: on a disconnected graph, where it is infinite, and where no formula holds
    above `limit` nodes.

    Complete graphs and trees have a formula; rings, tori, hypercubes and circulants a Fourier transform.
    """
    n = topology.nodes
    if n == 1:
        return Resistance(kirchhoff=0.0, average=0.0, largest=0.0, method="one node")
    if is_complete(topology):
        return _resistance(n, n - 1.0, 2.0 / n, "complete")
    if topology.implicit or not is_connected(topology):
        return None
    if topology.edge_count == n - 1:
        return _tree(topology)
    shape = _group(topology)
    if shape is not None:
        return _by_fourier(topology, shape)
    return _dense(topology) if n <= limit else None


def _resistance(n: int, kirchhoff: float, largest: float, method: str) -> Resistance:
    return Resistance(kirchhoff=kirchhoff, average=2.0 * kirchhoff / n / (n - 1), largest=largest, method=method)


def _tree(topology: Topology) -> Resistance:
    """Compute the resistances of a tree, which are distances. Each edge is on the path of all pairs that
    it separates.
    """
    below = tree_sizes(topology)
    longest = distances(topology).diameter
    kirchhoff = sum(size * (topology.nodes - size) for size in below.tolist())
    return _resistance(topology.nodes, float(kirchhoff), float(longest.upper if longest else 0), "tree")


def _group(topology: Topology) -> tuple[int, ...] | None:
    """Return the cyclic groups whose product numbers the nodes row by row, if adding in it maps the graph
    onto itself.
    """
    shapes: list[tuple[int, ...]] = [(topology.nodes,)]
    if is_transitive(topology):
        spec = parse(topology.spec)
        if spec.name == "torus":
            request = GraphRequest(spec=topology.spec, nodes=topology.nodes, parameters=spec.parameters)
            shapes.append(sides("torus", request))
        elif spec.name == "hypercube":
            shapes.append((2,) * (topology.nodes.bit_length() - 1))
    return next((shape for shape in shapes if _is_cayley(topology, shape)), None)


def _is_cayley(topology: Topology, shape: tuple[int, ...]) -> bool:
    """True if an edge joins every two nodes that differ as node 0 and one of its neighbors do, and no others."""
    starts, neighbors = topology.rows
    offsets = neighbors[: starts[1]]
    if 2 * topology.edge_count != topology.nodes * len(offsets):
        return False
    allowed = np.zeros(topology.nodes, dtype=bool)
    allowed[offsets] = True
    back = _difference(offsets, np.zeros_like(offsets), shape)
    steps = _difference(topology.ends[:, 0], topology.ends[:, 1], shape)
    return bool(allowed[back].all() and allowed[steps].all())


def _difference(i: Nodes, j: Nodes, shape: tuple[int, ...]) -> Nodes:
    """Return the node that is j - i."""
    if set(shape) == {2}:
        return i ^ j
    places = zip(np.unravel_index(i, shape), np.unravel_index(j, shape), shape, strict=True)
    return np.asarray(np.ravel_multi_index([(b - a) % side for a, b, side in places], shape))


def _by_fourier(topology: Topology, shape: tuple[int, ...]) -> Resistance:
    """Compute resistances: the transform of the reciprocal eigenvalues is the first row of the pseudo-inverse."""
    starts, neighbors = topology.rows
    values = _eigenvalues(neighbors[: starts[1]], shape)
    values.flat[0] = np.inf
    inverse = np.fft.ifftn(1.0 / values).real.ravel()
    kirchhoff = topology.nodes * float((1.0 / values).sum())
    return _resistance(topology.nodes, kirchhoff, 2.0 * float(inverse[0] - inverse.min()), "Fourier transform")


def _eigenvalues(offsets: Nodes, shape: tuple[int, ...]) -> Array:
    """Compute the eigenvalues, shape `shape`.

    lambda_k is the sum over offsets s of 2 sin^2(pi (k_1 s_1 / n_1 + k_2 s_2 / n_2 + ...)): no cancellation where it is
    tiny. With many offsets none is, and a transform is quicker.
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
    """Compute R_ij = P_ii + P_jj - 2 P_ij for P the inverse of L + J / n: the pseudo-inverse and a constant."""
    n = topology.nodes
    inverse = np.linalg.inv(Laplacian.plain(topology).dense() + 1.0 / n)
    own: Array = np.diag(inverse)
    pairs = own[:, None] + own - 2.0 * inverse
    kirchhoff = n * (float(own.sum()) - 1.0)
    return _resistance(n, kirchhoff, float(pairs.max()), "dense inverse")
