"""The edges of one node, which come and go with the members and the graph of its federation, and their timers.

All maps here are in the order of the neighbors, and stay the same objects, because other parts of the core hold them.
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
    """The times at which edges must wake. An outdated entry stays in the heap until it comes to the top."""

    __slots__ = ("_edges", "_heap", "next_at")

    def __init__(self, edges: Mapping[int, Edge]) -> None:
        self._edges = edges
        self._heap: list[tuple[float, int]] = []
        self.next_at = NEVER

    def note(self, edge: Edge) -> None:
        """Note the time at which `edge` must wake. Call this after anything that may have changed it."""
        at = edge.wakes_at
        if at == edge.noted_at:
            return
        edge.noted_at = at
        if at != NEVER:
            heapq.heappush(self._heap, (at, edge.peer))
        self._tidy()

    def due(self, now: float) -> list[Edge]:
        """Return the edges to wake now, in order of their index. Each must be noted again."""
        peers = set()
        while self.next_at <= now:
            peers.add(heapq.heappop(self._heap)[1])
            self._tidy()
        return [self._edges[peer] for peer in sorted(peers)]

    def forget(self, peer: int) -> None:
        """Forget an edge that is about to be removed."""
        self._heap = [entry for entry in self._heap if entry[1] != peer]
        heapq.heapify(self._heap)
        self._tidy()

    def _tidy(self) -> None:
        heap, edges = self._heap, self._edges
        while heap and edges[heap[0][1]].noted_at != heap[0][0]:
            heapq.heappop(heap)
        self.next_at = heap[0][0] if heap else NEVER


class Neighbors:
    """The edges of node `index`. `lines` are the same as in `common.hearsay`."""

    def __init__(self, index: int, common: Common, lines: dict[int, EdgeLine]) -> None:
        self.index = index
        self.common = common
        self.edges = common.edges
        self.timers = Timers(common.edges)
        self._lines = lines

    def add(self, peer: int, record: EdgeRecord, turns: Turns) -> None:
        """Add an edge without a session."""
        edge = Edge(peer, record, self.common, initiates=self.index < peer, turns=turns)
        _put(self.edges, peer, edge)
        _put(self._lines, peer, edge.line)
        _put(self.common.exchanges, peer, edge.exchange)

    def remove(self, peer: int) -> None:
        """Remove an edge that has no session and on which the engine is not at work."""
        self.timers.forget(peer)
        del self.edges[peer], self._lines[peer], self.common.exchanges[peer]


def _put(by_peer: dict[int, T], peer: int, value: T) -> None:
    """Insert an entry so that the keys stay in ascending order."""
    later = {other: by_peer.pop(other) for other in [*by_peer] if other > peer}
    by_peer[peer] = value
    by_peer.update(later)
