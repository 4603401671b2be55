"""The two ends of a Laplacian's spectrum, their accuracy, and the ladder of methods that computes them.

1. All eigenvalues of the dense matrix, up to `DENSE_LIMIT` nodes. 2. Lanczos' method: enough for anything that mixes
fast. 3. Lanczos' method on the inverse, by elimination: small gap and small separators. 4. Lanczos' method, run for
longer; if that does not converge either, the result says so.

After each step `certificate` proves that the result is the second eigenvalue, if that is cheap, or, on demand, if it is
possible at all. If the proof fails, the search goes to the next step. `effort` estimates beforehand how long the
eigenvalues take, so that a command can refuse what would take hours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from topologies.eigen.certificate import CHEAP, LARGE, FactorBudget, at_least, too_wide
from topologies.eigen.iterations import Krylov, Over, Ritz, inverse_of, never
from topologies.eigen.laplacian import Array, Laplacian
from topologies.errors import TopologyError

DENSE_LIMIT = 1_000
"""The most nodes for a dense solution; above that, another method is faster even with the import of scipy."""
ULP = 2.0**-52


@dataclass(frozen=True, slots=True)
class Eigenvalues:
    """All eigenvalues: `values` ascending, (n,). Each lies within `bound` of the true eigenvalue of the same rank.

    `vectors[:, k]` belongs to `values[k]`.
    """

    values: NDArray[np.float64]
    vectors: NDArray[np.float64]
    bound: float


def eigenvalues(matrix: NDArray[np.float64]) -> Eigenvalues:
    """Compute all eigenvalues of a symmetric (n, n) matrix.

    The bound is ||A V - V D|| / sigma_min(V) (Kahan; Parlett, The Symmetric Eigenvalue Problem, 11.10), with
    sigma_min(V)^2 >= 1 - ||V^T V - I||. It holds for all eigenvalues in order, so it certifies their rank. Each
    computed norm is increased by the possible rounding error of its own computation: n units of ||A|| ||V||.
    """
    values, vectors = np.linalg.eigh(matrix)
    size = len(values)
    rounded = (size + 2) * ULP / 2.0
    residual = float(np.linalg.norm(matrix @ vectors - vectors * values))
    residual += 1.01 * rounded * math.sqrt(size) * float(np.linalg.norm(matrix))
    skew = float(np.linalg.norm(vectors.T @ vectors - np.eye(size))) + 1.01 * rounded * size
    return Eigenvalues(values, vectors, residual / math.sqrt(1.0 - skew) if skew < 1.0 else math.inf)


TOLERANCE = 1e-6
"""An eigenvalue is certified if it is proven to lie within this relative distance of the reported one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """The second smallest (`low`) and the largest eigenvalue (`high`) of a connected graph's Laplacian.

    Both are Rayleigh quotients or Ritz values: lambda_2 is at most `low`, the largest at least `high` (up to rounding
    in the last digits).

    `residual`: the norm of A x - low x for the unit vector x that was found, estimated where it was not made. `lower`:
    a proven lower bound on lambda_2, None if nothing is proven. `beyond`: a proof exceeds the budget, on these edges
    and with any weights. `certified`: low - lower <= TOLERANCE * low. `probable`: a lower bound that is wrong only with
    probability `iterations.UNLIKELY`, over the random start vectors and in exact arithmetic; `certified` never rests on
    it. `converged`: certified, or `settled`; if False, `low` is only an upper bound. `highest`: a proven upper bound on
    the largest eigenvalue; `high_residual`: like `residual`, for `high`. `find`: returns `vector`.
    """

    low: float
    high: float
    method: str
    residual: float = 0.0
    lower: float | None = None
    certified: bool = False
    converged: bool
    products: int = 0
    """The number of matrix-vector products and of linear systems solved."""
    find: Callable[[], Array] = lambda: np.zeros(0)
    beyond: bool = False
    probable: float | None = None
    high_residual: float = 0.0
    highest: float

    @property
    def vector(self) -> Array:
        """The eigenvector of `low` (Fiedler's, for the plain Laplacian), (nodes,); empty if no eigensolver ran."""
        return self.find()

    @property
    def high_converged(self) -> bool:
        """True if some eigenvalue is within TOLERANCE of `high`, or if none can be much above it."""
        return min(self.high_residual, self.highest - self.high) <= TOLERANCE * self.high


