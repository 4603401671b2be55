"""Simulated annealing over graphs (Kirkpatrick, Gelatt and Vecchi 1983), starting from good graphs.

The limit is a number of graphs tried, never time: the same arguments give the same graph.

A walk stays within the degree bounds: each move adds or removes an edge, moves one end of it, or crosses two edges.

The eigenvectors of the walk's current graph show which edges matter: to first order an edge (i, j) raises an eigenvalue
by (v_i - v_j)^2 times its weight (Ghosh and Boyd, Growing Well-connected Graphs, 2006).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from topologies.design.goal import LAMBDA_2, Goal, Key, adjacency_of, mixing_rate, rate_between, weighted_laplacian
from topologies.eigen.extremes import Tell, silent
from topologies.graph import Edge, Ends
from topologies.laplacian import Array

Move = tuple[tuple[Edge, ...], tuple[Edge, ...]]
"""Edges to remove, and edges to add."""

KINDS = ("cross", "cross", "add", "remove", "turn", "turn")
TRIES = 3
"""A guided move takes the most promising of this many random edges."""


class Walk:
    """A walk over graphs, with its current one. `adjacency` has shape (n, n)."""

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
        """Compute the current rate, and the eigenvectors that determine it."""
        values, vectors = np.linalg.eigh(weighted_laplacian(self.adjacency, self.weights))
        low, high = float(values[1]), float(values[-1])
        self.rate = 1.0 if low < 1e-10 * max(1.0, high) else rate_between(low, high, self.weights)
        self._low, self._high = np.array(vectors[:, 1]), np.array(vectors[:, -1])
        self._points: tuple[list[float], list[float]] = self._low.tolist(), self._high.tolist()
        if self.weights == "best-constant":
            self._pull = high, low
        elif self.weights == LAMBDA_2:
            self._pull = 1.0, 0.0
        else:
            self._pull = (1.0, 0.0) if 1.0 - low >= high - 1.0 else (0.0, 1.0)

    def gain(self, edge: Edge) -> float:
        """Return how much the edge, if present, lowers the rate, to first order and up to a constant."""
        i, j = edge
        low, high = self._points
        lifts: float = self._pull[0] * (low[i] - low[j]) ** 2
        stretches: float = self._pull[1] * (high[i] - high[j]) ** 2
        return lifts - stretches

    def at_least(self, laplacian: Array) -> float:
        """Bound another graph's rate from below, using Rayleigh quotients of this graph's vectors."""
        low = float(self._low @ laplacian @ self._low)
        high = float(self._high @ laplacian @ self._high)
        return rate_between(low, high, self.weights)

    def draw(self, rng: Random) -> Move | None:
        """Draw a random move, guided every other time; None if the drawn move is impossible."""
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
        """Let two edges swap ends, which preserves all degrees."""
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
        """Move one end of an edge to another node."""
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
        for edge in move[0]:
            self.edges.remove(edge)
        self.edges.extend(move[1])
        self.look()


def _sorted(i: int, j: int) -> Edge:
    return (i, j) if i < j else (j, i)


SEARCH_LIMIT = 500
"""The maximum number of nodes for a search; above that, one graph takes too long to judge."""

HOT, COLD = 0.5, 1e-4
"""Temperatures, divided by the number of nodes, since one edge of a larger graph matters less; the energy is a
logarithm.

At first a graph of 20 nodes that is 2.5 % worse is accepted with odds of 1 to e. Of 0.5, 1, 3 and 6 for HOT, 0.5 gave
the best graphs of 16 to 40 nodes.
"""

LEG = 4_000
"""The number of graphs per walk; short walks allow many of them, since symmetric graphs are far from each other."""

MISSES = 20
"""How many impossible moves may be drawn for each graph tried."""


@dataclass(slots=True)
class BestGraphs:
    """The best graph found for each number of edges, to show the effect of one edge more or less."""

    goal: Goal
    found: dict[int, tuple[Key, float, Ends]] = field(default_factory=dict)

    def meet(self, adjacency: Array, rate: float, edges: int) -> None:
        key = self.goal.key(rate, edges)
        if rate < 1.0 and (edges not in self.found or key < self.found[edges][0]):
            self.found[edges] = key, rate, np.argwhere(np.triu(adjacency))

    def ranked(self) -> list[tuple[Key, float, Ends]]:
        return sorted(self.found.values(), key=lambda entry: entry[0])


def evaluations_for(nodes: int) -> int:
    """Return the default number of graphs to try: a few seconds at 20 nodes, under a minute at 200 or more."""
    return min(100_000, 400_000_000 // nodes**2, max(1_000, 80_000_000_000 // nodes**3))


def search(goal: Goal, starts: Sequence[Ends], evaluations: int, tell: Tell = silent) -> BestGraphs:
    """Walk from each start in turn, and between these from the best graph found; `evaluations` are shared equally."""
    rng = Random(goal.seed)
    best = BestGraphs(goal)
    turn = len(starts) + 1
    walks = turn * max(1, round(evaluations / (turn * LEG)))
    for walk in range(walks if starts else 0):
        again = walk % turn == len(starts)
        ends = best.ranked()[0][2] if again else starts[walk % turn]
        heat = HOT / goal.nodes / (10.0 if again else 1.0)
        tell(f"searched {walk * (evaluations // walks)} of {evaluations} graphs")
        _anneal(_walk(goal, ends), best, rng, evaluations // walks, heat)
    return best


def _walk(goal: Goal, ends: Ends) -> Walk:
    return Walk(adjacency_of(goal.nodes, ends), goal.matrix, goal.lowest, goal.highest)


def _anneal(walk: Walk, best: BestGraphs, rng: Random, evaluations: int, hot: float) -> None:
    goal = best.goal
    energy = goal.energy(walk.rate, len(walk.edges))
    best.meet(walk.adjacency, walk.rate, len(walk.edges))
    tried = misses = 0
    while tried < evaluations and misses < MISSES * evaluations:
        move = walk.draw(rng)
        if move is None:
            misses += 1
            continue
        tried += 1
        heat = hot * (COLD / hot) ** (tried / evaluations)
        edges = len(walk.edges) + len(move[1]) - len(move[0])
        bar = energy - heat * math.log(1.0 - rng.random())
        walk.make(move)
        laplacian = weighted_laplacian(walk.adjacency, walk.weights)
        if goal.energy(walk.at_least(laplacian), edges) > bar:
            walk.undo(move)
            continue
        rate = mixing_rate(walk.adjacency, walk.weights)
        reached = goal.energy(rate, edges)
        best.meet(walk.adjacency, rate, edges)
        if reached > bar:
            walk.undo(move)
            continue
        walk.keep(move)
        energy = reached
