"""Devices at random places, joined where they are near each other: what radio does."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from topologies.families.parts import Ints, pairs, together, uniform
from topologies.family import Family, GraphRequest, choice, positive
from topologies.graph import Ends

Points = NDArray[np.float64]
SHORTEST, LONGEST = 1e-100, 2.0
"""No radius joins fewer or more places than these do: all are within a square of side one."""


def radius(wanted: GraphRequest) -> float:
    """By default sqrt(3 ln n / (pi n)). At a third of this area large graphs become connected; small ones need more,
    for their many nodes near the border: of graphs on 10 nodes seven in ten are connected, on 1000 nearly all.
    """
    n = wanted.nodes
    if wanted["radius"] is not None:
        # beyond these nothing changes but the floating point numbers, which overflow
        return min(max(float(wanted["radius"]), SHORTEST), LONGEST)
    return math.sqrt(3 * math.log(n) / (math.pi * n)) if n > 2 else math.sqrt(2)


def places(wanted: GraphRequest) -> Points:
    """Where the nodes are in the unit square. Shape (nodes, 2)."""
    return uniform((wanted.nodes, 2), wanted.seed, "geometric")


def geometric(wanted: GraphRequest) -> Ends:
    return near(places(wanted), radius(wanted), around=wanted["metric"] == "torus")


def near(points: Points, reach: float, *, around: bool) -> Ends:
    """All pairs at most `reach` apart. `around`: opposite sides of the square touch.

    Points are sorted into square cells no smaller than `reach`; only neighboring cells are compared.
    """
    # cells far smaller than the mean distance would only cost memory
    across = max(1, min(math.floor(1 / reach) if reach < 1 else 1, math.isqrt(len(points))))
    if across < 3:
        across = 1
    cell = np.minimum((points * across).astype(np.int64), across - 1)
    order = np.argsort(cell[:, 0] * across + cell[:, 1], kind="stable")
    points, cell = points[order], cell[order]
    starts = np.searchsorted(cell[:, 0] * across + cell[:, 1], np.arange(across * across + 1))
    found = [
        _kept(points, _candidates(cell, starts, across, step, around=around), reach, around=around) for step in _STEPS
    ]
    edges: Ends = order[together(*(found if across > 1 else found[:1]))]
    return edges


_STEPS = ((0, 0), (0, 1), (1, -1), (1, 0), (1, 1))
"""Half of the nine cells around one: the other half sees it."""


def _candidates(cell: Points, starts: Ints, across: int, step: tuple[int, int], *, around: bool) -> Ends:
    """Each point with all points of the cell one `step` from its own."""
    there = cell + np.array(step)
    inside = np.ones(len(cell), dtype=bool) if around else ((there >= 0) & (there < across)).all(axis=1)
    node = np.flatnonzero(inside)
    there = there[node] % across
    number = there[:, 0] * across + there[:, 1]
    counts = starts[number + 1] - starts[number]
    firsts = np.cumsum(counts) - counts
    other = np.arange(counts.sum()) + np.repeat(starts[number] - firsts, counts)
    return pairs(np.repeat(node, counts), other)


def _kept(points: Points, candidates: Ends, reach: float, *, around: bool) -> Ends:
    apart = np.abs(points[candidates[:, 0]] - points[candidates[:, 1]])
    if around:
        apart = np.minimum(apart, 1.0 - apart)
    close: Ends = candidates[(apart * apart).sum(axis=1) <= reach * reach]
    return close


def _expected(wanted: GraphRequest) -> float:
    n = wanted.nodes
    return n * (n - 1) / 2 * min(1.0, math.pi * radius(wanted) ** 2)


FAMILIES: Mapping[str, Family] = {
    "geometric": Family(
        rule="nodes at random places in the unit square, joined within a radius",
        degree="about n pi radius^2; 3 ln n by default",
        build=geometric,
        parameters={
            "radius": positive(None, "sqrt(3 ln n / (pi n)) by default, which connects most graphs"),
            "metric": choice("flat", "torus", meaning="torus: opposite sides of the square touch"),
        },
        expected=_expected,
        source="Penrose 2003, Random Geometric Graphs; Gupta and Kumar 1998",
        random=True,
    ),
}
