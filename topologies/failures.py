"""Failures: the rest of a graph as nodes or edges fail, one at a time, at random or where it hurts most.

Worst cases follow from the Fiedler vector v, a unit vector: it bounds the algebraic connectivity of what remains by a
Rayleigh quotient (Fiedler, Algebraic connectivity of graphs, 1973).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topologies.chance import generator
from topologies.eigen.extremes import EFFORT_LIMIT, Tell, effort, silent
from topologies.errors import TopologyError, nearest
from topologies.graph import Ends, Topology, component_labels
from topologies.laplacian import Array, Laplacian
from topologies.spectral import fiedler_vector, plain_extremes

Ints = NDArray[np.int64]
Choose = Callable[[Topology, np.random.Generator], int]
"""Chooses the node, or the row of `ends`, that fails next."""

PATHS_LIMIT = 1_000
"""The most nodes: networkx counts shortest paths one by one."""

REPEAT_LIMIT = 100_000
"""The most draws, which are all held."""

COSTS = {"random": 1, "degree": 1, "fiedler": 3, "betweenness": 1}
"""Eigenvalue problems like that of lambda_2 per failure."""
PATH = 5
"""Steps along edges of shortest paths that cost one unit of effort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureState:
    """The graph after some failures. `failed`: the last failure, in the graph's own numbers, (i,) or (i, j); at first
    ().
    """

    removed: int
    failed: tuple[int, ...]
    algebraic_connectivity: float
    components: int
    largest: int
    """The number of nodes of the largest component."""


@dataclass(frozen=True, slots=True)
class Decay:
    """The course of failures. `left[k]`: after k failures. `remaining`: the final graph, its nodes by their old names
    or numbers.
    """

    left: tuple[FailureState, ...]
    remaining: Topology


def decay(
    topology: Topology,
    remove: int,
    strategy: str = "random",
    *,
    edges: bool = False,
    seed: int = 0,
    tell: Tell = silent,
) -> Decay:
    """Remove `remove` nodes, or edges, one at a time; every choice depends on the rest of the graph. `tell` gets
    progress messages.

    Raises TopologyError: there is no such strategy, the graph has less than is to be removed, or it would take too
    long.
    """
    choose = _strategy(strategy, edges=edges)
    most = topology.edge_count if edges else topology.nodes - 1
    if not 0 <= remove <= most:
        kind = "edges" if edges else "nodes, so that one is left"
        raise TopologyError("out of range", key="remove", value=remove, allowed=f"from 0 to {most} {kind}")
    if strategy == "betweenness" and topology.nodes > PATHS_LIMIT:
        text = "takes too long on so many nodes"
        raise TopologyError(text, key="strategy", value=strategy, allowed=f"betweenness up to {PATHS_LIMIT} nodes")
    _check_effort(topology, remove, 1, strategy, edges=edges)
    rng = generator(seed)
    graph, kept = Topology(topology.spec, topology.nodes, topology.ends, seed), np.arange(topology.nodes)
    left = [_state_after(graph, 0, ())]
    for k in range(1, remove + 1):
        tell(f"removed {k - 1} of {remove}")
        place = choose(graph, rng)
        failed = graph.ends[place] if edges else kept[[place]]
        graph, kept = (_without_edge(graph, place), kept) if edges else _without_node(graph, kept, place)
        left.append(_state_after(graph, k, tuple(failed.tolist())))
    names = [topology.names[node] if topology.names else str(node) for node in kept]
    remaining = Topology(topology.spec, graph.nodes, graph.ends, topology.seed, names=names)
    return Decay(tuple(left), remaining)


def random_decays(
    topology: Topology, remove: int, repeat: int, *, edges: bool = False, seed: int = 0, tell: Tell = silent
) -> list[dict[str, Any]]:
    """Return for `repeat` draws of random failures, the first with `seed`, the next with the seed after it, their mean,
    least and largest algebraic connectivity, the share of them that is connected, and the mean size of the largest
    part.
    """
    if not 1 <= repeat <= REPEAT_LIMIT:
        raise TopologyError("out of range", key="repeat", value=repeat, allowed=f"from 1 to {REPEAT_LIMIT}")
    _check_effort(topology, remove, repeat, "random", edges=edges)
    draws = []
    for k in range(repeat):
        tell(f"made {k} of {repeat} draws")
        draws.append(decay(topology, remove, "random", edges=edges, seed=seed + k).left)
    rows = []
    for same in zip(*draws, strict=True):
        values = [left.algebraic_connectivity for left in same]
        rows.append(
            {
                "removed": same[0].removed,
                "lambda_2_mean": float(np.mean(values)),
                "lambda_2_min": min(values),
                "lambda_2_max": max(values),
                "connected_share": sum(left.components == 1 for left in same) / repeat,
                "largest_mean": float(np.mean([left.largest for left in same])),
            }
        )
    return rows


