"""The changing figures of a node that all parts of its core share."""

from __future__ import annotations

import enum
from dataclasses import dataclass

NEVER = float("inf")
"""A time that does not come."""


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

    `version` counts ticks (local rounds and mixing rounds), `rounds` local training rounds only. `samples` is n,
    `degree` the largest number of edges that one round uses (on a static graph: all of them), `pace_s` the mixed
    estimate of seconds per local step. `trained` is the progress that others see: `rounds`, or whole seconds where time
    bounds training. `alone` counts the rounds that were trained without a neighbor. `settled` is, near the end, the
    number of hops within which all members that take part are through (`company`), None before. `closing` counts mixing
    rounds since training ended, None before; `out_of_step`: the remaining ones wait for no neighbor. `level` is, before
    the first round, the number of hops within which all nodes are connected, None from then on. `started_at` is the
    time at which this process began, by its own clock. `joining`: no neighbor should mix with this model, because the
    node has not begun yet, or will start from its neighbors'.
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

    @property
    def weight(self) -> float:
        """a_i = n_i/(deg_i+1), so that two nodes with equal n that meet alone average half and half.

        A node keeps a positive share of its own model however many exchanges run at once, and k <= min(a_i, a_j) bounds
        each pair's step: k/n_i + k/n_j <= 1, so no exchange makes two models change places.
        """
        return self.samples / (self.degree + 1)

    @property
    def closing_rounds_done(self) -> int:
        """The number of mixing rounds done since training ended."""
        return self.closing or 0
