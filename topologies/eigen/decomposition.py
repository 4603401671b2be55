"""Bound lambda_2 of a clustered graph from below, by its clusters and the links between them.

A graph of dense clusters with few links has no small separator that elimination could use, but it falls apart into
blocks whose own lambda_2 is large. Let y be a vector minus its mean m_a in each block a. Within block a the quadratic
form is at least lambda_a |y_a|^2. Of this, less sigma |y_a|^2, each link (i, j) of weight c may spend the share c / C_i
at its end i, with C_i the weight of all links of i. What it then costs at least to hold the means m_a and m_b apart is
what three springs in series cost:

    c (m_a - m_b)^2 / (1 + C_i / ((lambda_a - sigma) n_i) + C_j / ((lambda_b - sigma) n_j))

So lambda_2 >= sigma if it is so for the graph of the blocks with the sums of these weights, and with the blocks' node
weights. This is a decomposition as of Jerrum, Son, Tetali and Vigoda (Elementary bounds on Poincare and log-Sobolev
constants for decomposable Markov chains, 2004), which pays for each link by itself and not for the worst of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.eigen.certificate import FactorBudget, at_least
from topologies.graph import Ends, Topology, component_labels
from topologies.laplacian import Array, Laplacian

Whole = NDArray[np.int64]

THIN = 0.125
"""A cut between blocks has at most this fraction of the mean degree for each node of its smaller side."""
LEAST = 8
"""The fewest nodes on a side of a cut. Nodes that are isolated by the cuts are blocks of their own."""
MOST = 500
"""The maximum number of blocks."""
BISECTIONS = 12
MARGIN = 1e-5
SLACK = 1e-9
"""The relative margin for the rounding of sums and weights; each is off by less than 1e-10 of its size."""

Bound = Callable[[Laplacian], float]
"""Returns a proven lower bound on lambda_2 of a connected graph, 0 if none is known."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A partition of the nodes. `block` has the number of each node's block, (nodes,), of `count` blocks."""

    block: Whole
    count: int

    @property
    def sizes(self) -> Whole:
        return np.bincount(self.block, minlength=self.count)


def bound_by_blocks(laplacian: Laplacian, vector: Array, budget: FactorBudget, bound: Bound) -> float | None:
    """Return a proven lower bound on lambda_2; None if no blocks are found, or if they exceed the budget.

    Blocks are looked for along the nodes' numbers and along `vector` (nodes,), an approximate eigenvector of lambda_2.
    """
    best: float | None = None
    for order in (np.arange(laplacian.nodes), np.argsort(vector / laplacian.root, kind="stable")):
        found = blocks_along(laplacian, order)
        if found is None or float((found.sizes.astype(float) ** 3).sum()) > float(budget.core) ** 3:
            continue
        lower = bound_of(laplacian, found, bound)
        if best is None or lower > best:
            best = lower
        if best > 0.0:
            break
    return best or None


def blocks_along(laplacian: Laplacian, order: Whole) -> Blocks | None:
    """Cut the order (nodes,) where few edges cross, again and again; None if that gives no blocks, or too many.

    Parts that fall into components are as many blocks.
    """
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    ends = np.sort(place[laplacian.ends], axis=1)
    cuts, parts = [0], [(0, laplacian.nodes, ends, laplacian.c)]
    while parts:
        low, high, inside, c = parts.pop()
        cut = _thin_cut(low, high, inside, c)
        if cut is None:
            continue
        cuts.append(cut)
        if len(cuts) > MOST:
            return None
        for left, right in ((low, cut), (cut, high)):
            here = (inside[:, 0] >= left) & (inside[:, 1] < right)
            parts.append((left, right, inside[here], c[here]))
    if len(cuts) == 1:
        return None
    part = np.searchsorted(np.sort(cuts), place, side="right")
    same = part[laplacian.ends[:, 0]] == part[laplacian.ends[:, 1]]
    labels = component_labels(Topology("blocks", laplacian.nodes, laplacian.ends[same]))
    names, block = np.unique(labels, return_inverse=True)
    return Blocks(block, len(names)) if len(names) <= MOST else None


