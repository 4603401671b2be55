"""Parts common to all figures of a graph: answers that may be a range, facts that need no computation, distances in
hops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.eigen import Extremes
from topologies.families import FAMILIES, parse
from topologies.files.content import is_file
from topologies.graph import Topology, component_count, hops
from topologies.spectral import plain_extremes

SPECTRUM_LIMIT = 600
"""Up to this many nodes, a figure computes a spectrum that its caller does not have: about 0.1 s."""
ROUNDING = 1e-6
"""The relative margin subtracted from an eigenvalue before an integer is concluded from it."""


@dataclass(frozen=True, slots=True)
class IntegerBounds:
    """An integer proven to lie in lower .. upper, both included. `method` names the proof."""

    lower: int
    upper: int
    method: str

    @property
    def exact(self) -> bool:
        return self.lower == self.upper


def is_transitive(topology: Topology) -> bool:
    """Return True if every node is known to have the same view of the graph.

    Only a graph that carries its family's closed form is certain to match its spec.
    """
    if topology.formula is None or is_file(topology.spec):
        return False
    return FAMILIES[parse(topology.spec).name].transitive


def is_connected(topology: Topology) -> bool:
    """Return True if the graph is connected; for an implicit graph this comes from its formula."""
    return bool(topology.formula.low > 0.0) if topology.implicit else component_count(topology) == 1


def is_complete(topology: Topology) -> bool:
    return topology.edge_count == topology.nodes * (topology.nodes - 1) // 2


def degree_range(topology: Topology) -> tuple[int, int]:
    """Return the minimum and the maximum degree."""
    if topology.implicit:
        least, most = topology.formula.degrees
        return int(least), int(most)
    return int(topology.degrees.min()), int(topology.degrees.max())


def spectrum_if_cheap(topology: Topology, extremes: Extremes | None) -> Extremes | None:
    """Return `extremes`, or a spectrum that takes only a moment: a closed form, or the spectrum of a small graph."""
    if extremes is not None:
        return extremes
    if topology.nodes > 1 and (topology.formula is not None or topology.nodes <= SPECTRUM_LIMIT):
        return plain_extremes(topology)
    return None


def proven_connectivity(extremes: Extremes | None) -> float:
    """Return a lower bound on lambda_2 that rounding cannot have raised; 0 if nothing is proven."""
    if extremes is None or extremes.lower is None:
        return 0.0
    return max(0.0, extremes.lower * (1.0 - ROUNDING))


EXACT_LIMIT = 2_000
SPREADING_WORK = 4_000_000
"""The maximum number of set unions in `_spread`: about half a second."""
SEARCH_WORK = 24_000_000
"""The maximum number of arcs followed in all searches for one diameter together."""
MOST_SEARCHES = 256
FEWEST_SEARCHES = 3


def diameter(topology: Topology) -> int | None:
    """Return the longest shortest path; None on a disconnected graph, or if computing it would take too long."""
    bounds = diameter_bounds(topology)
    return bounds.upper if bounds is not None and bounds.exact else None


def diameter_bounds(topology: Topology) -> IntegerBounds | None:
    """Compute the diameter: exactly with a formula, for transitive graphs, trees and up to 2,000 nodes; otherwise a
    range from a few searches. None on a disconnected graph, or if no formula of an implicit graph is known.
    """
    closed = topology.formula.diameter if topology.formula is not None else None
    if topology.nodes == 1:
        return _exactly(0, "closed form")
    if topology.implicit or closed is not None:
        return None if closed is None else _exactly(closed, "closed form")
    first = hops(topology, 0)
    if (first < 0).any():
        return None
    if is_transitive(topology):
        return _exactly(int(first.max()), "every node sees the same")
    if topology.edge_count == topology.nodes - 1:
        longest = int(hops(topology, int(np.argmax(first))).max())
        return _exactly(longest, "two searches of a tree")
    turns = 2 * int(first.max())
    if topology.nodes <= EXACT_LIMIT and turns * topology.edge_count <= SPREADING_WORK:
        return _exactly(_spread(topology.adjacency()), "all pairs")
    return bound_diameter(topology, first)


def _exactly(value: float, method: str) -> IntegerBounds:
    return IntegerBounds(int(value), int(value), method)


def bound_diameter(topology: Topology, first: NDArray[np.int64]) -> IntegerBounds:
    """Bound the diameter by searches.

    If the farthest node from v is e hops away, the eccentricity of a node d hops from v lies between max(d, e - d) and
    d + e. Searches alternate between where it may be largest and where it may be smallest. `first` has the hops from
    node 0 of a connected graph, (nodes,). Source: Takes and Kosters, Determining the diameter of small world networks
    (CIKM 2011).
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


def _spread(neighbors: list[list[int]]) -> int:
    """Compute the diameter of a connected graph: every node's ball grows by one hop per turn, as the bits of one
    integer, until all balls are full.
    """
    everyone = (1 << len(neighbors)) - 1
    balls = [1 << node for node in range(len(neighbors))]
    turns = 0
    while any(ball != everyone for ball in balls):
        grown = []
        for node, ball in enumerate(balls):
            reached = ball
            if ball != everyone:
                for neighbor in neighbors[node]:
                    reached |= balls[neighbor]
            grown.append(reached)
        balls = grown
        turns += 1
    return turns
