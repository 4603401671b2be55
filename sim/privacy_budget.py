"""The privacy budget of a simulated node, in rounds.

A real node pays for each round before it trains, in its log. Here too a round counts as it begins: one that a crash
interrupts is paid for, and a node that has lost its disk does not know what it has spent and only mixes.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2pfl.core.events import RoundRefused


@dataclass(slots=True)
class Purse:
    """The remaining budget of a node, in `rounds`."""

    rounds: int
    is_lost: bool = False

    def pay(self) -> RoundRefused | None:
        """Pay for one round; None: it may begin."""
        if self.is_lost:
            why = "what was spent of its privacy budget is not known, which counts as all"
            return RoundRefused(why=why, for_good=True)
        if self.rounds <= 0:
            return RoundRefused(why="its privacy budget is spent", for_good=True, planned=True)
        self.rounds -= 1
        return None
