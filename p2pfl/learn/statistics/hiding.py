"""Which counts may be shown, so that none of the others can be computed from them.

A cell is *small* if it has few rows, or if few sites have its rows. Small cells are hidden, and further ones with them,
until no total that is known gives a small cell, or the sum of a few (complementary suppression: Hundepool et al.,
Statistical Disclosure Control, 2012, chapter 4). An empty cell has no rows that could be learned, and is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBounds:
    """The fewest rows, and the fewest sites with such rows, of what is shown."""

    rows: int
    sites: int

    def small(self, counts: Counts, sites: Counts) -> Mask:
        """Return which cells (n,) have too few rows or sites, and are not empty."""
        return (counts > 0) & ((counts < self.rows) | (sites < self.sites))

    def is_small(self, counts: Counts, sites: Counts) -> bool:
        """Return True if these cells (n,), of which at least one has rows, have too few together.

        The sites of each are counted, not named, so that together they are at least as many as the most of one.
        """
        return bool(counts.any() and (counts.sum() < self.rows or sites.max() < self.sites))


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTable:
    """Cells (v,), and totals of them that somebody may know: the rows of `relations` (r, v) hold the factor of each
    cell in one such total. `may_hide` are the cells (v,) that may be hidden besides small ones.
    """

    counts: Counts
    sites: Counts
    relations: NDArray[np.float64]
    may_hide: Mask


def with_complement(counts: Counts, sites: Counts, bounds: CountBounds, *, forced: Mask | None = None) -> Mask:
    """Return which cells (n,) with a known total are to be hidden: the small ones, those that are `forced`, and the
    smallest others until all that is hidden is not small together.
    """
    hidden = bounds.small(counts, sites) | (np.zeros(len(counts), np.bool_) if forced is None else forced)
    while bounds.is_small(counts[hidden], sites[hidden]):
        place = _smallest(counts, ~hidden & (counts > 0))
        if place is None:
            break
        hidden[place] = True
    return hidden


def hidden_cells(table: CellTable, bounds: CountBounds, *, forced: Mask) -> Mask | None:
    """Return which cells (v,) are to be hidden; None if small ones can be computed whatever is hidden.

    Cells that are `forced` are hidden.
    """
    small = bounds.small(table.counts, table.sites)
    hidden = small | forced
    while True:
        lines = [line for line in table.relations if _tells_few(line, table, hidden, bounds)]
        if not lines:
            known = small & determined(table.relations, hidden)
            if not known.any():
                return hidden
            lines = [line for line in table.relations if line[known].any()]
        place = _next(lines, table, hidden)
        if place is None:
            return None
        hidden[place] = True


def determined(relations: NDArray[np.float64], hidden: Mask) -> Mask:
    """Return which cells (v,) follow from the relations (r, v) and the cells that are not hidden."""
    found, places = ~hidden, np.flatnonzero(hidden)
    if not places.size:
        return found
    _, sizes, basis = np.linalg.svd(relations[:, places], full_matrices=True)
    rank = int((sizes > TOLERANCE * max(1.0, *sizes.tolist())).sum()) if sizes.size else 0
    free = basis[rank:]
    found[places] = ~(np.abs(free) > TOLERANCE).any(axis=0) if len(free) else True
    return found


def _tells_few(line: NDArray[np.float64], table: CellTable, hidden: Mask, bounds: CountBounds) -> bool:
    """Return True if a total, less what is shown of it, is the sum of hidden cells that are small together."""
    inside = hidden & (line != 0) & (table.counts > 0)
    return len(set(np.sign(line[inside]))) == 1 and bounds.is_small(table.counts[inside], table.sites[inside])


def _next(lines: list[NDArray[np.float64]], table: CellTable, hidden: Mask) -> int | None:
    """Choose one more cell to hide: the smallest in these totals, else the smallest at all, else an empty one."""
    inside = np.any([line != 0 for line in lines], axis=0)
    free, full = table.may_hide & ~hidden, table.counts > 0
    for choice in (free & inside & full, free & full, free & inside, free):
        place = _smallest(table.counts, choice)
        if place is not None:
            return place
    return None


def _smallest(counts: Counts, among: Mask) -> int | None:
    places = np.flatnonzero(among)
    return int(places[np.argmin(counts[places])]) if places.size else None
