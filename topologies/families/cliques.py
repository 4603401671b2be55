"""Trees; the layers of a device network: roots, gateways, devices; and cliques joined by few edges, with a bottleneck
between them. Cliques are blocks of consecutive nodes, as even as possible.

The closed forms come from the equitable partition into heads and others: Brouwer and Haemers, Spectra of Graphs (2012).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from topologies.families.classic import BOOK, path_form
from topologies.family import ClosedForm, Family, GraphRequest, impossible, sizes_near, unfit, whole
from topologies.graph import Ends, Ints, clique_edges, cliques, cycle, even, line, pairs, together


def tree(request: GraphRequest) -> Ends:
    """Build a tree; the parent of node i is (i - 1) // branching, as in a heap."""
    node = np.arange(1, request.nodes)
    return pairs(node, (node - 1) // request["branching"])


def tree_form(request: GraphRequest) -> ClosedForm | None:
    return path_form(request.nodes) if request["branching"] == 1 else None


def layers(request: GraphRequest) -> tuple[int, int]:
    """Return the numbers of roots and gateways; the other nodes are devices."""
    n, roots, gateways = request.nodes, request["roots"], request["gateways"]
    if roots > n:
        raise unfit("hierarchical:roots", roots, n, f"from 1 to {n}")
    if gateways is None:
        gateways = min(max(math.isqrt(n), request["uplinks"]), n - roots)
    if roots + gateways > n:
        raise unfit("hierarchical:gateways", gateways, n, f"from 1 to {n - roots}, beside the roots")
    if request["uplinks"] > max(1, gateways):
        raise unfit("hierarchical:uplinks", request["uplinks"], n, f"from 1 to {gateways}, the gateways")
    return roots, gateways


def hierarchical(request: GraphRequest) -> Ends:
    """Build the layers: roots first, then gateways, then devices; device k has gateways k, k + 1, ..., wrapping
    around.
    """
    roots, gateways = layers(request)
    root, gateway = np.arange(roots), np.arange(roots, roots + gateways)
    device = np.arange(roots + gateways, request.nodes)
    above = [pairs(device, gateway[(device + link) % gateways]) for link in range(request["uplinks"]) if len(device)]
    between = pairs(np.repeat(gateway, roots), np.tile(root, gateways))
    return together(cycle(root), between, cycle(gateway), *above)


def _barbells(nodes: int, between: int) -> str:
    sizes = sizes_near(nodes, lambda n: n > between and (n - between) % 2 == 0)
    return f"an even number of nodes beside the path of {between}, at least 2: {sizes}"


def barbell_parts(request: GraphRequest) -> tuple[int, int]:
    """Return the size of each clique and of the path between them."""
    n, between = request.nodes, request["path"]
    clique, odd = divmod(n - between, 2)
    if odd or clique < 1:
        raise impossible("barbell", n, _barbells(n, between))
    return clique, between


def barbell(request: GraphRequest) -> Ends:
    """Build two equal cliques joined by an edge, or by a path of `path` additional nodes."""
    clique, between = barbell_parts(request)
    first = cliques(np.array([0, clique]))
    return together(first, line(np.arange(clique - 1, clique + between + 1)), first + clique + between)


def barbell_form(request: GraphRequest) -> ClosedForm | None:
    """Return the closed form for cliques joined by an edge.

    Vectors that are opposite in the two cliques of m have the eigenvalues of [[m + 1, 1 - m], [-1, 1]].
    """
    m, between = barbell_parts(request)
    if between:
        return None
    if m == 1:
        return path_form(2)
    high = (m + 2 + math.sqrt((m + 2) ** 2 - 8)) / 2
    return ClosedForm(low=2 / high, high=high, edges=m * (m - 1) + 1, degrees=(m - 1, m), diameter=3)


def lollipop_parts(request: GraphRequest) -> tuple[int, int]:
    n, clique = request.nodes, request["clique"]
    clique = (n + 1) // 2 if clique is None else clique
    if clique > n:
        raise unfit("lollipop:clique", clique, n, f"from 1 to {n}")
    return clique, n - clique


def lollipop(request: GraphRequest) -> Ends:
    clique, _ = lollipop_parts(request)
    return together(cliques(np.array([0, clique])), line(np.arange(clique - 1, request.nodes)))


def blocks(request: GraphRequest) -> Ints:
    """Return the starts of cliques with at most `size` nodes, using as few cliques as possible."""
    return even(request.nodes, -(-request.nodes // request["size"]))


def star_of_cliques(request: GraphRequest) -> Ends:
    starts = blocks(request)
    return together(cliques(starts), pairs(starts[1:-1], 0))


def star_of_cliques_form(request: GraphRequest) -> ClosedForm | None:
    """Return the closed form for q equal cliques of m.

    Vectors that are opposite in two outer cliques, and therefore zero in the middle one, have the eigenvalues of
    [[m, 1 - m], [-1, 1]]; the largest eigenvalue belongs to a vector that is equal in all outer cliques.
    """
    n, m = request.nodes, min(request.nodes, request["size"])
    q, rest = divmod(n, m)
    if rest or q < 3 or m < 2:
        return None
    hub, head = math.sqrt(m - 1), math.sqrt(q - 1)
    # the quotient on (hub, its clique, heads, their cliques), made symmetric
    quotient = np.array(
        [[m + q - 2, -hub, -head, 0], [-hub, 1, 0, 0], [-head, 0, m, -hub], [0, 0, -hub, 1]], dtype=np.float64
    )
    return ClosedForm(
        low=2 / (m + 1 + math.sqrt((m + 1) ** 2 - 4)),
        high=float(np.linalg.eigvalsh(quotient)[-1]),
        edges=q * m * (m - 1) // 2 + q - 1,
        degrees=(m - 1, m + q - 2),
        diameter=4,
    )


def ring_of_cliques(request: GraphRequest) -> Ends:
    """Build cliques in a ring. Bridge b leaves a clique at the b-th node from its end and enters the next at the b-th
    from its start.
    """
    starts, bridges = blocks(request), request["bridges"]
    least = int(np.diff(starts).min())
    if bridges > least:
        raise unfit("ring-of-cliques:bridges", bridges, request.nodes, f"from 1 to {least}, the least clique")
    joined = cycle(np.arange(len(starts) - 1))
    rank = np.arange(bridges)
    leaving = (starts[1:][joined[:, 0]][:, None] - 1 - rank).ravel()
    entering = (starts[:-1][joined[:, 1]][:, None] + rank).ravel()
    return together(cliques(starts), pairs(leaving, entering))


def _expected(request: GraphRequest) -> float:
    return clique_edges(blocks(request))


_BARBELL = Family(
    rule="two cliques joined by an edge, or by a path of so many nodes: a bottleneck",
    degree="n/2 - 1, n/2 at the ends of the bridge",
    build=barbell,
    parameters={"path": whole(0, 0, "nodes between the cliques")},
    closed=barbell_form,
    expected=lambda request: (request.nodes - request["path"]) ** 2 / 4,
    connectivity="(m + 2 - sqrt((m + 2)^2 - 8)) / 2, m = n/2, path 0",
    source=BOOK + " and equitable partitions",
)


FAMILIES: Mapping[str, Family] = {
    "tree": Family(
        rule="the parent of node i is (i - 1) // branching: balanced, of any size",
        degree="branching + 1, 1 at the leaves",
        build=tree,
        parameters={"branching": whole(2, 1, "children of a node")},
        closed=tree_form,
        connectivity="at most 2 / (n - 1) on a full binary tree",
        source="Spielman, Spectral and Algebraic Graph Theory, Comparing Graphs",
    ),
    "hierarchical": Family(
        rule="devices dealt to gateways; gateways joined in a ring and to every root; roots in a ring",
        degree="uplinks at a device, about uplinks n / gateways above",
        build=hierarchical,
        parameters={
            "gateways": whole(None, 1, "how many; sqrt n by default"),
            "uplinks": whole(1, 1, "gateways of each device; from 2 on one dead gateway disconnects nobody"),
            "roots": whole(1, 1, "how many, the first nodes"),
        },
        expected=lambda request: math.prod(layers(request)) + request.nodes * request["uplinks"],
        source="Liu et al. 2020, arXiv:1905.06641, without a server",
    ),
    "barbell": _BARBELL,
    "dumbbell": replace(_BARBELL, rule="another name of barbell"),
    "lollipop": Family(
        rule="a clique with a path hanging from it: slow to mix",
        degree="1 or 2 on the path, clique - 1 in the clique",
        build=lollipop,
        parameters={"clique": whole(None, 1, "nodes of the clique; half of all, rounded up, by default")},
        expected=lambda request: clique_edges(np.array([0, lollipop_parts(request)[0]])),
        source="Brightwell and Winkler 1990, doi:10.1002/rsa.3240010303",
    ),
    "star-of-cliques": Family(
        rule="cliques; the first node of each joined to node 0, the first of the first",
        degree="size - 1, size at heads, n / size more at node 0",
        build=star_of_cliques,
        parameters={"size": whole(5, 1, "nodes of a clique; where it does not divide n, cliques of nearly equal size")},
        closed=star_of_cliques_form,
        expected=_expected,
        connectivity="(m + 1 - sqrt((m + 1)^2 - 4)) / 2, m = size, dividing n, n/m > 2",
        source="Brouwer and Haemers, Spectra of Graphs, equitable partitions",
    ),
    "ring-of-cliques": Family(
        rule="cliques in a ring; so many bridges to the next, each between nodes of its own",
        degree="size - 1, size at a bridge",
        build=ring_of_cliques,
        parameters={
            "size": whole(5, 1, "nodes of a clique; where it does not divide n, cliques of nearly equal size"),
            "bridges": whole(1, 1, "edges to the next clique, at most size"),
        },
        expected=_expected,
        source="Fortunato and Barthelemy 2007, doi:10.1073/pnas.0605965104",
    ),
}
