"""Boosted trees: settings and bins, the best split of each node from its sums, what trees predict, and their file for
XGBoost.

Settings are the same at all nodes, and the bins of all columns are agreed on by sums of counts. A float32 is mapped to
a whole number in the same order, so that no range need be known: buckets of these numbers are counted over all nodes,
full buckets are divided, and after two divisions the cuts at the quantiles are chosen. A category has one bin for each
value in the schema. Each column's last bin is for missing values.

Splits are those of Chen and Guestrin 2016, arXiv 1603.02754, algorithms 1 and 3. Sums are whole numbers; gains and
values follow from them by additions, multiplications and divisions, which every processor rounds alike. Of equal gains
the lowest column, then the lowest bin counts.

XGBoost 1.7 and newer load its own JSON format (its doc/model.schema), with the columns in the schema's order, numeric
ones first, and for a category the place of its value in the schema. The outputs without trees are part of the first
trees' leaves, because `base_score` has changed its meaning between versions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.table.schema import Schema

KEYS = 1 << 32
ZERO = 1 << 31
LARGEST_BITS = 0x7F7FFFFF
"""The bits of the largest finite float32."""
LARGEST = float(np.finfo(np.float32).max)
EXPONENTS = 512
"""The first buckets: one for each sign and exponent of a float32."""
DIVISIONS = 2
FINENESS = 8
"""A bucket with this part of a bin's rows is not divided further."""
MOST_PARTS = 256
"""The most buckets that replace one."""
Cells = NDArray[np.float32]
Counts = NDArray[np.int64]


def raw_cells(columns: Mapping[str, NDArray[np.float64]], schema: Schema) -> Cells:
    """Return the cells (columns, n) as trees compare them, numeric columns first: float32, NaN if missing."""
    return as_cells(np.stack([columns[name] for name in (*schema.numeric, *schema.categories)]))


def as_cells(values: NDArray[np.float64]) -> Cells:
    """Return the nearest finite float32 of each value."""
    return np.asarray(np.clip(values, -LARGEST, LARGEST) + 0.0, np.float32)  # turns -0.0 into 0.0


