"""One flat description of a graph: the object that `p2pfl topology info` prints."""

from __future__ import annotations

import time
from typing import Any

from topologies.graph import Topology, component_count
from topologies.metrics.consensus import EPSILON, rounds_to_consensus
from topologies.metrics.distance import diameter
from topologies.spectral import spectrum


def describe(
    topology: Topology, weights: str = "metropolis", epsilon: float = EPSILON, *, certify: bool = False
) -> dict[str, Any]:
    """All of it. A message is one model over one edge one way, so a round costs two for each edge."""
    started = time.perf_counter()
    found = spectrum(topology, weights, certify=certify)
    rounds = rounds_to_consensus(found.mixing_rate, epsilon) if topology.nodes > 1 else 0
    parts = component_count(topology)
    return {
        "spec": topology.spec,
        "seed": topology.seed,
        "nodes": topology.nodes,
        "edges": topology.edge_count,
        "connected": parts == 1,
        "components": parts,
        "degree": _degree(topology),
        "diameter": diameter(topology),
        "algebraic_connectivity": found.algebraic_connectivity,
        "laplacian_max_eigenvalue": found.laplacian_max_eigenvalue,
        "weights": weights,
        "mixing_rate": found.mixing_rate,
        "epsilon": epsilon,
        "rounds_to_consensus": rounds,
        "messages_to_consensus": None if rounds is None else 2 * rounds * topology.edge_count,
        "method": found.method,
        "residual": found.residual,
        "lower_bound": found.lower_bound,
        "certified": found.certified,
        "converged": found.converged,
        "seconds": time.perf_counter() - started,
    }


def _degree(topology: Topology) -> dict[str, float]:
    mean = 2.0 * topology.edge_count / topology.nodes
    if topology.implicit:
        least, most = topology.formula.degrees
        return {"min": least, "mean": mean, "max": most}
    return {"min": int(topology.degrees.min()), "mean": mean, "max": int(topology.degrees.max())}
