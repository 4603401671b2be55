"""Exact search behind `robustness`: two disjoint sets that no node of either is joined out of by r edges.

Call a nonempty set closed at t if each of its nodes has at most t neighbors outside it. A graph is r-robust if no two
disjoint sets are closed at r - 1. Unions of closed sets are closed, so the largest closed set within any set is what
is left after nodes with more than t neighbors outside were taken away, one after the other: `core`. A closed set that
is not connected has closed components, so it is enough to look for one set, of at most as many nodes as the core of
the rest. Sets are the bits of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """`pair` are two disjoint closed sets; None if there are none, or if `finished` is false: the budget was spent."""

    pair: tuple[int, int] | None
    finished: bool
    steps: int


def core(masks: Sequence[int], inside: int, t: int, suspects: int = -1) -> int:
    """The largest subset of `inside` closed at `t`; 0 if there is none. `masks[i]`: the neighbors of node i.

    Only `suspects`, by default all, may have too many neighbors outside to begin with.
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


def separate(masks: Sequence[int], t: int, budget: int, *, transitive: bool = False) -> Found:
    """Two disjoint sets closed at `t`, within `budget` steps.

    The first set contains a least node: each node is tried, all before it being left out. Where every node sees the
    same, node 0 will do.
    """
    search = _SeparationSearch(masks, t, budget)
    for root in range(1 if transitive else len(masks)):
        pair = search.grow(1 << root, (1 << root) - 1)
        if pair is not None or search.left < 0:
            return Found(pair, finished=search.left >= 0, steps=budget - search.left)
    return Found(None, finished=True, steps=budget - search.left)


class _SeparationSearch:
    def __init__(self, masks: Sequence[int], t: int, budget: int) -> None:
        self.masks = masks
        self.t = t
        self.left = budget
        self.everyone = (1 << len(masks)) - 1

    def grow(self, chosen: int, barred: int) -> tuple[int, int] | None:
        """A closed set that holds `chosen` and nothing of `barred`, with a disjoint one of at least its size."""
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
        """The core of what is not chosen, from the core `other` of before: only nodes by a new one can be lost."""
        gone = other & chosen
        inside = other ^ gone
        suspects = 0
        while gone:
            low = gone & -gone
            gone ^= low
            suspects |= self.masks[low.bit_length() - 1]
        return core(self.masks, inside, self.t, suspects)

    def _forced(self, chosen: int, barred: int) -> tuple[int, int] | None:
        """A chosen node that has `t` barred neighbors needs all its others; one that has more cannot be."""
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
        """The neighbors outside of the chosen node that has most of them, and how many of them are too many."""
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
        """The candidate with most neighbors among the chosen: which way it goes decides most."""
        best, most = 0, -1
        while candidates:
            low = candidates & -candidates
            candidates ^= low
            inside = (self.masks[low.bit_length() - 1] & chosen).bit_count()
            if inside > most:
                best, most = low, inside
        return best
