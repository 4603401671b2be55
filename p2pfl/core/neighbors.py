"""The edges of one node, which come and go with the members and the graph of its federation, and when they must wake.

All maps here are in the order of the neighbors, and stay the same objects: other parts of the core hold on to them.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TypeVar

from p2pfl.core.edge import Common, Edge
from p2pfl.core.edge_line import EdgeLine
from p2pfl.core.facts import NEVER
from p2pfl.core.records import EdgeRecord
from p2pfl.core.staleness import Turns

T = TypeVar("T")


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

    def forget(self, peer: int) -> None:
        """The edge is about to go."""
        self._heap = [entry for entry in self._heap if entry[1] != peer]
        heapq.heapify(self._heap)
        self._tidy()

    def _tidy(self) -> None:
        heap, edges = self._heap, self._edges
        while heap and edges[heap[0][1]].noted_at != heap[0][0]:
            heapq.heappop(heap)
        self.next_at = heap[0][0] if heap else NEVER


class Neighbors:
    """The edges of node `index`; `lines` is that of the hearsay in `common`."""

    def __init__(self, index: int, common: Common, lines: dict[int, EdgeLine]) -> None:
        self.index = index
        self.common = common
        self.edges = common.edges
        self.timers = Timers(common.edges)
        self._lines = lines

    def add(self, peer: int, record: EdgeRecord, turns: Turns) -> None:
        """An edge without a session."""
        edge = Edge(peer, record, self.common, initiates=self.index < peer, turns=turns)
        _put(self.edges, peer, edge)
        _put(self._lines, peer, edge.line)
        _put(self.common.exchanges, peer, edge.exchange)

    def remove(self, peer: int) -> None:
        """An edge whose session has ended, and on which the engine is not at work."""
        self.timers.forget(peer)
        del self.edges[peer], self._lines[peer], self.common.exchanges[peer]


def _put(found: dict[int, T], peer: int, value: T) -> None:
    """In its place."""
    later = {other: found.pop(other) for other in [*found] if other > peer}
    found[peer] = value
    found.update(later)
