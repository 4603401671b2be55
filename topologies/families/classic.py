"""Ring, path, star, complete graphs, wheel, hypercube: the graphs that everybody compares with.

Eigenvalues: Brouwer and Haemers, Spectra of Graphs (2012), section 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from topologies.families.circulants import circulant_edges, cosine_gap
from topologies.families.parts import all_pairs, cycle, line, pairs, together
from topologies.family import ClosedForm, Family, Request, impossible, unfit
from topologies.graph import Ends
from topologies.parameters import whole

BOOK = "Brouwer and Haemers, Spectra of Graphs, 1.4"


def ring(wanted: Request) -> Ends:
    """Below three nodes a ring is a path."""
    return circulant_edges(wanted.nodes, (1,) if wanted.nodes > 1 else ())


def ring_values(nodes: int) -> tuple[float, float]:
    """lambda_2 and lambda_max."""
    return cosine_gap(1, nodes, doubled=nodes > 2), cosine_gap(nodes // 2, nodes, doubled=nodes > 2)


def ring_form(wanted: Request) -> ClosedForm:
    n = wanted.nodes
    low, high = ring_values(n)
    degree = min(2, n - 1)
    return ClosedForm(low=low, high=high, edges=n * degree // 2, degrees=(degree, degree), diameter=n // 2)


def path_values(nodes: int) -> tuple[float, float]:
    """lambda_2 and lambda_max."""
    low, high = math.sin(math.pi / (2 * nodes)), math.cos(math.pi / (2 * nodes))
    return 4.0 * low * low, 4.0 * high * high


def path_form(nodes: int) -> ClosedForm:
    low, high = path_values(nodes)
    return ClosedForm(low=low, high=high, edges=nodes - 1, degrees=(1, min(2, nodes - 1)), diameter=nodes - 1)


def star(wanted: Request) -> Ends:
    return pairs(np.arange(1, wanted.nodes), 0)


def star_form(wanted: Request) -> ClosedForm:
    n = wanted.nodes
    low = 1.0 if n > 2 else 2.0
    return ClosedForm(low=low, high=float(n), edges=n - 1, degrees=(1, n - 1), diameter=min(2, n - 1))


def complete_form(wanted: Request) -> ClosedForm:
    n = wanted.nodes
    return ClosedForm(low=float(n), high=float(n), edges=n * (n - 1) // 2, degrees=(n - 1, n - 1), diameter=1)


def halves(wanted: Request) -> tuple[int, int]:
    """The sizes of the two sides, as given, or equal but for one node."""
    n, a, b = wanted.nodes, wanted["a"], wanted["b"]
    if n < 2:
        raise impossible("complete bipartite graph", n, "at least 2")
    a = n // 2 if a is None and b is None else n - b if a is None else a
    if a not in range(1, n) or b not in {None, n - a}:
        given = ",".join(f"{key}={wanted[key]}" for key in "ab" if wanted[key] is not None)
        raise unfit("complete-bipartite", given, n, f"a plus b equal to {n}, both at least 1")
    return a, n - a


def complete_bipartite(wanted: Request) -> Ends:
    """Nodes 0 .. a-1 are the one side."""
    a, b = halves(wanted)
    return pairs(np.repeat(np.arange(a), b), np.tile(np.arange(a, a + b), a))


def complete_bipartite_form(wanted: Request) -> ClosedForm:
    n = wanted.nodes
    less, more = sorted(halves(wanted))
    low = float(less) if n > 2 else 2.0
    return ClosedForm(low=low, high=float(n), edges=less * more, degrees=(less, more), diameter=min(2, n - 1))


def wheel(wanted: Request) -> Ends:
    return together(star(wanted), cycle(np.arange(1, wanted.nodes)))


def wheel_form(wanted: Request) -> ClosedForm:
    """Up to four nodes it is a complete graph."""
    n = wanted.nodes
    if n <= 4:
        return complete_form(wanted)
    low = 1.0 + cosine_gap(1, n - 1)
    return ClosedForm(low=low, high=float(n), edges=2 * (n - 1), degrees=(3, n - 1), diameter=2)


def dimension(wanted: Request) -> int:
    n = wanted.nodes
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise impossible("hypercube", n, f"a power of two, such as {below} or {2 * below}")
    return n.bit_length() - 1


def hypercube(wanted: Request) -> Ends:
    node = np.arange(wanted.nodes)
    without = [(node[node >> bit & 1 == 0], 1 << bit) for bit in range(dimension(wanted))]
    return together(*(pairs(here, here + step) for here, step in without))


def hypercube_form(wanted: Request) -> ClosedForm:
    d = dimension(wanted)
    return ClosedForm(low=2.0, high=2.0 * d, edges=wanted.nodes * d // 2, degrees=(d, d), diameter=d)


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
        build=lambda wanted: line(np.arange(wanted.nodes)),
        closed=lambda wanted: path_form(wanted.nodes),
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
    "wheel": Family(
        rule="a ring, and node 0 joined to all of it",
        degree="3, n - 1 at the center",
        build=wheel,
        closed=wheel_form,
        connectivity="3 - 2 cos(2 pi / (n - 1))",
        source=BOOK,
    ),
    "complete": Family(
        rule="every pair joined",
        degree="n - 1",
        build=lambda wanted: all_pairs(wanted.nodes),
        closed=complete_form,
        connectivity="n",
        source=BOOK,
        transitive=True,
    ),
    "complete-bipartite": Family(
        rule="two sides of a and b nodes; all pairs between them",
        degree="b on the side of a, a on that of b",
        build=complete_bipartite,
        parameters={
            "a": whole(None, 1, "nodes on the first side, numbered first; half of all by default"),
            "b": whole(None, 1, "nodes on the second side; the rest by default"),
        },
        closed=complete_bipartite_form,
        connectivity="min(a, b)",
        source=BOOK,
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
}
