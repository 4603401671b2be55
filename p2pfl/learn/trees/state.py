"""What all nodes have in common while trees grow, and how it packs to bytes: equal states have equal bytes."""

from __future__ import annotations

import msgspec

from p2pfl.learn.trees.bins import Grid
from p2pfl.learn.trees.forest import Forest, Tree
from p2pfl.learn.trees.settings import TreeSettings

FORMAT = 1


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """The mean loss of a model over the rows of all nodes: those trained on, and those held out; None without rows."""

    trained: float | None
    held: float | None


class State(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
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
    grid: Grid | None = None
    weights: list[float] = []
    """The weight of each class."""
    bits: int = 0
    """The bits behind the point of gradients and hessians."""
    center: float = 0.0
    scale: float = 1.0
    """Targets of a regression are (target - center) / scale; the scale is a power of two."""
    base: list[float] = []
    """The margins without trees."""
    rounds: list[list[Tree]] = []
    trees: list[Tree] = []
    """The trees of this round, one for each output."""
    level: int = 0
    frontier: list[tuple[int, int]] = []
    """Output and node of those leaves of this level that may be split."""
    decided: int = 0
    """How many of them have been decided."""
    below: list[tuple[int, int]] = []
    """Those of the next level so far."""
    losses: list[Loss] = []
    """The loss without trees, after one round, and so on."""
    done: bool = False
    format: int = FORMAT

    @property
    def best(self) -> int:
        """The number of rounds with the least loss on held-out rows; all if it is not to be looked at."""
        held = [loss.held for loss in self.losses if loss.held is not None]
        return held.index(min(held)) if self.settings.patience and held else len(self.rounds)

    def forest(self) -> Forest:
        """Return the model so far. Raises ValueError: there are no bins yet."""
        if self.grid is None:
            raise ValueError("no model before the bins are agreed on")
        return Forest(
            objective=self.settings.objective,
            grid=self.grid,
            base=tuple(self.center + each * self.scale for each in self.base),
            scale=self.scale,
            rounds=tuple(map(tuple, self.rounds[: self.best])),
        )

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, packed: bytes | memoryview) -> State:
        """Raises ValueError: this is no state."""
        found = msgspec.msgpack.decode(packed, type=cls)
        if found.format != FORMAT:
            raise ValueError(f"a state of format {found.format}: known is {FORMAT}")
        return found
