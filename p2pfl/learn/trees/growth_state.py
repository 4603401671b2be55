"""What all nodes have in common while trees grow, and how it packs to bytes: equal states have equal bytes."""

from __future__ import annotations

import math

import msgspec

from p2pfl.learn.trees.bins import BinGrid
from p2pfl.learn.trees.forest import DecisionTree, Forest
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
    def unpack(cls, packed: bytes | memoryview) -> GrowthState:
        """Raises ValueError: this is no state."""
        try:
            found = msgspec.msgpack.decode(packed, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"no state of trees: {error}") from None
        if found.format != FORMAT:
            raise ValueError(f"a state of format {found.format}: known is {FORMAT}")
        found.check()
        return found

    def check(self) -> None:
        """Raises ValueError: trees, bins and leaves do not belong together."""
        settings, growing = self.settings, [self.growing.trees] if self.growing.trees else []
        splits = self.grid.splits if self.grid else []
        leaves = [*self.growing.frontier, *self.growing.below]
        numbers = [self.target.center, self.target.scale, *self.base, *self.weights]
        if (
            any(len(trees) != settings.outputs for trees in (*self.rounds, *growing))
            or not all(tree.fits(splits) for trees in (*self.rounds, *growing) for tree in trees)
            or not all(
                0 <= output < len(self.growing.trees) and 0 <= node < len(self.growing.trees[output])
                for output, node in leaves
            )
            or not 0 <= self.growing.decided <= len(self.growing.frontier)
            or (self.grid and not len(self.base) == settings.outputs)
            or (self.grid and not len(self.weights) == max(1, settings.classes))
            or not all(map(math.isfinite, numbers))
            or not self.target.scale > 0
        ):
            raise ValueError("a state of trees that contradicts itself")