def keys_of(values: Cells) -> Counts:
    """Return whole numbers (n,) from 1 to 2^32 - 1 in the order of the values, which are not NaN; that of 0 is 2^31."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)
    return ZERO + np.where(bits < 0, -(bits + ZERO), bits)


def number_of(key: int) -> float:
    """Return the float32 with this key, or the nearest finite one."""
    bits = min(abs(key - ZERO), LARGEST_BITS)
    return math.copysign(float(np.array([bits], np.uint32).view(np.float32)[0]), key - ZERO)


def most_buckets(bins: int) -> int:
    """Return the most buckets of a column: those of a bucket are fewer than twice what its rows call for, or one."""
    return EXPONENTS + DIVISIONS * 2 * FINENESS * bins


def first_cuts() -> list[int]:
    """Return the first key of each of the first buckets."""
    return [place * (KEYS // EXPONENTS) for place in range(EXPONENTS)]


def counted(values: Cells, cuts: Sequence[int]) -> Counts:
    """Count the values (n,) in each bucket; missing ones are in none."""
    places = np.searchsorted(np.array(cuts, np.int64), keys_of(values[~np.isnan(values)]), "right") - 1
    return np.bincount(places, minlength=len(cuts)).astype(np.int64)


def divided(cuts: Sequence[int], counts: Counts, bins: int) -> list[int]:
    """Divide the full buckets, and join the empty ones."""
    starts, rows = list[int](), max(1, int(counts.sum()))
    was_empty = False
    for start, end, count in zip(cuts, [*cuts[1:], KEYS], counts.tolist(), strict=True):
        if not count:
            starts += [] if was_empty else [start]
        else:
            parts, most = 1, min(MOST_PARTS, end - start)
            while 2 * parts <= most and parts * rows < count * bins * FINENESS:
                parts *= 2
            starts += [start + (end - start) * place // parts for place in range(parts)]
        was_empty = not count
    return starts


def edges_of(cuts: Sequence[int], counts: Counts, bins: int, least_rows: int) -> list[float]:
    """Return the first value of each bin but the lowest: bins of about equally many rows, `least_rows` at least."""
    rest = int(counts.sum())
    left, rows, edges = max(1, min(bins, rest // least_rows)), 0, list[float]()
    for start, count in zip(cuts, counts.tolist(), strict=True):
        is_due = max(rows, count) * left >= rest
        if count and left > 1 and rows >= least_rows and is_due:
            edges.append(number_of(start))
            left, rest, rows = left - 1, rest - rows, 0
        rows += count
    return edges[:-1] if edges and rows < least_rows else edges


class BinGrid(msgspec.Struct, frozen=True, kw_only=True):
    """The bins of all columns, numeric ones first."""

    edges: tuple[tuple[float, ...], ...]
    """For each numeric column the float32 values at which the second and later bins begin."""
    sizes: tuple[int, ...]
    """For each category the number of its values."""

    def is_right(self, bins: int) -> bool:
        """Return True if each numeric column has at most so many bins, one above the other."""
        return all(
            len(edges) < bins
            and all(abs(edge) <= LARGEST for edge in edges)
            and all(lower <= upper for lower, upper in pairwise(edges))
            for edges in self.edges
        )

    @property
    def splits(self) -> list[int]:
        """The number of ways to split each column: between two bins, or one value from all others."""
        return [*map(len, self.edges), *self.sizes]

    @property
    def widths(self) -> list[int]:
        """The number of bins of each column; the last is for missing values."""
        return [*(len(edges) + 2 for edges in self.edges), *(size + 1 for size in self.sizes)]

    def codes(self, cells: Cells) -> NDArray[np.uint16] | NDArray[np.uint8]:
        """Return the bin (columns, n) of each cell."""
        widths = self.widths
        codes = np.empty(cells.shape, np.uint8 if max(widths) <= 256 else np.uint16)
        for place, values in enumerate(cells):
            is_missing = np.isnan(values)
            if place < len(self.edges):
                bins = np.searchsorted(np.array(self.edges[place], np.float32), values, "right")
            else:
                bins = np.where(is_missing, 0, values).astype(np.int64)
            codes[place] = np.where(is_missing, widths[place] - 1, bins)
        return codes


Objective = Literal["logistic", "softmax", "squared"]

MOST_ENTRIES = 1 << 20
"""The most entries of one part, as many as a secure sum has."""
LOSSES = 4
"""The entries for losses: sum and rows, trained on and held out."""
SUMS = 3
"""The numbers of a bin: gradients, hessians and rows."""
BOUNDS: Mapping[str, tuple[float, float]] = {
    "rounds": (1, 10_000),
    "eta": (1e-6, 1.0),
    "max_depth": (1, 16),
    "bins": (2, 255),
    "reg_lambda": (0.0, 1e9),
    "gamma": (0.0, 1e9),
    "min_child_weight": (0.0, 1e9),
    "least_rows": (1, 1e9),
    "patience": (1, 10_000),
}


class TreeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names and defaults are those of XGBoost, apart from `least_rows`, `patience` and `class_weights`."""

    objective: Objective
    classes: int = 0
    """The number of classes; 0 for numbers."""
    rounds: int = 100
    """A round grows one tree, or with three and more classes a tree for each."""
    eta: float = 0.3
    """The factor of each tree's values."""
    max_depth: int = 6
    bins: int = 64
    """The most bins of a numeric column, apart from the one for missing values."""
    reg_lambda: float = 1.0
    """The L2 penalty on a leaf's value."""
    gamma: float = 0.0
    """The least gain of a split."""
    min_child_weight: float = 1.0
    """The least sum of hessians in a leaf."""
    least_rows: int = 10
    """The least number of rows in a leaf and in a bin, over all nodes."""
    patience: int | None = None
    """Stop after so many rounds without a better loss on the held-out rows of all nodes, and keep the best round."""
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None

    @property
    def are_possible(self) -> bool:
        """False if a number is out of its bounds."""
        return all((value := getattr(self, key)) is None or low <= value <= high for key, (low, high) in BOUNDS.items())

    @property
    def outputs(self) -> int:
        """The number of trees in a round."""
        return self.classes if self.objective == "softmax" else 1


