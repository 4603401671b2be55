"""The state that all nodes have in common while trees grow, and the summands that one node makes of it and its rows.

Equal states have equal bytes. A node's rows leave it in no other form than these summands: gradients, hessians and
losses, as in XGBoost. A row's numbers are rounded before they are added, so that the sum is exact, whatever the order
of rows and whichever node has them. `exp` is made of operations that IEEE 754 rounds correctly, so that every processor
gets the same bits. Everything but the rows follows from the state, so that a node can begin anywhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from decimal import Context, Decimal
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.errors import UserError
from p2pfl.foreign import UNREADABLE
from p2pfl.learn.trees.forest import (
    DIVISIONS,
    KEYS,
    LEAF,
    BinGrid,
    Cells,
    Codes,
    DecisionTree,
    Forest,
    Objective,
    TreeSettings,
    as_cells,
    counted,
    most_buckets,
)

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

BITS = 27
"""A row's entry is at most 2^27 steps."""
MOST_ROWS = 1 << 24
"""The most rows of one node."""
CLIP_BITS = 6
"""Squared error: a residual counts as at most 2^6 times the target's scale."""
HESSIAN_BITS = {"logistic": BITS - 2, "softmax": BITS - 1, "squared": BITS}
"""A row's hessian is at most this power of two, in steps."""
LOSS_BITS = {"logistic": 5, "softmax": 5, "squared": 12}
"""A row's loss counts as at most this power of two."""
SMALLEST = 2.0**-40
"""The least hessian, and the least share of a class."""
FURTHEST = 700.0
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
TERMS = tuple(1.0 / math.factorial(power) for power in range(14))


def exp(values: Floats) -> Floats:
    """Return e to these powers, clipped to -700 and 700."""
    values = np.clip(values, -FURTHEST, FURTHEST)
    whole = np.rint(values * (1.0 / LN2_HIGH))
    rest = values - whole * LN2_HIGH - whole * LN2_LOW
    series = np.full_like(rest, TERMS[-1])
    for term in reversed(TERMS[:-1]):
        series = series * rest + term
    return np.ldexp(series, whole.astype(np.int32))


def log(value: float) -> float:
    """Return the natural logarithm, correctly rounded to 28 digits and then to a double."""
    return float(Decimal(value).ln(Context(prec=28)))


def shares(margins: Floats) -> Floats:
    """Return each class's probability (outputs, n) from margins (outputs, n); of one output, the second class's."""
    if len(margins) == 1:
        return 1.0 / (1.0 + exp(-margins))
    powers = exp(margins - margins.max(axis=0))
    total = powers[0]
    for more in powers[1:]:
        total = total + more
    return np.asarray(powers / total)


