"""A node's changing figures, shared by all parts of its core."""

from __future__ import annotations

import enum
from dataclasses import dataclass

NEVER = float("inf")
"""A time that never comes."""


class Phase(enum.Enum):
    """The phase that a node is in."""

    WAITING = "waiting"
    JOINING = "joining"
    TRAINING = "training"
    CLOSING = "closing"
    LINGERING = "lingering"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True)
class Facts:
    """The figures of one node.

    `version` counts ticks (local rounds and mixing rounds), `rounds` only local training rounds. `samples` is n,
    `degree` the largest number of edges that one round uses (on a static graph, all of them), `pace_s` the mixed
    estimate of seconds per local step. `trained` is the progress that others see: `rounds`, or whole seconds if
    training is bounded by time. `alone` counts the rounds trained without a neighbor. Near the end, `settled` is the
    number of hops within which all active members are through (`company`), None before. `closing` counts the mixing
    rounds since training ended, None before; if `out_of_step`, the remaining ones wait for no neighbor. Before the
    first round, `level` is the number of hops within which all nodes are connected, None afterwards. `started_at` is
    when this process began, by its own clock. `joining` means that no neighbor should mix with this model, because the
    node has not begun yet, or will start from its neighbors' models. `repeat_s` is how long a word about where the node
    stands waits for its first repeat: a second, or the time of an exchange once messages were seen to vanish.
    """

    degree: int
    samples: float
    version: int = 0
    rounds: int = 0
    trained: int = 0
    alone: int = 0
    pace_s: float = 0.0
    closing: int | None = None
    out_of_step: bool = False
    level: int | None = 0
    settled: int | None = None
    joining: bool = False
    started_at: float = 0.0
    done: bool = False
    halted: bool = False
    repeat_s: float = 1.0

    @property
    def weight(self) -> float:
        """a_i = n_i/(deg_i+1), so that two nodes with equal n that meet alone average half and half.

        A node keeps a positive share of its own model however many exchanges run at once, and k <= min(a_i, a_j) bounds
        each pair's step: k/n_i + k/n_j <= 1, so no exchange makes two models swap places.
        """
        return self.samples / (self.degree + 1)

    @property
    def closing_rounds_done(self) -> int:
        """The number of mixing rounds done since training ended."""
        return self.closing or 0
