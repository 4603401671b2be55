"""Trees, and the layers of a network of devices: roots, gateways, devices."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from topologies.families.classic import path_form
from topologies.families.parts import cycle, pairs, together
from topologies.family import ClosedForm, Family, Request, unfit
from topologies.graph import Ends
from topologies.parameters import whole


def tree(wanted: Request) -> Ends:
    """The parent of node i is (i - 1) // branching, as in a heap."""
    node = np.arange(1, wanted.nodes)
    return pairs(node, (node - 1) // wanted["branching"])


def tree_form(wanted: Request) -> ClosedForm | None:
    return path_form(wanted.nodes) if wanted["branching"] == 1 else None


def layers(wanted: Request) -> tuple[int, int]:
    """How many roots and gateways; the other nodes are devices."""
    n, roots, gateways = wanted.nodes, wanted["roots"], wanted["gateways"]
    if roots > n:
        raise unfit("hierarchical:roots", roots, n, f"from 1 to {n}")
    if gateways is None:
        gateways = min(max(math.isqrt(n), wanted["uplinks"]), n - roots)
    if roots + gateways > n:
        raise unfit("hierarchical:gateways", gateways, n, f"from 1 to {n - roots}, beside the roots")
    if wanted["uplinks"] > max(1, gateways):
        raise unfit("hierarchical:uplinks", wanted["uplinks"], n, f"from 1 to {gateways}, the gateways")
    return roots, gateways


def hierarchical(wanted: Request) -> Ends:
    """Roots first, then gateways, then devices: device k has gateways k, k + 1, ..., counted round."""
    roots, gateways = layers(wanted)
    root, gateway = np.arange(roots), np.arange(roots, roots + gateways)
    device = np.arange(roots + gateways, wanted.nodes)
    above = [pairs(device, gateway[(device + link) % gateways]) for link in range(wanted["uplinks"]) if len(device)]
    between = pairs(np.repeat(gateway, roots), np.tile(root, gateways))
    return together(cycle(root), between, cycle(gateway), *above)


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
        expected=lambda wanted: math.prod(layers(wanted)) + wanted.nodes * wanted["uplinks"],
        source="Liu et al. 2020, arXiv:1905.06641, without a server",
    ),
}
