"""r-robustness determines how many liars a graph tolerates under rules that discard extreme values.

A graph is r-robust if, of any two disjoint nonempty sets of nodes, at least one contains a node with at least r
neighbors outside its set. Fast mixing does not imply it: a hypercube is 1-robust, however large.

Source: LeBlanc, Zhang, Koutsoukos and Sundaram, Resilient asymptotic consensus in robust networks (IEEE JSAC 31, 2013).

The exact search looks for two disjoint sets in which no node has r neighbors outside its set. Call a nonempty set
closed at t if each of its nodes has at most t neighbors outside it. A graph is r-robust if no two disjoint sets are
closed at r - 1. Unions of closed sets are closed, so the largest closed set within any set is what remains after
removing, one by one, nodes with more than t neighbors outside: `core`. A closed set that is not connected has closed
components, so it is enough to look for one set that is no larger than the core of the rest. Sets are stored as the bits
of integers.

Graphs too large to search get bounds: cuts from above, degrees and the spectrum from below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from topologies.eigen import Extremes
from topologies.graph import Topology
from topologies.metrics import (
    degree_range,
    is_complete,
    is_connected,
    is_transitive,
    proven_connectivity,
    spectrum_if_cheap,
)
from topologies.metrics.cuts import Cut, orders

Side = NDArray[np.bool_]
"""One side of a cut: True for each node on it. Shape (nodes,)."""
PASSES_WORK = 40_000_000
"""The maximum number of edges that all passes over cuts look at: about half a second."""
ORDERS_LIMIT = 100_000
"""The maximum number of nodes in a graph that is cut along orders other than its numbering."""
MOST_ROUNDS = 300


def bound_by_cuts(
    topology: Topology, lower: int, upper: int, cut: Cut | None = None, extremes: Extremes | None = None
) -> int:
    """Return the lowest upper bound that some prefixes of some node orders prove, not below `lower`.

    Two disjoint sets show that r <= t if neither has a node with more than t neighbors outside it. They are what
    remains of both sides of a cut after nodes with more were removed.
    """
    passes = max(4, PASSES_WORK // max(1, topology.edge_count))
    for side in _sides(topology, cut, extremes):
        upper = min(upper, int(max(_outside(topology, side).max(), _outside(topology, ~side).max())))
        while upper > lower and passes > 0:
            left, spent = _core(topology, side, upper - 1, min(MOST_ROUNDS, passes))
            right, more = _core(topology, ~left, upper - 1, min(MOST_ROUNDS, passes - spent))
            passes -= spent + more
            if not left.any() or not right.any():
                break
            upper -= 1
        if upper <= lower or passes <= 0:
            break
    return max(lower, upper)


def _sides(topology: Topology, cut: Cut | None, extremes: Extremes | None) -> list[Side]:
    """Return sides to try: halves first, which bound grids and hypercubes of any size, then odd and even nodes, which
    bound exponential graphs.
    """
    n = topology.nodes
    sides = [np.arange(n) < (n + 1) // 2, np.arange(n) % 2 == 0]
    if cut is not None:
        sides.append(np.isin(np.arange(n), cut.side))
    ranked = [order for _, order in orders(topology, extremes)] if n <= ORDERS_LIMIT else []
    for part in (2, 3, 4):
        for order in ranked:
            side = np.zeros(n, dtype=bool)
            side[order[: -(-n // part)]] = True
            sides.append(side)
    return sides


def _outside(topology: Topology, side: Side) -> NDArray[np.int64]:
    """Count the neighbors outside `side` of each of its nodes; 0 for the others. Shape (nodes,)."""
    i, j = topology.ends[:, 0], topology.ends[:, 1]
    a, b = side[i], side[j]
    n = topology.nodes
    return np.bincount(i[a & ~b], minlength=n) + np.bincount(j[b & ~a], minlength=n)


def _core(topology: Topology, side: Side, t: int, rounds: int) -> tuple[Side, int]:
    """Return the largest subset of `side` none of whose nodes has more than `t` neighbors outside it, and the number of
    rounds it took; empty if it takes more than `rounds`.
    """
    for spent in range(1, rounds + 1):
        kept = side & (_outside(topology, side) <= t)
        if np.array_equal(kept, side):
            return side, spent
        side = kept
    return np.zeros_like(side), max(0, rounds)


SEARCH_LIMIT = 300
SEARCH_WORK = 1_500_000
"""The budget of search steps times nodes: a third of a second, enough for 30 nodes of degree 10."""
GLANCE = 200
"""The number of steps in a quick search for a separation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """A range for the largest r, in lower .. upper. `pair` is two disjoint sets that keep it from being larger."""

    lower: int
    upper: int
    method: str
    pair: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    @property
    def exact(self) -> bool:
        return self.lower == self.upper


