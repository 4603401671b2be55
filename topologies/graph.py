"""One undirected simple graph as plain values. How it mixes is in `spectral` and `metrics`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes are 0 .. nodes-1. `edges` are pairs (i, j) with i < j, sorted, without repetition.

    `spec` says where the edges came from; a graph made by hand may carry any text.
    """

    spec: str
    nodes: int
    edges: tuple[Edge, ...]
    seed: int = 0

    def adjacency(self) -> list[list[int]]:
        """The neighbors of each node, ascending."""
        neighbors: list[list[int]] = [[] for _ in range(self.nodes)]
        for i, j in self.edges:
            neighbors[i].append(j)
            neighbors[j].append(i)
        for row in neighbors:
            row.sort()
        return neighbors

    def degrees(self) -> list[int]:
        return [len(row) for row in self.adjacency()]

    def to_networkx(self) -> Any:
        """The same graph as a `networkx.Graph` with integer nodes."""
        import networkx as nx  # noqa: PLC0415 - a quarter of a second that only this caller needs

        graph = nx.Graph()
        graph.add_nodes_from(range(self.nodes))
        graph.add_edges_from(self.edges)
        return graph


def ordered(pairs: Iterable[Sequence[int]]) -> tuple[Edge, ...]:
    """Pairs in any order and direction, as `Topology.edges` wants them. Self-loops are left out."""
    return tuple(sorted({(min(i, j), max(i, j)) for i, j in pairs if i != j}))


def distances(neighbors: Sequence[Sequence[int]], start: int) -> dict[int, int]:
    """Hops from `start` to every node it reaches, nearest first."""
    hops = {start: 0}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for neighbor in neighbors[node]:
            if neighbor not in hops:
                hops[neighbor] = hops[node] + 1
                queue.append(neighbor)
    return hops


def components(topology: Topology) -> list[list[int]]:
    """The connected components, each ascending, ordered by their least node."""
    neighbors = topology.adjacency()
    found: list[list[int]] = []
    seen: set[int] = set()
    for node in range(topology.nodes):
        if node not in seen:
            part = sorted(distances(neighbors, node))
            seen.update(part)
            found.append(part)
    return found
