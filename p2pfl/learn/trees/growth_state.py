"""What all nodes have in common while trees grow, and how it packs to bytes: equal states have equal bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from p2pfl.foreign import UNREADABLE
from p2pfl.learn.trees.bins import DIVISIONS, KEYS, BinGrid, most_buckets
from p2pfl.learn.trees.forest import LEAF, DecisionTree, Forest
from p2pfl.learn.trees.objectives import step_bits
from p2pfl.learn.trees.tree_settings import TreeSettings

FORMAT = 1


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """The mean loss of a model over the rows of all nodes: those trained on, and those held out; None without rows."""

    trained: float | None
    held: float | None


class TargetScale(msgspec.Struct, array_like=True):
    """Targets of a regression are (target - center) / scale; the scale is a power of two."""

    center: float = 0.0
    scale: float = 1.0


class Growing(msgspec.Struct, forbid_unknown_fields=True):
    """The trees of the present round, one for each output, and the leaves of their present level.

    Leaves are pairs of output and node: of `frontier`, those of this level that may be split, so many have been
    `decided`; `below` are those of the next level so far.
    """

    trees: list[DecisionTree] = []
    level: int = 0
    frontier: list[tuple[int, int]] = []
    decided: int = 0
    below: list[tuple[int, int]] = []

    def is_right(self, max_depth: int) -> bool:
        """Return True if the leaves that may be split are leaves of these trees, each of them once."""
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
        )


class GrowthState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where the growth is. Everything in it follows from the settings and the sums."""

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

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, packed: bytes | memoryview, rounds: Sequence[list[DecisionTree]] | None = None) -> GrowthState:
        """Read what `pack` has made; `rounds` take the place of those in it. Raises ValueError: this is no state."""
        try:
            found = msgspec.msgpack.decode(packed, type=cls)
        except UNREADABLE as error:
            raise ValueError(f"no state of trees: {error}") from None
        if found.format != FORMAT:
            raise ValueError(f"a state of format {found.format}: known is {FORMAT}")
        if rounds is not None:
            found.rounds = list(rounds)
        found.check()
        return found

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
            and self.growing.is_right(settings.max_depth)
        )