def robustness(
    topology: Topology,
    extremes: Extremes | None = None,
    cut: Cut | None = None,
    *,
    most: int | None = None,
    work: int = SEARCH_WORK,
) -> Robustness:
    """Compute robustness, exactly for complete graphs, up to about 30 nodes (hundreds if degrees are small), and
    wherever the bounds meet.

    `extremes` and `cut` are used if given. `most` is a known upper bound, such as the vertex connectivity: without r -
    1 nodes an r-robust graph is connected. More `work` makes larger graphs exact; the result does not depend on the
    machine. One node is 1-robust by convention.

    The exact search is our own (`separate`). The mixed integer program of Usevitch and Panagou (arXiv:1810.01784) gives
    the same result; in HiGHS it took 1.2 s, the search 0.03 s (30 nodes of degree 8).
    """
    n = topology.nodes
    if is_complete(topology):
        return Robustness(lower=(n + 1) // 2, upper=(n + 1) // 2, method="complete")
    if not is_connected(topology):
        return Robustness(lower=0, upper=0, method="disconnected")
    so_far = _formulas(topology, extremes, most)
    if topology.implicit or so_far.exact:
        return so_far
    so_far = replace(so_far, upper=bound_by_cuts(topology, so_far.lower, so_far.upper, cut, extremes))
    if so_far.exact:
        return replace(so_far, method="a cut")
    return _search(topology, so_far, work) if n <= SEARCH_LIMIT else so_far


def _formulas(topology: Topology, extremes: Extremes | None, most: int | None) -> Robustness:
    """Bound a connected graph that is not complete.

    Above: ceil(n/2), and the minimum degree d, because the other nodes have at most one neighbor outside their set: the
    node of degree d. Below: the smaller of two disjoint sets, S, has at most n/2 nodes.

    1. Each has at most |S| - 1 neighbors inside, so d - floor(n/2) + 1 outside.
    2. If i(G) > r - 1, more than (r - 1) |S| edges leave S, so one of its nodes has r outside: r = ceil(i(G)) is
       reached (Shahrivar, Pirani and Sundaram, arXiv:1508.03650), and i(G) >= lambda_2 ceil(n/2) / n.
    """
    n, (least, _) = topology.nodes, degree_range(topology)
    isoperimetric = proven_connectivity(spectrum_if_cheap(topology, extremes)) * ((n + 1) // 2) / n
    upper = min((n + 1) // 2, least, n if most is None else most)
    lower = max(1, least - n // 2 + 1, math.ceil(isoperimetric))
    return Robustness(lower=min(lower, upper), upper=upper, method="degree, spectrum and cuts")


def _search(topology: Topology, so_far: Robustness, work: int) -> Robustness:
    """Search downward for separations, which are found quickly if there are any, then prove upward."""
    masks = [sum(1 << other for other in row) for row in topology.adjacency()]
    same = is_transitive(topology)
    left = work // topology.nodes
    while not so_far.exact:
        glance = separate(masks, so_far.upper - 1, min(GLANCE, left), transitive=same)
        left -= glance.steps
        if glance.pair is None:
            break
        so_far = _bound_by_pair(so_far, masks, glance.pair)
    while not so_far.exact:
        proof = separate(masks, so_far.lower, left, transitive=same)
        left -= proof.steps
        if proof.pair is not None:
            so_far = _bound_by_pair(so_far, masks, proof.pair)
        elif proof.finished:
            so_far = replace(so_far, lower=so_far.lower + 1)
        else:
            return so_far
    return replace(so_far, method="search")


def _bound_by_pair(so_far: Robustness, masks: list[int], pair: tuple[int, int]) -> Robustness:
    """Return the bound that two sets prove: the smallest t at which both are closed."""
    t = so_far.lower
    while any(core(masks, side, t) != side for side in pair):
        t += 1
    named = tuple(tuple(i for i in range(len(masks)) if side >> i & 1) for side in pair)
    return replace(so_far, upper=t, pair=(named[0], named[1]))


@dataclass(frozen=True, slots=True)
class ClosedPair:
    """The result of a search. `pair` is two disjoint closed sets; None if there are none, or if the budget ran out
    (`finished` is False).
    """

    pair: tuple[int, int] | None
    finished: bool
    steps: int


def core(masks: Sequence[int], inside: int, t: int, suspects: int = -1) -> int:
    """Return the largest subset of `inside` closed at `t`; 0 if there is none. `masks[i]` has the neighbors of node i.

    Only `suspects`, by default all nodes, may have too many neighbors outside to begin with.
    """
    suspects &= inside
    while suspects:
        low = suspects & -suspects
        suspects ^= low
        near = masks[low.bit_length() - 1]
        if (near & ~inside).bit_count() > t:
            inside ^= low
            suspects |= near & inside
    return inside


def separate(masks: Sequence[int], t: int, budget: int, *, transitive: bool = False) -> ClosedPair:
    """Find two disjoint sets closed at `t`, within `budget` steps.

    Each node is tried as the lowest of the first set, with all lower ones left out. On a transitive graph node 0 is
    enough.
    """
    search = _SeparationSearch(masks, t, budget)
    for root in range(1 if transitive else len(masks)):
        pair = search.grow(1 << root, (1 << root) - 1)
        if pair is not None or search.left < 0:
            return ClosedPair(pair, finished=search.left >= 0, steps=budget - search.left)
    return ClosedPair(None, finished=True, steps=budget - search.left)


class _SeparationSearch:
    def __init__(self, masks: Sequence[int], t: int, budget: int) -> None:
        self.masks = masks
        self.t = t
        self.left = budget
        self.everyone = (1 << len(masks)) - 1

    def grow(self, chosen: int, barred: int) -> tuple[int, int] | None:
        """Find a closed set that contains `chosen` and nothing from `barred`, with a disjoint one at least as large."""
        stack = [(chosen, barred, self.everyone)]
        while stack:
            self.left -= 1
            if self.left < 0:
                return None
            chosen, barred, other = stack.pop()
            forced = self._forced(chosen, barred)
            if forced is None:
                continue
            chosen, barred = forced
            other = self._remaining(other, chosen)
            room = min(len(self.masks) // 2, other.bit_count()) - chosen.bit_count()
            cut, excess = self._worst(chosen)
            if excess > room:
                continue
            if excess <= 0:
                return chosen, other
            branch = self._best_known(cut & ~barred, chosen)
            stack += [(chosen, barred | branch, other), (chosen | branch, barred, other)]
        return None

    def _remaining(self, other: int, chosen: int) -> int:
        """Return the core of the nodes that are not chosen, starting from the earlier core `other`: a new node can only
        remove its neighbors.
        """
        gone = other & chosen
        inside = other ^ gone
        suspects = 0
        while gone:
            low = gone & -gone
            gone ^= low
            suspects |= self.masks[low.bit_length() - 1]
        return core(self.masks, inside, self.t, suspects)

    def _forced(self, chosen: int, barred: int) -> tuple[int, int] | None:
        """Extend the chosen set: a chosen node with `t` barred neighbors needs all its others; one with more cannot be
        chosen.
        """
        todo = chosen
        while todo:
            low = todo & -todo
            todo ^= low
            near = self.masks[low.bit_length() - 1]
            outside = (near & barred).bit_count()
            if outside > self.t:
                return None
            if outside == self.t and (fresh := near & ~barred & ~chosen):
                chosen |= fresh
                todo |= fresh
        return chosen, barred

    def _worst(self, chosen: int) -> tuple[int, int]:
        """Return the outside neighbors of the chosen node that has most of them, and how many of them are too many."""
        worst, most = 0, -1
        rest = chosen
        while rest:
            low = rest & -rest
            rest ^= low
            outside = self.masks[low.bit_length() - 1] & ~chosen
            if outside.bit_count() > most:
                worst, most = outside, outside.bit_count()
        return worst, most - self.t

    def _best_known(self, candidates: int, chosen: int) -> int:
        """Return the candidate with most neighbors among the chosen: deciding on it decides most."""
        best, most = 0, -1
        while candidates:
            low = candidates & -candidates
            candidates ^= low
            inside = (self.masks[low.bit_length() - 1] & chosen).bit_count()
            if inside > most:
                best, most = low, inside
        return best
