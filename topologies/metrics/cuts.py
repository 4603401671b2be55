"""Cuts: where a graph is thinnest, and how many edges, or nodes, must fail before it falls apart.

Bridges and articulation points are the single edges and the single nodes whose loss splits a graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.eigen import Extremes
from topologies.eigen.laplacian import Array
from topologies.graph import Edge, Topology, hops
from topologies.metrics import (
    SPECTRUM_LIMIT,
    IntegerBounds,
    degree_range,
    is_complete,
    is_connected,
    is_transitive,
    proven_connectivity,
    spectrum_if_cheap,
)
from topologies.spectral import fiedler_vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cut. `side` is the smaller side, ascending; `edges` cross it. `order` names the order in which it was found."""

    side: tuple[int, ...]
    other: int
    edges: int
    conductance: float
    ratio: float
    order: str

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.side), self.other


def sweep_cut(topology: Topology, extremes: Extremes | None = None) -> Cut | None:
    """Find the best cut between the first k nodes and the rest, over all k and several orders: the Fiedler vector, hops
    from a far node, the nodes' own numbers.

    On a disconnected graph it is a component. None for one node, or for an implicit graph. `extremes` has the Fiedler
    vector of a large graph; without it only a small graph is swept by that vector. Source: Spielman and Teng, Spectral
    partitioning works (1996).
    """
    if topology.implicit or topology.nodes < 2:
        return None
    return min((_cut(topology, name, order) for name, order in orders(topology, extremes)), key=lambda cut: cut.ratio)


def orders(topology: Topology, extremes: Extremes | None = None) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the node orders worth sweeping, each of shape (nodes,)."""
    labels = topology.labels
    if labels.any():
        yield "parts", np.argsort(labels, kind="stable")
        return
    vector = _vector(topology, extremes)
    if vector is not None:
        yield "Fiedler vector", np.argsort(vector, kind="stable")
    far = int(np.argmax(hops(topology, 0)))
    yield "hops", np.argsort(hops(topology, far), kind="stable")
    yield "node numbers", np.arange(topology.nodes)


def _vector(topology: Topology, extremes: Extremes | None) -> Array | None:
    if extremes is not None and len(extremes.vector) == topology.nodes:
        return extremes.vector
    return fiedler_vector(topology) if topology.nodes <= SPECTRUM_LIMIT else None


def crossing(topology: Topology, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the edges from the first k nodes of `order` to the rest, for k = 1 .. n-1. Shape (nodes - 1,)."""
    place = np.empty_like(order)
    place[order] = np.arange(topology.nodes)
    ends = np.sort(place[topology.ends], axis=1)
    opened = np.bincount(ends[:, 0], minlength=topology.nodes) - np.bincount(ends[:, 1], minlength=topology.nodes)
    return np.cumsum(opened)[:-1]


def _cut(topology: Topology, name: str, order: NDArray[np.int64]) -> Cut:
    """Return the best cut between the first k nodes of an order and the rest."""
    crossed, sizes = crossing(topology, order), np.arange(1, topology.nodes)
    best = int(np.argmin(crossed / np.minimum(sizes, topology.nodes - sizes)))
    edges, side = int(crossed[best]), order[: best + 1]
    smaller = np.sort(side if 2 * len(side) <= topology.nodes else order[best + 1 :])
    volume = int(topology.degrees[smaller].sum())
    thin = min(volume, 2 * topology.edge_count - volume)
    return Cut(
        side=tuple(smaller.tolist()),
        other=topology.nodes - len(smaller),
        edges=edges,
        conductance=edges / thin if thin else 0.0,
        ratio=edges / len(smaller),
        order=name,
    )


def conductance_bounds(topology: Topology, extremes: Extremes, cut: Cut | None) -> list[float] | None:
    """Bound the conductance, the least share of edge ends that leave a set with at most half of all: [lower, upper].

    The smaller side S of a cut has at most n/2 nodes and d_max |S| edge ends, and lambda_2 |S| / 2 edges or more leave
    it. Above: the cut that was found, or 1. None without edges.
    """
    if not topology.edge_count:
        return None
    upper = 1.0 if cut is None else cut.conductance
    return [min(upper, proven_connectivity(extremes) / (2.0 * degree_range(topology)[1])), upper]


