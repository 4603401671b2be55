"""How a node without memory finds its way into a federation that has moved on: whether it has, and from whom to start.

Where b neighbors may lie, more than b must say that it has, and the median is taken of more than 2 b: of fewer the
liars could choose it.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.core.edge import Edge
from p2pfl.core.facts import Facts
from p2pfl.core.mixing import Mixing

JOIN_TICKS = 3
JOIN_WAIT_S = 10.0
LEAST_JOIN_TICK_S = 0.1
MOVED_ON = 2


class Joining:
    """`fresh`: the disk remembers nothing. `ticks` counts those taken to fill the replicas."""

    def __init__(self, edges: Mapping[int, Edge], facts: Facts, mixing: Mixing, *, fresh: bool) -> None:
        self.edges = edges
        self.facts = facts
        self.mixing = mixing
        self.fresh = fresh
        self.ticks = 0

    def moved_on(self) -> bool:
        """A node that has not trained yet asks: do they remember it, or have they trained without it?

        An edge beyond its first incarnation tells of a lost disk, and does so again after a crash while joining.
        """
        if self.facts.rounds:
            return False
        late = MOVED_ON if self.fresh else float("inf")
        telling = sum(
            edge.is_open and (edge.record.incarnation > 0 or (edge.first_heard or 0) >= late)
            for edge in self.edges.values()
        )
        return telling > (self.mixing.settings.liars or 0)

    def sources(self, *, late: bool) -> tuple[int, ...]:
        """The neighbors whose median it starts from; none yet, if there are more to wait for."""
        live = [edge for edge in self.edges.values() if edge.is_open]
        filled = tuple(edge.peer for edge in live if edge.record.seq >= JOIN_TICKS)
        enough = (late or len(filled) == len(live)) and self.mixing.is_safe(len(filled))
        return filled if enough else ()
