"""How many edges, and how many nodes, must fail before a graph falls apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topologies.eigen.ladder import Extremes
from topologies.graph import Topology
from topologies.metrics.cutpoints import CutPoints, cut_points
from topologies.metrics.cuts import Cut
from topologies.metrics.known import (
    Bounds,
    degree_range,
    is_complete,
    is_connected,
    is_transitive,
    proven_connectivity,
    spectrum_if_cheap,
)

EDGE_FLOWS_WORK = 1_000_000
NODE_FLOWS_WORK = 100_000
"""nodes times edges up to which maximum flows are computed: about 0.2 s each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connectivity:
    """Edge connectivity (`edges`) and vertex connectivity (`nodes`); the latter of a complete graph is n - 1."""

    edges: Bounds
    nodes: Bounds


def connectivity(
    topology: Topology, found: Extremes | None = None, points: CutPoints | None = None, cut: Cut | None = None
) -> Connectivity:
    """Exact up to a few hundred nodes, and wherever the bounds meet. What is known already may be brought along.

    lambda_2 <= kappa (not of a complete graph) <= edge connectivity <= least degree: Fiedler 1973. A graph in
    which every node sees the same has edge connectivity d (Mader 1971) and kappa >= 2 (d + 1) / 3 (Watkins 1970).
    """
    n, (least, _) = topology.nodes, degree_range(topology)
    if is_complete(topology):
        whole = Bounds(n - 1, n - 1, "complete")
        return Connectivity(edges=whole, nodes=whole)
    if not is_connected(topology):
        apart = Bounds(0, 0, "disconnected")
        return Connectivity(edges=apart, nodes=apart)
    low = proven_connectivity(spectrum_if_cheap(topology, found))
    points = points or cut_points(topology)
    edges = _edge_bounds(topology, least, low, points, cut)
    if not edges.exact and _affordable(topology, EDGE_FLOWS_WORK):
        edges = _flows(topology, "edge_connectivity", "maximum flows")
    nodes = _node_bounds(topology, edges.upper, low, points, cut)
    if not nodes.exact and _affordable(topology, NODE_FLOWS_WORK):
        nodes = _flows(topology, "node_connectivity", "maximum flows")
    if nodes.lower > edges.lower:
        edges = Bounds(nodes.lower, edges.upper, edges.method)
    return Connectivity(edges=edges, nodes=nodes)


def _edge_bounds(topology: Topology, least: int, low: float, points: CutPoints | None, cut: Cut | None) -> Bounds:
    """A side of fewer than `least` + 1 nodes is left by at least `least` edges, for each of its nodes has at most
    |S| - 1 neighbors inside. A larger one, on both sides, is left by at least lambda_2 |S| (n - |S|) / n.
    """
    if is_transitive(topology):
        return Bounds(least, least, "every node sees the same")
    if points is not None and points.bridges:
        return Bounds(1, 1, "a bridge")
    n = topology.nodes
    wide = math.ceil(low * (least + 1) * (n - least - 1) / n) if n > 2 * least + 1 else least
    lower = max(1 if points is None else 2, wide)
    upper = min(least, cut.edges) if cut else least
    return Bounds(min(upper, lower), upper, "degree, spectrum and sweep cut")


def _node_bounds(topology: Topology, edges: int, low: float, points: CutPoints | None, cut: Cut | None) -> Bounds:
    if points is not None and points.nodes:
        return Bounds(1, 1, "an articulation point")
    even = math.ceil(2 * (edges + 1) / 3) if is_transitive(topology) else 1
    lower = max(1 if points is None else 2, math.ceil(low), even)
    upper = min(edges, *shores(topology, cut)) if cut else edges
    return Bounds(min(upper, lower), upper, "degree, spectrum and sweep cut")


def shores(topology: Topology, cut: Cut) -> list[int]:
    """The nodes on either side that edges of the cut touch: without them the rest of their side is cut off."""
    inside = np.zeros(topology.nodes, dtype=bool)
    inside[list(cut.side)] = True
    across = topology.ends[inside[topology.ends[:, 0]] != inside[topology.ends[:, 1]]]
    touched = np.unique(across)
    near = int(inside[touched].sum())
    far = len(touched) - near
    return [count for count, size in ((near, len(cut.side)), (far, cut.other)) if count < size] or [topology.nodes]


def _affordable(topology: Topology, work: int) -> bool:
    return not topology.implicit and topology.nodes * topology.edge_count <= work


def _flows(topology: Topology, name: str, method: str) -> Bounds:
    import networkx as nx  # noqa: PLC0415 - slow to import

    value = int(getattr(nx, name)(topology.to_networkx()))
    return Bounds(value, value, method)
