"""Simulated annealing over graphs (Kirkpatrick, Gelatt and Vecchi 1983): first over graphs with a symmetry, then over
all graphs, starting from the best of those and from the best of the families.

A graph with a symmetry is one that a rotation maps onto itself: all edges of an orbit are there, or none is. The best
graphs that are known have one (Petersen, Heawood, Hoffman and Singleton, most records of the degree-diameter problem:
Loz and Siran, New record graphs in the degree-diameter problem, 2008), and there are so few of them that a few hundred
show the best: 435 pairs of 30 nodes fall into 43 orbits under a rotation of order 10.

The limit is a number of graphs tried, so that the same arguments give the same graph, unless a caller ends the search
by time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from topologies.design.candidates import Goal, Key, mixing_rate
from topologies.design.walk import Walk
from topologies.eigen import Tell, silent
from topologies.eigen.iterations import Over, never
from topologies.eigen.laplacian import Array
from topologies.graph import Ends

Turn = tuple[tuple[int, ...], tuple[int, ...]]
"""Orbits to remove, and orbits to add."""


Cycles = tuple[int, ...]
"""The lengths of a rotation's cycles: it moves node i of a cycle to node i + 1 of that cycle."""


def rotations(nodes: int) -> list[Cycles]:
    """Return the rotations that are tried: for each order as many cycles of that length as there is room for, then the
    longest ones whose length divides it. A single cycle is left out: its graphs are the circulants. Those with few
    cycles come first, because they have the fewest graphs.
    """
    return sorted((_cycles(nodes, order) for order in range(2, nodes)), key=len)


