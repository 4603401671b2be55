"""Ring, path, star, complete graph, torus, hypercube, barbell: the graphs that everybody compares with.

Eigenvalues: Brouwer and Haemers, Spectra of Graphs (2012), section 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy as np

from topologies.families.circulants import circulant_edges, cosine_gap
from topologies.families.family import ClosedForm, Family, Parameters, Request, impossible
from topologies.graph import Edge, Ends
from topologies.specs import whole

BOOK = "Brouwer and Haemers, Spectra of Graphs, 1.4"


def ring(wanted: Request) -> Ends:
    """Below three nodes a ring is a path."""
    return circulant_edges(wanted.nodes, (1,) if wanted.nodes > 1 else ())


def ring_values(nodes: int) -> tuple[float, float]:
    return cosine_gap(1, nodes, doubled=nodes > 2), cosine_gap(nodes // 2, nodes, doubled=nodes > 2)


def ring_form(wanted: Request) -> ClosedForm:
    n = wanted.nodes
    low, high = ring_values(n)
    degree = min(2, n - 1)
    return ClosedForm(low=low, high=high, edges=n * degree // 2, degrees=(degree, degree), diameter=n // 2)


def path(wanted: Request) -> Ends:
    return np.stack([np.arange(wanted.nodes - 1), np.arange(1, wanted.nodes)], axis=1)


def path_values(nodes: int) -> tuple[float, float]:
    low, high = math.sin(math.pi / (2 * nodes)), math.cos(math.pi / (2 * nodes))
    return 4.0 * low * low, 4.0 * high * high


def path_form(wanted: Request) -> ClosedForm:
    n = wanted.nodes
    low, high = path_values(n)
    return ClosedForm(low=low, high=high, edges=n - 1, degrees=(1, min(2, n - 1)), diameter=n - 1)


def star(wanted: Request) -> Ends:
    return np.stack([np.zeros(wanted.nodes - 1, np.int64), np.arange(1, wanted.nodes)], axis=1)


def star_form(wanted: Request) -> ClosedForm:
    n = wanted.nodes
    low = 1.0 if n > 2 else 2.0
    return ClosedForm(low=low, high=float(n), edges=n - 1, degrees=(1, n - 1), diameter=min(2, n - 1))


def complete(wanted: Request) -> Ends:
    return np.stack(np.triu_indices(wanted.nodes, 1), axis=1)


def complete_form(wanted: Request) -> ClosedForm:
    n = wanted.nodes
    return ClosedForm(low=float(n), high=float(n), edges=n * (n - 1) // 2, degrees=(n - 1, n - 1), diameter=1)


def sides(nodes: int, parameters: Parameters) -> tuple[int, int]:
    """Rows and columns of a torus: those given, else the most nearly square ones."""
    rows, cols = parameters["rows"], parameters["cols"]
    if rows is None and cols is None:
        rows = next((side for side in range(math.isqrt(nodes), 1, -1) if nodes % side == 0), None)
        if rows is None:
            raise impossible("torus", nodes, "rows times cols with both at least 2 (not a prime)")
    rows = rows or nodes // cols
    cols = cols or nodes // rows
    if rows * cols != nodes or min(rows, cols) < 2:
        given = " times ".join(f"{key} ({value})" for key, value in parameters.items() if value)
        raise impossible("torus", nodes, f"{given}, times at least 2 where only one is given")
    return rows, cols


def torus(wanted: Request) -> Ends:
    """Node r * cols + c. A side of two has one edge between its ends, not two."""
    _, cols = sides(wanted.nodes, wanted.parameters)
    node = np.arange(wanted.nodes)
    right = node // cols * cols + (node + 1) % cols
    below = (node + cols) % wanted.nodes
    return np.concatenate([np.stack([node, right], axis=1), np.stack([node, below], axis=1)])


def torus_form(wanted: Request) -> ClosedForm:
    rows, cols = sides(wanted.nodes, wanted.parameters)
    across, down = ring_values(cols), ring_values(rows)
    degree = min(2, rows - 1) + min(2, cols - 1)
    return ClosedForm(
        low=min(across[0], down[0]),
        high=across[1] + down[1],
        edges=wanted.nodes * degree // 2,
        degrees=(degree, degree),
        diameter=rows // 2 + cols // 2,
    )


def hypercube(wanted: Request) -> Ends:
    n = wanted.nodes
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise impossible("hypercube", n, f"a power of two, such as {below} or {2 * below}")
    node = np.arange(n)
    bits = [np.stack([node, node ^ (1 << bit)], axis=1) for bit in range(n.bit_length() - 1)]
    return np.concatenate([np.empty((0, 2), np.int64), *bits])


def hypercube_form(wanted: Request) -> ClosedForm:
    d = wanted.nodes.bit_length() - 1
    return ClosedForm(low=2.0, high=2.0 * d, edges=wanted.nodes * d // 2, degrees=(d, d), diameter=d)


def barbell(wanted: Request) -> Iterable[Edge]:
    """Two equal cliques joined by an edge, or by a path of `path` further nodes between them."""
    n, between = wanted.nodes, wanted["path"]
    clique, odd = divmod(n - between, 2)
    if odd or clique < 1:
        raise impossible("barbell", n, f"an even number of nodes beside the path of {between}, at least 2")
    yield from combinations(range(clique), 2)
    yield from ((i, i + 1) for i in range(clique - 1, clique + between))
    yield from combinations(range(clique + between, n), 2)


_BARBELL = Family(
    rule="two cliques joined by an edge, or by a path of so many nodes: a bottleneck",
    degree="n/2 - 1, n/2 at the ends of the bridge",
    build=barbell,
    parameters={"path": whole(0, 0)},
)

FAMILIES: Mapping[str, Family] = {
    "ring": Family(
        rule="a cycle",
        degree="2",
        build=ring,
        closed=ring_form,
        connectivity="2 - 2 cos(2 pi / n)",
        source=BOOK,
        transitive=True,
    ),
    "path": Family(
        rule="a line",
        degree="1 or 2",
        build=path,
        closed=path_form,
        connectivity="2 - 2 cos(pi / n)",
        source=BOOK,
    ),
    "star": Family(
        rule="node 0 joined to all others",
        degree="1, n - 1 at the center",
        build=star,
        closed=star_form,
        connectivity="1",
        source=BOOK,
    ),
    "complete": Family(
        rule="every pair joined",
        degree="n - 1",
        build=complete,
        closed=complete_form,
        connectivity="n",
        source=BOOK,
        transitive=True,
    ),
    "torus": Family(
        rule="a grid that wraps around, as square as n allows",
        degree="4",
        build=torus,
        parameters={"rows": whole(None, 2), "cols": whole(None, 2)},
        closed=torus_form,
        connectivity="2 - 2 cos(2 pi / the longer side)",
        source=BOOK,
        transitive=True,
    ),
    "hypercube": Family(
        rule="nodes whose numbers differ in one bit; n a power of two",
        degree="log2 n",
        build=hypercube,
        closed=hypercube_form,
        connectivity="2",
        source=BOOK,
        transitive=True,
    ),
    "barbell": _BARBELL,
    "dumbbell": _BARBELL,
}
