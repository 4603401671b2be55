"""Graphs that reach a bound: Moore graphs, incidence graphs of projective planes and the folded hypercube of 16 nodes,
Clebsch's graph, have the largest lambda_2 that a regular graph of their size and degree can have (Nozaki, Linear
programming bounds for regular graphs, 2015). Other folded hypercubes are merely better than hypercubes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from topologies.families.circulants import is_prime
from topologies.families.classic import dimension, hypercube
from topologies.family import ClosedForm, Family, GraphRequest, impossible, sizes_near
from topologies.graph import Ends, Ints, pairs, together

MOORE = {10: 3, 50: 7}
"""The degree for each number of nodes. A ring of five is the third Moore graph; a fourth is not known."""


def moore_degree(nodes: int) -> int:
    if nodes not in MOORE:
        raise impossible("Moore graph", nodes, "10, Petersen's graph, or 50, Hoffman and Singleton's")
    return MOORE[nodes]


def moore(request: GraphRequest) -> Ends:
    """Build pentagons P_h and pentagrams Q_i, one or five of each; node j of P_h is joined to node h i + j of Q_i
    (Robertson 1969).
    """
    moore_degree(request.nodes)
    half = request.nodes // 2
    j, h, i = (part.ravel() for part in np.meshgrid(*map(np.arange, (5, half // 5, half // 5)), indexing="ij"))
    node = np.arange(half)
    pentagons = pairs(node, node // 5 * 5 + (node + 1) % 5)
    pentagrams = pairs(half + node, half + node // 5 * 5 + (node + 2) % 5)
    return together(pentagons, pentagrams, pairs(5 * h + j, half + 5 * i + (h * i + j) % 5))


def moore_form(request: GraphRequest) -> ClosedForm:
    """Return the closed form: the adjacency matrix has the eigenvalues (-1 +- sqrt(4 d - 3)) / 2."""
    degree = moore_degree(request.nodes)
    root = math.sqrt(4 * degree - 3)
    return ClosedForm(
        low=degree - (root - 1.0) / 2.0,
        high=degree + (root + 1.0) / 2.0,
        edges=request.nodes * degree // 2,
        degrees=(degree, degree),
        diameter=2,
    )


def folded(request: GraphRequest) -> Ends:
    if request.nodes < 4:
        raise impossible("folded hypercube", request.nodes, "a power of two from 4")
    node = np.arange(request.nodes // 2)
    return together(hypercube(request), pairs(node, request.nodes - 1 - node))


def folded_form(request: GraphRequest) -> ClosedForm:
    """Return the closed form: the eigenvalues are 2 w for even w and 2 w + 2 for odd w, up to w = log2 n."""
    size = dimension(request)
    if size < 2:
        raise impossible("folded hypercube", request.nodes, "a power of two from 4")
    return ClosedForm(
        low=4.0,
        high=2.0 * (size + size % 2),
        edges=request.nodes * (size + 1) // 2,
        degrees=(size + 1, size + 1),
        diameter=(size + 1) // 2,
    )


def plane_order(nodes: int) -> int:
    """Return the prime q with nodes = 2 (q^2 + q + 1)."""
    order = _order(nodes)
    if order is None:
        sizes = sizes_near(nodes, lambda n: _order(n) is not None) or "14 or 26"
        raise impossible("projective plane", nodes, f"2 (q^2 + q + 1) for a prime q, such as {sizes}")
    return order


def _order(nodes: int) -> int | None:
    order = math.isqrt(max(0, nodes // 2 - 1))
    return order if 2 * (order * order + order + 1) == nodes and is_prime(order) else None


def plane(request: GraphRequest) -> Ends:
    """Join each point (x, y, z) modulo q to the lines (a, b, c) with a x + b y + c z = 0. Points come first."""
    q = plane_order(request.nodes)
    t, x, y = (part.ravel() for part in np.meshgrid(*[np.arange(q)] * 3, indexing="ij"))
    u, v = (part.ravel() for part in np.meshgrid(*[np.arange(q)] * 2, indexing="ij"))
    one = np.arange(q)
    none, unit = np.zeros_like, np.ones_like
    through = [
        ((x, y, unit(x)), (t, unit(t), -(x * t + y))),
        ((u, v, unit(u)), (unit(u), none(u), -u)),
        ((u, unit(u), none(u)), (unit(v), -u, v)),
        ((one, unit(one), none(one)), (none(one), none(one), unit(one))),
        ((unit(one), none(one), none(one)), (none(one), unit(one), one)),
        tuple((np.array([k]), np.array([0]), np.array([1 - k])) for k in (1, 0)),
    ]
    return together(*(pairs(_place(point, q), request.nodes // 2 + _place(line, q)) for point, line in through))


def _place(triple: tuple[Ints, Ints, Ints], q: int) -> Ints:
    """Number the point, or line: its last coordinate that is not 0 is made 1."""
    a, b, c = (part % q for part in triple)
    inverse = np.array([0, *(pow(k, -1, q) for k in range(1, q))])
    scale = inverse[np.where(c > 0, c, np.where(b > 0, b, a))]
    a, b = a * scale % q, b * scale % q
    return np.where(c > 0, a * q + b, np.where(b > 0, q * q + a, q * q + q))


def plane_form(request: GraphRequest) -> ClosedForm:
    """Return the closed form: the adjacency matrix has the eigenvalues q + 1, sqrt q, and their negatives."""
    q = plane_order(request.nodes)
    return ClosedForm(
        low=q + 1.0 - math.sqrt(q),
        high=2.0 * (q + 1.0),
        edges=request.nodes * (q + 1) // 2,
        degrees=(q + 1, q + 1),
        diameter=3,
    )


FAMILIES: Mapping[str, Family] = {
    "moore": Family(
        rule="two hops to any node, at the least degree for that: Petersen, Hoffman-Singleton",
        degree="sqrt(n - 1)",
        build=moore,
        closed=moore_form,
        connectivity="2 on 10 nodes, 5 on 50",
        source="Hoffman and Singleton 1960, doi:10.1147/rd.45.0497",
        transitive=True,
    ),
    "folded-hypercube": Family(
        rule="a hypercube, and each node joined to its opposite; n a power of two",
        degree="log2 n + 1",
        build=folded,
        closed=folded_form,
        connectivity="4",
        source="El-Amawy and Latifi 1991, doi:10.1109/71.80187",
        transitive=True,
    ),
    "projective-plane": Family(
        rule="points and lines of a plane over q elements, joined where they meet; n = 2 (q^2 + q + 1), q a prime",
        degree="q + 1, about sqrt(n / 2)",
        build=plane,
        closed=plane_form,
        connectivity="q + 1 - sqrt q",
        expected=lambda request: request.nodes * math.sqrt(request.nodes / 2) / 2,
        edges_limit=5_000_000,
        source="Singleton 1966, doi:10.1016/S0021-9800(66)80054-6",
        transitive=True,
    ),
}
