"""Rules that are decided by distances alone: which vectors count, and how much.

Each of them is a function from squared distances (n, n) to shares (n,), from 0 to 1 and 1 together, so one Gram matrix
is all that they need of the vectors. Ties go to the lower index.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate.distances import Floats, VectorSpread, nearest, settled

CONVERGED, MOST_STEPS = 1e-10, 1000
"""The geometric median stands still where a step is shorter than this part of the usual distance."""


def krum_scores(squares: Floats, count: int) -> Floats:
    """(n,) sums of the squared distances to the `count` nearest other vectors."""
    others = np.sort(squares + np.diag(np.full(len(squares), np.inf)), axis=1)
    return np.asarray(others[:, :count].sum(axis=1))


def even(indices: NDArray[np.intp], count: int) -> Floats:
    """(count,) shares: these vectors alike, the others none."""
    shares = np.zeros(count)
    shares[indices] = 1 / len(indices)
    return shares


def bulyan_choice(squares: Floats, liars: int) -> NDArray[np.intp]:
    """The n - 2f that Krum chooses one after the other, each time among those that are left, in rising order."""
    left = np.arange(len(squares))
    chosen: list[int] = []
    for _ in range(len(squares) - 2 * liars):
        among = squares[np.ix_(left, left)]
        best = int(np.argmin(settled(krum_scores(among, max(1, len(left) - liars - 1)))))
        chosen.append(int(left[best]))
        left = np.delete(left, best)
    return np.sort(np.array(chosen))


def krum(squares: Floats, liars: int, keep: int) -> Floats:
    """The `keep` vectors of least score: Blanchard et al. 2017 with n - f - 1 neighbors, as Allouah et al. 2023.

    The original counts n - f - 2 of them; with one more, a bound holds whenever n > 2f.
    """
    count = len(squares)
    return even(nearest(krum_scores(squares, max(1, count - liars - 1)), keep), count)


def near_one(squares: Floats, liars: int, center: int) -> Floats:
    """The n - f vectors nearest to the one at `center`: itself among them, or that many copies of it."""
    return even(nearest(squares[center], len(squares) - liars), len(squares))


def near_each(squares: Floats, liars: int) -> Floats:
    """(n, n): in each row the shares of NNM, the mean of the n - f vectors nearest to that one; Allouah et al. 2023."""
    return np.stack([near_one(squares, liars, center) for center in range(len(squares))])


def geometric_median(spread: VectorSpread, weights: Floats) -> Floats:
    """Weiszfeld's steps, from the best of the vectors, until they stand still.

    A vector that is hit is left again in the direction of descent, where there is one: Vardi and Zhang 2000.
    """
    start = int(np.argmin(settled(np.sqrt(spread.squares) @ weights)))
    shares = np.zeros(len(weights))
    shares[start] = 1.0
    gaps = np.sqrt(spread.squares[start])
    for _ in range(MOST_STEPS):
        away = gaps > 0
        pulls = np.divide(weights, gaps, out=np.zeros_like(weights), where=away)
        if not pulls.any():
            break
        target = pulls / pulls.sum()
        apart = target - shares
        length = np.sqrt(max(0.0, apart @ spread.gram @ apart))
        here, force = weights[~away].sum(), pulls.sum() * length
        if here >= force:
            break
        shares = shares + (1 - here / force) * apart
        if length <= CONVERGED * np.median(gaps):
            break
        gaps = np.sqrt(spread.to_point(shares))
    return shares


def smoothed_median(spread: VectorSpread, steps: int, least: float) -> Floats:
    """Pillutla et al. 2022: so many of Weiszfeld's steps from vector 0, no distance counted below `least`.

    Vector 0 is the start alone, and none of those whose median it is.
    """
    shares = np.zeros(len(spread.gram))
    shares[0] = 1.0
    for _ in range(steps):
        gaps = np.maximum(np.sqrt(spread.to_point(shares)), least)
        gaps[0] = np.inf
        shares = (1 / gaps) / (1 / gaps).sum()
    return shares


def clipped_center(spread: VectorSpread, counted: slice, liars: int, radius: float | None, steps: int) -> Floats:
    """Karimireddy, He, Jaggi 2021: vector 0 is the center, which goes so many times to the mean of the clipped ones.

    `counted` are the vectors that pull; without a radius each step finds its own, as self-centered clipping does.
    """
    shares = np.zeros(len(spread.gram))
    shares[0] = 1.0
    for _ in range(steps):
        squares = spread.to_point(shares)[counted]
        weights = np.full(len(squares), 1 / len(squares))
        reach = own_radius(squares, weights, liars) if radius is None else radius
        pulls = np.zeros_like(shares)
        pulls[counted] = weights * clipping(squares, reach)
        shares = (1 - pulls.sum()) * shares + pulls
    return shares


def clipping(squares: Floats, radius: float) -> Floats:
    """min(1, radius / distance) for each."""
    gaps = np.sqrt(squares)
    return np.divide(radius, gaps, out=np.ones_like(gaps), where=gaps > radius)


def own_radius(squares: Floats, weights: Floats, liars: int) -> float:
    """He, Karimireddy, Jaggi 2022: from the m - b nearest, with the b largest weights as the liars' share."""
    share = np.sort(weights)[len(weights) - liars :].sum()
    if not share:
        return float("inf")
    near = nearest(squares, len(squares) - liars)
    return float(np.sqrt(weights[near] @ squares[near] / share))


def clipped_sum_radius(squares: Floats, liars: int) -> float:
    """The (m - 2b)-th smallest distance: Gaucher, Dieuleveut, Hendrikx 2025, CS+."""
    return float(np.sqrt(np.sort(squares)[len(squares) - 2 * liars - 1]))
