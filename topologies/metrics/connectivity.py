"""How many edges, and how many nodes, must fail before a graph falls apart; and its bridges and articulation points,
the single edges and the single nodes whose loss splits it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topologies.eigen.ladder import Extremes
from topologies.graph import Edge, Topology
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

SEARCH_LIMIT = 3_000_000
"""nodes and edges together that are searched: about two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoints:
    """`bridges` are pairs (i, j) with i < j, `nodes` the articulation points; both ascending."""

    bridges: tuple[Edge, ...]
    nodes: tuple[int, ...]


def cut_points(topology: Topology, limit: int = SEARCH_LIMIT) -> CutPoints | None:
    """None for a graph of more than `limit` nodes and edges, or without edges to look at."""
    if degree_range(topology)[0] >= 2 and is_transitive(topology):
        # Mader 1971, Watkins 1970: such a component stays whole when any edge or any node of it is lost
        return CutPoints(bridges=(), nodes=())
    if topology.implicit or topology.nodes + topology.edge_count > limit:
        return None
    return _search(topology)


def _search(topology: Topology) -> CutPoints:
    search = _DepthFirst(topology)
    for root in range(topology.nodes):
        if not search.entered[root]:
            search.explore(root)
    return CutPoints(bridges=tuple(sorted(search.bridges)), nodes=tuple(sorted(search.cut)))


class _DepthFirst:
    """`place[v]`: the next neighbor of v to look at. `entered[v]`: when v was reached.
    `low[v]`: the earliest node that an edge reaches from v or from below it.

    Source: Hopcroft and Tarjan, Algorithm 447 (1973). Without recursion: a path may be a million nodes deep.
    """

    def __init__(self, topology: Topology) -> None:
        starts, self.neighbors = (part.tolist() for part in topology.rows)
        self.place, self.ends = starts[:-1], starts[1:]
        self.entered, self.low, self.parent = ([0] * topology.nodes for _ in range(3))
        self.clock = 0
        self.bridges: list[Edge] = []
        self.cut: set[int] = set()

    def explore(self, root: int) -> None:
        """All that `root` reaches."""
        place, ends, neighbors = self.place, self.ends, self.neighbors
        entered, low, parent = self.entered, self.low, self.parent
        self._enter(root, -1)
        node, branches = root, 0
        while node >= 0:
            if place[node] == ends[node]:
                branches += parent[node] == root
                node = self._leave(node, root)
                continue
            other = neighbors[place[node]]
            place[node] += 1
            if not entered[other]:
                self._enter(other, node)
                node = other
            elif other != parent[node] and entered[other] < low[node]:
                low[node] = entered[other]
        if branches > 1:
            self.cut.add(root)

    def _enter(self, node: int, above: int) -> None:
        self.clock += 1
        self.entered[node] = self.low[node] = self.clock
        self.parent[node] = above

    def _leave(self, node: int, root: int) -> int:
        """Back to the node above, which learns how far up the edges below it reach."""
        above = self.parent[node]
        if above < 0:
            return above
        self.low[above] = min(self.low[above], self.low[node])
        if self.low[node] > self.entered[above]:
            self.bridges.append((min(node, above), max(node, above)))
        if above != root and self.low[node] >= self.entered[above]:
            self.cut.add(above)
        return above


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