def _cycles(nodes: int, order: int) -> Cycles:
    lengths = [order] * (nodes // order)
    left = nodes % order
    while left:
        lengths.append(next(length for length in range(left, 0, -1) if order % length == 0))
        left -= lengths[-1]
    return tuple(lengths)


def pair_orbits(cycles: Cycles) -> list[Ends]:
    """Return the orbits of pairs of nodes, each of shape (edges, 2). Nodes are numbered along the cycles."""
    orbits = []
    starts = np.cumsum((0, *cycles)).tolist()
    for a, first in enumerate(cycles):
        # a pair half way around a cycle comes twice
        steps = ((np.arange(first if 2 * step < first else step), step) for step in range(1, first // 2 + 1))
        orbits += [np.stack([starts[a] + turn, starts[a] + (turn + step) % first], 1) for turn, step in steps]
        for b in range(a + 1, len(cycles)):
            turn = np.arange(math.lcm(first, cycles[b]))
            left, right = starts[a] + turn % first, starts[b] + turn % cycles[b]
            shifts = range(math.gcd(first, cycles[b]))
            orbits += [np.stack([left, starts[b] + (right - starts[b] + step) % cycles[b]], 1) for step in shifts]
    return orbits


class SymmetricWalk:
    """A walk over the graphs of one rotation. `adjacency` has shape (n, n).

    `sparse`: edges may be left out; otherwise a move fills up all nodes that have room.
    """

    def __init__(self, cycles: Cycles, highest: int, rng: Random, *, sparse: bool) -> None:
        self.highest = highest
        self.sparse = sparse
        nodes = sum(cycles)
        self.adjacency = np.zeros((nodes, nodes))
        self.state = 0  # a bit for each orbit that is present
        self._orbits: list[Ends] = []
        self._degrees: list[list[tuple[int, int]]] = []
        cell = np.repeat(np.cumsum((0, *cycles[:-1])), cycles)
        for orbit in pair_orbits(cycles):
            degrees = np.bincount(orbit.ravel(), minlength=nodes)
            if degrees.max() <= highest:
                self._orbits.append(orbit)
                places = np.unique(cell[orbit])
                self._degrees.append([(int(place), int(degrees[place])) for place in places])
        self._beside: dict[int, list[int]] = {int(place): [] for place in np.unique(cell)}
        for orbit_number, degrees_there in enumerate(self._degrees):
            for place, _ in degrees_there:
                self._beside[place].append(orbit_number)
        self._used = dict.fromkeys(self._beside, 0)
        self._chosen = [False] * len(self._orbits)
        self._start(rng)

    def _start(self, rng: Random) -> None:
        order = list(range(len(self._orbits)))
        rng.shuffle(order)
        for orbit in order:
            if self._fits(orbit):
                self._put(orbit, present=True)

    @property
    def edge_count(self) -> int:
        return int(self.adjacency.sum()) // 2

    @property
    def can_move(self) -> bool:
        """False if there is nothing to add and nothing may go, as in the complete graph."""
        return self.sparse or not all(self._chosen)

    @property
    def least_degree(self) -> int:
        return min(self._used.values())

    def _fits(self, orbit: int) -> bool:
        return not self._chosen[orbit] and all(
            self._used[place] + degree <= self.highest for place, degree in self._degrees[orbit]
        )

    def _put(self, orbit: int, *, present: bool) -> None:
        ends = self._orbits[orbit]
        self.adjacency[ends[:, 0], ends[:, 1]] = self.adjacency[ends[:, 1], ends[:, 0]] = present
        self._chosen[orbit] = present
        self.state ^= 1 << orbit
        for place, degree in self._degrees[orbit]:
            self._used[place] += degree if present else -degree

    def move(self, rng: Random) -> Turn | None:
        """Make a random move, and return it for `undo`; None if the drawn one is impossible."""
        if not self._orbits:
            return None
        orbit = int(rng.random() * len(self._orbits))
        if self._chosen[orbit]:
            if not self.sparse:
                return None
            self._put(orbit, present=False)
            return (orbit,), ()
        self._put(orbit, present=True)
        gone = tuple(self._make_room(orbit, rng))
        return gone, (orbit, *(self._fill(gone, rng) if not self.sparse or rng.random() < 0.5 else ()))

    def _make_room(self, fresh: int, rng: Random) -> Iterator[int]:
        for place, _ in self._degrees[fresh]:
            while self._used[place] > self.highest:
                others = [orbit for orbit in self._beside[place] if self._chosen[orbit] and orbit != fresh]
                gone = others[int(rng.random() * len(others))]
                self._put(gone, present=False)
                yield gone

    def _fill(self, gone: tuple[int, ...], rng: Random) -> Iterator[int]:
        """Add orbits while some fit, those that have just gone last."""
        while places := [place for place, used in self._used.items() if used < self.highest]:
            fitting = [orbit for place in places for orbit in self._beside[place] if self._fits(orbit)]
            fitting = [orbit for orbit in fitting if orbit not in gone] or fitting
            if not fitting:
                return
            orbit = fitting[int(rng.random() * len(fitting))]
            self._put(orbit, present=True)
            yield orbit

    def undo(self, move: Turn) -> None:
        for orbit in reversed(move[1]):
            if orbit not in move[0]:
                self._put(orbit, present=False)
        for orbit in reversed(move[0]):
            if not self._chosen[orbit]:
                self._put(orbit, present=True)


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
"""The number of impossible moves that may be drawn for each graph tried."""


@dataclass(slots=True)
class BestGraphs:
    """The best graph found for each number of edges, to show the effect of one edge more or less."""

    goal: Goal
    by_edges: dict[int, tuple[Key, float, Ends]] = field(default_factory=dict)
    over: Over = never

    def meet(self, adjacency: Array, rate: float, edges: int) -> None:
        key = self.goal.key(rate, edges)
        if rate < (math.inf if self.goal.by_time else 1.0) and (
            edges not in self.by_edges or key < self.by_edges[edges][0]
        ):
            self.by_edges[edges] = key, rate, np.argwhere(np.triu(adjacency))

    def ranked(self) -> list[tuple[Key, float, Ends]]:
        return sorted(self.by_edges.values(), key=lambda entry: entry[0])


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
    starts = [*starts, *([best.ranked()[0][2]] if best.by_edges else [])]
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
