"""Whose state a node should have in place of its own: that of most, unless nobody gives it any more."""

from __future__ import annotations

from p2pfl.features.summed.standings import Place, Standings

MOST_VAIN, LOST_S = 10, 30.0
"""After so many times in vain a state is not asked for during so many seconds."""


class Following:
    """Decides for one node, by all standings. `place` is its own state; it is told of all that happens."""

    def __init__(self, standings: Standings) -> None:
        self._standings = standings
        self.place = Place(0, b"")
        self._was_refused = False
        """True once a sum from this state was refused: then the node may go back to an earlier one."""
        self._vain = 0
        self._lost: dict[Place, float] = {}
        """Until when which state is not asked for."""

    def next_place(self, now: float) -> Place | None:
        """Return the state that the node should take over, None if its own is right."""
        lost = [place for place, until in self._lost.items() if now < until]
        ahead = self._standings.ahead_of(self.place, but=lost)
        return self._standings.common_before(self.place) if ahead is None and self._was_refused else ahead

    def moved(self, place: Place) -> None:
        """Note that the node has this state now."""
        if place != self.place:
            self.place, self._was_refused, self._vain = place, False, 0

    def refused(self) -> None:
        """Note that a sum from the present state was refused."""
        self._was_refused = True

    def asked_in_vain(self, place: Place, now: float) -> None:
        """Note that no neighbor gave that state. After some times in a row all who had it count as gone for a while."""
        self._vain += 1
        if self._vain >= MOST_VAIN:
            self._vain, self._lost[place] = 0, now + LOST_S