def tree_settings(schema: Schema, options: Mapping[str, Any]) -> TreeSettings:
    """Make the settings for a schema's target. Raises UserError."""
    classes = 0 if schema.classes is None else len(schema.classes)
    objective = "squared" if not classes else "logistic" if classes == 2 else "softmax"
    try:
        made = msgspec.convert({**options, "objective": objective, "classes": classes}, TreeSettings)
    except msgspec.ValidationError as error:
        raise UserError(str(error), key="task") from None
    for key, (low, high) in BOUNDS.items():
        value = getattr(made, key)
        if value is not None and not low <= value <= high:
            where = "training" if key == "rounds" else "task"
            raise UserError("impossible value", key=f"{where}.{key}", value=value, allowed=f"from {low:g} to {high:g}")
    _check_weights(made)
    _check_size(schema, made)
    return made


def _check_weights(made: TreeSettings) -> None:
    weights = made.class_weights
    if weights is None:
        return
    if made.objective == "squared":
        raise UserError("the target has no classes", key="task.class_weights", value=weights, allowed="none")
    if not isinstance(weights, str) and not (
        len(weights) == made.classes and all(math.isfinite(weight) and 0 < weight <= 1e6 for weight in weights)
    ):
        allowed = f'"balanced", or {made.classes} numbers above 0, at most a million'
        raise UserError("not a weight for each class", key="task.class_weights", value=weights, allowed=allowed)


def _check_size(schema: Schema, made: TreeSettings) -> None:
    """Raises UserError: the buckets of all columns and of the target do not fit in a part, or not one leaf does."""
    widest = max([made.bins, *map(len, schema.categories.values())]) + 1
    columns = len(schema.numeric) + len(schema.categories)
    buckets = (len(schema.numeric) + 1) * most_buckets(made.bins) + made.classes
    if buckets > MOST_ENTRIES or columns * widest * SUMS + LOSSES > MOST_ENTRIES:
        text = f"{columns} columns of up to {widest - 1} bins do not fit in one sum"
        most = (MOST_ENTRIES - made.classes) // most_buckets(made.bins) - 1
        allowed = f"at most {most} numeric columns, or fewer bins or values"
        raise UserError(text, key="task.numeric", allowed=allowed)