def _thin_cut(low: int, high: int, ends: Ends, c: Array) -> int | None:
    """Return where to cut the places low .. high - 1, or None. `ends` are the edges among them, lower ends first."""
    size = high - low
    if size < 2 * LEAST:
        return None
    across = np.cumsum(np.bincount(ends[:, 0] - low, c, size) - np.bincount(ends[:, 1] - low, c, size))
    first = np.arange(LEAST, size - LEAST + 1)
    ratio = across[first - 1] / np.minimum(first, size - first)
    best = int(np.argmin(ratio))
    return low + int(first[best]) if ratio[best] < THIN * 2.0 * float(c.sum()) / size else None


def bound_of(laplacian: Laplacian, blocks: Blocks, bound: Bound) -> float:
    """Return the lower bound that these blocks prove, 0 if none. Each must be connected."""
    within = _within(laplacian, blocks, bound)
    if not (within > 0.0).all():
        return 0.0

    def second(sigma: float) -> float:
        return float(np.linalg.eigvalsh(_quotient(laplacian, blocks, within, sigma).dense())[1])

    # what the graph of the blocks has falls with sigma, so that the largest sigma it proves lies between these two
    high = min(second(0.0), 0.99 * float(within.min()))
    low = max(0.0, second(high))
    for _ in range(BISECTIONS if low < high else 0):
        middle = (low + high) / 2.0
        low, high = (middle, high) if second(middle) >= middle else (low, middle)
    lower = min(low, high) * (1.0 - MARGIN)
    return lower if at_least(_quotient(laplacian, blocks, within, lower), lower) else 0.0


def _within(laplacian: Laplacian, blocks: Blocks, bound: Bound) -> Array:
    """Return a lower bound on lambda_2 of each block, infinite for single nodes. Shape (blocks,)."""
    i, j = blocks.block[laplacian.ends].T
    members = np.split(np.argsort(blocks.block, kind="stable"), np.cumsum(blocks.sizes)[:-1])
    inside = np.flatnonzero(i == j)
    inside = inside[np.argsort(i[inside], kind="stable")]
    edges = np.split(inside, np.searchsorted(i[inside], np.arange(1, blocks.count)))
    place = np.empty(laplacian.nodes, np.int64)
    found = np.full(blocks.count, np.inf)
    for number, (nodes, which) in enumerate(zip(members, edges, strict=True)):
        if len(nodes) == 1:
            continue
        place[nodes] = np.arange(len(nodes))
        found[number] = bound(Laplacian(place[laplacian.ends[which]], laplacian.c[which], laplacian.n[nodes]))
        if not found[number] > 0.0:
            return np.zeros(blocks.count)
    return found


def _quotient(laplacian: Laplacian, blocks: Blocks, within: Array, sigma: float) -> Laplacian:
    """Build the graph of the blocks, with all roundings toward the weaker claim."""
    i, j = laplacian.ends.T
    a, b = blocks.block[i], blocks.block[j]
    across = a != b
    i, j, a, b, c = i[across], j[across], a[across], b[across], laplacian.c[across]
    links = np.bincount(i, c, laplacian.nodes) + np.bincount(j, c, laplacian.nodes)
    spare = np.maximum(within - sigma, np.finfo(float).tiny)
    weight = c / (1.0 + links[i] / (spare[a] * laplacian.n[i]) + links[j] / (spare[b] * laplacian.n[j]))
    key = np.minimum(a, b) * blocks.count + np.maximum(a, b)
    pairs, which = np.unique(key, return_inverse=True)
    total = np.asarray(np.bincount(which, weight * (1.0 - SLACK), len(pairs)), np.float64)
    nodes = np.asarray(np.bincount(blocks.block, laplacian.n, blocks.count) * (1.0 + SLACK), np.float64)
    return Laplacian(np.stack([pairs // blocks.count, pairs % blocks.count], axis=1), total, nodes)
