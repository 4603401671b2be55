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
    """`low[v]`: the earliest node that an edge reaches from v or from below it in the search tree.

    Source: Hopcroft and Tarjan, Algorithm 447 (1973). Without recursion: a path may be a million nodes deep.
    """
    starts, neighbors = (part.tolist() for part in topology.rows)
    place = starts[:-1]
    entered, low, parent = ([0] * topology.nodes for _ in range(3))
    bridges: list[Edge] = []
    cut: set[int] = set()
    clock = 0
    for root in range(topology.nodes):
        if entered[root]:
            continue
        clock += 1
        entered[root] = low[root] = clock
        parent[root] = -1
        node, branches = root, 0
        while node >= 0:
            if place[node] < starts[node + 1]:
                other = neighbors[place[node]]
                place[node] += 1
                if not entered[other]:
                    clock += 1
                    entered[other] = low[other] = clock
                    parent[other] = node
                    node = other
                elif other != parent[node] and entered[other] < low[node]:
                    low[node] = entered[other]
                continue
            above = parent[node]
            if above >= 0:
                low[above] = min(low[above], low[node])
                if low[node] > entered[above]:
                    bridges.append((min(node, above), max(node, above)))
                if above == root:
                    branches += 1
                elif low[node] >= entered[above]:
                    cut.add(above)
            node = above
        if branches > 1:
            cut.add(root)
    return CutPoints(bridges=tuple(sorted(bridges)), nodes=tuple(sorted(cut)))