Sums = NDArray[np.int64]
"""(..., 3): gradients and hessians in steps, and rows."""
Floats = NDArray[np.float64]
CELLS_AT_ONCE = 1 << 19
"""So many cells of nodes, columns and bins are looked at together, some 150 MB: one wide category widens all."""
LEAST_GAIN = 1e-6
"""A gain that is not larger is no gain, as in XGBoost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    column: int
    bin: int
    """A number goes left if its bin is this or a lower one; a category goes right if its bin is this one."""
    missing_left: bool
    gain: float
    left: Sums
    right: Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitter:
    """Finds splits. `bits` are those behind the point, and `scale` is the unit of a number to predict."""

    settings: TreeSettings
    grid: BinGrid
    bits: int
    scale: float = 1.0

    def value(self, sums: Sums) -> float:
        """Return a leaf's value, which is a float32."""
        gradients, hessians = np.ldexp(sums[:2].astype(np.float64), -self.bits)
        total = hessians + self.settings.reg_lambda
        return float(np.float32(-(gradients / total) * self.settings.eta)) if total > 0.0 else 0.0

    def weight(self, sums: Sums) -> float:
        """Return the sum of hessians."""
        return float(np.ldexp(float(sums[1]), -self.bits))

    def best(self, histograms: Sums) -> list[Split | None]:
        """Return the best split for each node's histogram (nodes, columns, bins, 3); None if none is allowed."""
        nodes = max(1, CELLS_AT_ONCE // (histograms.shape[1] * histograms.shape[2]))
        starts = range(0, len(histograms), nodes)
        return [split for start in starts for split in self._best(histograms[start : start + nodes])]

    def _best(self, histograms: Sums) -> list[Split | None]:
        widths, splits = np.array(self.grid.widths), np.array(self.grid.splits)
        columns = np.arange(len(widths))
        total = histograms[:, 0].sum(axis=1)
        missing = histograms[:, columns, widths - 1]
        body = histograms.copy()
        body[:, columns, widths - 1] = 0
        numeric = len(self.grid.edges)
        body[:, :numeric] = body[:, :numeric].cumsum(axis=2)
        known = (total[:, None] - missing)[:, numeric:, None]
        body[:, numeric:] = known - body[:, numeric:]
        left = np.stack([body, body + missing[:, :, None]], axis=3)
        right = total[:, None, None, None] - left
        gains = self._score(left) + self._score(right) - self._score(total)[:, None, None, None]
        possible = (np.arange(histograms.shape[2]) < splits[:, None])[None, :, :, None]
        least = possible & self._is_enough(left) & self._is_enough(right)
        gains = np.where(least, gains, -np.inf).reshape(len(gains), -1)
        chosen, best = gains.argmax(axis=1), list[Split | None]()
        for node, place in enumerate(chosen.tolist()):
            gain = float(gains[node, place])
            if not self._is_gain(gain):
                best.append(None)
                continue
            column, split, side = map(int, np.unravel_index(place, left.shape[1:4]))
            lower, upper = left[node, column, split, side], right[node, column, split, side]
            missing_left = bool(side) if missing[node, column, 2] else bool(lower[2] >= upper[2])
            best.append(Split(column=column, bin=split, missing_left=missing_left, gain=gain, left=lower, right=upper))
        return best

    def _is_gain(self, gain: float) -> bool:
        return gain > LEAST_GAIN and gain * self.scale * self.scale >= self.settings.gamma

    def _score(self, sums: Sums) -> Floats:
        gradients = np.ldexp(sums[..., 0].astype(np.float64), -self.bits)
        hessians = np.ldexp(sums[..., 1].astype(np.float64), -self.bits) + self.settings.reg_lambda
        score: Floats = np.divide(gradients * gradients, hessians, out=np.zeros_like(hessians), where=hessians > 0.0)
        return score

    def _is_enough(self, sums: Sums) -> NDArray[np.bool_]:
        weights = np.ldexp(sums[..., 1].astype(np.float64), -self.bits)
        enough = (sums[..., 2] >= self.settings.least_rows) & (weights >= self.settings.min_child_weight)
        return np.asarray(enough & (weights > 0.0))


LEAF = -1
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
    """The output of a row whose way ends here; a float32."""
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
        """Return True if all ways end at leaves, nodes split columns in one of their places, and numbers are finite."""
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
        goes_right = self.goes_right(grid)
        is_split = columns != LEAF
        moving = np.flatnonzero(is_split[places])
        places = places.copy()
        while len(moving):
            nodes = places[moving]
            nodes = lefts[nodes] + goes_right[nodes, codes[columns[nodes], moving]]
            places[moving] = nodes
            moving = moving[is_split[nodes]]
        return places

    def goes_right(self, grid: BinGrid) -> NDArray[np.bool_]:
        """Return for each node and bin (nodes, bins) if a row goes right."""
        widths, bins = np.array(grid.widths), np.array(self.bins)[:, None]
        columns, every_bin = np.array(self.columns), np.arange(max(grid.widths))
        right = np.where((columns < len(grid.edges))[:, None], every_bin > bins, every_bin == bins)
        is_missing = every_bin == (widths[columns] - 1)[:, None]
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
            forest = msgspec.msgpack.decode(packed, type=cls)
        except UNREADABLE as error:
            raise ValueError(f"no model of trees: {error}") from None
        forest.check()
        return forest

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
        margins = self.margins_without_trees(cells.shape[1])
        self.add_trees(margins, self.grid.codes(cells), 0)
        return margins

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
        outputs = margins.T.copy()
        return np.concatenate([np.zeros_like(outputs), outputs], axis=1) if self.objective == "logistic" else outputs


OBJECTIVES: Mapping[Objective, tuple[str, str]] = {
    "logistic": ("binary:logistic", "reg_loss_param"),
    "softmax": ("multi:softprob", "softmax_multiclass_param"),
    "squared": ("reg:squarederror", "reg_loss_param"),
}
NO_PARENT = 2**31 - 1
VERSION = [1, 7, 0]


def with_base(forest: Forest) -> list[tuple[DecisionTree, list[float]]]:
    """Return each tree with its nodes' values as float32, in the target's unit; the first have the base in them."""
    rounds = forest.rounds or (tuple(DecisionTree.root() for _ in forest.base),)
    return [
        (tree, (np.array(tree.values) * forest.scale + (0.0 if place else base)).astype(np.float32).tolist())
        for place, trees in enumerate(rounds)
        for tree, base in zip(trees, forest.base, strict=True)
    ]


def to_xgboost(forest: Forest, schema: Schema) -> str:
    """Return the content of the file."""
    name, parameters = OBJECTIVES[forest.objective]
    softmax = forest.objective == "softmax"
    classes = str(len(forest.base) if softmax else 0)
    trees = with_base(forest)
    outputs, columns = len(forest.base), len(forest.grid.widths)
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": list(range(0, len(trees) + 1, outputs)),
        "tree_info": [place % outputs for place in range(len(trees))],
        "trees": [_tree(place, *each, forest.grid) for place, each in enumerate(trees)],
    }
    learner = {
        "attributes": {},
        "feature_names": [*schema.numeric, *schema.categories],
        "feature_types": ["float"] * len(schema.numeric) + ["c"] * len(schema.categories),
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": "5E-1" if forest.objective == "logistic" else "0E0",
            "boost_from_average": "1",
            "num_class": classes,
            "num_feature": str(columns),
            "num_target": "1",
        },
        "objective": {"name": name, parameters: {"num_class": classes} if softmax else {"scale_pos_weight": "1"}},
    }
    return json.dumps({"learner": learner, "version": VERSION})