def settled(ritz: Ritz) -> bool:
    """Return True if the residual alone says that the value is known to `TOLERANCE`. How far the next Ritz value is
    does not count: for a long time two close eigenvalues look like one with a wide gap.
    """
    return ritz.residual <= TOLERANCE * ritz.value


class NotConverged(TopologyError):  # noqa: N818 - what it says
    """A needed eigenvalue that did not converge."""

    exit_code = 4


def require_converged(result: Extremes) -> Extremes:
    """Return `result`, for a caller that needs certainty. Raises NotConverged if it is not known to `TOLERANCE`."""
    if result.converged:
        return result
    raise NotConverged(f"no eigenvalue converged; lambda_2 is at most {result.low:.6g}", key="topology")


def exactly(low: float, high: float, method: str) -> Extremes:
    """Make extremes from a formula."""
    return Extremes(low=low, high=high, method=method, lower=low, certified=True, converged=True, highest=high)


def from_vector(laplacian: Laplacian, vector: Array, method: str, high: Ritz) -> Extremes:
    """Evaluate a vector (nodes,) found by some method: its Rayleigh quotient and its true residual. `high` is the other
    end, as far as it converged.
    """
    vector = vector - laplacian.kernel * (laplacian.kernel @ vector)
    vector /= np.linalg.norm(vector)
    low = laplacian.quotient(vector)
    residual = float(np.linalg.norm(laplacian.times(vector) - low * vector))
    return _unproven(laplacian, Ritz(low, residual), method, high, lambda: vector)


def _unproven(laplacian: Laplacian, low: Ritz, method: str, high: Ritz, find: Callable[[], Array]) -> Extremes:
    return Extremes(
        low=low.value,
        high=high.value,
        method=method,
        residual=low.residual,
        converged=settled(low),
        find=find,
        high_residual=high.residual,
        highest=max(high.value, laplacian.largest),
    )


def with_lower_bound(result: Extremes, lower: float) -> Extremes:
    """Return the extremes with a certificate's lower bound added."""
    certified = result.low - lower <= TOLERANCE * result.low * (1.0 + 1e-9)
    return replace(result, lower=lower, certified=certified, converged=certified or result.converged)


EFFORT_LIMIT = 50_000_000
"""The effort allowed for one command: a few minutes."""
CALLS = 50
"""The effort of numpy's calls on a graph with a few nodes."""

Tell = Callable[[str], None]
"""Receives progress messages from a long computation."""


def silent(_text: str) -> None:
    """Ignore progress messages."""


def effort(nodes: int, edges: int) -> int:
    """Estimate the effort for lambda_2: dense up to `DENSE_LIMIT` nodes; above that, edges beyond those of a ring cost
    most.
    """
    if nodes <= DENSE_LIMIT:
        return CALLS + nodes**2 // 10 + edges // 20
    return DENSE_LIMIT**2 // 10 + 2 * nodes + edges + 10 * max(0, edges - nodes)


PATIENCE = 200
"""After this many products, a Ritz value without one known digit is left to other methods."""
MOST = 1_000
"""The products of the first attempt; up to four times as many if they are cheap."""
NEARLY = 0.1
"""The relative residual below which it is worth going on."""
LONGEST = 4_000
"""The products of the last attempt, and of the first if it has nearly converged."""
INVERSE_MOST = 400
DIGITS = 7.0
"""The error of a Ritz value falls as e^(-4 k sqrt(low / high)) with the products k: it needs twice this exponent."""
ROUNDED = 1e-6
"""The ratio of both ends below which a Ritz value has too few digits: a sum of squares has all."""
WEAKER = (1e-4, 1e-2)
"""Accuracies to prove if rounding is too large for `TOLERANCE`: an interval, not a certificate."""


