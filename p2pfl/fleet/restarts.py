"""Decide when a dead node is restarted: after increasing pauses, and only a few times in a row."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 5
SETTLED_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
IN_VAIN = (0, 2, 130)
"""The exit codes after which a node is not restarted: done, the user's mistake, stopped."""


@dataclass(slots=True)
class Restarts:
    """The restarts of one node. Running for `SETTLED_S` resets the count."""

    left: int = MOST
    pause_s: float = FIRST_PAUSE_S

    def next_pause_s(self, exit_code: int, lived_s: float) -> float | None:
        """Return the seconds until the restart, or None if there is none."""
        if lived_s >= SETTLED_S:
            self.left, self.pause_s = MOST, FIRST_PAUSE_S
        if exit_code in IN_VAIN or self.left == 0:
            return None
        pause_s = self.pause_s
        self.left, self.pause_s = self.left - 1, min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s