def _tree(place: int, tree: DecisionTree, values: list[float], grid: BinGrid) -> dict[str, Any]:
    numeric, nodes = len(grid.edges), range(len(tree))
    inner = [node for node in nodes if tree.columns[node] != LEAF]
    of_categories = [node for node in inner if tree.columns[node] >= numeric]
    conditions = list(values)
    parents = [NO_PARENT] * len(tree)
    for node in inner:
        column = tree.columns[node]
        conditions[node] = 0.0 if column >= numeric else grid.edges[column][tree.bins[node]]
        parents[tree.lefts[node]] = parents[tree.lefts[node] + 1] = node
    is_inner = [node in set(inner) for node in nodes]
    return {
        "base_weights": values,
        "categories": [tree.bins[node] for node in of_categories],
        "categories_nodes": of_categories,
        "categories_segments": list(range(len(of_categories))),
        "categories_sizes": [1] * len(of_categories),
        "default_left": [int(tree.missing_left[node] and is_inner[node]) for node in nodes],
        "id": place,
        "left_children": [tree.lefts[node] if is_inner[node] else -1 for node in nodes],
        "loss_changes": tree.gains,
        "parents": parents,
        "right_children": [tree.lefts[node] + 1 if is_inner[node] else -1 for node in nodes],
        "split_conditions": conditions,
        "split_indices": [max(0, column) for column in tree.columns],
        "split_type": [int(node in set(of_categories)) for node in nodes],
        "sum_hessian": tree.weights,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(len(grid.widths)),
            "num_nodes": str(len(tree)),
            "size_leaf_vector": "1",
        },
    }
