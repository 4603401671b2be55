"""How a node without memory finds its way into a federation that has moved on: whether it has, and from whom to start.

Where b neighbors may lie, more than b must say that it has, and the median is taken of more than 2 b: of fewer the
liars could choose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

from p2pfl.core.edge import Edge
from p2pfl.core.effects import Effect
from p2pfl.core.facts import Facts
from p2pfl.core.hearsay import Hearsay
from p2pfl.core.settings import Settings

JOIN_TICKS = 3
JOIN_WAIT_S = 10.0
LONGEST_JOIN_S = 60.0
"""A node goes on joining for so long where not one replica is filled: large models on slow lines take their time."""
LEAST_JOIN_TICK_S = 0.1
MOVED_ON = 2


class Joining:
    """`fresh`: the disk remembers nothing. `ticks` counts those taken to fill the replicas, `taken` is what was found
    of where to go on: rounds, and seconds trained.
    """

    def __init__(
        self, edges: Mapping[int, Edge], facts: Facts, settings: Settings, hearsay: Hearsay, *, fresh: bool
    ) -> None:
        self.edges = edges
        self.facts = facts
        self.settings = settings
        self.hearsay = hearsay
        self.fresh = fresh
        self.ticks = 0
        self.taken: tuple[int | None, float | None] = (None, None)

    def moved_on(self) -> bool:
        """A node that has not trained yet asks: do they remember it, or have they trained without it?

        An edge beyond its first incarnation tells of a lost disk, and does so again after a crash while joining. A node
        that comes back in the middle of its rounds when all that are there have finished asks the same: mixed with what
        they have found, its old model would only carry them back.
        """
        if self.facts.rounds:
            return self._is_last()
        late = MOVED_ON if self.fresh else float("inf")
        telling = sum(
            edge.is_open and (edge.exchange.record.incarnation > 0 or (edge.progress.first_heard or 0) >= late)
            for edge in self.edges.values()
        )
        return telling >= self.settings.profile.words_needed

    def begin(self) -> list[Effect]:
        self.facts.joining = True
        return [] if self.facts.rounds else self.hearsay.claim_another()

    def _is_last(self) -> bool:
        settings = self.settings
        if settings.rounds is not None and self.facts.rounds >= settings.rounds:
            return False
        there = [edge for edge in self.edges.values() if edge.is_open]
        return len(there) >= settings.profile.words_needed and all(edge.progress.done for edge in there)

    def place(self, sources: tuple[int, ...]) -> tuple[int | None, float | None]:
        """Where a node that has never trained goes on: the (lower) median of what these neighbors have trained."""
        if self.facts.rounds:
            return None, None
        told = median_low(self.edges[peer].progress.trained for peer in sources)
        settings = self.settings
        if not told:
            return self.taken
        if settings.rounds is not None:
            self.taken = min(told, settings.rounds), None
        else:
            self.taken = None, min(float(told), settings.time_s or 0.0)
        return self.taken

    def sources(self, *, late: bool) -> tuple[int, ...]:
        """The neighbors whose median it starts from; none yet, if there are more to wait for.

        Replicas that were filled before this process began may be from long ago.
        """
        live = [edge for edge in self.edges.values() if edge.is_open]
        filled = tuple(
            edge.peer for edge in live if min(edge.exchange.record.seq, edge.service.exchanges) >= JOIN_TICKS
        )
        enough = (late or len(filled) == len(live)) and len(filled) >= self.settings.profile.neighbors_needed
        return filled if enough else ()