def extremes(laplacian: Laplacian, *, certify: bool = False, beyond: bool = False, over: Over = never) -> Extremes:
    """Compute the extremes of a connected graph with two or more nodes. With `certify` a proof may take minutes and
    gigabytes. `beyond`: a proof with other weights exceeded the budget. When it is `over`, the best value counts.
    """
    budget = LARGE if certify else CHEAP
    methods = _small(laplacian) if _is_small(laplacian) else _large(laplacian, budget, over, beyond=beyond)
    return _first_good(laplacian, budget, methods, over)


def _is_small(laplacian: Laplacian) -> bool:
    """True if the dense method is suitable. Without scipy, as on a small board, it is also used for larger graphs,
    though slow.
    """
    return laplacian.nodes <= DENSE_LIMIT or (laplacian.nodes <= 2 * DENSE_LIMIT and find_spec("scipy") is None)


def _first_good(
    laplacian: Laplacian, budget: FactorBudget, attempts: Iterator[Extremes | None], over: Over
) -> Extremes:
    """Return the first result that converged and is not refuted, or on which two methods agree; else the best."""
    best: Extremes | None = None
    for attempt in attempts:
        if attempt is None:
            continue
        judged, refuted = (attempt, False) if over() else _judge(laplacian, budget, attempt)
        same = best is not None and abs(best.low - judged.low) <= TOLERANCE * judged.low
        agreed = best is not None and same and best.converged and judged.converged
        better = best is None or (judged.converged > best.converged if same else judged.low < best.low)
        if best is None or judged.certified or better:
            best = judged
        if best.certified or (judged.converged and not refuted) or agreed:
            return best
    assert best is not None  # noqa: S101 - both orders begin with a method that always returns something
    return best


def _judge(laplacian: Laplacian, budget: FactorBudget, result: Extremes) -> tuple[Extremes, bool]:
    """Return the extremes with a lower bound, if one can be proven, and True if none was proven within the budget."""
    if result.certified:
        return result, False
    if result.beyond or too_wide(laplacian, result.low, budget):
        return replace(result, beyond=True), False
    for tolerance in (TOLERANCE, *WEAKER):
        lower = (1.0 - tolerance) * result.low
        verdict = at_least(laplacian, lower, budget, tolerance)
        if verdict is None:
            return replace(result, beyond=True), False
        if verdict:
            return with_lower_bound(result, lower), False
    return result, True


def _small(laplacian: Laplacian) -> Iterator[Extremes | None]:
    """Try the methods for small graphs. A dense solver's error is set by rounding in the largest entries; the inverse
    has its own scale.
    """
    yield (dense := dense_extremes(laplacian))
    budget = FactorBudget(core=laplacian.nodes, fill=0.0)
    yield inverse_extremes(laplacian, budget, Ritz(dense.high, dense.high_residual))


def _large(laplacian: Laplacian, budget: FactorBudget, over: Over, *, beyond: bool) -> Iterator[Extremes | None]:
    krylov = krylov_of(laplacian, over)
    high, result = lanczos_extremes(laplacian, krylov)
    yield replace(result, beyond=beyond) if result else None
    result = None if beyond or over() else inverse_extremes(laplacian, budget, high)
    yield replace(result, products=krylov.products + result.products) if result else None
    if result and 4.0 * LONGEST * math.sqrt(result.low / result.high) < DIGITS:
        return
    krylov.extend(LONGEST)
    # a core that is too large for the inverse is so for a proof
    yield replace(_from_ritz(laplacian, krylov, krylov.lowest(), high), beyond=result is None)


