"""In which of a node's rounds an edge has its turn.

Where the graph is a schedule of P graphs that repeats, a node's own round selects the edges: in version v it uses
those of graph v mod P, and in closing round t those of graph t mod P. On a static graph every round is every edge's
turn. Both ends of an edge know the same turns, and count them by their own rounds, so at any one time the two may be in
different rounds of the schedule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turns:
    """`phases` are the versions below `period` in which the edge is active, ascending; then it repeats."""

    period: int = 1
    phases: tuple[int, ...] = (0,)

    def active(self, version: int) -> bool:
        if len(self.phases) == self.period:
            return True
        phase = version % self.period
        place = bisect_right(self.phases, phase)
        return place > 0 and self.phases[place - 1] == phase

    def between(self, known: int, now: int) -> int:
        """How many turns came after version `known`, up to version `now`. On a static graph: `now - known`."""
        if len(self.phases) == self.period:
            return max(0, now - known)
        return max(0, self._until(now) - self._until(known))

    def _until(self, version: int) -> int:
        whole, phase = divmod(version, self.period)
        return whole * len(self.phases) + bisect_right(self.phases, phase)


ALWAYS = Turns()


def place(version: int, closing: int | None) -> int:
    """Selects a round's graph: nodes that joined, or train for a time, share closing rounds but not versions."""
    return closing or version


def turns_of(index: int, schedule: Sequence[Iterable[tuple[int, int]]]) -> dict[int, Turns]:
    """The turns of each neighbor of node `index`: `schedule` has the edges of each round of a period."""
    phases: dict[int, list[int]] = {}
    for phase, edges in enumerate(schedule):
        for a, b in edges:
            if index in (a, b):
                phases.setdefault(b if a == index else a, []).append(phase)
    return {peer: Turns(len(schedule), tuple(sorted(phases[peer]))) for peer in sorted(phases)}


def most_at_once(turns: Mapping[int, Turns]) -> int:
    """The largest number of these edges that are active in one and the same round."""
    period = max((one.period for one in turns.values()), default=0)
    return max((sum(one.active(phase) for one in turns.values()) for phase in range(period)), default=0)
