"""A walk over all graphs within degree bounds: each move adds or removes an edge, moves one end of it, or crosses two.
Where it matters which node is where, two nodes may also change places; of edges that are added to a given graph only
these move.

The eigenvectors of the walk's current graph show which edges matter: to first order an edge (i, j) raises an eigenvalue
by (v_i - v_j)^2 times its weight (Ghosh and Boyd, Growing Well-connected Graphs, 2006). They also bound the rate of
every other graph, which saves most eigenvalues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from random import Random

import numpy as np

from topologies.design.candidates import (
    LAMBDA_2,
    Goal,
    adjacency_of,
    rate_between,
    rate_of_laplacian,
    weighted_laplacian,
)
from topologies.graph import Edge, Ends
from topologies.spectral import EPSILON

Move = tuple[tuple[Edge, ...], tuple[Edge, ...]]
"""Edges to remove, and edges to add."""

KINDS = ("cross", "cross", "add", "remove", "turn", "turn")
FAR_KINDS = ("cross", "add", "remove", "turn", "turn", "places")
ADDED_KINDS = ("turn", "jump")
"""Moves of edges that are added to a given graph: their number stays."""
TRIES = 3
"""A guided move takes the most promising of this many random edges."""


class Walk:
    """A walk over graphs, with its current one. `adjacency` has shape (n, n); `edges` are those that may move; `rate`
    is the seconds to consensus if these are the criterion.
    """

    def __init__(self, goal: Goal, ends: Ends) -> None:
        self.goal = goal
        self.weights = goal.matrix
        self.adjacency = adjacency_of(goal.nodes, ends)
        self.degrees: list[int] = self.adjacency.sum(axis=0).astype(int).tolist()
        kept = set() if goal.given is None else set(goal.given.edges)
        present: list[Edge] = [(i, j) for i, j in np.argwhere(np.triu(self.adjacency)).tolist()]
        self.edges = [edge for edge in present if edge not in kept]
        self.highest = goal.highest
        self.lowest = 0 if goal.given else goal.lowest
        self._kinds = ADDED_KINDS if goal.given else FAR_KINDS if goal.by_time else KINDS
        self._kept = len(kept)
        self._neighbors = [np.flatnonzero(row).tolist() for row in self.adjacency]
        self.look()

    @property
    def nodes(self) -> int:
        return len(self.degrees)

    @property
    def edge_count(self) -> int:
        return self._kept + len(self.edges)

    def look(self) -> None:
        """Compute the current rate, and the eigenvectors that determine it."""
        by_time = self.goal.by_time
        self._laplacian = (
            self.goal.flow(np.argwhere(np.triu(self.adjacency)))
            if by_time
            else weighted_laplacian(self.adjacency, self.weights)
        )
        values, vectors = np.linalg.eigh(self._laplacian)
        low, high = float(values[1]), float(values[-1])
        if by_time:
            self.rate = math.inf if low < 1e-10 * max(high, 1e-300) else -math.log(EPSILON) / low
        else:
            self.rate = 1.0 if low < 1e-10 * max(1.0, high) else rate_between(low, high, self.weights)
        self._ends = low, high
        self._points: tuple[list[float], list[float]] = vectors[:, 1].tolist(), vectors[:, -1].tolist()
        if by_time or self.weights == LAMBDA_2:
            self._pull = 1.0, 0.0
        elif self.weights == "best-constant":
            self._pull = high, low
        else:
            self._pull = (1.0, 0.0) if 1.0 - low >= high - 1.0 else (0.0, 1.0)

    def rate_with(self, move: Move, good: Callable[[float], bool]) -> float | None:
        """Compute the rate, or the seconds, after the move; None if a bound from below tells that it is not `good`."""
        if self.goal.by_time:
            self.make(move)
            seconds = self.goal.seconds(np.argwhere(np.triu(self.adjacency)))
            self.undo(move)
            return seconds
        changes = self.changes(move)
        return self.rate_after(changes) if good(self.at_least(changes)) else None

    def gain(self, edge: Edge) -> float:
        """Return how much the edge, if present, lowers the rate, to first order and up to a constant."""
        i, j = edge
        low, high = self._points
        lifts: float = self._pull[0] * (low[i] - low[j]) ** 2
        stretches: float = self._pull[1] * (high[i] - high[j]) ** 2
        return lifts - stretches

    def changes(self, move: Move) -> list[tuple[int, int, float]]:
        """Return the edges whose weight the move changes, each with the difference of its weight."""
        before = self.degrees
        after = before.copy()
        for edges, step in zip(move, (-1, 1), strict=True):
            for i, j in edges:
                after[i] += step
                after[j] += step
        changes = [(i, j, -self._weight(i, j, before)) for i, j in move[0]]
        changes += [(i, j, self._weight(i, j, after)) for i, j in move[1]]
        if before == after or self.weights in {"best-constant", LAMBDA_2}:
            return changes
        for i, j in self._around(before, after):
            change = self._weight(i, j, after) - self._weight(i, j, before)
            if change and (i, j) not in move[0]:
                changes.append((i, j, change))
        return changes

    def _around(self, before: list[int], after: list[int]) -> Iterable[Edge]:
        """Return the edges whose weight the degrees may change, each once."""
        changed = [node for node, degree in enumerate(after) if degree != before[node]]
        return {_sorted(node, other): None for node in changed for other in self._neighbors[node]}

    def _weight(self, i: int, j: int, degrees: list[int]) -> float:
        if self.weights in {"best-constant", LAMBDA_2}:
            return 1.0
        return 1.0 / (max(degrees[i], degrees[j]) + 1.0)

    def at_least(self, changes: list[tuple[int, int, float]]) -> float:
        """Bound the rate after `changes` from below, using Rayleigh quotients of this graph's vectors."""
        (low, high), (lows, highs) = self._ends, self._points
        for i, j, change in changes:
            low += change * (lows[i] - lows[j]) ** 2
            high += change * (highs[i] - highs[j]) ** 2
        return rate_between(low, high, self.weights)

    def rate_after(self, changes: list[tuple[int, int, float]]) -> float:
        laplacian = self._laplacian.copy()
        for i, j, change in changes:
            laplacian[i, j] -= change
            laplacian[j, i] -= change
            laplacian[i, i] += change
            laplacian[j, j] += change
        return rate_of_laplacian(laplacian, self.weights)

    def draw(self, rng: Random) -> Move | None:
        """Draw a random move, guided every other time; None if the drawn move is impossible."""
        tries = TRIES if rng.random() < 0.5 else 1
        match self._kinds[int(rng.random() * len(self._kinds))]:
            case "cross":
                return self._cross(rng, tries)
            case "add":
                return self._add(rng, tries)
            case "jump":
                gone = self._weak(rng, tries)
                fresh = self._add(rng, tries)
                return fresh and ((gone,), fresh[1])
            case "places":
                return self._places(*rng.sample(range(self.nodes), 2))
            case "remove":
                edge = self._weak(rng, tries)
                spare = min(self.degrees[edge[0]], self.degrees[edge[1]]) > self.lowest
                return ((edge,), ()) if spare and len(self.edges) >= self.nodes else None
            case _:
                return self._turn(rng, tries)

    def _any(self, rng: Random) -> Edge:
        return self.edges[int(rng.random() * len(self.edges))]

    def _weak(self, rng: Random, tries: int) -> Edge:
        return self._any(rng) if tries == 1 else min((self._any(rng) for _ in range(tries)), key=self.gain)

    def _cross(self, rng: Random, tries: int) -> Move | None:
        """Let two edges swap ends, which preserves all degrees."""
        a, b = self._weak(rng, tries)
        ways = []
        for _ in range(tries):
            c, d = self._any(rng)
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
        """Move one end of an edge to another node."""
        stays, leaves = edge = self._weak(rng, tries)
        if rng.random() < 0.5:
            stays, leaves = leaves, stays
        if self.degrees[leaves] <= self.lowest:
            return None
        ends = [int(rng.random() * self.nodes) for _ in range(tries)]
        free = [
            end
            for end in ends
            if end not in edge and not self.adjacency[stays, end] and self.degrees[end] < self.highest
        ]
        return ((edge,), (_sorted(stays, max(free, key=lambda end: self.gain((stays, end)))),)) if free else None

    def _places(self, node: int, other: int) -> Move:
        """Let two nodes change places."""
        swap = {node: other, other: node}
        before = {edge for edge in self.edges if node in edge or other in edge}
        after = {_sorted(swap.get(i, i), swap.get(j, j)) for i, j in before}
        return tuple(sorted(before - after)), tuple(sorted(after - before))

    def make(self, move: Move) -> None:
        """Change only the adjacency; call `keep` or `undo` next."""
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
        for i, j in move[0]:
            self.edges.remove((i, j))
            self._neighbors[i].remove(j)
            self._neighbors[j].remove(i)
        for i, j in move[1]:
            self.edges.append((i, j))
            self._neighbors[i].append(j)
            self._neighbors[j].append(i)
        self.look()


def _sorted(i: int, j: int) -> Edge:
    return (i, j) if i < j else (j, i)
