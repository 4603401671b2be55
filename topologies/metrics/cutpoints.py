"""Bridges and articulation points: the single edges and the single nodes whose loss splits the graph."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.graph import Edge, Topology
from topologies.metrics.known import degree_range, is_transitive

SEARCH_LIMIT = 3_000_000
"""nodes and edges together that are searched: about two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoints:
    """`bridges` are pairs (i, j) with i < j, `nodes` the articulation points; both ascending."""

    bridges: tuple[Edge, ...]
    nodes: tuple[int, ...]


def cut_points(topology: Topology, limit: int = SEARCH_LIMIT) -> CutPoints | None:
    """None for a graph of more than `limit` nodes and edges, or without edges to look at."""
    if degree_range(topology)[0] >= 2 and is_transitive(topology):
        # Mader 1971, Watkins 1970: such a component stays whole when any edge or any node of it is lost
        return CutPoints(bridges=(), nodes=())
    if topology.implicit or topology.nodes + topology.edge_count > limit:
        return None
    return _search(topology)


def _search(topology: Topology) -> CutPoints:
    search = _Search(topology)
    for root in range(topology.nodes):
        if not search.entered[root]:
            search.explore(root)
    return CutPoints(bridges=tuple(sorted(search.bridges)), nodes=tuple(sorted(search.cut)))


class _Search:
    """`place[v]`: the next neighbor of v to look at. `entered[v]`: when v was reached.
    `low[v]`: the earliest node that an edge reaches from v or from below it.

    Source: Hopcroft and Tarjan, Algorithm 447 (1973). Without recursion: a path may be a million nodes deep.
    """

    def __init__(self, topology: Topology) -> None:
        starts, self.neighbors = (part.tolist() for part in topology.rows)
        self.place, self.ends = starts[:-1], starts[1:]
        self.entered, self.low, self.parent = ([0] * topology.nodes for _ in range(3))
        self.clock = 0
        self.bridges: list[Edge] = []
        self.cut: set[int] = set()

    def explore(self, root: int) -> None:
        """All that `root` reaches."""
        place, ends, neighbors = self.place, self.ends, self.neighbors
        entered, low, parent = self.entered, self.low, self.parent
        self._enter(root, -1)
        node, branches = root, 0
        while node >= 0:
            if place[node] == ends[node]:
                branches += parent[node] == root
                node = self._leave(node, root)
                continue
            other = neighbors[place[node]]
            place[node] += 1
            if not entered[other]:
                self._enter(other, node)
                node = other
            elif other != parent[node] and entered[other] < low[node]:
                low[node] = entered[other]
        if branches > 1:
            self.cut.add(root)

    def _enter(self, node: int, above: int) -> None:
        self.clock += 1
        self.entered[node] = self.low[node] = self.clock
        self.parent[node] = above

    def _leave(self, node: int, root: int) -> int:
        """Back to the node above, which learns how far up the edges below it reach."""
        above = self.parent[node]
        if above < 0:
            return above
        self.low[above] = min(self.low[above], self.low[node])
        if self.low[node] > self.entered[above]:
            self.bridges.append((min(node, above), max(node, above)))
        if above != root and self.low[node] >= self.entered[above]:
            self.cut.add(above)
        return above
