"""Circulant graphs: node i is joined to i + s for each offset s, modulo n. Their spectrum is a sum of cosines.

Source: Gray, Toeplitz and Circulant Matrices: A Review (2006), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from topologies.family import ClosedForm, Family, GraphRequest, impossible, offsets, unfit
from topologies.graph import Ends, pairs, together

REVIEW = "Gray, Toeplitz and Circulant Matrices, 3"


def circulant_edges(nodes: int, steps: Iterable[int]) -> Ends:
    node = np.arange(nodes)
    # half of the hops of n/2 are the others read backwards
    hops = [node[: nodes // 2] if 2 * step == nodes else node for step in steps]
    return together(*(pairs(here, (here + step) % nodes) for here, step in zip(hops, steps, strict=True)))


def cosine_gap(k: int, nodes: int, *, doubled: bool = True) -> float:
    """Compute 2 - 2 cos(2 pi k / n), as 4 sin^2(pi k / n): no cancellation where it is tiny. Half of it if not
    `doubled`.
    """
    return (4.0 if doubled else 2.0) * math.sin(math.pi * k / nodes) ** 2


def circulant_form(nodes: int, steps: Iterable[int]) -> ClosedForm:
    """Return lambda_k = sum over offsets s of 2 - 2 cos(2 pi k s / n); an offset of n/2 counts once.

    `steps` are distinct numbers from 1 to n/2.
    """
    k = np.arange(1, nodes // 2 + 1, dtype=np.int64)
    values = np.zeros(len(k))
    degree = 0
    for step in steps:
        half = 2 * step == nodes
        turn = k * step % nodes
        turn = np.minimum(turn, nodes - turn)  # sin near pi would lose the digits that sin near 0 keeps
        values += (2.0 if half else 4.0) * np.sin(np.pi * turn / nodes) ** 2
        degree += 1 if half else 2
    # if all offsets share a divisor with n, some k has only turns of 0, and lambda_2 is exactly 0
    low, high = float(values.min()), float(values.max())
    return ClosedForm(low=low, high=high, edges=nodes * degree // 2, degrees=(degree, degree))


def offsets_of(request: GraphRequest) -> tuple[int, ...]:
    """Return the requested offsets. Raises TopologyError if one is more than half way around."""
    steps: tuple[int, ...] = request["offsets"]
    if request.nodes < 2:
        raise impossible("circulant graph", request.nodes, "at least 2")
    if steps[-1] > request.nodes // 2:
        text = "-".join(map(str, steps))
        raise unfit("circulant:offsets", text, request.nodes, f"from 1 to {request.nodes // 2}")
    return steps


def powers(request: GraphRequest) -> tuple[int, ...]:
    """Return the distinct hops of the undirected exponential graph: 1, 2, 4, ..., the shorter way around."""
    n = request.nodes
    return tuple(sorted({min(1 << bit, n - (1 << bit)) for bit in range((n - 1).bit_length())}))


CIRCULANTS: Mapping[str, Family] = {
    "circulant": Family(
        rule="each node joined to those at the given offsets",
        degree="2 for each offset, 1 for n/2",
        build=lambda request: circulant_edges(request.nodes, offsets_of(request)),
        parameters={"offsets": offsets((1, 2), "how far round the ring, from 1 to n/2")},
        closed=lambda request: circulant_form(request.nodes, offsets_of(request)),
        connectivity="min over k of the sum over offsets s of 2 - 2 cos(2 pi k s / n)",
        source=REVIEW,
        transitive=True,
    ),
    "exponential": Family(
        rule="offsets 1, 2, 4, ..., both ways: few edges, fast mixing",
        degree="about 2 log2 n",
        build=lambda request: circulant_edges(request.nodes, powers(request)),
        closed=lambda request: circulant_form(request.nodes, powers(request)),
        connectivity="as circulant",
        source="Ying et al. 2021, arXiv:2110.13363, made undirected",
        transitive=True,
    ),
}