SEARCH_LIMIT = 100_000
"""The maximum total of nodes and edges to search: about two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoints:
    """The points at which a graph splits. `bridges` are pairs (i, j) with i < j, `nodes` the articulation points; both
    ascending.
    """

    bridges: tuple[Edge, ...]
    nodes: tuple[int, ...]


def cut_points(topology: Topology, limit: int = SEARCH_LIMIT) -> CutPoints | None:
    """Find the cut points; None above `limit` nodes and edges, or for an implicit graph."""
    if degree_range(topology)[0] >= 2 and is_transitive(topology):
        # Mader 1971, Watkins 1970: such a component stays connected if any one edge or node is lost
        return CutPoints(bridges=(), nodes=())
    if topology.implicit or topology.nodes + topology.edge_count > limit:
        return None
    import networkx as nx  # noqa: PLC0415 - slow to import

    graph = topology.to_networkx()
    bridges = sorted((min(edge), max(edge)) for edge in nx.bridges(graph))
    return CutPoints(bridges=tuple(bridges), nodes=tuple(sorted(nx.articulation_points(graph))))


EDGE_FLOWS_WORK = 1_000_000
NODE_FLOWS_WORK = 100_000
"""The maximum of nodes times edges for which maximum flows are computed: about 0.2 s each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connectivity:
    """The connectivity of a graph in `edges` and vertices (`nodes`); for a complete graph the latter is n - 1."""

    edges: IntegerBounds
    nodes: IntegerBounds


def connectivity(
    topology: Topology, extremes: Extremes | None = None, points: CutPoints | None = None, cut: Cut | None = None
) -> Connectivity:
    """Compute the connectivity, exactly up to a few hundred nodes and wherever the bounds meet. Pass what is already
    known.

    lambda_2 <= kappa (except for complete graphs) <= edge connectivity <= minimum degree: Fiedler 1973. A transitive
    graph has edge connectivity d (Mader 1971) and kappa >= 2 (d + 1) / 3 (Watkins 1970).
    """
    n, (least, _) = topology.nodes, degree_range(topology)
    if is_complete(topology):
        whole = IntegerBounds(n - 1, n - 1, "complete")
        return Connectivity(edges=whole, nodes=whole)
    if not is_connected(topology):
        apart = IntegerBounds(0, 0, "disconnected")
        return Connectivity(edges=apart, nodes=apart)
    low = proven_connectivity(spectrum_if_cheap(topology, extremes))
    points = points or cut_points(topology)
    edges = _edge_bounds(topology, least, low, points, cut)
    if not edges.exact and _affordable(topology, EDGE_FLOWS_WORK):
        edges = _flows(topology, "edge_connectivity", "maximum flows")
    nodes = _node_bounds(topology, edges.upper, low, points, cut)
    if not nodes.exact and _affordable(topology, NODE_FLOWS_WORK):
        nodes = _flows(topology, "node_connectivity", "maximum flows")
    if nodes.lower > edges.lower:
        edges = IntegerBounds(nodes.lower, edges.upper, edges.method)
    return Connectivity(edges=edges, nodes=nodes)


def _edge_bounds(
    topology: Topology, least: int, low: float, points: CutPoints | None, cut: Cut | None
) -> IntegerBounds:
    """Bound the edge connectivity.

    A side with at most `least` nodes is left by at least `least` edges, because each of its nodes has at most |S| - 1
    neighbors inside. If both sides are larger, at least lambda_2 |S| (n - |S|) / n edges leave.
    """
    if is_transitive(topology):
        return IntegerBounds(least, least, "every node sees the same")
    if points is not None and points.bridges:
        return IntegerBounds(1, 1, "a bridge")
    n = topology.nodes
    wide = math.ceil(low * (least + 1) * (n - least - 1) / n) if n > 2 * least + 1 else least
    lower = max(1 if points is None else 2, wide)
    if lower % 2 and not topology.implicit and not (topology.degrees % 2).any():
        lower += 1  # if every node has an even degree, an even number of edges crosses every cut
    upper = min(least, cut.edges) if cut else least
    return IntegerBounds(min(upper, lower), upper, "degree, spectrum and sweep cut")


def _node_bounds(
    topology: Topology, edges: int, low: float, points: CutPoints | None, cut: Cut | None
) -> IntegerBounds:
    if points is not None and points.nodes:
        return IntegerBounds(1, 1, "an articulation point")
    even = math.ceil(2 * (edges + 1) / 3) if is_transitive(topology) else 1
    lower = max(1 if points is None else 2, math.ceil(low), even)
    upper = min(edges, *shores(topology, cut)) if cut else edges
    return IntegerBounds(min(upper, lower), upper, "degree, spectrum and sweep cut")


def shores(topology: Topology, cut: Cut) -> list[int]:
    """Return the nodes on either side touched by edges of the cut: without them, the rest of their side is cut off."""
    inside = np.zeros(topology.nodes, dtype=bool)
    inside[list(cut.side)] = True
    across = topology.ends[inside[topology.ends[:, 0]] != inside[topology.ends[:, 1]]]
    touched = np.unique(across)
    near = int(inside[touched].sum())
    far = len(touched) - near
    return [count for count, size in ((near, len(cut.side)), (far, cut.other)) if count < size] or [topology.nodes]


def _affordable(topology: Topology, work: int) -> bool:
    return not topology.implicit and topology.nodes * topology.edge_count <= work


def _flows(topology: Topology, name: str, method: str) -> IntegerBounds:
    import networkx as nx  # noqa: PLC0415 - slow to import

    value = int(getattr(nx, name)(topology.to_networkx()))
    return IntegerBounds(value, value, method)
