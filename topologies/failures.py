"""Failures: what remains of a graph as nodes fail, one at a time, at random or where it hurts most.

Worst cases follow from the Fiedler vector v, a unit vector: it bounds the algebraic connectivity of what remains by a
Rayleigh quotient (Fiedler, Algebraic connectivity of graphs, 1973).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from topologies.chance import generator
from topologies.eigen.extremes import EFFORT_LIMIT, Tell, effort, silent
from topologies.errors import TopologyError, nearest
from topologies.graph import Topology, component_labels
from topologies.laplacian import Array, Laplacian
from topologies.spectral import fiedler_vector, plain_extremes

Choose = Callable[[Topology, np.random.Generator], int]
"""Chooses the node that fails next."""

PATHS_LIMIT = 1_000
"""The maximum number of nodes, because networkx counts shortest paths one by one."""

COSTS = {"random": 1, "degree": 1, "fiedler": 3, "betweenness": 1}
"""The cost of each failure, in eigenvalue problems like that of lambda_2."""
PATH = 5
"""The steps along edges of shortest paths that cost one unit of effort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureState:
    """The graph after some failures. `failed` is the node that failed last, in the graph's own numbers; initially
    None. `largest` is the number of nodes of the largest component.
    """

    removed: int
    failed: int | None
    algebraic_connectivity: float
    components: int
    largest: int


@dataclass(frozen=True, slots=True)
class Decay:
    """The course of failures. `left[k]` is the state after k failures; `remaining` is the final graph, its nodes by
    their old names or numbers.
    """

    left: tuple[FailureState, ...]
    remaining: Topology


def decay(topology: Topology, remove: int, strategy: str = "random", *, seed: int = 0, tell: Tell = silent) -> Decay:
    """Remove `remove` nodes, one at a time; each choice depends on what remains of the graph. `tell` receives progress
    messages.

    Raises TopologyError if there is no such strategy, if the graph has too few nodes to remove, or if it would take too
    long.
    """
    if strategy not in STRATEGIES:
        raise TopologyError("unknown strategy", key="strategy", value=strategy, allowed=nearest(strategy, STRATEGIES))
    if not 0 <= remove < topology.nodes:
        allowed = f"from 0 to {topology.nodes - 1} nodes, so that one is left"
        raise TopologyError("out of range", key="remove", value=remove, allowed=allowed)
    if strategy == "betweenness" and topology.nodes > PATHS_LIMIT:
        text = "takes too long on so many nodes"
        raise TopologyError(text, key="strategy", value=strategy, allowed=f"betweenness up to {PATHS_LIMIT} nodes")
    _check_effort(topology, remove, strategy)
    rng = generator(seed)
    graph, kept = Topology(topology.spec, topology.nodes, topology.ends, seed), np.arange(topology.nodes)
    left = [_state_after(graph, 0, None)]
    for k in range(1, remove + 1):
        tell(f"removed {k - 1} of {remove}")
        node = STRATEGIES[strategy](graph, rng)
        left.append(_state_after(_without(graph, node), k, int(kept[node])))
        graph, kept = _without(graph, node), np.delete(kept, node)
    names = [topology.names[node] if topology.names else str(node) for node in kept]
    remaining = Topology(topology.spec, graph.nodes, graph.ends, topology.seed, names=names)
    return Decay(tuple(left), remaining)


def _check_effort(topology: Topology, remove: int, strategy: str) -> None:
    """Refuse what would take too long. Raises TopologyError."""
    n, m = topology.nodes, topology.edge_count
    text = f"would take too long on {n} nodes and {m} edges"
    spent = 0
    for k in range(remove + 1):
        left = (n - k, m * (n - k) ** 2 // n**2)
        spent += COSTS[strategy] * effort(*left) + (left[0] * left[1] // PATH if strategy == "betweenness" else 0)
        if spent > EFFORT_LIMIT and k < 2:
            raise TopologyError(text, key="nodes", value=n, allowed="a smaller graph, or another strategy")
        if spent > EFFORT_LIMIT:
            raise TopologyError(text, key="remove", value=remove, allowed=f"up to {k - 1} on a graph of this size")


def connectivity_bounds(topology: Topology, vector: Array) -> Array:
    """Bound from above, for each node, the algebraic connectivity of the graph without it. Shape (nodes,).

    `vector` is the Fiedler vector, or any other unit vector with mean zero; q is its Rayleigh quotient. Without node i,
    what remains loses the square of its own entry and of its new mean.
    """
    i, j, n = topology.ends[:, 0], topology.ends[:, 1], topology.nodes
    lost = (vector[i] - vector[j]) ** 2
    of_node = np.bincount(i, lost, n) + np.bincount(j, lost, n)
    low = Laplacian.plain(topology).quotient(vector)
    return np.asarray((low - of_node) / np.maximum(1.0 - vector**2 * n / (n - 1), 1e-12))


def _state_after(graph: Topology, removed: int, failed: int | None) -> FailureState:
    sizes = np.unique(component_labels(graph), return_counts=True)[1]
    low = plain_extremes(graph).low if len(sizes) == 1 and graph.nodes > 1 else 0.0
    return FailureState(
        removed=removed, failed=failed, algebraic_connectivity=low, components=len(sizes), largest=int(sizes.max())
    )


def _without(graph: Topology, node: int) -> Topology:
    staying = graph.ends[(graph.ends != node).all(axis=1)]
    return Topology(graph.spec, graph.nodes - 1, staying - (staying > node), graph.seed)


def _by_fiedler(graph: Topology, _rng: np.random.Generator) -> int:
    """Choose within the largest component: other parts are not attacked further."""
    labels = component_labels(graph)
    root = np.argmax(np.bincount(labels))
    nodes = np.flatnonzero(labels == root)
    if len(nodes) < 3:
        return int(nodes[0])
    number = np.full(graph.nodes, -1)
    number[nodes] = np.arange(len(nodes))
    part = Topology(graph.spec, len(nodes), number[graph.ends[labels[graph.ends[:, 0]] == root]], graph.seed)
    return int(nodes[np.argmin(connectivity_bounds(part, fiedler_vector(part)))])


def _by_betweenness(graph: Topology, _rng: np.random.Generator) -> int:
    """Choose the first of those on most shortest paths, ignoring rounding."""
    import networkx as nx  # noqa: PLC0415 - slow to import

    found = nx.betweenness_centrality(graph.to_networkx())
    return int(np.argmax([round(found[node], 9) for node in range(graph.nodes)]))


STRATEGIES: Mapping[str, Choose] = {
    "random": lambda graph, rng: int(rng.integers(graph.nodes)),
    "degree": lambda graph, _: int(np.argmax(graph.degrees)),
    "fiedler": _by_fiedler,
    "betweenness": _by_betweenness,
}
