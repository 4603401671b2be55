"""Simulated annealing over graphs (Kirkpatrick, Gelatt and Vecchi 1983), from good graphs downhill.

It is bounded by the graphs it tries, never by a clock: the same arguments give the same graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from topologies.design.rates import adjacency_of, mixing_rate, weighted_laplacian
from topologies.design.walk import Walk
from topologies.design.wanted import Key, Wanted
from topologies.effort import Tell, silent
from topologies.graph import Ends
from topologies.laplacian import Array

SEARCH_LIMIT = 500
"""nodes: above, one graph takes too long to judge."""

HOT, COLD = 0.5, 1e-4
"""the energy is a logarithm, and what is hot is divided by the nodes, since one edge of a larger graph matters less:
at first a graph of 20 nodes that is 2.5 % worse is taken with odds of 1 to e. Of 0.5, 1, 3 and 6 for HOT, 0.5 gave the
best graphs of 16 to 40 nodes."""

LEG = 4_000
"""graphs that one walk tries, so that many walks are made: symmetric graphs are far from each other."""

MISSES = 20
"""draws of impossible moves for each graph that is tried."""


@dataclass(slots=True)
class Best:
    """The best graph found for each number of edges: what one edge more or less would give."""

    wanted: Wanted
    found: dict[int, tuple[Key, float, Ends]] = field(default_factory=dict)

    def meet(self, adjacency: Array, rate: float, edges: int) -> None:
        key = self.wanted.key(rate, edges)
        if rate < 1.0 and (edges not in self.found or key < self.found[edges][0]):
            self.found[edges] = key, rate, np.argwhere(np.triu(adjacency))

    def ranked(self) -> list[tuple[Key, float, Ends]]:
        return sorted(self.found.values(), key=lambda entry: entry[0])


def evaluations_for(nodes: int) -> int:
    """Graphs to try unless told: a few seconds at 20 nodes, under a minute from 200 on."""
    return min(100_000, 400_000_000 // nodes**2, max(1_000, 80_000_000_000 // nodes**3))


def search(wanted: Wanted, starts: Sequence[Ends], evaluations: int, tell: Tell = silent) -> Best:
    """Walks from each start in turn, after each turn one from the best graph found; equal shares of `evaluations`."""
    rng = Random(wanted.seed)
    best = Best(wanted)
    turn = len(starts) + 1
    walks = turn * max(1, round(evaluations / (turn * LEG)))
    for walk in range(walks if starts else 0):
        again = walk % turn == len(starts)
        ends = best.ranked()[0][2] if again else starts[walk % turn]
        heat = HOT / wanted.nodes / (10.0 if again else 1.0)
        tell(f"searched {walk * (evaluations // walks)} of {evaluations} graphs")
        _anneal(_walk(wanted, ends), best, rng, evaluations // walks, heat)
    return best


def _walk(wanted: Wanted, ends: Ends) -> Walk:
    return Walk(adjacency_of(wanted.nodes, ends), wanted.weights, wanted.lowest, wanted.highest)


def _anneal(walk: Walk, best: Best, rng: Random, evaluations: int, hot: float) -> None:
    wanted = best.wanted
    energy = wanted.energy(walk.rate, len(walk.edges))
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
        if wanted.energy(walk.at_least(laplacian), edges) > bar:
            walk.undo(move)
            continue
        rate = mixing_rate(walk.adjacency, walk.weights)
        reached = wanted.energy(rate, edges)
        best.meet(walk.adjacency, rate, edges)
        if reached > bar:
            walk.undo(move)
            continue
        walk.keep(move)
        energy = reached
