"""Bounds on r-robustness for graphs too large to search: cuts from above, growth from below."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topologies.graph import Topology
from topologies.metrics.cuts import Cut, orders
from topologies.metrics.known import is_transitive
from topologies.metrics.separation import separate

Side = NDArray[np.bool_]
"""For each node whether it is on this side. Shape (nodes,)."""
PASSES_WORK = 40_000_000
"""edges looked at by all passes over cuts: about half a second."""
ORDERS_LIMIT = 100_000
"""nodes of a graph that is cut along other orders than that of its numbers."""
GROWTH_LIMIT = 6_000_000
"""arcs of a graph whose growth is tried: two seconds."""
MOST_ROUNDS = 300
SEED_NODES = 12


def bound_by_cuts(topology: Topology, lower: int, upper: int, cut: Cut | None = None) -> int:
    """The least upper bound that some prefixes of some orders of the nodes prove, not below `lower`.

    Two disjoint sets, each without nodes that have more than t neighbors outside it, show that r <= t. They are what
    is left of both sides of a cut when nodes with more were taken away.
    """
    passes = max(4, PASSES_WORK // max(1, topology.edge_count))
    for side in _sides(topology, cut):
        upper = min(upper, int(max(_outside(topology, side).max(), _outside(topology, ~side).max())))
        while upper > lower and passes > 0:
            one, spent = _core(topology, side, upper - 1, min(MOST_ROUNDS, passes))
            two, more = _core(topology, ~one, upper - 1, min(MOST_ROUNDS, passes - spent))
            passes -= spent + more
            if not one.any() or not two.any():
                break
            upper -= 1
        if upper <= lower or passes <= 0:
            break
    return max(lower, upper)


def _sides(topology: Topology, cut: Cut | None) -> list[Side]:
    """Halves first, which bound grids and hypercubes of any size; odd and even ones bound exponential graphs."""
    n = topology.nodes
    found = [np.arange(n) < (n + 1) // 2, np.arange(n) % 2 == 0]
    if cut is not None:
        found.append(np.isin(np.arange(n), cut.side))
    ranked = [order for _, order in orders(topology)] if n <= ORDERS_LIMIT else []
    for part in (2, 3, 4):
        for order in ranked:
            side = np.zeros(n, dtype=bool)
            side[order[: -(-n // part)]] = True
            found.append(side)
    return found


def _outside(topology: Topology, side: Side) -> NDArray[np.int64]:
    """How many neighbors outside `side` each of its nodes has; 0 for the others. Shape (nodes,)."""
    i, j = topology.ends[:, 0], topology.ends[:, 1]
    a, b = side[i], side[j]
    n = topology.nodes
    return np.bincount(i[a & ~b], minlength=n) + np.bincount(j[b & ~a], minlength=n)


def _core(topology: Topology, side: Side, t: int, rounds: int) -> tuple[Side, int]:
    """The largest subset of `side` none of whose nodes has more than `t` neighbors outside it, and the rounds that it
    took; nobody if it takes more rounds to see.
    """
    for spent in range(1, rounds + 1):
        kept = side & (_outside(topology, side) <= t)
        if np.array_equal(kept, side):
            return side, spent
        side = kept
    return np.zeros_like(side), max(0, rounds)


def bound_by_growth(topology: Topology, lower: int, upper: int) -> int:
    """A graph grown from an r-robust one by nodes that each bring at least r edges to it is r-robust.

    Seeds are the nodes nearest to one node, as many as are most robust among themselves.
    Source: LeBlanc et al. 2013, on preferential attachment.
    """
    if 2 * topology.edge_count > GROWTH_LIMIT:
        return lower
    roots = {0} if is_transitive(topology) else {0, int(np.argmax(topology.degrees))}
    starts, neighbors = (part.data for part in topology.rows)
    for root in sorted(roots):
        for r, seeds in _seeds(starts, neighbors, root):
            if lower < r <= upper and _grows(starts, neighbors, seeds, r):
                lower = r
    return lower


def _seeds(starts: memoryview, neighbors: memoryview, root: int) -> list[tuple[int, list[int]]]:
    """For each r the first nodes around `root` that are r-robust among themselves."""
    ball, known = [root], {root}
    for node in ball:
        for other in neighbors[starts[node] : starts[node + 1]]:
            if other not in known and len(ball) < SEED_NODES:
                known.add(other)
                ball.append(other)
        if len(ball) >= SEED_NODES:
            break
    found, r = [], 2
    for size in range(3, len(ball) + 1):
        place = {node: i for i, node in enumerate(ball[:size])}
        rows = [set(neighbors[starts[node] : starts[node + 1]]) for node in place]
        masks = [sum(1 << place[other] for other in row if other in place) for row in rows]
        if 2 * r - 1 <= size and separate(masks, r - 1, 10_000).pair is None:
            found.append((r, ball[:size]))
            r += 1
    return found


def _grows(starts: memoryview, neighbors: memoryview, seeds: list[int], r: int) -> bool:
    """Whether all nodes join when each joins that has `r` neighbors who did."""
    nodes = len(starts) - 1
    met = bytearray(nodes)
    joined = bytearray(nodes)
    for node in seeds:
        joined[node] = 1
    front = list(seeds)
    for node in front:
        for other in neighbors[starts[node] : starts[node + 1]]:
            if not joined[other]:
                met[other] += 1
                if met[other] >= r:
                    joined[other] = 1
                    front.append(other)
    return len(front) == nodes
