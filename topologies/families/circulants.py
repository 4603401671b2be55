"""Circulant graphs: node i is joined to i + s for each offset s, modulo n. Their spectrum is a sum of cosines.

Source: Gray, Toeplitz and Circulant Matrices: A Review (2006), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from topologies.errors import TopologyError
from topologies.families.family import ClosedForm, Family, Request
from topologies.graph import Ends
from topologies.specs import offsets

REVIEW = "Gray, Toeplitz and Circulant Matrices, 3"


def circulant_edges(nodes: int, steps: Iterable[int]) -> Ends:
    node = np.arange(nodes)
    hops = [np.stack([node, (node + step) % nodes], axis=1) for step in steps]
    return np.concatenate([np.empty((0, 2), np.int64), *hops])


def cosine_gap(k: int, nodes: int, *, doubled: bool = True) -> float:
    """2 - 2 cos(2 pi k / n), as 4 sin^2(pi k / n): no cancellation where it is tiny. Half of it if not `doubled`."""
    return (4.0 if doubled else 2.0) * math.sin(math.pi * k / nodes) ** 2


def circulant_form(nodes: int, steps: Iterable[int]) -> ClosedForm | None:
    """lambda_k = sum over offsets s of 2 - 2 cos(2 pi k s / n); an offset of n/2 counts once."""
    if nodes < 2:
        return None
    k = np.arange(1, nodes // 2 + 1, dtype=np.int64)
    values = np.zeros(len(k))
    degree = 0
    for step in steps:
        half = 2 * step == nodes
        values += (2.0 if half else 4.0) * np.sin(np.pi * (k * step % nodes) / nodes) ** 2
        degree += 1 if half else 2
    if math.gcd(nodes, *steps) > 1:
        values[0] = 0.0
        return ClosedForm(low=0.0, high=float(values.max()), edges=nodes * degree // 2, degrees=(degree, degree))
    return ClosedForm(
        low=float(values.min()), high=float(values.max()), edges=nodes * degree // 2, degrees=(degree, degree)
    )


def circulant(wanted: Request) -> Ends:
    steps = wanted["offsets"]
    if steps[-1] > wanted.nodes // 2:
        raise TopologyError(
            "too long for this many nodes",
            key="circulant:offsets",
            value="-".join(map(str, steps)),
            allowed=f"from 1 to {wanted.nodes // 2}",
        )
    return circulant_edges(wanted.nodes, steps)


def powers(nodes: int) -> tuple[int, ...]:
    """The distinct hops of the undirected exponential graph: 1, 2, 4, ..., the shorter way round."""
    return tuple(sorted({min(1 << bit, nodes - (1 << bit)) for bit in range((nodes - 1).bit_length())}))


def exponential(wanted: Request) -> Ends:
    return circulant_edges(wanted.nodes, powers(wanted.nodes))


FAMILIES: Mapping[str, Family] = {
    "circulant": Family(
        rule="each node joined to those at the given offsets",
        degree="2 for each offset, 1 for n/2",
        build=circulant,
        parameters={"offsets": offsets((1, 2))},
        closed=lambda wanted: circulant_form(wanted.nodes, wanted["offsets"]),
        connectivity="min over k of the sum over offsets s of 2 - 2 cos(2 pi k s / n)",
        source=REVIEW,
        transitive=True,
    ),
    "exponential": Family(
        rule="offsets 1, 2, 4, ..., both ways: few edges, fast mixing",
        degree="about 2 log2 n",
        build=exponential,
        closed=lambda wanted: circulant_form(wanted.nodes, powers(wanted.nodes)),
        connectivity="as circulant",
        source="Ying et al. 2021, arXiv:2110.13363, made undirected",
        transitive=True,
    ),
}
