"""A walk over graphs that a rotation maps onto itself: all edges of an orbit are there, or none is.

The best graphs that are known have such a symmetry (Petersen, Heawood, Hoffman and Singleton, most records of the
degree-diameter problem: Loz and Siran, New record graphs in the degree-diameter problem, 2008), and there are so few of
them that a few hundred show the best: 435 pairs of 30 nodes fall into 43 orbits under a rotation of order 10.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import numpy as np

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
    found = []
    starts = np.cumsum((0, *cycles)).tolist()
    for a, first in enumerate(cycles):
        # a pair half way around a cycle comes twice
        steps = ((np.arange(first if 2 * step < first else step), step) for step in range(1, first // 2 + 1))
        found += [np.stack([starts[a] + turn, starts[a] + (turn + step) % first], 1) for turn, step in steps]
        for b in range(a + 1, len(cycles)):
            turn = np.arange(math.lcm(first, cycles[b]))
            left, right = starts[a] + turn % first, starts[b] + turn % cycles[b]
            shifts = range(math.gcd(first, cycles[b]))
            found += [np.stack([left, starts[b] + (right - starts[b] + step) % cycles[b]], 1) for step in shifts]
    return found


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
