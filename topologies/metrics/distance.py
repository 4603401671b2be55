"""How far apart nodes are, in hops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.graph import Topology
from topologies.metrics.known import Bounds, is_transitive

EXACT_LIMIT = 2_000
SPREADING_WORK = 4_000_000
"""set unions that `_spread` may take: about half a second."""
SEARCH_WORK = 24_000_000
"""arcs that all searches of one diameter may follow together."""
MOST_SEARCHES = 256
FEWEST_SEARCHES = 3
NARROW = 24
"""a front of fewer nodes is searched node by node: a call of numpy costs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """`diameter` is None on a disconnected graph, and where nothing bounds it; `average` over all ordered pairs of
    different nodes, None where it would take long.
    """

    diameter: Bounds | None
    average: float | None


def diameter(topology: Topology) -> int | None:
    """The longest shortest path; None on a disconnected graph, and where finding it would take too long."""
    found = distances(topology).diameter
    return found.upper if found is not None and found.exact else None


def distances(topology: Topology) -> Distances:
    """Exact for families with a formula, graphs in which every node sees the same, trees and up to 2,000 nodes; else a
    range from a handful of breadth-first searches.
    """
    form = topology.formula
    closed = form.diameter if form is not None else None
    if topology.implicit or topology.nodes == 1:
        average = 1.0 if closed == 1 else None
        known = 0 if topology.nodes == 1 else closed
        return Distances(diameter=_exactly(known, "closed form"), average=average)
    first = hops(topology, 0)
    if (first < 0).any():
        return Distances(diameter=None, average=None)
    if is_transitive(topology):
        average = float(first.sum() / (topology.nodes - 1))
        return Distances(diameter=_exactly(int(first.max()), "every node sees the same"), average=average)
    average = _average_in_tree(topology) if topology.edge_count == topology.nodes - 1 else None
    if closed is None or (average is None and topology.nodes <= EXACT_LIMIT):
        found = _searched(topology, first, average)
        if closed is None:
            return found
        average = found.average
    return Distances(diameter=_exactly(closed, "closed form"), average=average)


def _exactly(value: int | None, method: str) -> Bounds | None:
    return None if value is None else Bounds(int(value), int(value), method)


def _searched(topology: Topology, first: NDArray[np.int64], average: float | None) -> Distances:
    if topology.edge_count == topology.nodes - 1:
        longest = int(hops(topology, int(np.argmax(first))).max())
        return Distances(diameter=_exactly(longest, "two searches of a tree"), average=average)
    turns = 2 * int(first.max())
    if topology.nodes <= EXACT_LIMIT and turns * topology.edge_count <= SPREADING_WORK:
        longest, total = _spread(topology.adjacency())
        mean = total / (topology.nodes * (topology.nodes - 1))
        return Distances(diameter=_exactly(longest, "all pairs"), average=mean)
    return Distances(diameter=bound_diameter(topology, first), average=None)


def bound_diameter(topology: Topology, first: NDArray[np.int64]) -> Bounds:
    """A search from v that reaches as far as e puts the eccentricity of a node d hops away between max(d, e - d) and
    d + e. Searches alternate between where it may be largest and where it may be least.

    `first`: the hops from node 0 of a connected graph, (nodes,).
    Source: Takes and Kosters, Determining the diameter of small world networks (CIKM 2011).
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
            rank = start  # the far end of the first search: its own reach is the best lower bound to be had so early
        start = hops(topology, int(np.argmax(rank)))
    return Bounds(lower, upper, f"{turn + 1} searches")


def hops(topology: Topology, start: int) -> NDArray[np.int64]:
    """Hops from `start` to each node, -1 where there is no way. Shape (nodes,).

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
    """Goes on from a narrow front until it is wide or empty; `found` is filled in."""
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
    """The diameter, and the sum of all distances over ordered pairs.

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
    """An edge lies on the way of every pair that it separates."""
    n = topology.nodes
    below = tree_sizes(topology)
    return float(2 * sum(size * (n - size) for size in below.tolist()) / (n * (n - 1)))


def tree_sizes(topology: Topology) -> NDArray[np.int64]:
    """For each node of a tree rooted at node 0, how many are below it, itself included; 0 for the root. (nodes,)."""
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
