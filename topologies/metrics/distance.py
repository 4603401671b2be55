"""How far apart nodes are, in hops."""

from __future__ import annotations

import numpy as np

from topologies.families import FAMILIES
from topologies.graph import Topology, hops_from
from topologies.specs import is_file, parse

EXACT_LIMIT = 2_000


def diameter(topology: Topology) -> int | None:
    """The longest shortest path; None on a disconnected graph, and where finding it would take too long."""
    if topology.formula is not None and topology.formula.diameter is not None:
        return int(topology.formula.diameter)
    if topology.implicit:
        return None
    first = hops_from(topology, 0)
    if (first < 0).any():
        return None
    if _is_transitive(topology):
        return int(first.max())
    if topology.edge_count == topology.nodes - 1:
        return int(hops_from(topology, int(np.argmax(first))).max())
    return _by_spreading(topology.adjacency()) if topology.nodes <= EXACT_LIMIT else None


def _is_transitive(topology: Topology) -> bool:
    """Only a graph that carries its family's closed form is certainly the one of its spec."""
    if topology.formula is None or is_file(topology.spec):
        return False
    return FAMILIES[parse(topology.spec).name].transitive


def _by_spreading(neighbors: list[list[int]]) -> int:
    """Every node's ball grows by one hop per turn, as the bits of one integer, until all balls are full."""
    everyone = (1 << len(neighbors)) - 1
    balls = [1 << node for node in range(len(neighbors))]
    turns = 0
    while any(ball != everyone for ball in balls):
        grown = []
        for node, ball in enumerate(balls):
            reached = ball
            for neighbor in neighbors[node]:
                reached |= balls[neighbor]
            grown.append(reached)
        balls = grown
        turns += 1
    return turns
