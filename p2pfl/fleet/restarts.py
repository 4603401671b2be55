"""Decides when a node that has died is started again: after longer and longer pauses, and a few times in a row."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 5
SETTLED_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
IN_VAIN = (0, 2, 130)
"""Exit codes after which a node is not started again: done, the user's mistake, stopped."""


@dataclass(slots=True)
class Restarts:
    """The restarts of one node. A life of `SETTLED_S` resets the count."""

    left: int = MOST
    pause_s: float = FIRST_PAUSE_S

    def next_pause_s(self, exit_code: int, lived_s: float) -> float | None:
        """Return the seconds until the restart; None: no restart."""
        if lived_s >= SETTLED_S:
            self.left, self.pause_s = MOST, FIRST_PAUSE_S
        if exit_code in IN_VAIN or self.left == 0:
            return None
        pause_s = self.pause_s
        self.left, self.pause_s = self.left - 1, min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s
