"""What a graph costs and gives, as one flat description: the object that `p2pfl topology info` prints."""

from __future__ import annotations

import math
import time
from typing import Any

from topologies.closed import is_built
from topologies.dense import DENSE_LIMIT
from topologies.errors import TopologyError
from topologies.families import FAMILIES
from topologies.graph import Topology, components, distances
from topologies.specs import is_file, parse
from topologies.spectral import spectrum

EPSILON = 1e-3


def rounds_to_consensus(mixing_rate: float, epsilon: float = EPSILON) -> int | None:
    """Synchronous mixing steps until the distance to consensus is `epsilon` of what it was; None if never."""
    if not 0.0 < epsilon < 1.0:
        raise TopologyError("impossible accuracy", key="epsilon", value=epsilon, allowed="between 0 and 1")
    if mixing_rate >= 1.0:
        return None
    if mixing_rate <= epsilon:
        return 1
    # the small subtraction keeps an exact power, such as a rate of 0.1 and 1e-3, from being rounded up
    return math.ceil(math.log(epsilon) / math.log(mixing_rate) - 1e-9)


def diameter(topology: Topology) -> int | None:
    """The longest shortest path; None on a disconnected graph, and where finding it would take too long."""
    neighbors = topology.adjacency()
    first = distances(neighbors, 0)
    if len(first) < topology.nodes:
        return None
    farthest, depth = list(first.items())[-1]
    if _is_transitive(topology):
        return depth
    if len(topology.edges) == topology.nodes - 1:
        return max(distances(neighbors, farthest).values())
    return _by_spreading(neighbors) if topology.nodes <= DENSE_LIMIT else None


def _is_transitive(topology: Topology) -> bool:
    name = topology.spec.partition(":")[0]
    if is_file(topology.spec) or name not in FAMILIES or not FAMILIES[parse(topology.spec).name].transitive:
        return False
    return is_built(topology)


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


def describe(topology: Topology, weights: str = "metropolis", epsilon: float = EPSILON) -> dict[str, Any]:
    """All of it. A message is one model over one edge one way, so a round costs two for each edge."""
    started = time.perf_counter()
    found = spectrum(topology, weights)
    rounds = rounds_to_consensus(found.mixing_rate, epsilon) if topology.nodes > 1 else 0
    degrees = topology.degrees()
    parts = len(components(topology))
    return {
        "spec": topology.spec,
        "seed": topology.seed,
        "nodes": topology.nodes,
        "edges": len(topology.edges),
        "connected": parts == 1,
        "components": parts,
        "degree": {"min": min(degrees), "mean": sum(degrees) / topology.nodes, "max": max(degrees)},
        "diameter": diameter(topology),
        "algebraic_connectivity": found.algebraic_connectivity,
        "laplacian_max_eigenvalue": found.laplacian_max_eigenvalue,
        "weights": weights,
        "mixing_rate": found.mixing_rate,
        "epsilon": epsilon,
        "rounds_to_consensus": rounds,
        "messages_to_consensus": None if rounds is None else 2 * rounds * len(topology.edges),
        "method": found.method,
        "residual": found.residual,
        "certified": found.certified,
        "seconds": time.perf_counter() - started,
    }