def gradients(objective: Objective, margins: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Return first and second derivatives (outputs, n) of the loss by the margins (outputs, n)."""
    if objective == "squared":
        most = 2.0**CLIP_BITS
        return np.clip(margins - targets, -most, most), np.ones_like(margins)
    chances = shares(margins)
    is_class = targets == (np.arange(len(margins))[:, None] if objective == "softmax" else 1.0)
    factor = 2.0 if objective == "softmax" else 1.0
    return chances - is_class, np.maximum(factor * chances * (1.0 - chances), SMALLEST)


def losses(objective: Objective, margins: Floats, targets: Floats) -> Floats:
    """Return the loss (n,) of each row, clipped."""
    if objective == "squared":
        raw: Floats = (margins[0] - targets) ** 2
    elif objective == "logistic":
        raw = np.logaddexp(0.0, np.where(targets == 1.0, -margins[0], margins[0]))
    else:
        own = margins[targets.astype(np.int64), np.arange(len(targets))]
        top = margins.max(axis=0)
        raw = np.log(np.exp(margins - top).sum(axis=0)) + top - own
    return np.asarray(np.minimum(raw, 2.0 ** LOSS_BITS[objective]), np.float64)


def in_steps(values: Floats, bits: int) -> Floats:
    """Return the values as whole numbers of steps of 2^-bits, in float64, which holds their sums exactly."""
    return np.rint(np.ldexp(values, bits))


def step_bits(settings: TreeSettings, weights: Sequence[float]) -> int:
    """Return the bits behind the point of gradients and hessians: their bound is 2^27 steps."""
    if settings.objective == "squared":
        return BITS - CLIP_BITS
    most = max(weights)
    return BITS - max(0, math.frexp(most)[1] - (math.frexp(most)[0] == 0.5))


def weights_of(settings: TreeSettings, class_counts: Sequence[int]) -> list[float]:
    """Return the weight of each class."""
    given = settings.class_weights
    if given is None or settings.objective == "squared":
        return [1.0] * max(1, settings.classes)
    if given == "balanced":
        rows = sum(class_counts)
        return [rows / (settings.classes * count) if count else 1.0 for count in class_counts]
    return [float(weight) for weight in given]


def base_margins(settings: TreeSettings, class_counts: Sequence[int], weights: Sequence[float]) -> list[float]:
    """Return the margins of a model without trees: the logarithms of the classes' weighted shares."""
    mass = [count * weight for count, weight in zip(class_counts, weights, strict=True)]
    total = math.fsum(mass)
    logs = [log(max(each / total, SMALLEST)) for each in mass]
    return logs if settings.objective == "softmax" else [logs[1] - logs[0]]


FORMAT = 2
"""States of format 1 are read, too: those of trees that began before parts were packed."""
BIN_BYTES, MOST_KEPT_BYTES = 32, 1 << 23
"""The bytes of a bin whose sums are kept for the next level, and of all of them at most."""


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """The mean loss of a model over the rows of all nodes: those trained on, and those held out; None without rows."""

    trained: float | None
    held: float | None


class TargetScale(msgspec.Struct, array_like=True):
    """Targets of a regression are (target - center) / scale; the scale is a power of two."""

    center: float = 0.0
    scale: float = 1.0


class Histograms(msgspec.Struct, forbid_unknown_fields=True):
    """The sums over all nodes in those bins of some leaves that have rows.

    `bins` has the number of these for each leaf, and `sums` for each leaf `<i8` (4, bins): gradients, each row's plus
    2^27, hessians, rows, and the place of the bin.
    """

    nodes: list[tuple[int, int]] = []
    bins: list[int] = []
    sums: bytes = b""

    def add(self, node: tuple[int, int], sums: Whole) -> None:
        """Add a leaf's sums (3, bins), where there is room."""
        places = np.flatnonzero(sums[2])
        if len(self.sums) + BIN_BYTES * len(places) <= MOST_KEPT_BYTES:
            self.nodes.append(node)
            self.bins.append(len(places))
            self.sums += np.concatenate([sums[:, places], places[None]]).astype("<i8").tobytes()

    def by_node(self, size: int) -> dict[tuple[int, int], Whole]:
        """Return the sums (3, size) of each leaf."""
        found, start, numbers = dict[tuple[int, int], Whole](), 0, np.frombuffer(self.sums, "<i8")
        for node, bins in zip(self.nodes, self.bins, strict=True):
            block = numbers[start : start + 4 * bins].reshape(4, bins)
            found[node] = np.zeros((3, size), np.int64)
            found[node][:, block[3]] = block[:3]
            start += 4 * bins
        return found

    def are_right(self, trees: Sequence[DecisionTree], size: int) -> bool:
        """Return True if these may be sums of split nodes of these trees."""
        fits = len(self.nodes) == len(self.bins) == len(set(self.nodes)) and min(self.bins, default=0) >= 0
        if not (fits and len(self.sums) == BIN_BYTES * sum(self.bins) <= MOST_KEPT_BYTES):
            return False
        ends, numbers = np.cumsum(self.bins) * 4, np.frombuffer(self.sums, "<i8")
        blocks = [block.reshape(4, -1) for block in np.split(numbers, ends[:-1])] if self.bins else []
        return all(
            0 <= output < len(trees) and 0 <= node < len(trees[output]) and trees[output].columns[node] != LEAF
            for output, node in self.nodes
        ) and all(
            (block[2] > 0).all()
            and (block[:2] >= 0).all()
            and (np.diff(block[3], prepend=-1, append=size) > 0).all()
            and int(block[2].max(initial=0)) < 1 << 35
            for block in blocks
        )


class Growing(msgspec.Struct, forbid_unknown_fields=True):
    """The trees of the present round, one for each output, and the leaves of their present level.

    Leaves are pairs of output and node: of `frontier`, those of this level that may be split, so many have been
    `decided`; `below` are those of the next level so far. `above` are the sums of the level before, of leaves whose
    children are in `frontier`, `here` those of this level for `below`.
    """

    trees: list[DecisionTree] = []
    level: int = 0
    frontier: list[tuple[int, int]] = []
    decided: int = 0
    below: list[tuple[int, int]] = []
    above: Histograms = msgspec.field(default_factory=Histograms)
    here: Histograms = msgspec.field(default_factory=Histograms)

    def is_right(self, max_depth: int, bins: int) -> bool:
        """Return True if the leaves that may be split are leaves of these trees, each of them once, and sums fit."""
        if not self.trees:
            return self == Growing()
        leaves = [*self.frontier[self.decided :], *self.below]
        return (
            0 <= self.level < max_depth
            and 0 <= self.decided < len(self.frontier)
            and len({*self.frontier, *self.below}) == len(self.frontier) + len(self.below)
            and all(0 <= output < len(self.trees) for output, _ in (*self.frontier, *self.below))
            and all(
                0 <= node < len(self.trees[output]) and self.trees[output].columns[node] == LEAF
                for output, node in leaves
            )
            and all(sums.are_right(self.trees, bins) for sums in (self.above, self.here))
        )


class GrowthState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The point that the growth has reached. Everything in it follows from the settings and the sums."""

    settings: TreeSettings
    cuts: list[list[int]]
    """For each numeric column the first keys of its buckets, and for a regression those of the target; until there is a
    grid."""
    sizes: tuple[int, ...]
    """The number of values of each category."""
    step: int = 0
    """The sums taken."""
    divisions: int = 0
    grid: BinGrid | None = None
    weights: list[float] = []
    """The weight of each class."""
    bits: int = 0
    """The bits behind the point of gradients and hessians."""
    target: TargetScale = msgspec.field(default_factory=TargetScale)
    base: list[float] = []
    """The margins without trees."""
    row_count: int = 0
    """The rows of all nodes that are trained on; 0: they are not known."""
    root_rows: bytes = b""
    """The rows in all bins, `<i8`, once they are known: no round changes them."""
    rounds: list[list[DecisionTree]] = []
    growing: Growing = msgspec.field(default_factory=Growing)
    losses: list[Loss] = []
    """The loss without trees, after one round, and so on."""
    done: bool = False
    format: int = FORMAT

    @property
    def best(self) -> int:
        """The number of rounds with the least loss on held-out rows; all if it is not to be looked at."""
        held = [(loss.held, place) for place, loss in enumerate(self.losses) if loss.held is not None]
        return min(held)[1] if self.settings.patience and held else len(self.rounds)

    def forest(self) -> Forest:
        """Return the model so far. Raises ValueError: there are no bins yet."""
        if self.grid is None:
            raise ValueError("no model before the bins are agreed on")
        return Forest(
            objective=self.settings.objective,
            grid=self.grid,
            base=tuple(self.target.center + each * self.target.scale for each in self.base),
            scale=self.target.scale,
            rounds=tuple(map(tuple, self.rounds[: self.best])),
        )

    @classmethod
    def unpack(cls, packed: bytes | memoryview, rounds: Sequence[list[DecisionTree]] | None = None) -> GrowthState:
        """Read what `pack` has made; `rounds` take the place of those in it. Raises ValueError: this is no state."""
        try:
            state = msgspec.msgpack.decode(packed, type=cls)
        except UNREADABLE as error:
            raise ValueError(f"no state of trees: {error}") from None
        if not 1 <= state.format <= FORMAT:
            raise ValueError(f"a state of format {state.format}: known is {FORMAT}")
        state.format = FORMAT
        if rounds is not None:
            state.rounds = list(rounds)
        state.check()
        return state

    def check(self) -> None:
        """Raises ValueError: it contradicts itself, or no sums lead to it."""
        numbers = [self.target.center, self.target.scale, *self.base, *self.weights]
        numbers += [each for loss in self.losses for each in (loss.trained, loss.held) if each is not None]
        is_right = self.step >= 0 and self.target.scale > 0 and all(map(math.isfinite, numbers))
        is_right &= self.settings.are_possible
        if not (is_right and (self._fits_bins() if self.grid is None else self._fits_trees(self.grid))):
            raise ValueError("a state of trees that contradicts itself")

    def _fits_bins(self) -> bool:
        """Return True if this may be the state before there is a grid."""
        most = most_buckets(self.settings.bins)
        return (
            0 <= self.divisions <= DIVISIONS
            and not (self.rounds or self.losses or self.base or self.weights or self.done)
            and self.growing == Growing()
            and all(
                1 <= len(cuts) <= most and cuts[0] == 0 and cuts[-1] < KEYS and all(a < b for a, b in pairwise(cuts))
                for cuts in self.cuts
            )
        )

    def _fits_trees(self, grid: BinGrid) -> bool:
        """Return True if rounds, trees and leaves may be those of this grid."""
        settings, splits = self.settings, grid.splits
        growing, outputs = [self.growing.trees] if self.growing.trees else [], settings.outputs
        return (
            not self.cuts
            and grid.is_right(settings.bins)
            and (len(self.base), len(self.weights)) == (outputs, max(1, settings.classes))
            and all(weight > 0 for weight in self.weights)
            and self.bits == step_bits(settings, self.weights)
            and len(self.rounds) <= settings.rounds
            and len(self.losses) - len(self.rounds) in (0, 1)
            and all(len(trees) == outputs for trees in (*self.rounds, *growing))
            and all(
                len(tree) < 2 << settings.max_depth and tree.fits(splits)
                for trees in (*self.rounds, *growing)
                for tree in trees
            )
            and self.growing.is_right(settings.max_depth, sum(grid.widths))
            and 0 <= self.row_count < 1 << 35
            and len(self.root_rows) in {0, 8 * sum(grid.widths)}
            and int(np.frombuffer(self.root_rows, "<u8").max(initial=0)) < 1 << 35
        )


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
        self.held = int(is_held.sum())
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

    def counts(self, state: GrowthState) -> dict[str, Whole]:
        """Return the rows in each bucket, and what is known of the target by then."""
        cells, targets = self._cells[:, : self.trained], self._targets[: self.trained]
        settings = state.settings
        columns = list(cells[: len(state.cuts) - (settings.objective == "squared")])
        arrays = {}
        if settings.objective == "squared":
            columns.append(as_cells(targets))
            scaled = np.clip((targets - state.target.center) / state.target.scale, -(2.0**CLIP_BITS), 2.0**CLIP_BITS)
            total = int(in_steps(scaled, BITS - CLIP_BITS).sum())
            arrays["targets"] = np.array([total + (len(targets) << BITS), len(targets)])
        else:
            arrays["targets"] = np.bincount(targets.astype(np.int64), minlength=settings.classes).astype(np.int64)
        counts = [counted(values, cuts) for values, cuts in zip(columns, state.cuts, strict=True)]
        return arrays | {"buckets": np.concatenate([np.zeros(0, np.int64), *counts])}

    def losses(self, state: GrowthState) -> Whole:
        """Return sum and number of the losses (4,) of the rows trained on, and of those held out."""
        self._catch_up(state)
        objective = state.settings.objective
        steps = in_steps(losses(objective, self._margins, self._scaled), BITS - LOSS_BITS[objective])
        parts = steps[: self.trained], steps[self.trained :]
        return np.array([each for part in parts for each in (part.sum(), len(part))]).astype(np.int64)

    def histograms(self, state: GrowthState, grid: BinGrid, leaves: Leaves) -> Whole:
        """Return gradients, hessians and rows (3, leaves, columns, bins) of these leaves of the growing trees."""
        self._catch_up(state)
        found = np.empty((3, len(leaves), len(self._codes), max(grid.widths)), np.int64)
        for output in sorted({output for output, _ in leaves}):
            places = [place for place, leaf in enumerate(leaves) if leaf[0] == output]
            found[:, places] = self._count(output, [leaves[place][1] for place in places], max(grid.widths))
        return found

    def _count(self, output: int, nodes: Sequence[int], width: int) -> Floats:
        """Add the rows of nodes (3, nodes, columns, bins). float64 holds the sums exactly: they are below 2^53."""
        slot_of = np.full(1 + max(*nodes, int(self._places[output].max(initial=0))), -1, np.int64)
        slot_of[list(nodes)] = np.arange(len(nodes))
        slots = slot_of[self._places[output][: self.trained]]
        rows = np.flatnonzero(slots >= 0)
        first = slots[rows] * width
        weights = [steps[output, rows] for steps in self._steps]
        sums = np.empty((3, len(nodes), len(self._codes), width))
        for column, codes in enumerate(self._codes):
            at = first + codes[rows]
            for place, weight in enumerate((*weights, None)):
                counts = np.bincount(at, weight, len(nodes) * width)
                sums[place, :, column] = counts.reshape(len(nodes), width)
        return sums

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
