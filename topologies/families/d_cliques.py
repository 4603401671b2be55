"""D-Cliques: cliques whose members together have about the label distribution of all nodes, joined by few edges.

Source: Bellet, Kermarrec and Lavoie, D-Cliques, 2022, arXiv:2104.07365: algorithm Greedy Swap, and the ways to join
cliques of its section 5 and appendix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from random import Random

import numpy as np
from numpy.typing import NDArray

from topologies.families.label_counts import read_counts
from topologies.families.parts import Ints, clique_edges, cliques, even, together
from topologies.family import Family, Request
from topologies.graph import Edge, Ends
from topologies.parameters import choice, file, whole

Counts = NDArray[np.int64]
SAME = 1e-9
"""a swap must better two cliques by more than rounding, or two machines might decide differently."""


def d_cliques(wanted: Request) -> Ends:
    """Without a file of labels the nodes are dealt to the cliques in order, 0 .. M-1 being the first."""
    starts = _starts(wanted)
    members = np.arange(wanted.nodes)
    if wanted["labels"] is not None:
        counts = read_counts(wanted.folder / wanted["labels"], wanted.nodes, wanted.names)
        steps = max(1_000, 10 * wanted.nodes) if wanted["steps"] is None else wanted["steps"]
        members = greedy_swap(counts, starts, steps if len(starts) > 2 else 0, wanted.seed)
    groups = [part.tolist() for part in np.split(members, starts[1:-1])]
    between = np.array(sorted(_BETWEEN[wanted["inter"]](groups)), dtype=np.int64).reshape(-1, 2)
    return together(members[cliques(starts)], between)


def skew(counts: Counts, overall: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far groups of nodes are from the whole: sum over labels of |p_C(y) - p(y)|.

    `counts`: samples of each label in each group, shape (..., labels); `overall`: shares, shape (labels,).
    """
    return np.asarray(np.abs(counts / counts.sum(axis=-1, keepdims=True) - overall).sum(axis=-1))


def greedy_swap(counts: Counts, starts: Ints, steps: int, seed: int) -> Ints:
    """A permutation of the nodes, those of clique k at starts[k] .. starts[k + 1]. `counts`: (nodes, labels).

    From a random deal on, two cliques are drawn in each step, and two of their members change places, drawn among
    the changes that lessen the sum of both skews.
    """
    rng = Random(seed)
    members = np.array(rng.sample(range(len(counts)), len(counts)))
    total = counts.sum(axis=0)
    overall = total / total.sum()
    for _ in range(steps):
        one, two = (np.arange(starts[k], starts[k + 1]) for k in rng.sample(range(len(starts) - 1), 2))
        left, right = counts[members[one]], counts[members[two]]
        moved = right[None, :, :] - left[:, None, :]
        after = skew(left.sum(axis=0) + moved, overall) + skew(right.sum(axis=0) - moved, overall)
        before = skew(left.sum(axis=0), overall) + skew(right.sum(axis=0), overall)
        better = np.argwhere(after < before - SAME)
        if len(better):
            i, j = better[rng.randrange(len(better))]
            members[one[i]], members[two[j]] = members[two[j]], members[one[i]]
    return members


class _Joiner:
    """Joins groups of nodes, each time at the node with the fewest edges between cliques so far."""

    def __init__(self) -> None:
        self.edges: dict[int, int] = {}

    def join(self, one: list[int], two: list[int]) -> Edge:
        ends = self._least(one), self._least(two)
        for end in ends:
            self.edges[end] = self.edges.get(end, 0) + 1
        return min(ends), max(ends)

    def _least(self, group: list[int]) -> int:
        return min(group, key=lambda node: (self.edges.get(node, 0), node))


def _ring(groups: list[list[int]]) -> Iterator[Edge]:
    joiner = _Joiner()
    last = len(groups) if len(groups) > 2 else len(groups) - 1
    for k in range(last):
        yield joiner.join(groups[k], groups[(k + 1) % len(groups)])


def _full(groups: list[list[int]]) -> Iterator[Edge]:
    joiner = _Joiner()
    for one, two in combinations(groups, 2):
        yield joiner.join(one, two)


def _small_world(groups: list[list[int]]) -> Iterator[Edge]:
    """Each clique to those 2^s and 2^s + 1 places on around a ring, in both directions: O(q log q) edges."""
    joiner = _Joiner()
    q = len(groups)
    for k in range(q):
        for near in (1 << s for s in range((q - 1).bit_length())):
            for step in (-near, near, -near - 1, near + 1):
                if step % q:
                    yield joiner.join(groups[k], groups[(k + step) % q])


def _fractal(groups: list[list[int]]) -> Iterator[Edge]:
    """As many groups as a clique has members are joined each to each and are one group from then on, and so forth."""
    joiner = _Joiner()
    wide = max(2, *map(len, groups))
    while len(groups) > 1:
        merged = []
        for first in range(0, len(groups), wide):
            together_now = groups[first : first + wide]
            for one, two in combinations(together_now, 2):
                yield joiner.join(one, two)
            merged.append([node for group in together_now for node in group])
        groups = merged


_BETWEEN = {"ring": _ring, "full": _full, "small-world": _small_world, "fractal": _fractal}


def _starts(wanted: Request) -> Ints:
    return even(wanted.nodes, -(-wanted.nodes // wanted["size"]))


def _expected(wanted: Request) -> float:
    starts = _starts(wanted)
    q = len(starts) - 1
    return clique_edges(starts) + (q * (q - 1) / 2 if wanted["inter"] == "full" else 0)


FAMILIES: Mapping[str, Family] = {
    "d-cliques": Family(
        rule="cliques with about the labels of all nodes, by greedy swaps; without labels dealt in order",
        degree="about size, a little more where cliques are joined",
        build=d_cliques,
        parameters={
            "size": whole(10, 1, "most nodes of a clique; all are of nearly equal size"),
            "labels": file("CSV, one row for each node: how many samples of each label; a name may come first"),
            "inter": choice("ring", "full", "small-world", "fractal", meaning="how cliques are joined"),
            "steps": whole(None, 0, "swaps tried; ten for each node by default, at least 1000"),
        },
        expected=_expected,
        source="Bellet, Kermarrec and Lavoie 2022, arXiv:2104.07365",
        random=True,
    ),
}
