"""The layers of a device network: roots, gateways, devices; and two cliques with a bottleneck between them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from topologies.families.classic import BOOK, path_form
from topologies.family import ClosedForm, Family, GraphRequest, impossible, sizes_near, unfit, whole
from topologies.graph import Ends, cliques, cycle, line, pairs, together


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


CLIQUES: Mapping[str, Family] = {
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
    "barbell": Family(
        rule="two cliques joined by an edge, or by a path of so many nodes: a bottleneck",
        degree="n/2 - 1, n/2 at the ends of the bridge",
        build=barbell,
        parameters={"path": whole(0, 0, "nodes between the cliques")},
        closed=barbell_form,
        expected=lambda request: (request.nodes - request["path"]) ** 2 / 4,
        connectivity="(m + 2 - sqrt((m + 2)^2 - 8)) / 2, m = n/2, path 0",
        source=BOOK + " and equitable partitions",
    ),
}
