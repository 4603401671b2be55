"""The sum of one level: which leaves it is of, how large an entry can be, and what follows from the level above.

A row adds 1 to the rows of its bin, its hessian, and its gradient plus 2^27 steps: nothing below 0. So no entry is
above that of the parent's bin, which all nodes know from the sum before, and takes no more bits; bins in which the
parent has no row take none. Of two siblings the one with fewer rows is summed: the other is what the parent's histogram
leaves, as in LightGBM (Ke et al. 2017). The column of the split is known, too, and so is the rest of a bin in which the
parent has one row, once it is known whether the leaf has it. Rows at the root are the same in all rounds, and of a
squared error hessians are rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from p2pfl.learn.trees.forest import LEAF, SUMS, BinGrid
from p2pfl.learn.trees.state import BITS, HESSIAN_BITS, MOST_ROWS, GrowthState, Whole

HISTOGRAMS = ("gradients", "hessians", "rows")
"""The arrays (leaves, bins of all columns) of a level."""
Leaf = tuple[int, int]
Family = tuple[Leaf | None, list[Leaf]]
"""Leaves of one parent in ascending order, and the parent; None: it is not known, or the leaf is a root."""


def families(state: GrowthState, most: int) -> list[Family]:
    """Return the next families of this level, so many at most, without those that are decided."""
    growing = state.growing
    if not growing.trees:
        roots: list[Family] = [(None, [(output, 0)]) for output in range(state.settings.outputs)]
        return roots[:most]
    known, found = set(growing.above.nodes), list[Family]()
    parents = [
        {child: at for at, left in enumerate(tree.lefts) if tree.columns[at] != LEAF for child in (left, left + 1)}
        for tree in growing.trees
    ]
    for output, node in growing.frontier[growing.decided :]:
        parent = output, parents[output].get(node, LEAF)
        if parent in known and found and found[-1][0] == parent:
            found[-1][1].append((output, node))
        else:
            found.append((parent if parent in known else None, [(output, node)]))
    return found[:most]


class Level:
    """The next part of a level: the entries of `asked`, one leaf of each family."""

    def __init__(self, state: GrowthState, grid: BinGrid, most_families: int) -> None:
        self._state, self._families = state, families(state, most_families)
        size, starts = sum(grid.widths), [0, *accumulate(grid.widths)]
        above = state.growing.above.by_node(size)
        self.asked = [leaves[0] for _, leaves in self._families]
        self._root_rows = np.frombuffer(state.root_rows, "<i8") if not state.growing.level and state.root_rows else None
        self._has_parent = np.array([parent is not None for parent, _ in self._families])[:, None]
        self._parents = np.zeros((SUMS, len(self.asked), size), np.int64)
        self._is_split = np.zeros((len(self.asked), size), np.bool_)
        """The bins of the column by which the parent is split, and those of them that are the asked leaf's."""
        self._own = np.zeros((len(self.asked), size), np.bool_)
        self._rows = np.full((len(self.asked), 1), np.iinfo(np.int64).max)
        """The rows of the asked leaf."""
        for place, (parent, leaves) in enumerate(self._families):
            if parent is None:
                continue
            tree, node = state.growing.trees[parent[0]], parent[1]
            column, left = tree.columns[node], tree.lefts[node]
            of = slice(starts[column], starts[column + 1])
            goes_right = tree.goes_right(grid)[node, : grid.widths[column]]
            rows = [int(above[parent][2, of][goes_right == side].sum()) for side in (False, True)]
            self.asked[place] = min(leaves, key=lambda leaf: rows[leaf[1] - left])
            side = self.asked[place][1] - left
            self._parents[:, place], self._rows[place] = above[parent], rows[side]
            self._is_split[place, of], self._own[place, of] = True, goes_right == side

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves whose histograms follow from the sum."""
        return [leaf for _, leaves in self._families for leaf in leaves]

    def most(self, members: int) -> dict[str, Whole]:
        """Return the largest sum (leaves, bins) of each array over so many members; 0: the entry follows from more."""
        state = self._state
        rows = np.full(self._own.shape, state.row_count or members * MOST_ROWS)
        rows = np.where(self._has_parent, np.minimum(self._parents[2], self._rows), rows)
        if self._root_rows is not None:
            rows[:] = self._root_rows
        limits = rows << (BITS + 1), rows << HESSIAN_BITS[state.settings.objective]
        of_rows = self._is_split | (self._has_parent & (self._parents[2] == 1))
        sums = [np.where(self._has_parent, np.minimum(self._parents[k], limits[k]), limits[k]) for k in (0, 1)]
        sums = [np.where(of_rows, 0, each) for each in sums]
        if state.settings.objective == "squared":
            sums[1] = np.zeros_like(rows)
        is_known = self._is_split | (self._root_rows is not None)
        return dict(zip(HISTOGRAMS, (*sums, np.where(is_known, 0, rows)), strict=True))

    def part(self, sums: Whole) -> dict[str, Whole]:
        """Return one node's arrays from its gradients, hessians and rows (3, leaves, bins) of the asked leaves."""
        return dict(zip(HISTOGRAMS, (sums[0] + (sums[2] << BITS), sums[1], sums[2]), strict=True))

    def whole(self, total: Mapping[str, Whole]) -> Whole:
        """Return the sums (3, leaves, bins) of all `leaves`, gradients shifted, from the sum of all nodes' arrays."""
        found = np.stack([total[name] for name in HISTOGRAMS])
        if self._root_rows is not None:
            found[2] = self._root_rows
        found[:, self._is_split] = np.where(self._own, self._parents, 0)[:, self._is_split]
        is_one = self._has_parent & (self._parents[2] == 1) & ~self._is_split
        found[:2, is_one] = (found[2] * self._parents[:2])[:, is_one]
        if self._state.settings.objective == "squared":
            found[1] = found[2] << self._state.bits
        leaves = list[Whole]()
        for place, (_, family) in enumerate(self._families):
            of_asked = found[:, place]
            leaves += [of_asked if leaf == self.asked[place] else self._parents[:, place] - of_asked for leaf in family]
        return np.stack(leaves, axis=1)
