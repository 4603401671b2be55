"""Prove that no eigenvalue except the kernel's 0 lies below a number: a lower bound on lambda_2, including all
rounding.

Nodes with few neighbors are first eliminated without subtraction, so that all numbers keep their accuracy. The form is
F(x) = sum over edges of c_ij (x_i - x_j)^2 + sum over nodes of e_i x_i^2 with c > 0 and e <= 0. Minimizing over x_v,
whose pivot is D = sum_j c_vj + e_v > 0, leaves a form of the same kind on the other nodes:

    c_ij gains c_vi c_vj / D,    e_i gains e_v c_vi / D

so all c stay positive and all e negative: only D is a difference, and a node is postponed while |e_v| is more than half
of its sum. For e = 0 this is how a Laplacian solver should eliminate; for e = -sigma n it counts the eigenvalues below
sigma even of a Laplacian whose gap is far below the rounding error of its entries (a ring of a million nodes).

All roundings are directed so that the remaining form is at most the exact one (in the order of quadratic forms): a
proof about its negative eigenvalues then holds for the given graph.

Source of the idea: Grassmann, Taksar and Heyman, Regenerative analysis and steady state distributions for Markov
chains, 1985; O'Cinneide, Entrywise perturbation theory and error analysis for Markov chains, 1993.

L_c - sigma N has exactly one negative eigenvalue (x = 1 gives -sigma sum n) if and only if lambda_2 >= sigma. The
matrix of the nodes that remain, the core, is tested

* densely: M + w w^T is positive definite for some w only if M has at most one negative eigenvalue; a Cholesky
  factorization that runs to its end proves it up to its rounding error (Rump, Verification of positive definiteness,
  2006);
* or sparsely: the signs of the pivots of L D L^T (Sylvester), symmetric pivoting only.

In both cases the rounding error is bounded afterwards, entry by entry (Higham, Accuracy and Stability of Numerical
Algorithms, theorems 9.3 and 10.3), relative to a margin: `SPARE` times the diagonal e of the core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from topologies.eigen.laplacian import Array, Laplacian
from topologies.graph import Topology, hops

Whole = NDArray[np.int64]
UNIT = 2.0**-53
CLOSE = 1e-8
"""A pivot below this fraction of its sum is not used as a divisor."""
SLACK = 1.5
"""Nodes with up to this multiple of the minimum degree are eliminated in one turn: fewer turns, little more fill."""


@dataclass(frozen=True, slots=True)
class EliminationStep:
    """Mutually non-adjacent nodes eliminated in one turn: `x[gone] = (b + sum of c x[neighbor]) / pivot`.

    `gone`, `pivot`, `starts`: (k,); `owner` (an index into `gone`), `neighbor`, `share` (c / pivot): one per half-edge,
    ordered by owner; the ones for `gone[k]` begin at `starts[k]`. Nodes are numbered as in the whole graph.
    """

    gone: Whole
    pivot: Array
    starts: Whole
    owner: Whole
    neighbor: Whole
    share: Array


@dataclass(slots=True)
class QuadraticForm:
    """A quadratic form on a graph. Node k of `ends` is node `nodes[k]` of the whole graph; `c` is (edges,), `e`
    (nodes,).

    `steps` are the ones that `eliminate` kept.
    """

    nodes: Whole
    i: Whole
    j: Whole
    c: Array
    e: Array
    steps: list[EliminationStep] = field(default_factory=list)

    @classmethod
    def of(cls, laplacian: Laplacian, sigma: float = 0.0) -> Self:
        """Build L_c - sigma N, which has as many negative eigenvalues as N^-1/2 L_c N^-1/2 has below `sigma`."""
        i, j = laplacian.ends[:, 0], laplacian.ends[:, 1]
        return cls(np.arange(laplacian.nodes), i, j, laplacian.c, -sigma * laplacian.n * (1.0 + 2.0 * UNIT))

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def degrees(self) -> Whole:
        return np.bincount(self.i, minlength=self.size) + np.bincount(self.j, minlength=self.size)

    @property
    def sums(self) -> Array:
        """Sum the weights at each node. Shape (nodes,)."""
        return np.asarray(np.bincount(self.i, self.c, self.size) + np.bincount(self.j, self.c, self.size))


def eliminate(form: QuadraticForm, *, degree: int, until: int, edges: int, keep: bool = False) -> bool:
    """Eliminate nodes with at most `degree` neighbors until `until` nodes are left, or until there are more than
    `edges` edges.

    `keep` records the steps, for a solver. Returns False if it stopped for any reason other than `until`.
    """
    turn = 0
    while form.size > until and len(form.c) <= edges:
        turn += 1
        going = _independent_nodes(form, degree, np.random.default_rng(turn))
        if going is None:
            return False
        _remove(form, going, keep=keep)
    return form.size <= until


def _independent_nodes(form: QuadraticForm, degree: int, rng: np.random.Generator) -> NDArray[np.bool_] | None:
    """Choose mutually non-adjacent nodes of nearly minimum degree: each has the smallest (degree, random number) among
    its neighbors.
    """
    degrees, sums = form.degrees, form.sums
    small = degrees <= degree
    allowed = small & (-form.e <= 0.5 * sums)
    if not allowed.any():
        # close to an eigenvalue of its own (every leaf of a star), so its pivot has lost digits: it goes late
        allowed = small & (-form.e <= (1.0 - CLOSE) * sums)
        if not allowed.any():
            return None
    allowed &= degrees <= max(2, int(SLACK * degrees[allowed].min()))
    never = np.iinfo(np.int64).max
    rank = np.where(allowed, degrees * form.size + rng.permutation(form.size), never)
    around = np.full(form.size, never)
    np.minimum.at(around, form.i, rank[form.j])
    np.minimum.at(around, form.j, rank[form.i])
    return np.asarray(allowed & (rank < around))


def _remove(form: QuadraticForm, going: NDArray[np.bool_], *, keep: bool) -> None:
    at_i, at_j = going[form.i], going[form.j]
    owner = np.concatenate([form.i[at_i], form.j[at_j]])
    neighbor = np.concatenate([form.j[at_i], form.i[at_j]])
    c = np.concatenate([form.c[at_i], form.c[at_j]])
    order = np.argsort(owner, kind="stable")
    owner, neighbor, c = owner[order], neighbor[order], c[order]
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    counts = np.diff(starts, append=len(owner))
    gone = owner[starts]
    part = np.repeat(np.arange(len(gone)), counts)

    # sums of d terms are off by less than d units, and each further operation adds one: bounds from both sides
    sums, slack = np.add.reduceat(c, starts), (counts + 4) * UNIT
    least = sums * (1.0 - slack) + form.e[gone]
    least -= UNIT * np.abs(least) * 2.0
    most = (sums * (1.0 + slack) + form.e[gone]) * (1.0 + 2.0 * UNIT)
    if keep:
        numbers = form.nodes[gone], form.nodes[neighbor]
        form.steps.append(EliminationStep(numbers[0], least, starts, part, numbers[1], c / least[part]))

    gained = np.bincount(neighbor, form.e[owner] * c / least[part], form.size)
    touched = np.bincount(neighbor, minlength=form.size)
    e = (form.e + gained) * (1.0 + (touched + 6) * UNIT)
    a, b, fresh = _pairs(neighbor, c, most, starts, counts)
    rest = ~(at_i | at_j)
    alive = ~going
    place = np.cumsum(alive) - 1
    a, b = place[np.concatenate([form.i[rest], a])], place[np.concatenate([form.j[rest], b])]
    form.nodes, form.e = form.nodes[alive], e[alive]
    form.i, form.j, form.c = _merge_parallel(a, b, np.concatenate([form.c[rest], fresh]), form.size)


def _pairs(neighbor: Whole, c: Array, pivot: Array, starts: Whole, counts: Whole) -> tuple[Whole, Whole, Array]:
    """Return the edges that join the neighbors of each eliminated node, rounded down."""
    ends: list[tuple[Whole, Whole]] = [(neighbor[:0], neighbor[:0])]
    values = [c[:0]]
    for count in np.unique(counts[counts > 1]):
        which = counts == count
        places = starts[which][:, None] + np.arange(count)
        left, right = np.triu_indices(int(count), 1)
        around, weight = neighbor[places], c[places]
        ends.append((around[:, left].ravel(), around[:, right].ravel()))
        product = weight[:, left] * weight[:, right] / pivot[which][:, None]
        values.append((product * (1.0 - 4.0 * UNIT)).ravel())
    return np.concatenate([a for a, _ in ends]), np.concatenate([b for _, b in ends]), np.concatenate(values)


def _merge_parallel(a: Whole, b: Whole, c: Array, size: int) -> tuple[Whole, Whole, Array]:
    """Merge parallel edges into one, rounded down."""
    key = np.minimum(a, b) * size + np.maximum(a, b)
    order = np.argsort(key, kind="stable")  # most of the keys are in order already
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    if not len(starts):
        return key, key, c
    counts = np.diff(starts, append=len(key))
    total = np.add.reduceat(c[order], starts) * (1.0 - (counts + 1) * UNIT * (counts > 1))
    key = key[starts]
    return key // size, key % size, total


def eliminate_dense(form: QuadraticForm) -> QuadraticForm:
    """Eliminate nodes one by one, the one furthest from a change of sign first, in a full matrix of the weights.

    It ends with one node if no pivot changes its sign.
    """
    c = np.zeros((form.size, form.size))
    c[form.i, form.j] = c[form.j, form.i] = form.c
    e, nodes = form.e.copy(), form.nodes
    while len(e) > 1:
        sums = c.sum(axis=1)
        if not (sums > 0.0).all():
            break
        v = int(np.argmin(-e / sums))
        if -e[v] > (1.0 - CLOSE) * sums[v]:
            break
        slack = (len(e) + 4) * UNIT
        least = (sums[v] * (1.0 - slack) + e[v]) * (1.0 - 2.0 * UNIT)
        most = (sums[v] * (1.0 + slack) + e[v]) * (1.0 + 2.0 * UNIT)
        e = (e + e[v] * c[v] / least) * (1.0 + 6.0 * UNIT)
        c = (c + np.outer(c[v], c[v]) / most * (1.0 - 4.0 * UNIT)) * (1.0 - 2.0 * UNIT)
        np.fill_diagonal(c, 0.0)
        c, e, nodes = np.delete(np.delete(c, v, axis=0), v, axis=1), np.delete(e, v), np.delete(nodes, v)
    i, j = np.triu_indices(len(e), 1)
    joined = c[i, j] > 0.0
    return QuadraticForm(nodes, i[joined], j[joined], c[i, j][joined], e)


SPARE = (0.4, 0.02)
"""The margin proven beyond the claim to cover rounding, as a fraction of the tolerance times the core's diagonal e.

