"""Proves that no eigenvalue but the kernel's 0 lies below a number: a lower bound on lambda_2, all rounding included.

L_c - sigma N has exactly one negative eigenvalue (x = 1 gives -sigma sum n) if and only if lambda_2 >= sigma. Nodes of
few neighbors are eliminated by `elimination`, which loses nothing; the matrix of the remaining nodes, the core, is
tested

* densely: M + w w^T is positive definite for some w only if M has at most one negative eigenvalue; a Cholesky
  factorization that runs to its end proves it up to its rounding error (Rump, Verification of positive definiteness,
  2006);
* or sparsely: the signs of the pivots of L D L^T (Sylvester), symmetric pivoting only.

Either time the rounding error is bounded after the fact, entry by entry (Higham, Accuracy and Stability of Numerical
Algorithms, theorems 9.3 and 10.3), relative to the spare: `SPARE` times the diagonal e of the core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topologies.eigen.elimination import UNIT, QuadraticForm, eliminate, eliminate_dense
from topologies.laplacian import Array, Laplacian

SPARE = (0.4, 0.02)
"""The share of the tolerance, times the core's diagonal e, proven beyond the claim to cover rounding.

The second value is for long chains that were eliminated, whose weight counts several times in the core.
"""
SAFETY = 2.0
"""A factor on the textbook bound on rounding errors, for kernels that add in their own order."""


GRADUAL = 2_000
"""The most nodes of a core that may be eliminated one by one."""
SMALL = 32
"""A core of at most this many nodes is not reduced further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorBudget:
    """The cost that a factorization may have. `fill`: entries of a sparse factor, at some 50 bytes each with all
    copies.
    """

    core: int
    fill: float

    @property
    def edges(self) -> int:
        """The most edges while eliminating."""
        return min(self.core * self.core // 4, 30_000_000)


CHEAP = FactorBudget(core=4_000, fill=2e7)
"""About half a gigabyte, a few seconds."""
LARGE = FactorBudget(core=12_000, fill=1.2e8)
"""A budget of up to six gigabytes and some minutes."""


def at_least(laplacian: Laplacian, sigma: float, budget: FactorBudget = CHEAP, tolerance: float = 1e-6) -> bool | None:
    """Return True only if lambda_2 >= sigma is proven, for the numbers c and n exactly as they are stored.

    False means that it is not so, or that rounding is too large for the proof; None that it does not fit into the
    budget. lambda_2 must be above sigma by the relative `tolerance`; the larger that is, the more rounding is allowed.
    """
    if sigma <= 0.0:
        return True
    core = shrink(QuadraticForm.of(laplacian, sigma), budget)
    if core is None:
        return None
    form, dense = core
    if not dense:
        return _sparse_proof(_tightened(form, SPARE[0] * tolerance), SPARE[0] * tolerance)
    return any(_dense_proof(_tightened(form, share * tolerance), share * tolerance) for share in SPARE)


def _tightened(form: QuadraticForm, spare: float) -> QuadraticForm:
    return replace(form, e=form.e * (1.0 + spare))


def _unit(form: QuadraticForm, spare: float) -> Array:
    """Compute 1 / sqrt of the spare at each node: an error E is covered if the radius of U |E| U is below 1."""
    return np.asarray(1.0 / np.sqrt(-form.e * (spare / (1.0 + spare))))


def shrink(form: QuadraticForm, budget: FactorBudget, *, keep: bool = False) -> tuple[QuadraticForm, bool] | None:
    """Eliminate down to a core that can be factored within the budget; say whether to treat it as dense.

    None where there is no such core. For a sparse factorization only the simplest nodes are eliminated beforehand: its
    own order does better on a grid than ours.
    """
    most = max(budget.edges, 2 * len(form.c))
    eliminate(form, degree=3, until=SMALL, edges=most, keep=keep)
    thin = replace(form, steps=list(form.steps))
    if eliminate(form, degree=8, until=SMALL, edges=most, keep=keep):
        return form, True
    if form.size > budget.core and expected_fill(thin) <= budget.fill:
        return thin, False
    # a core this large of a graph without small separators only becomes denser
    if form.size <= 5 * budget.core:
        eliminate(form, degree=form.size // 8, until=budget.core, edges=budget.edges, keep=keep)
    return (form, True) if form.size <= budget.core else None


def expected_fill(form: QuadraticForm) -> float:
    """Estimate the entries of a sparse factor, from the widest level of a breadth-first search: a separator of the
    graph.

    For a square grid of k nodes, nested dissection fills about w^2 log2(k) / 2 with w the width; twice that, for
    minimum degree. It is an estimate, no bound: a graph that is hard for it (a hub beside a grid) looks too large, and
    is skipped.
    """
    return len(form.c) + float(_widest_level(form)) ** 2 * float(np.log2(max(2, form.size)))


def _widest_level(form: QuadraticForm) -> int:
    """Find the widest level of a breadth-first search from a node that is far from some other."""
    from scipy.sparse import coo_array  # noqa: PLC0415 - small graphs do without

    places = np.concatenate([form.i, form.j]), np.concatenate([form.j, form.i])
    rows = coo_array((np.ones(2 * len(form.c), np.int8), places), shape=(form.size, form.size)).tocsr()
    last, widest = np.array([0]), 0
    for _ in range(2):
        seen = np.zeros(form.size, np.bool_)
        front, widest = last[:1], 0
        while len(front):
            seen[front] = True
            widest, last = max(widest, len(front)), front
            around = np.unique(rows[front].indices)
            front = around[~seen[around]]
    return widest


def too_wide(laplacian: Laplacian, low: float, budget: FactorBudget) -> bool:
    """Return True if no order of elimination fits into the budget: the treewidth of a graph with a large gap is large.

    At least 3/4 n mu / (D + 2 mu) - 1 with mu = lambda_2 of the plain Laplacian and D the largest degree: Chandran and
    Subramanian, A spectral lower bound for the treewidth of a graph and its consequences, 2003. mu is at least low
    times the least n over the largest c.
    """
    mu = low * float(laplacian.n.min() / laplacian.c.max())
    most = int(np.bincount(laplacian.ends.ravel()).max())
    width = 0.75 * laplacian.nodes * mu / (most + 2.0 * mu) - 2.0
    return width > budget.core and width * width / 2.0 > budget.fill


def _dense_proof(form: QuadraticForm, spare: float) -> bool:
    """Prove by Cholesky; where rounding is too large, after eliminating more nodes."""
    if _cholesky_proof(form, spare):
        return True
    return form.size <= GRADUAL and _cholesky_proof(eliminate_dense(form), spare)


def _cholesky_proof(form: QuadraticForm, spare: float) -> bool:
    """Prove that M + 2 e e^T / |sum e| is positive definite: in the direction 1, where M is negative, it changes the
    sign.
    """
    if form.size <= 1:
        return True
    unit = _unit(form, spare)
    matrix, errors = _dense(form, unit)
    if not (matrix.diagonal() > 0.0).all():
        return False
    scale = np.exp2(-np.round(np.log2(matrix.diagonal()) / 2.0))
    matrix *= scale[:, None]
    matrix *= scale
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    longest = int(np.count_nonzero(factor, axis=1).max())
    unit /= scale
    np.abs(factor, out=factor)
    rounding = SAFETY * (longest + 2) * UNIT * (unit * (factor @ (factor.T @ unit)))
    return bool((rounding + errors).max() < 1.0)


def _dense(form: QuadraticForm, unit: Array) -> tuple[Array, Array]:
    """Build the matrix, and a bound on the rounding in building it: the row sums, in units of the spare."""
    matrix = np.zeros((form.size, form.size))
    matrix[form.i, form.j] = matrix[form.j, form.i] = -form.c
    sums = form.sums
    matrix[np.diag_indices(form.size)] = sums + form.e
    root = form.e * np.sqrt(2.0 / -form.e.sum())
    matrix += np.outer(root, root)
    weights = np.bincount(form.i, form.c * unit[form.j], form.size) + np.bincount(
        form.j, form.c * unit[form.i], form.size
    )
    # w w^T may be any rank-one matrix: only rounding of its products and sums counts
    row = weights + (form.degrees + 4.0) * (sums - form.e) * unit + 4.0 * np.abs(root) * float(np.abs(root) @ unit)
    return matrix, SAFETY * UNIT * unit * row


def _sparse_proof(form: QuadraticForm, spare: float) -> bool:
    """Prove exactly one negative pivot, and rounding below the spare."""
    factored = factor(form)
    if factored is None:
        return False
    lu, scale = factored
    unit = _unit(form, spare)
    turned = np.empty(form.size)
    turned[lu.perm_r] = unit / scale
    lower, upper = lu.L, lu.U
    del lu, factored
    pivots = upper.diagonal()
    if not np.isfinite(pivots).all() or int((pivots < 0.0).sum()) > 1 or (pivots == 0.0).any():
        return False
    length = (np.bincount(lower.indices) + 2.0) * SAFETY * UNIT
    skew = lower.T.tocsc()
    skew.data *= pivots[skew.indices]
    skew = upper - skew
    for matrix in (lower, upper, skew):
        np.abs(matrix.data, out=matrix.data)
    forming = SAFETY * UNIT * (form.degrees + 4.0) * (form.sums - form.e) * unit**2

    def errors(z: Array) -> Array:
        x = turned * z
        return np.asarray(turned * (length * (lower @ (upper @ x)) + lower @ (skew @ x)))

    return _radius(errors, form.size) + float(forming.max()) < 1.0


def _radius(errors: Callable[[Array], Array], size: int) -> float:
    """Bound the spectral radius of a nonnegative matrix: max (B z)_i / z_i for any z > 0 (Collatz, 1942)."""
    z = np.ones(size)
    least = np.inf
    for _ in range(8):
        grown = errors(z)
        least = min(least, float((grown / z).max()))
        z = grown / grown.max() + 1e-3
    return least


def factor(form: QuadraticForm, ground: int | None = None) -> tuple[Any, Array] | None:
    """Factor S M S by SuperLU, for S of powers of two that make the diagonal about 1, without the node `ground` if
    given.

    None where it had to pivot off the diagonal, or for lack of memory. The signs of the pivots are meaningful only with
    the same order for rows and columns.
    """
    from scipy.sparse import coo_array  # noqa: PLC0415
    from scipy.sparse.linalg import splu  # noqa: PLC0415

    diagonal = form.sums + form.e
    scale = np.exp2(-np.round(np.log2(np.maximum(np.abs(diagonal), np.finfo(float).tiny)) / 2.0))
    node = np.arange(form.size)
    off = -form.c * scale[form.i] * scale[form.j]
    places = np.concatenate([form.i, form.j, node]), np.concatenate([form.j, form.i, node])
    values = np.concatenate([off, off, diagonal * scale * scale])
    matrix = coo_array((values, places), shape=(form.size, form.size)).tocsc()
    if ground is not None:
        stay = np.flatnonzero(node != ground)
        matrix = matrix[stay][:, stay]
    try:
        lu = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    except (MemoryError, RuntimeError):  # no memory; a pivot that is exactly zero
        return None
    return (lu, scale) if np.array_equal(lu.perm_r, lu.perm_c) else None
