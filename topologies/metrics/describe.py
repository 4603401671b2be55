"""One flat description of a graph: the object that `p2pfl topology info` prints."""

from __future__ import annotations

import time
from typing import Any

from topologies.eigen.extremes import Extremes
from topologies.graph import Topology, component_count
from topologies.metrics.byzantine import tolerance
from topologies.metrics.connectivity import connectivity
from topologies.metrics.consensus import EPSILON, rounds_to_consensus
from topologies.metrics.cutpoints import cut_points
from topologies.metrics.cuts import Cut, isoperimetric, sweep_cut
from topologies.metrics.distance import distances
from topologies.metrics.known import Bounds, degree_range
from topologies.metrics.resistance import resistance
from topologies.metrics.robustness import robustness
from topologies.spectral import Spectrum, plain_extremes, spectrum


def describe(
    topology: Topology, weights: str = "metropolis", epsilon: float = EPSILON, *, certify: bool = False
) -> dict[str, Any]:
    """How connected it is and how fast it mixes. See `mixing_facts`."""
    started = time.perf_counter()
    found = spectrum(topology, weights, certify=certify)
    facts = mixing_facts(topology, found, weights, epsilon)
    return facts | {"seconds": time.perf_counter() - started}


def survey(
    topology: Topology,
    weights: str = "metropolis",
    epsilon: float = EPSILON,
    *,
    certify: bool = False,
    model_bytes: int | None = None,
) -> dict[str, Any]:
    """What `describe` tells, and where the graph is thin, how many liars and failures it bears, and what it costs."""
    started = time.perf_counter()
    plain = plain_extremes(topology, certify=certify)
    facts = mixing_facts(topology, spectrum(topology, weights, certify=certify, found=plain), weights, epsilon)
    if model_bytes is not None:
        messages = facts["messages_to_consensus"]
        facts["bytes_to_consensus"] = None if messages is None else messages * model_bytes
        facts["bytes_per_round_busiest_node"] = degree_range(topology)[1] * model_bytes
    facts |= structure(topology, plain)
    return facts | {"seconds": time.perf_counter() - started}


def mixing_facts(topology: Topology, found: Spectrum, weights: str, epsilon: float) -> dict[str, Any]:
    """A message is one model over one edge one way, so a round costs two for each edge.

    `method`, `residual`, `lower_bound`, `probable_lower_bound`, `certified` and `converged` are about the algebraic
    connectivity: see `eigen.extremes.Extremes`.
    """
    rounds = rounds_to_consensus(found.mixing_rate, epsilon) if topology.nodes > 1 else 0
    parts = component_count(topology)
    least, most = degree_range(topology)
    apart = distances(topology)
    return {
        "spec": topology.spec,
        "seed": topology.seed,
        "nodes": topology.nodes,
        "edges": topology.edge_count,
        "connected": parts == 1,
        "components": parts,
        "degree": {"min": least, "mean": 2.0 * topology.edge_count / topology.nodes, "max": most},
        "diameter": apart.diameter.upper if apart.diameter and apart.diameter.exact else None,
        "diameter_bounds": _range(apart.diameter),
        "average_distance": apart.average,
        "algebraic_connectivity": found.algebraic_connectivity,
        "method": found.method,
        "residual": found.residual,
        "lower_bound": found.lower_bound,
        "probable_lower_bound": found.probable_bound,
        "certified": found.certified,
        "converged": found.converged,
        "laplacian_max_eigenvalue": found.laplacian_max_eigenvalue,
        "weights": weights,
        "mixing_rate": found.mixing_rate,
        "mixing_certified": found.mixing_certified,
        "mixing_converged": found.mixing_converged,
        "epsilon": epsilon,
        "rounds_to_consensus": rounds,
        "messages_to_consensus": None if rounds is None else 2 * rounds * topology.edge_count,
    }


def structure(topology: Topology, plain: Extremes) -> dict[str, Any]:
    """What does not depend on the mixing weights. A range [lower, upper] is exact where both are the same."""
    points = cut_points(topology)
    cut = sweep_cut(topology, plain)
    between = connectivity(topology, plain, points, cut)
    growth = isoperimetric(topology, plain, cut)
    pulled = resistance(topology)
    robust = robustness(topology, plain, cut, most=between.nodes.upper)
    liars = tolerance(topology, robust)
    return {
        "effective_resistance": pulled and {"average": pulled.average, "largest": pulled.largest},
        "kirchhoff_index": pulled and pulled.kirchhoff,
        "edge_connectivity": _range(between.edges),
        "vertex_connectivity": _range(between.nodes),
        "bridges": None if points is None else len(points.bridges),
        "cut_nodes": None if points is None else len(points.nodes),
        "thinnest_cut": _cut(cut),
        "isoperimetric_number": growth and [growth.lower, growth.upper],
        "robustness": [robust.lower, robust.upper],
        "liars_per_node": {
            "mixes": liars.local,
            "guaranteed": _range(liars.guaranteed),
            "at_most": _range(liars.possible),
        },
    }


def _cut(cut: Cut | None) -> dict[str, Any] | None:
    if cut is None:
        return None
    smaller, larger = cut.sizes
    return {"smaller_side": smaller, "larger_side": larger, "edges": cut.edges, "conductance": cut.conductance}


def _range(bounds: Bounds | None) -> list[int] | None:
    return None if bounds is None else [bounds.lower, bounds.upper]
