"""Trees, and what they predict."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.foreign import UNREADABLE
from p2pfl.learn.table.schema import Schema
from p2pfl.learn.trees.bins import BinGrid, Cells
from p2pfl.learn.trees.splitting import Split, Splitter, Sums
from p2pfl.learn.trees.tree_settings import Objective

LEAF = -1
LARGEST = float(np.finfo(np.float32).max)
Codes = NDArray[np.uint16] | NDArray[np.uint8]
Places = NDArray[np.int64]


class DecisionTree(msgspec.Struct, array_like=True):
    """A tree by its nodes, the root first. The right child stands behind the left one."""

    columns: list[int] = msgspec.field(default_factory=list)
    """The column that a node splits, or LEAF."""
    bins: list[int] = msgspec.field(default_factory=list)
    missing_left: list[bool] = msgspec.field(default_factory=list)
    lefts: list[int] = msgspec.field(default_factory=list)
    """The left child, or for a leaf the node itself."""
    values: list[float] = msgspec.field(default_factory=list)
    """What a row gets if its way ends here; a float32."""
    gains: list[float] = msgspec.field(default_factory=list)
    weights: list[float] = msgspec.field(default_factory=list)
    """The sums of hessians."""

    def __len__(self) -> int:
        return len(self.columns)

    @classmethod
    def root(cls) -> DecisionTree:
        """Return a tree of one leaf, which adds nothing."""
        return cls(columns=[LEAF], bins=[0], missing_left=[True], lefts=[0], values=[0.0], gains=[0.0], weights=[0.0])

    def fits(self, splits: Sequence[int]) -> bool:
        """Return True if all ways end at leaves, each node splits a column in one of so many places, and all numbers
        are finite.
        """
        lists = (self.bins, self.missing_left, self.lefts, self.values, self.gains, self.weights)
        size = len(self)
        return (
            size > 0
            and all(len(each) == size for each in lists)
            and all(map(math.isfinite, (*self.gains, *self.weights)))
            and all(abs(value) <= LARGEST for value in self.values)
            and all(
                left == node
                if column == LEAF
                else node < left < size - 1 and 0 <= column < len(splits) and 0 <= place < splits[column]
                for node, (column, place, left) in enumerate(zip(self.columns, self.bins, self.lefts, strict=True))
            )
        )

    def add(self, sums: Sums, splitter: Splitter) -> int:
        """Add a leaf, and return its place."""
        node = len(self)
        self.columns.append(LEAF)
        self.bins.append(0)
        self.missing_left.append(True)
        self.lefts.append(node)
        self.values.append(splitter.value(sums))
        self.gains.append(0.0)
        self.weights.append(splitter.weight(sums))
        return node

    def weigh(self, node: int, sums: Sums, splitter: Splitter) -> None:
        """Give a node the value and the weight of its sums."""
        self.values[node], self.weights[node] = splitter.value(sums), splitter.weight(sums)

    def split(self, node: int, split: Split, splitter: Splitter) -> tuple[int, int]:
        """Split a leaf, and return its children."""
        self.columns[node], self.bins[node] = split.column, split.bin
        self.missing_left[node], self.gains[node] = split.missing_left, split.gain
        self.lefts[node] = self.add(split.left, splitter)
        return self.lefts[node], self.add(split.right, splitter)

    def walk(self, codes: Codes, places: Places, grid: BinGrid) -> Places:
        """Move rows from the nodes `places` (n,) down to leaves, by their bins `codes` (columns, n)."""
        columns, lefts = np.array(self.columns), np.array(self.lefts)
        goes_right = self._goes_right(grid)
        is_split = columns != LEAF
        moving = np.flatnonzero(is_split[places])
        places = places.copy()
        while len(moving):
            nodes = places[moving]
            nodes = lefts[nodes] + goes_right[nodes, codes[columns[nodes], moving]]
            places[moving] = nodes
            moving = moving[is_split[nodes]]
        return places

    def _goes_right(self, grid: BinGrid) -> NDArray[np.bool_]:
        """Return for each node and bin (nodes, bins) if a row goes right."""
        widths, bins = np.array(grid.widths), np.array(self.bins)[:, None]
        columns, found = np.array(self.columns), np.arange(max(grid.widths))
        right = np.where((columns < len(grid.edges))[:, None], found > bins, found == bins)
        is_missing = found == (widths[columns] - 1)[:, None]
        return np.where(is_missing, ~np.array(self.missing_left)[:, None], right)


class Forest(msgspec.Struct, frozen=True, kw_only=True):
    """A model: `rounds` of one tree for each output, in the unit of `scale`."""

    objective: Objective
    grid: BinGrid
    base: tuple[float, ...]
    """The outputs without trees."""
    scale: float
    """A power of two, the unit of the trees' values."""
    rounds: tuple[tuple[DecisionTree, ...], ...]

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> Forest:
        """Raises ValueError: these bytes are no model."""
        try:
            found = msgspec.msgpack.decode(packed, type=cls)
        except UNREADABLE as error:
            raise ValueError(f"no model of trees: {error}") from None
        found.check()
        return found

    def check(self) -> None:
        """Raises ValueError: trees and bins do not belong together."""
        splits, outputs = self.grid.splits, len(self.base)
        fit = all(len(trees) == outputs and all(tree.fits(splits) for tree in trees) for trees in self.rounds)
        if not (fit and splits and outputs and all(map(math.isfinite, (self.scale, *self.base)))):
            raise ValueError("a model of trees that contradicts itself")

    def fits(self, schema: Schema) -> bool:
        """Return True if these are trees of such columns."""
        sizes = tuple(map(len, schema.categories.values()))
        outputs = schema.outputs if self.objective == "softmax" else 1
        return (len(self.grid.edges), self.grid.sizes, len(self.base)) == (len(schema.numeric), sizes, outputs)

    def margins(self, cells: Cells) -> NDArray[np.float64]:
        """Return the outputs (outputs, n) for raw cells (columns, n): see `bins.raw_cells`."""
        found = self.margins_without_trees(cells.shape[1])
        self.add_trees(found, self.grid.codes(cells), 0)
        return found

    def margins_without_trees(self, rows: int) -> NDArray[np.float64]:
        return np.repeat(np.array(self.base)[:, None], rows, axis=1)

    def add_trees(self, margins: NDArray[np.float64], codes: Codes, first: int) -> None:
        """Add the trees from round `first` on to the margins (outputs, n) of rows with these codes."""
        start = np.zeros(margins.shape[1], np.int64)
        for trees in self.rounds[first:]:
            for output, tree in enumerate(trees):
                values = np.array(tree.values) * self.scale
                margins[output] += values[tree.walk(codes, start, self.grid)]

    def outputs(self, cells: Cells) -> NDArray[np.float64]:
        """Return what metrics take: logits (n, classes), or numbers (n, 1) in the target's unit."""
        return self.as_outputs(self.margins(cells))

    def as_outputs(self, margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the outputs, as above, of margins (outputs, n); a copy of them."""
        found = margins.T.copy()
        return np.concatenate([np.zeros_like(found), found], axis=1) if self.objective == "logistic" else found
