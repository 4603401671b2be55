"""One node's rows, and the summands that it makes of them. They never leave the node in any other form.

Everything here but the rows follows from the state, so that a node can begin anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.learn.trees import bins
from p2pfl.learn.trees.bins import BinGrid, Cells
from p2pfl.learn.trees.forest import LEAF, Codes, DecisionTree
from p2pfl.learn.trees.growth_state import GrowthState
from p2pfl.learn.trees.objectives import (
    BITS,
    CLIP_BITS,
    LOSS_BITS,
    MOST_ROWS,
    gradients,
    in_steps,
    losses,
)

Whole = NDArray[np.int64]
Floats = NDArray[np.float64]
Leaves = Sequence[tuple[int, int]]
"""Outputs and nodes."""


class SiteRows:
    """Rows as `bins.raw_cells` (columns, n), targets (n,): classes or numbers, and a mask (n,) of those held out.

    Raises UserError: there are too many rows.
    """

    def __init__(self, cells: Cells, targets: NDArray[np.generic], held: NDArray[np.bool_] | None = None) -> None:
        if cells.shape[1] > MOST_ROWS:
            raise UserError("too many rows for trees", value=cells.shape[1], allowed=f"at most {MOST_ROWS} at one node")
        is_held = np.zeros(cells.shape[1], np.bool_) if held is None else held
        order = np.argsort(is_held, kind="stable")
        self._cells: Cells = cells[:, order]
        self._targets = np.asarray(targets, np.float64)[order]
        self.trained = int(len(order) - is_held.sum())
        """The number of rows to train on, which stand first."""
        digest = hashlib.blake2b(self.trained.to_bytes(8, "little"), digest_size=32, person=b"p2pfl-trees")
        for array in (self._cells, self._targets):
            digest.update(np.ascontiguousarray(array).tobytes())
        self.data = digest.digest()
        """A digest of the rows and of which are held out. It stays at the node, and is the same in all their parts."""
        self._codes: Codes = np.zeros((0, 0), np.uint8)
        self._scaled: Floats = np.zeros(0)
        self._margins: Floats = np.zeros((0, 0))
        self._places: list[Whole] = []
        self._rounds = -1
        self._steps: tuple[Floats, Floats] = np.zeros((0, 0)), np.zeros((0, 0))
        self._level = -1, -1
        self._above: dict[tuple[int, int], Floats] = {}
        self._here: dict[tuple[int, int], Floats] = {}

    def counts(self, state: GrowthState) -> dict[str, Whole]:
        """Return the rows in each bucket, and what is known of the target by then."""
        cells, targets = self._cells[:, : self.trained], self._targets[: self.trained]
        settings = state.settings
        columns = list(cells[: len(state.cuts) - (settings.objective == "squared")])
        found = {}
        if settings.objective == "squared":
            columns.append(bins.as_cells(targets))
            scaled = np.clip((targets - state.target.center) / state.target.scale, -(2.0**CLIP_BITS), 2.0**CLIP_BITS)
            total = in_steps(scaled, BITS - CLIP_BITS).sum()
            found["targets"] = np.array([total, len(targets)]).astype(np.int64)
        else:
            found["targets"] = np.bincount(targets.astype(np.int64), minlength=settings.classes).astype(np.int64)
        counts = [bins.counted(values, cuts) for values, cuts in zip(columns, state.cuts, strict=True)]
        return found | {"buckets": np.concatenate([np.zeros(0, np.int64), *counts])}

    def losses(self, state: GrowthState) -> Whole:
        """Return sum and number of the losses (4,) of the rows trained on, and of those held out."""
        self._catch_up(state)
        objective = state.settings.objective
        found = in_steps(losses(objective, self._margins, self._scaled), BITS - LOSS_BITS[objective])
        parts = found[: self.trained], found[self.trained :]
        return np.array([each for part in parts for each in (part.sum(), len(part))]).astype(np.int64)

    def histograms(self, state: GrowthState, grid: BinGrid, leaves: Leaves) -> Whole:
        """Return gradients, hessians and rows (3, leaves, columns, bins) of these leaves of the growing trees."""
        self._catch_up(state)
        now = len(state.rounds), state.growing.level
        if now != self._level:
            self._above = self._here if now == (self._level[0], self._level[1] + 1) else {}
            self._here, self._level = {}, now
        for output in sorted({output for output, _ in leaves}):
            tree = state.growing.trees[output] if state.growing.trees else DecisionTree()
            self._fill(output, tree, [node for each, node in leaves if each == output], max(grid.widths))
        return np.stack([self._here[leaf] for leaf in leaves], axis=1).astype(np.int64)

    def _fill(self, output: int, tree: DecisionTree, nodes: Sequence[int], width: int) -> None:
        """Compute the histograms of nodes; of two siblings the one with more rows is what the other one leaves."""
        wanted = [node for node in nodes if (output, node) not in self._here]
        rows = np.bincount(self._places[output][: self.trained], minlength=len(tree) + 1)
        parents = {left: parent for parent, left in enumerate(tree.lefts) if tree.columns[parent] != LEAF}
        rest: dict[int, tuple[int, int]] = {}
        for left, parent in parents.items():
            if left in wanted and left + 1 in wanted and (output, parent) in self._above:
                more, less = (left, left + 1) if rows[left] > rows[left + 1] else (left + 1, left)
                rest[more] = parent, less
        direct = [node for node in wanted if node not in rest]
        for node, found in zip(direct, self._count(output, direct, len(rows), width), strict=True):
            self._here[output, node] = found
        for node, (parent, sibling) in rest.items():
            self._here[output, node] = self._above[output, parent] - self._here[output, sibling]

    def _count(self, output: int, nodes: Sequence[int], size: int, width: int) -> list[Floats]:
        """Add the rows of each node (3, columns, bins). float64 holds the sums exactly: they are below 2^53."""
        slot_of = np.full(size, -1, np.int64)
        slot_of[list(nodes)] = np.arange(len(nodes))
        slots = slot_of[self._places[output][: self.trained]]
        rows = np.flatnonzero(slots >= 0)
        first = slots[rows] * width
        weights = [steps[output, rows] for steps in self._steps]
        found = np.empty((3, len(nodes), len(self._codes), width))
        for column, codes in enumerate(self._codes):
            at = first + codes[rows]
            for place, weight in enumerate((*weights, None)):
                counts = np.bincount(at, weight, len(nodes) * width)
                found[place, :, column] = counts.reshape(len(nodes), width)
        return [found[:, slot] for slot in range(len(nodes))]

    def _catch_up(self, state: GrowthState) -> None:
        """Bring margins and places to the state's trees."""
        if state.grid is None:
            raise ValueError("no bins yet")
        grid, size = state.grid, self._cells.shape[1]
        if self._rounds < 0:
            self._codes, self._rounds = grid.codes(self._cells), 0
            regression = state.settings.objective == "squared"
            self._scaled = (self._targets - state.target.center) / state.target.scale if regression else self._targets
            self._margins = np.repeat(np.array(state.base)[:, None], size, axis=1)
            self._begin(state)
        while self._rounds < len(state.rounds):
            for output, tree in enumerate(state.rounds[self._rounds]):
                places = tree.walk(self._codes, self._places[output], grid)
                self._margins[output] += np.array(tree.values)[places]
            self._rounds += 1
            self._begin(state)
        for output, tree in enumerate(state.growing.trees):
            self._places[output] = tree.walk(self._codes, self._places[output], grid)

    def _begin(self, state: GrowthState) -> None:
        """Begin a round: all rows are at the root, with new gradients and hessians."""
        margins, targets = self._margins[:, : self.trained], self._scaled[: self.trained]
        self._places = [np.zeros(self._cells.shape[1], np.int64) for _ in margins]
        regression = state.settings.objective == "squared"
        weights = 1.0 if regression else np.array(state.weights)[targets.astype(np.int64)]
        first, second = gradients(state.settings.objective, margins, targets)
        self._steps = in_steps(first * weights, state.bits), in_steps(second * weights, state.bits)
