"""The rule whose pulls fade with distance, and of which those that pull the same way share one.

Of rules around the own model it asks most of the distances: all of them, by one Gram matrix. Why it is as it is, and
where it breaks: docs/decisions/0015-a-default-rule.md. What it is made of is known: pulls that fade beyond a radius are
a redescending M-estimator's (Hampel et al. 1986), the discount for likeness is FoolsGold's thought (Fung, Yoon,
Beschastnikh 2018, arXiv 1808.04866), the first center is Krum's choice mixed with its nearest (arXiv 2302.01772).
"""

from __future__ import annotations

import numpy as np

from p2pfl.aggregate import selection
from p2pfl.aggregate.batch import Rows
from p2pfl.aggregate.centered import Centered
from p2pfl.aggregate.distances import Floats, Spread, settled, spread_of
from p2pfl.aggregate.interface import Vector

STEPS = 2
"""How often the center is found anew. More change nothing that could be measured."""


class Redescending(Centered):
    """Every neighbor's pull, by its weight, times a factor of its own. No weight counts for more than an even share.

    What a neighbor says of itself, such as how many samples it has, can so lower its weight, not raise it.

    Of n = m + 1 vectors, d_j is the distance from a center and r the (n - f)-th smallest of these:

        w_j = min(1, r^2 / d_j^2) / (1 + sum_k min(1, r^2 / d_k^2) max(0, cos_jk)^2)

    where k are the other neighbors and cos_jk is between the ways from the center. The center is at first the mean of
    the n - f vectors nearest to Krum's choice, then the mean by these factors, one's own vector having factor 1.
    Among n vectors n - f are honest, so r is at most the farthest honest distance from the center. Of a vector beyond
    it less than r of its way from there counts, and the farther the less; from the own model, which lies off the center
    too, its pull is less than r and the own distance together.
    """

    def pulls(self, own: Vector, others: Rows, weights: Floats, *, progress: float = 0.0) -> Floats:  # noqa: ARG002
        even = 1 / (len(others) + 1)
        return np.minimum(weights, even) * factors(spread_of([own, *others]), self.f)[1:]


def factors(spread: Spread, liars: int) -> Floats:
    """(n,) from 0 to 1, that of vector 0, the own, is 1."""
    shares = first_center(spread, liars)
    found = np.ones(len(shares))
    for _ in range(STEPS):
        found = _around(spread, shares, liars)
        shares = found / found.sum()
    return found


def first_center(spread: Spread, liars: int) -> Floats:
    """(n,) shares of the n - f vectors nearest to that one which has them nearest, itself counted."""
    scores = selection.krum_scores(spread.squares, max(1, len(spread.squares) - liars - 1))
    return selection.near_one(spread.squares, liars, int(np.argmin(settled(scores))))


def _around(spread: Spread, shares: Floats, liars: int) -> Floats:
    squares = spread.to_point(shares)
    radius = np.sort(squares)[len(squares) - liars - 1]
    faded = np.divide(radius, squares, out=np.ones_like(squares), where=squares > radius)
    alike = _likeness(spread, shares, squares)
    found = faded / (1 + alike @ faded)
    found[0] = 1.0
    return np.asarray(found)


def _likeness(spread: Spread, shares: Floats, squares: Floats) -> Floats:
    """(n, n) squared cosines between the ways from the center, 0 where they part by a right angle or more.

    The own vector is like no other, and none is like itself.
    """
    towards = spread.gram @ shares
    products = spread.gram - towards[:, None] - towards + shares @ towards
    lengths = np.sqrt(squares)
    both = np.outer(lengths, lengths)
    cosines = np.clip(np.divide(products, both, out=np.zeros_like(products), where=both > 0), 0.0, 1.0)
    cosines[0] = cosines[:, 0] = 0.0
    np.fill_diagonal(cosines, 0.0)
    return np.asarray(cosines**2)
