"""Which edge wants to be woken next: a node with ten thousand edges must not ask each of them after every event."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from p2pfl.core.edge import Edge
from p2pfl.core.session import NEVER


class Timers:
    """An edge that changed its mind leaves an entry behind, which is thrown away when it comes to the top."""

    __slots__ = ("_edges", "_heap")

    def __init__(self, edges: Mapping[int, Edge]) -> None:
        self._edges = edges
        self._heap: list[tuple[float, int]] = []

    def note(self, edge: Edge) -> None:
        """Call after whatever may have set a timer of `edge`; one that was only stopped need not be told."""
        at = edge.wakes_at
        if at not in (NEVER, edge.noted_at):
            edge.noted_at = at
            heapq.heappush(self._heap, (at, edge.peer))

    def due(self, now: float) -> list[Edge]:
        """The edges to wake now, in order of their index; each must be noted again."""
        peers = set()
        while self.next_at() <= now:
            peers.add(self._pop())
        return [self._edges[peer] for peer in sorted(peers)]

    def next_at(self) -> float:
        while self._heap:
            at, peer = self._heap[0]
            if self._edges[peer].wakes_at == at:
                return at
            self._pop()
        return NEVER

    def _pop(self) -> int:
        at, peer = heapq.heappop(self._heap)
        edge = self._edges[peer]
        if edge.noted_at == at:
            edge.noted_at = NEVER
        return peer