def dense_extremes(laplacian: Laplacian) -> Extremes:
    """Compute the extremes densely, with the kernel shifted above all other eigenvalues so that a tiny lambda_2 does
    not mix with it.
    """
    above = 2.0 * laplacian.largest
    solved = eigenvalues(laplacian.dense() + above * np.outer(laplacian.kernel, laplacian.kernel))
    high = float(solved.values[-2])
    judged = from_vector(laplacian, np.array(solved.vectors[:, 0]), "dense", Ritz(high, solved.bound))
    # the sum rounds each entry once more
    bound = solved.bound + 8.0 * ULP * laplacian.largest
    judged = replace(judged, highest=min(judged.highest, high + bound))
    return with_lower_bound(judged, max(0.0, float(solved.values[0]) - bound))


def krylov_of(laplacian: Laplacian, over: Over = never) -> Krylov:
    matrix = laplacian.sparse()

    def apply(vector: Array) -> Array:
        return np.asarray(matrix @ vector)

    return Krylov(apply, laplacian.kernel, over)


def lanczos_extremes(laplacian: Laplacian, krylov: Krylov) -> tuple[Ritz, Extremes | None]:
    """Compute both ends from one space. The lower one is None if it is out of reach."""
    low: Ritz | None = None
    goal, most = 20, _product_limit(laplacian)
    while True:
        krylov.extend(goal)
        high = krylov.highest()
        high_done = min(high.residual, laplacian.largest - high.value) <= TOLERANCE * high.value
        if low is None:
            lowest = krylov.lowest()
            low = lowest if settled(lowest) else None
        distance = 0.0 if low else lowest.residual / lowest.value
        if distance < NEARLY:
            most = LONGEST if low is None else _product_limit(laplacian)
        hopeless = distance > 1.0 and krylov.size >= PATIENCE
        if krylov.ended or krylov.size >= most or (high_done and (low is not None or hopeless)):
            break
        goal = min(most, goal + max(10, goal // 10))
    if low is None and not krylov.dead:
        return high, None
    return high, _from_ritz(laplacian, krylov, low or krylov.lowest(), high)


def _product_limit(laplacian: Laplacian) -> int:
    return MOST * min(4, max(1, 100_000 // laplacian.nodes))


def _from_ritz(laplacian: Laplacian, krylov: Krylov, low: Ritz, high: Ritz) -> Extremes:
    """Evaluate a Ritz value; its vector is computed when somebody needs it, or where rounding would spoil the value."""
    probable = low.value - krylov.slack() * laplacian.largest
    find = cache(partial(krylov.vector, low))
    if low.value > ROUNDED * high.value:
        result = _unproven(laplacian, low, "lanczos", high, find)
    else:
        result = from_vector(laplacian, find(), "lanczos", high)
    return replace(result, products=krylov.products, probable=probable if probable > 0.0 else None)


def inverse_extremes(laplacian: Laplacian, budget: FactorBudget, high: Ritz) -> Extremes | None:
    """Compute the extremes from the inverse; None if it does not fit into the budget."""
    inverse = inverse_of(laplacian, budget)
    if inverse is None:
        return None
    krylov = Krylov(inverse, laplacian.kernel)
    goal = 10
    krylov.extend(goal)
    while (top := krylov.highest()).residual > 0.1 * TOLERANCE * top.value and krylov.size < INVERSE_MOST:
        if krylov.dead:
            break
        goal += 5
        krylov.extend(goal)
    # once more through the inverse, since the remaining high frequencies would dominate the residual
    vector = inverse(krylov.vector(top))
    return replace(from_vector(laplacian, vector, "inverse", high), products=krylov.products + 1)


def largest(laplacian: Laplacian, over: Over = never) -> tuple[float, float]:
    """Compute the largest eigenvalue of any graph, connected or not, and its residual."""
    if not len(laplacian.ends):
        return 0.0, 0.0
    if _is_small(laplacian):
        solved = eigenvalues(laplacian.dense())
        return float(solved.values[-1]), solved.bound
    krylov = krylov_of(laplacian, over)
    goal = 20
    while True:
        krylov.extend(goal)
        high = krylov.highest()
        near = min(high.residual, laplacian.largest - high.value) <= TOLERANCE * high.value
        if near or krylov.ended or krylov.size >= _product_limit(laplacian):
            return high.value, high.residual
        goal += max(10, goal // 4)
