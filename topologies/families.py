"""The families of graphs, one function each: (nodes, parameters, seed) to edges. Formulas are in `closed`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from topologies.errors import TopologyError
from topologies.graph import Edge
from topologies.specs import Parameter, fraction, offsets, whole

COMPLETE_LIMIT = 5_000

Parameters = Mapping[str, Any]
Builder = Callable[[int, Parameters, int], Iterable[Edge]]


@dataclass(frozen=True, slots=True)
class Family:
    """`transitive`: every node sees the same graph. `random`: the edges depend on the seed."""

    summary: str
    build: Builder
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    transitive: bool = False
    random: bool = False


def _impossible(name: str, nodes: int, allowed: str) -> TopologyError:
    return TopologyError(f"no {name} of this size", key="nodes", value=nodes, allowed=allowed)


def ring(nodes: int, _parameters: Parameters, _seed: int) -> Iterable[Edge]:
    """Below three nodes a ring is a path."""
    return circulant_edges(nodes, (1,)) if nodes > 1 else ()


def path(nodes: int, _parameters: Parameters, _seed: int) -> Iterable[Edge]:
    return ((i, i + 1) for i in range(nodes - 1))


def star(nodes: int, _parameters: Parameters, _seed: int) -> Iterable[Edge]:
    return ((0, i) for i in range(1, nodes))


def complete(nodes: int, _parameters: Parameters, _seed: int) -> Iterable[Edge]:
    if nodes > COMPLETE_LIMIT:
        raise _impossible("complete graph", nodes, f"up to {COMPLETE_LIMIT} nodes")
    return combinations(range(nodes), 2)


def sides(nodes: int, parameters: Parameters) -> tuple[int, int]:
    """Rows and columns of a torus: those given, else the most nearly square ones."""
    rows, cols = parameters["rows"], parameters["cols"]
    if rows is None and cols is None:
        rows = next((side for side in range(math.isqrt(nodes), 1, -1) if nodes % side == 0), None)
        if rows is None:
            raise _impossible("torus", nodes, "rows times cols with both at least 2 (not a prime)")
    rows = rows or nodes // cols
    cols = cols or nodes // rows
    if rows * cols != nodes or min(rows, cols) < 2:
        given = " times ".join(f"{key} ({value})" for key, value in parameters.items() if value)
        raise _impossible("torus", nodes, f"{given}, times at least 2 where only one is given")
    return rows, cols


def torus(nodes: int, parameters: Parameters, _seed: int) -> Iterable[Edge]:
    """Node r * cols + c. A side of two has one edge between its ends, not two."""
    rows, cols = sides(nodes, parameters)
    for r in range(rows):
        for c in range(cols):
            yield r * cols + c, r * cols + (c + 1) % cols
            yield r * cols + c, (r + 1) % rows * cols + c


def hypercube(nodes: int, _parameters: Parameters, _seed: int) -> Iterable[Edge]:
    if nodes & (nodes - 1):
        below = 1 << (nodes.bit_length() - 1)
        raise _impossible("hypercube", nodes, f"a power of two, such as {below} or {2 * below}")
    return ((i, i | 1 << bit) for i in range(nodes) for bit in range(nodes.bit_length() - 1) if not i >> bit & 1)


def circulant_edges(nodes: int, steps: Iterable[int]) -> Iterable[Edge]:
    return ((i, (i + step) % nodes) for step in steps for i in range(nodes))


def circulant(nodes: int, parameters: Parameters, _seed: int) -> Iterable[Edge]:
    steps = parameters["offsets"]
    if steps[-1] > nodes // 2:
        raise TopologyError(
            "too long for this many nodes",
            key="circulant:offsets",
            value="-".join(map(str, steps)),
            allowed=f"from 1 to {nodes // 2}",
        )
    return circulant_edges(nodes, steps)


def powers(nodes: int) -> tuple[int, ...]:
    """The distinct hops of the undirected exponential graph: 1, 2, 4, ..., the shorter way round."""
    return tuple(sorted({min(1 << bit, nodes - (1 << bit)) for bit in range((nodes - 1).bit_length())}))


def exponential(nodes: int, _parameters: Parameters, _seed: int) -> Iterable[Edge]:
    return circulant_edges(nodes, powers(nodes))


def barbell(nodes: int, parameters: Parameters, _seed: int) -> Iterable[Edge]:
    """Two equal cliques joined by an edge, or by a path of `path` further nodes between them."""
    between = parameters["path"]
    clique, odd = divmod(nodes - between, 2)
    if odd or clique < 1:
        raise _impossible("barbell", nodes, f"an even number of nodes beside the path of {between}, at least 2")
    yield from combinations(range(clique), 2)
    yield from ((i, i + 1) for i in range(clique - 1, clique + between))
    yield from combinations(range(clique + between, nodes), 2)


def random_regular(nodes: int, parameters: Parameters, seed: int) -> Iterable[Edge]:
    degree = parameters["degree"]
    if degree >= nodes or degree * nodes % 2:
        raise TopologyError(
            f"no such graph on {nodes} nodes",
            key="random-regular:degree",
            value=degree,
            allowed="less than the nodes, and nodes times degree even",
        )
    import networkx as nx  # noqa: PLC0415 - slow to import

    return tuple(nx.random_regular_graph(degree, nodes, seed=seed).edges)


def erdos_renyi(nodes: int, parameters: Parameters, seed: int) -> Iterable[Edge]:
    import networkx as nx  # noqa: PLC0415 - slow to import

    return tuple(nx.fast_gnp_random_graph(nodes, parameters["p"], seed=seed).edges)


def watts_strogatz(nodes: int, parameters: Parameters, seed: int) -> Iterable[Edge]:
    k = parameters["k"]
    if k % 2 or k >= nodes:
        raise TopologyError(
            f"no such graph on {nodes} nodes",
            key="watts-strogatz:k",
            value=k,
            allowed="even, less than the nodes",
        )
    import networkx as nx  # noqa: PLC0415 - slow to import

    return tuple(nx.watts_strogatz_graph(nodes, k, parameters["p"], seed=seed).edges)


_BARBELL = Family("two cliques joined by an edge or a path: a bottleneck", barbell, {"path": whole(0, 0)})

FAMILIES: Mapping[str, Family] = {
    "ring": Family("a cycle", ring, transitive=True),
    "path": Family("a line", path),
    "star": Family("node 0 joined to all others", star),
    "complete": Family("every pair joined", complete, transitive=True),
    "torus": Family(
        "a grid that wraps around", torus, {"rows": whole(None, 2), "cols": whole(None, 2)}, transitive=True
    ),
    "hypercube": Family("nodes whose numbers differ in one bit", hypercube, transitive=True),
    "circulant": Family(
        "each node joined to those at the given offsets",
        circulant,
        {"offsets": offsets((1, 2))},
        transitive=True,
    ),
    "exponential": Family("offsets 1, 2, 4, ...: few edges, fast mixing", exponential, transitive=True),
    "barbell": _BARBELL,
    "dumbbell": _BARBELL,
    "random-regular": Family("every degree the same", random_regular, {"degree": whole(4, 1)}, random=True),
    "erdos-renyi": Family("each pair with probability p", erdos_renyi, {"p": fraction(0.1)}, random=True),
    "watts-strogatz": Family(
        "a ring of degree k, each edge rewired with probability p",
        watts_strogatz,
        {"k": whole(4, 2), "p": fraction(0.1)},
        random=True,
    ),
}