def _check_effort(topology: Topology, remove: int, repeat: int, strategy: str, *, edges: bool) -> None:
    """Refuse what would take too long. Raises TopologyError."""
    n, m = topology.nodes, topology.edge_count
    text = f"would take too long on {n} nodes and {m} edges"
    spent = 0
    for k in range(remove + 1):
        left = (n, m - k) if edges else (n - k, m * (n - k) ** 2 // n**2)
        spent += COSTS[strategy] * effort(*left) + (left[0] * left[1] // PATH if strategy == "betweenness" else 0)
        if spent > EFFORT_LIMIT and k < 2:
            raise TopologyError(text, key="nodes", value=n, allowed="a smaller graph, or another strategy")
        if spent > EFFORT_LIMIT:
            raise TopologyError(text, key="remove", value=remove, allowed=f"up to {k - 1} on a graph of this size")
    if spent * repeat > EFFORT_LIMIT:
        allowed = f"up to {EFFORT_LIMIT // spent} draws of {remove} failures"
        raise TopologyError(text, key="repeat", value=repeat, allowed=allowed)


def connectivity_bounds(topology: Topology, vector: Array, *, edges: bool) -> Array:
    """Bound from above, for each node or edge, the algebraic connectivity of the graph without it.

    `vector` is the Fiedler vector, or any other unit vector of mean zero; q is its Rayleigh quotient. Without edge ij
    it has quotient q - (v_i - v_j)^2. Without node i, the rest of it loses the square of its own entry and of its new
    mean.
    """
    low = Laplacian.plain(topology).quotient(vector)
    i, j = topology.ends[:, 0], topology.ends[:, 1]
    lost = (vector[i] - vector[j]) ** 2
    if edges:
        return np.asarray(low - lost)
    n = topology.nodes
    of_node = np.bincount(i, lost, n) + np.bincount(j, lost, n)
    return np.asarray((low - of_node) / np.maximum(1.0 - vector**2 * n / (n - 1), 1e-12))


def _state_after(graph: Topology, removed: int, failed: tuple[int, ...]) -> FailureState:
    sizes = np.unique(component_labels(graph), return_counts=True)[1]
    low = plain_extremes(graph).low if len(sizes) == 1 and graph.nodes > 1 else 0.0
    return FailureState(
        removed=removed, failed=failed, algebraic_connectivity=low, components=len(sizes), largest=int(sizes.max())
    )


def _without_edge(graph: Topology, place: int) -> Topology:
    return Topology(graph.spec, graph.nodes, np.delete(graph.ends, place, axis=0), graph.seed)


def _without_node(graph: Topology, kept: Ints, node: int) -> tuple[Topology, Ints]:
    staying = graph.ends[(graph.ends != node).all(axis=1)]
    return Topology(graph.spec, graph.nodes - 1, staying - (staying > node), graph.seed), np.delete(kept, node)


def _fiedler_node(graph: Topology, _rng: np.random.Generator) -> int:
    part, nodes, _ = _largest_part(graph)
    if part.nodes < 3:
        return int(nodes[0])
    return int(nodes[np.argmin(connectivity_bounds(part, fiedler_vector(part), edges=False))])


def _fiedler_edge(graph: Topology, _rng: np.random.Generator) -> int:
    part, _, places = _largest_part(graph)
    return int(places[np.argmin(connectivity_bounds(part, fiedler_vector(part), edges=True))])


def _largest_part(graph: Topology) -> tuple[Topology, Ints, Ints]:
    """Return the largest component, its nodes and its edges: other parts are not attacked further."""
    labels = component_labels(graph)
    root = np.argmax(np.bincount(labels))
    nodes = np.flatnonzero(labels == root)
    places = np.flatnonzero(labels[graph.ends[:, 0]] == root)
    number = np.full(graph.nodes, -1)
    number[nodes] = np.arange(len(nodes))
    ends: Ends = number[graph.ends[places]]
    return Topology(graph.spec, len(nodes), ends, graph.seed), nodes, places


def _betweenness(graph: Topology, _rng: np.random.Generator, *, edges: bool) -> int:
    import networkx as nx  # noqa: PLC0415 - slow to import

    if edges:
        return _highest(nx.edge_betweenness_centrality(graph.to_networkx()), graph.edges)
    return _highest(nx.betweenness_centrality(graph.to_networkx()), range(graph.nodes))


def _highest(centrality: Mapping[Any, float], keys: Sequence[Any]) -> int:
    """Return the first of the highest, rounding aside."""
    return int(np.argmax([round(centrality[key], 9) for key in keys]))


_NODES: Mapping[str, Choose] = {
    "random": lambda graph, rng: int(rng.integers(graph.nodes)),
    "degree": lambda graph, _: int(np.argmax(graph.degrees)),
    "fiedler": _fiedler_node,
    "betweenness": partial(_betweenness, edges=False),
}
_EDGES: Mapping[str, Choose] = {
    "random": lambda graph, rng: int(rng.integers(graph.edge_count)),
    "degree": lambda graph, _: int(np.argmax(graph.degrees[graph.ends].sum(axis=1))),
    "fiedler": _fiedler_edge,
    "betweenness": partial(_betweenness, edges=True),
}
STRATEGIES = tuple(_NODES)


def _strategy(name: str, *, edges: bool) -> Choose:
    if name not in STRATEGIES:
        raise TopologyError("unknown strategy", key="strategy", value=name, allowed=nearest(name, STRATEGIES))
    return (_EDGES if edges else _NODES)[name]
