"""A walk over graphs within bounds on their degrees: an edge added, removed, or turned, or two edges crossed.

The eigenvectors of the graph where the walk stands say which edges carry much: to first order an edge (i, j) raises an
eigenvalue by (v_i - v_j)^2 times its weight (Ghosh and Boyd, Growing Well-connected Graphs, 2006).
"""

from __future__ import annotations

from random import Random

import numpy as np

from topologies.design.rates import rate_between, weighted_laplacian
from topologies.graph import Edge
from topologies.laplacian import Array

Move = tuple[tuple[Edge, ...], tuple[Edge, ...]]
"""Edges that go, edges that come."""

KINDS = ("cross", "cross", "add", "remove", "turn", "turn")
TRIES = 3
"""among so many edges, drawn at random, a guided move takes the one that promises most."""


class Walk:
    """The graph where the walk stands. `adjacency` has shape (n, n)."""

    def __init__(self, adjacency: Array, weights: str, lowest: int, highest: int) -> None:
        self.adjacency = np.array(adjacency, dtype=np.float64)
        self.weights = weights
        self.lowest = lowest
        self.highest = highest
        self.degrees: list[int] = self.adjacency.sum(axis=0).astype(int).tolist()
        self.edges: list[Edge] = [(i, j) for i, j in np.argwhere(np.triu(self.adjacency)).tolist()]
        self.look()

    @property
    def nodes(self) -> int:
        return len(self.degrees)

    def look(self) -> None:
        """Finds the eigenvectors that decide the rate here, and the rate."""
        values, vectors = np.linalg.eigh(weighted_laplacian(self.adjacency, self.weights))
        low, high = float(values[1]), float(values[-1])
        self.rate = 1.0 if low < 1e-10 * max(1.0, high) else rate_between(low, high, self.weights)
        self._low, self._high = np.array(vectors[:, 1]), np.array(vectors[:, -1])
        self._points: tuple[list[float], list[float]] = self._low.tolist(), self._high.tolist()
        if self.weights == "best-constant":
            self._pull = high, low
        else:
            self._pull = (1.0, 0.0) if 1.0 - low >= high - 1.0 else (0.0, 1.0)

    def gain(self, edge: Edge) -> float:
        """How much the edge, if it is there, lowers the rate: to first order and up to a constant."""
        i, j = edge
        low, high = self._points
        lifts: float = self._pull[0] * (low[i] - low[j]) ** 2
        stretches: float = self._pull[1] * (high[i] - high[j]) ** 2
        return lifts - stretches

    def at_least(self, laplacian: Array) -> float:
        """A lower bound on another graph's rate: the Rayleigh quotients of the vectors of this one."""
        low = float(self._low @ laplacian @ self._low)
        high = float(self._high @ laplacian @ self._high)
        return rate_between(low, high, self.weights)

    def draw(self, rng: Random) -> Move | None:
        """A random move, guided every other time; None where the one drawn is impossible."""
        tries = TRIES if rng.random() < 0.5 else 1
        match rng.choice(KINDS):
            case "cross":
                return self._cross(rng, tries)
            case "add":
                return self._add(rng, tries)
            case "remove":
                edge = self._weak(rng, tries)
                spare = min(self.degrees[edge[0]], self.degrees[edge[1]]) > self.lowest
                return ((edge,), ()) if spare and len(self.edges) >= self.nodes else None
            case _:
                return self._turn(rng, tries)

    def _weak(self, rng: Random, tries: int) -> Edge:
        return min((rng.choice(self.edges) for _ in range(tries)), key=self.gain)

    def _cross(self, rng: Random, tries: int) -> Move | None:
        """Two edges exchange their ends: all degrees stay."""
        a, b = self._weak(rng, tries)
        ways = []
        for _ in range(tries):
            c, d = rng.choice(self.edges)
            if rng.random() < 0.5:
                c, d = d, c
            if len({a, b, c, d}) == 4 and not self.adjacency[a, c] and not self.adjacency[b, d]:
                ways.append((c, d))
        if not ways:
            return None
        c, d = max(ways, key=lambda way: self.gain((a, way[0])) + self.gain((b, way[1])) - self.gain(way))
        return ((a, b), _sorted(c, d)), (_sorted(a, c), _sorted(b, d))

    def _add(self, rng: Random, tries: int) -> Move | None:
        free = [node for node, degree in enumerate(self.degrees) if degree < self.highest]
        if len(free) < 2:
            return None
        pairs = [tuple(rng.sample(free, 2)) for _ in range(tries)]
        absent = [(i, j) for i, j in pairs if not self.adjacency[i, j]]
        return ((), (_sorted(*max(absent, key=self.gain)),)) if absent else None

    def _turn(self, rng: Random, tries: int) -> Move | None:
        """One end of an edge moves to another node."""
        stays, leaves = edge = self._weak(rng, tries)
        if rng.random() < 0.5:
            stays, leaves = leaves, stays
        if self.degrees[leaves] <= self.lowest:
            return None
        ends = [rng.randrange(self.nodes) for _ in range(tries)]
        free = [
            end
            for end in ends
            if end not in edge and not self.adjacency[stays, end] and self.degrees[end] < self.highest
        ]
        return ((edge,), (_sorted(stays, max(free, key=lambda end: self.gain((stays, end)))),)) if free else None

    def make(self, move: Move) -> None:
        """Changes the adjacency alone: `keep` or `undo` comes next."""
        for edges, value in zip(move, (0.0, 1.0), strict=True):
            for i, j in edges:
                self.adjacency[i, j] = self.adjacency[j, i] = value

    def undo(self, move: Move) -> None:
        self.make((move[1], move[0]))

    def keep(self, move: Move) -> None:
        for edges, step in zip(move, (-1, 1), strict=True):
            for i, j in edges:
                self.degrees[i] += step
                self.degrees[j] += step
        for edge in move[0]:
            self.edges.remove(edge)
        self.edges.extend(move[1])
        self.look()


def _sorted(i: int, j: int) -> Edge:
    return (i, j) if i < j else (j, i)
