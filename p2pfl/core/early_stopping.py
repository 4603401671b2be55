"""Early stopping: training ends because a figure no longer improves, or because a time is over.

A node decides by its own figure of each round alone, and is then through, like a node that has trained all its rounds;
`ending` says when all end. The best figure and its round are on disk with the round count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Best(NamedTuple):
    """The best figure so far (lower is better), and the number of rounds after which the node reached it."""

    figure: float
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The conditions of `training.stop`; `str` gives their canonical spelling."""

    patience: int | None = None
    """The number of this node's rounds without an improvement after which to stop; None: no such limit."""
    of: str = "loss"
    """The name of the figure that must improve: "loss" is that of this node's local rounds, others are of the common
    test set.
    """
    least: float = 0.0
    """The smallest gain that counts as an improvement."""
    after_s: float | None = None
    """The seconds of training after which to stop; None: no such limit."""

    def __str__(self) -> str:
        clauses = []
        if self.patience is not None:
            by = f" by {self.least!r}" if self.least else ""
            clauses.append(f"no improvement of {self.of}{by} in {self.patience} rounds")
        if self.after_s is not None:
            clauses.append(f"after {self.after_s!r} s")
        return " or ".join(clauses)

    def is_better(self, figure: float, best: Best | None) -> bool:
        """Return True if `figure` improves on `best`; a figure that is not finite never does."""
        return math.isfinite(figure) and (best is None or figure < best.figure - self.least)

    def is_out(self, best: Best | None, rounds: int) -> bool:
        """Return True if the patience has run out after `rounds` rounds; it never runs out before the first figure."""
        return self.patience is not None and best is not None and rounds - best.rounds >= self.patience

    def why(self, best: Best | None, rounds: int, elapsed_s: float) -> str | None:
        """Return the condition by which this node has trained enough; None: it has not."""
        if self.is_out(best, rounds) and best is not None:
            return f"no improvement of {self.of} since round {best.rounds}"
        if self.after_s is not None and elapsed_s >= self.after_s:
            return f"it has trained for {self.after_s:g} s"
        return None
