"""Which edge wants to be woken next: a node with ten thousand edges must not ask each of them after every event."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from p2pfl.core.edge import Edge
from p2pfl.core.session import NEVER


class Timers:
    """An edge that changed its mind leaves an entry behind, which is thrown away when it comes to the top."""

    __slots__ = ("_edges", "_heap", "next_at")

    def __init__(self, edges: Mapping[int, Edge]) -> None:
        self._edges = edges
        self._heap: list[tuple[float, int]] = []
        self.next_at = NEVER

    def note(self, edge: Edge) -> None:
        """Call after whatever may have changed when `edge` wakes."""
        at = edge.wakes_at
        if at == edge.noted_at:
            return
        edge.noted_at = at
        if at != NEVER:
            heapq.heappush(self._heap, (at, edge.peer))
        self._tidy()

    def due(self, now: float) -> list[Edge]:
        """The edges to wake now, in order of their index. Each must be noted again."""
        peers = set()
        while self.next_at <= now:
            peers.add(heapq.heappop(self._heap)[1])
            self._tidy()
        return [self._edges[peer] for peer in sorted(peers)]

    def _tidy(self) -> None:
        heap, edges = self._heap, self._edges
        while heap and edges[heap[0][1]].noted_at != heap[0][0]:
            heapq.heappop(heap)
        self.next_at = heap[0][0] if heap else NEVER
