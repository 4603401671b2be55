"""What many families are made of: lines, cycles, cliques, boxes, all as arrays of shape (edges, 2) made by numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from topologies.graph import Ends

Ints = NDArray[np.int64]

NONE: Ends = np.empty((0, 2), np.int64)


def pairs(left: Ints, right: Ints | int) -> Ends:
    """Edge k joins left[k] to right[k]; one number stands for as many of it."""
    return np.stack(np.broadcast_arrays(left, np.asarray(right, np.int64)), axis=1)


def together(*parts: Ends) -> Ends:
    return np.concatenate([NONE, *parts])


def line(members: Ints) -> Ends:
    return pairs(members[:-1], members[1:])


def cycle(members: Ints) -> Ends:
    """A cycle: two members make one edge, one makes none."""
    return line(members) if len(members) < 3 else pairs(members, np.roll(members, -1))


def box(sides: Sequence[int], *, around: bool) -> Ends:
    """The product of paths, or of rings where it goes `around`, one of each length in `sides`. The last side runs
    fastest: with two sides, node r * cols + c is in row r. A ring of two has one edge.
    """
    node = np.arange(int(np.prod(sides, dtype=np.int64)))
    parts, stride = [], 1
    for side in reversed(sides):
        place = node // stride % side
        here = node if around and side > 2 else node[place < side - 1]
        step = np.where(place[here] < side - 1, stride, stride - stride * side)
        parts.append(pairs(here, here + step))
        stride *= side
    return together(*parts)


def even(nodes: int, groups: int) -> Ints:
    """Starts of `groups` even blocks of consecutive nodes, the larger first, and the end. Shape (groups + 1,)."""
    size, more = divmod(nodes, groups)
    group = np.arange(groups + 1)
    return group * size + np.minimum(group, more)


def cliques(starts: Ints) -> Ends:
    """All pairs within each block of nodes starts[k] .. starts[k + 1] - 1."""
    first, sizes = starts[:-1], np.diff(starts)
    parts = []
    for size in np.unique(sizes).tolist():
        i, j = all_pairs(size).T
        heads = first[sizes == size][:, None]
        parts.append(pairs((heads + i).ravel(), (heads + j).ravel()))
    return together(*parts)


def clique_edges(starts: Ints) -> int:
    sizes = np.diff(starts)
    return int((sizes * (sizes - 1) // 2).sum())


def all_pairs(nodes: int) -> Ends:
    """All pairs in order, without the n^2 mask of `numpy.triu_indices`."""
    later = np.arange(nodes - 1, -1, -1)
    left = np.repeat(np.arange(nodes), later)
    firsts = np.cumsum(later) - later
    right = np.arange(len(left)) - np.repeat(firsts, later) + left + 1
    return pairs(left, right)