The second value is for long eliminated chains, whose weight counts several times in the core.
"""
SAFETY = 2.0
"""A factor on the textbook bound for rounding errors, for kernels that add in their own order."""


GRADUAL = 2_000
"""The maximum size of a core whose nodes may be eliminated one by one."""
NEARLY = 1.1
"""The multiple of the largest core from which elimination goes on although there are many edges."""
SMALL = 32
"""A core with at most this many nodes is not reduced further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorBudget:
    """Limits of a factorization. `fill` counts the entries of a sparse factor, at about 50 bytes each including
    copies.
    """

    core: int
    fill: float

    @property
    def edges(self) -> int:
        """The maximum number of edges during elimination."""
        return min(self.core * self.core // 4, 30_000_000)


CHEAP = FactorBudget(core=4_000, fill=2e7)
"""About half a gigabyte, a few seconds."""
LARGE = FactorBudget(core=12_000, fill=1.2e8)
"""Up to six gigabytes and several minutes."""


def at_least(laplacian: Laplacian, sigma: float, budget: FactorBudget = CHEAP, tolerance: float = 1e-6) -> bool | None:
    """Return True only if lambda_2 >= sigma is proven for the numbers c and n exactly as stored.

    False means that it is not so, or that rounding is too large for the proof; None that the proof exceeds the budget.
    lambda_2 must exceed sigma by the relative `tolerance`; a larger tolerance leaves more room for rounding.
    """
    if sigma <= 0.0:
        return True
    core = shrink(QuadraticForm.of(laplacian, sigma), budget)
    if core is None:
        return None
    form, dense = core
    for spare in np.multiply(SPARE if dense else SPARE[:1], tolerance).tolist():
        tightened = replace(form, e=form.e * (1.0 + spare))
        if _dense_proof(tightened, spare) if dense else _sparse_proof(tightened, spare):
            return True
    return False


def _unit(form: QuadraticForm, spare: float) -> Array:
    """Return 1 / sqrt of each node's margin: an error E is covered if the spectral radius of U |E| U is below 1."""
    return np.asarray(1.0 / np.sqrt(-form.e * (spare / (1.0 + spare))))


def shrink(form: QuadraticForm, budget: FactorBudget, *, keep: bool = False) -> tuple[QuadraticForm, bool] | None:
    """Eliminate down to a core that can be factored within the budget; say whether to treat it as dense.

    None if there is no such core. Before a sparse factorization only the simplest nodes are eliminated, because its own
    ordering does better on a grid than ours.
    """
    most = max(budget.edges, 2 * len(form.c))
    eliminate(form, degree=3, until=SMALL, edges=most, keep=keep)
    thin = replace(form, steps=list(form.steps))
    if eliminate(form, degree=8, until=SMALL, edges=most, keep=keep):
        return form, True
    if form.size > budget.core and expected_fill(thin) <= budget.fill:
        return thin, False
    # a core this large in a graph without small separators only becomes denser: the last three quarters of the edges
    # come with a few nodes in a hundred
    degree = form.size // 8
    for within, edges in ((5.0, budget.edges // 4), (NEARLY, budget.edges)):
        if form.size <= within * budget.core:
            eliminate(form, degree=degree, until=budget.core, edges=edges, keep=keep)
    return (form, True) if form.size <= budget.core else None


def expected_fill(form: QuadraticForm) -> float:
    """Estimate the entries of a sparse factor from the widest level of a breadth-first search, which separates the
    graph.

    For a square grid of k nodes, nested dissection fills about w^2 log2(k) / 2, with w the width; minimum degree fills
    twice as much. This is an estimate, not a bound: a graph that defeats it (a hub beside a grid) looks too large, and
    is skipped.
    """
    core = Topology("core", form.size, np.stack([form.i, form.j], axis=1))
    # from a node that is far from some other node
    widest = float(np.bincount(hops(core, int(np.argmax(hops(core, 0))))).max())
    return len(form.c) + widest**2 * float(np.log2(max(2, form.size)))


def too_wide(laplacian: Laplacian, low: float, budget: FactorBudget) -> bool:
    """Return True if no elimination order fits into the budget, because a graph with a large gap has a large treewidth.

    The treewidth is at least 3/4 n mu / (D + 2 mu) - 1 with mu = lambda_2 of the plain Laplacian and D the maximum
    degree: Chandran and Subramanian, A spectral lower bound for the treewidth of a graph and its consequences, 2003. mu
    is at least low times the smallest n over the largest c.
    """
    mu = low * float(laplacian.n.min() / laplacian.c.max())
    most = int(np.bincount(laplacian.ends.ravel()).max())
    width = 0.75 * laplacian.nodes * mu / (most + 2.0 * mu) - 2.0
    return width > budget.core and width * width / 2.0 > budget.fill


def _dense_proof(form: QuadraticForm, spare: float) -> bool:
    """Prove it by Cholesky; if rounding is too large, after eliminating more nodes."""
    if _cholesky_proof(form, spare):
        return True
    return form.size <= GRADUAL and _cholesky_proof(eliminate_dense(form), spare)


def _cholesky_proof(form: QuadraticForm, spare: float) -> bool:
    """Prove that M + 2 e e^T / |sum e| is positive definite: the added term changes the sign in the direction 1, where
    M is negative.
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
    """Build the matrix, and a bound on the rounding in building it: the row sums, in units of the margin."""
    matrix = np.zeros((form.size, form.size))
    matrix[form.i, form.j] = matrix[form.j, form.i] = -form.c
    sums = form.sums
    matrix[np.diag_indices(form.size)] = sums + form.e
    root = form.e * np.sqrt(2.0 / -form.e.sum())
    matrix += np.outer(root, root)
    weights = np.bincount(form.i, form.c * unit[form.j], form.size) + np.bincount(
        form.j, form.c * unit[form.i], form.size
    )
    # w w^T may be any rank-one matrix: only the rounding of its products and sums counts
    row = weights + (form.degrees + 4.0) * (sums - form.e) * unit + 4.0 * np.abs(root) * float(np.abs(root) @ unit)
    return matrix, SAFETY * UNIT * unit * row


def _sparse_proof(form: QuadraticForm, spare: float) -> bool:
    """Prove that exactly one pivot is negative, and that rounding is below the margin."""
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
    """Factor S M S by SuperLU, with S of powers of two that make the diagonal about 1, without the node `ground` if
    given.

    None if it had to pivot off the diagonal, or ran out of memory. The signs of the pivots are meaningful only if rows
    and columns have the same order.
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
    except (MemoryError, RuntimeError):  # out of memory, or a pivot that is exactly zero
        return None
    return (lu, scale) if np.array_equal(lu.perm_r, lu.perm_c) else None
