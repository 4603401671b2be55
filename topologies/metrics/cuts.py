"""Where a graph is thinnest: the cut that crosses fewest edges for the nodes it separates.

The isoperimetric number is i(G) = min |dS| / |S| over sets S of at most half the nodes, dS being the edges that leave
S. It is 0 on a disconnected graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.eigen.ladder import Extremes
from topologies.graph import Topology, component_labels
from topologies.laplacian import Array
from topologies.metrics.distance import hops
from topologies.metrics.known import (
    ROUNDING,
    SPECTRUM_LIMIT,
    degree_range,
    is_complete,
    is_connected,
    is_transitive,
    proven_connectivity,
    spectrum_if_cheap,
)
from topologies.spectral import fiedler_vector

EXHAUSTIVE_LIMIT = 14
"""nodes up to which all sets are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`side`: the smaller side, ascending. `edges` cross it. `order` is what the nodes were sorted by to find it."""

    side: tuple[int, ...]
    other: int
    edges: int
    conductance: float
    ratio: float
    order: str

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.side), self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class Isoperimetric:
    """i(G) lies in lower .. upper; `exact` where the two are the same number but for rounding."""

    lower: float
    upper: float
    exact: bool
    method: str


def sweep_cut(topology: Topology, found: Extremes | None = None) -> Cut | None:
    """The best cut between the first k nodes and the rest, over all k and several orders: the Fiedler vector, hops
    from a far node, the nodes' own numbers. Of a disconnected graph: a part. None for one node, or an implicit graph.

    `found` brings the Fiedler vector of a large graph; without it only a small graph is swept by it.
    Source: Spielman and Teng, Spectral partitioning works (1996).
    """
    if topology.implicit or topology.nodes < 2:
        return None
    best: tuple[float, int, int, NDArray[np.int64], str] | None = None
    for name, order in orders(topology, found):
        size, edges = _thinnest(topology, order)
        ratio = edges / min(size, topology.nodes - size)
        if best is None or ratio < best[0]:
            best = (ratio, size, edges, order, name)
    if best is None:
        return None
    ratio, size, edges, order, name = best
    return _cut(topology, order[:size], edges, name)


def orders(topology: Topology, found: Extremes | None = None) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """The orders of the nodes that are worth sweeping. Each of shape (nodes,)."""
    labels = component_labels(topology)
    if labels.any():
        yield "parts", np.argsort(labels, kind="stable")
        return
    vector = _vector(topology, found)
    if vector is not None:
        yield "Fiedler vector", np.argsort(vector, kind="stable")
    far = int(np.argmax(hops(topology, 0)))
    yield "hops", np.argsort(hops(topology, far), kind="stable")
    yield "node numbers", np.arange(topology.nodes)


def _vector(topology: Topology, found: Extremes | None) -> Array | None:
    if found is not None and len(found.vector) == topology.nodes:
        return found.vector
    return fiedler_vector(topology) if topology.nodes <= SPECTRUM_LIMIT else None


def crossing(topology: Topology, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many edges join the first k nodes of `order` to the rest, for k = 1 .. n-1. Shape (nodes - 1,)."""
    place = np.empty_like(order)
    place[order] = np.arange(topology.nodes)
    ends = np.sort(place[topology.ends], axis=1)
    opened = np.bincount(ends[:, 0], minlength=topology.nodes) - np.bincount(ends[:, 1], minlength=topology.nodes)
    return np.cumsum(opened)[:-1]


def _thinnest(topology: Topology, order: NDArray[np.int64]) -> tuple[int, int]:
    edges = crossing(topology, order)
    sizes = np.arange(1, topology.nodes)
    best = int(np.argmin(edges / np.minimum(sizes, topology.nodes - sizes)))
    return best + 1, int(edges[best])


def _cut(topology: Topology, side: NDArray[np.int64], edges: int, order: str) -> Cut:
    inside = np.zeros(topology.nodes, dtype=bool)
    inside[side] = True
    if 2 * len(side) > topology.nodes:
        inside = ~inside
    volume = int(topology.degrees[inside].sum())
    thin = min(volume, 2 * topology.edge_count - volume)
    smaller = np.flatnonzero(inside).tolist()
    return Cut(
        side=tuple(smaller),
        other=topology.nodes - len(smaller),
        edges=edges,
        conductance=edges / thin if thin else 0.0,
        ratio=edges / len(smaller),
        order=order,
    )


def isoperimetric(topology: Topology, found: Extremes | None = None, cut: Cut | None = None) -> Isoperimetric | None:
    """Of a graph with at least two nodes; None for one.

    Below: |dS| >= lambda_2 |S| (n - |S|) / n for every S, hence i(G) >= lambda_2 ceil(n/2) / n >= lambda_2 / 2; and
    the edge connectivity over floor(n/2).
    Above: sqrt(lambda_2 (2 d_max - lambda_2)), not for K_1, K_2, K_3, and the best cut that is known.
    Source: Mohar, Isoperimetric numbers of graphs (J. Comb. Theory B 47, 1989).
    """
    n = topology.nodes
    if n < 2:
        return None
    half = (n + 1) // 2
    if is_complete(topology):
        return Isoperimetric(lower=float(half), upper=float(half), exact=True, method="complete")
    if not topology.implicit and n <= EXHAUSTIVE_LIMIT:
        value = _exhaustive(topology)
        return Isoperimetric(lower=value, upper=value, exact=True, method="all sets")
    found = spectrum_if_cheap(topology, found)
    lower = max(proven_connectivity(found) * half / n, _least_cut(topology) / (n // 2))
    cut = cut or sweep_cut(topology, found)
    least, most = degree_range(topology)
    upper, method = min(
        (float(least), "least degree"),
        (cut.ratio if cut else np.inf, "sweep cut"),
        (_cheeger(found.low, most) if found else np.inf, "spectrum"),
    )
    return Isoperimetric(lower=lower, upper=upper, exact=upper - lower <= 2.0 * ROUNDING * upper, method=method)


def _least_cut(topology: Topology) -> int:
    """No fewer edges leave any set: the degree where every node sees the same (Mader 1971), else one."""
    if not is_connected(topology):
        return 0
    return degree_range(topology)[0] if is_transitive(topology) else 1


def _cheeger(low: float, largest: int) -> float:
    """`low` is a Rayleigh quotient: lambda_2 may be less, and the bound grows with lambda_2 up to d_max."""
    low = min(low, float(largest))
    return math.sqrt(low * (2.0 * largest - low))


def _exhaustive(topology: Topology) -> float:
    n = topology.nodes
    sets = np.arange(1, 1 << n, dtype=np.int64)
    sizes = sum(((sets >> node) & 1 for node in range(n)), start=np.zeros_like(sets))
    sets, sizes = sets[2 * sizes <= n], sizes[2 * sizes <= n]
    edges = np.zeros_like(sets)
    for i, j in topology.edges:
        edges += ((sets >> i) ^ (sets >> j)) & 1
    return float((edges / sizes).min())
