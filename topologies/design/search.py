"""Simulated annealing over graphs (Kirkpatrick, Gelatt and Vecchi 1983): first over graphs with a symmetry, then over
all graphs, starting from the best of those and from the best of the families.

The limit is a number of graphs tried, so that the same arguments give the same graph, unless a caller ends the search
by time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from topologies.design.goal import Goal, Key, Over, mixing_rate, never
from topologies.design.rotations import Cycles, SymmetricWalk, rotations
from topologies.design.walk import Walk
from topologies.eigen.extremes import Tell, silent
from topologies.graph import Ends
from topologies.laplacian import Array

HOT, COLD = 0.5, 1e-4
"""Temperatures, divided by the number of nodes, since one edge of a larger graph matters less; the energy is a
logarithm.

At first a graph of 20 nodes that is 2.5 % worse is accepted with odds of 1 to e. Of 0.5, 1, 3 and 6 for HOT, 0.5 gave
the best graphs of 16 to 40 nodes.
"""
FAR_HOT = 0.1
SYMMETRIC_HOT = 1.5
"""The same for symmetric graphs, where a move changes a whole orbit of edges."""

LEG = 4_000
"""The number of graphs per walk; short walks allow many of them, since symmetric graphs are far from each other."""
SYMMETRIC_LEG = 400
"""The number of graphs of the first walk among those of one rotation; each further walk tries as many more."""
HOPELESS = 30
"""A walk over symmetric graphs ends if this many were not connected."""

MISSES = 20
"""How many impossible moves may be drawn for each graph tried."""


@dataclass(slots=True)
class BestGraphs:
    """The best graph found for each number of edges, to show the effect of one edge more or less."""

    goal: Goal
    found: dict[int, tuple[Key, float, Ends]] = field(default_factory=dict)
    over: Over = never

    def meet(self, adjacency: Array, rate: float, edges: int) -> None:
        key = self.goal.key(rate, edges)
        if rate < (math.inf if self.goal.by_time else 1.0) and (edges not in self.found or key < self.found[edges][0]):
            self.found[edges] = key, rate, np.argwhere(np.triu(adjacency))

    def ranked(self) -> list[tuple[Key, float, Ends]]:
        return sorted(self.found.values(), key=lambda entry: entry[0])


def evaluations_for(nodes: int) -> int:
    """Return the default number of graphs to try: about three seconds at 20 nodes, a minute at 200 or more."""
    return min(40_000, 400_000_000 // nodes**2, max(1_000, 80_000_000_000 // nodes**3))


def search(goal: Goal, starts: Sequence[Ends], evaluations: int, tell: Tell = silent, over: Over = never) -> BestGraphs:
    """Search among symmetric graphs, unless nodes differ, then walk from each start in turn, and between these from the
    best graph found; `evaluations` are shared by all of these.
    """
    rng = Random(goal.seed)
    best = BestGraphs(goal, over=over)
    alike = not goal.by_time and goal.given is None
    spent = _search_symmetric(best, rng, evaluations // 2, tell) if alike else 0
    starts = [*starts, *([best.ranked()[0][2]] if best.found else [])]
    turn, left = len(starts) + 1, evaluations - spent
    walks = turn * max(1, round(left / (turn * LEG)))
    for walk in range(walks if starts else 0):
        if over():
            break
        again = walk % turn == len(starts)
        ends = best.ranked()[0][2] if again else starts[walk % turn]
        heat = (FAR_HOT if goal.by_time else HOT) / goal.nodes / (10.0 if again else 1.0)
        tell(f"searched {spent + walk * (left // walks)} of {evaluations} graphs")
        _anneal(Walk(goal, ends), best, rng, left // walks, heat)
    return best


def _anneal(walk: Walk, best: BestGraphs, rng: Random, evaluations: int, hot: float) -> None:
    goal = best.goal
    energy = goal.energy(walk.rate, walk.edge_count)
    best.meet(walk.adjacency, walk.rate, walk.edge_count)
    tried = misses = 0
    while tried < evaluations and misses < MISSES * evaluations and not best.over():
        move = walk.draw(rng)
        if move is None:
            misses += 1
            continue
        tried += 1
        heat = hot * (COLD / hot) ** (tried / evaluations)
        edges = walk.edge_count + len(move[1]) - len(move[0])
        bar = energy - heat * math.log(1.0 - rng.random())
        rate = walk.rate_with(move, lambda least: goal.energy(least, edges) <= bar)  # noqa: B023 - called at once
        if rate is None:
            continue
        reached = goal.energy(rate, edges)
        walk.make(move)
        best.meet(walk.adjacency, rate, edges)
        if reached > bar:
            walk.undo(move)
            continue
        walk.keep(move)
        energy = reached


def _search_symmetric(best: BestGraphs, rng: Random, evaluations: int, tell: Tell) -> int:
    """Walk over the graphs of each rotation in turn, while some are left that have connected graphs; return how many
    graphs were tried.
    """
    known: dict[Cycles, dict[int, float]] = {cycles: {} for cycles in rotations(best.goal.nodes)}
    tried = turn = 0
    while known and tried < evaluations and not best.over():
        turn += 1
        for cycles, rates in list(known.items()):
            tell(f"searched {tried} of {evaluations} symmetric graphs")
            leg = min(turn * SYMMETRIC_LEG, evaluations - tried)
            walked = _anneal_symmetric(cycles, best, rng, leg, rates)
            tried += walked
            if walked <= 1 or min(rates.values(), default=1.0) == 1.0:
                del known[cycles]
    return tried


def _anneal_symmetric(cycles: Cycles, best: BestGraphs, rng: Random, evaluations: int, known: dict[int, float]) -> int:
    """Walk, and return how many graphs were tried. `known` has the rates of the graphs that earlier walks met, and
    receives those of this one.
    """
    goal = best.goal
    sparse = goal.minimize != "rounds" and not goal.maximize
    walk = SymmetricWalk(cycles, goal.highest, rng, sparse=sparse)
    hot = SYMMETRIC_HOT / goal.nodes
    energy, tried, misses = math.inf, 0, 0
    while tried < evaluations and misses < MISSES * evaluations and not best.over():
        if tried and not walk.can_move:
            break
        move = walk.move(rng) if tried else ((), ())
        if move is None:
            misses += 1
            continue
        if tried == HOPELESS and math.isinf(energy):
            break
        tried += 1
        edges = walk.edge_count
        if walk.state not in known:
            right = walk.least_degree >= goal.lowest
            rate = known[walk.state] = mixing_rate(walk.adjacency, goal.matrix) if right else 1.0
            best.meet(walk.adjacency, rate, edges)
        reached = goal.energy(known[walk.state], edges)
        heat = hot * (COLD / hot) ** (tried / evaluations)
        if reached > energy - heat * math.log(1.0 - rng.random()):
            walk.undo(move)
            continue
        energy = reached
    return tried
