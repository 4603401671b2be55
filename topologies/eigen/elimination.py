"""Eliminates nodes of few neighbors from a weighted graph without subtraction: all numbers keep their accuracy.

The form is F(x) = sum over edges of c_ij (x_i - x_j)^2 + sum over nodes of e_i x_i^2 with c > 0 and e <= 0. Minimizing
over x_v, whose pivot is D = sum_j c_vj + e_v > 0, leaves a form of the same kind on the other nodes:

    c_ij gains c_vi c_vj / D,    e_i gains e_v c_vi / D

so all c stay positive and all e negative: only D is a difference, and a node waits while |e_v| is more than half of its
sum. For e = 0 this is how a Laplacian's solver should eliminate; for e = -sigma n it counts the eigenvalues below sigma
even of a Laplacian whose gap is far below the rounding error of its entries (a ring of a million nodes).

All roundings are directed so that the remaining form is at most the exact one (in the order of quadratic forms): a
proof about its negative eigenvalues then holds for the given graph.

Source of the idea: Grassmann, Taksar and Heyman, Regenerative analysis and steady state distributions for Markov
chains, 1985; O'Cinneide, Entrywise perturbation theory and error analysis for Markov chains, 1993.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from topologies.laplacian import Array, Laplacian

Whole = NDArray[np.int64]
UNIT = 2.0**-53
CLOSE = 1e-8
"""A pivot below this share of its sum is not used as a divisor."""
SLACK = 1.5
"""Nodes of up to this times the least degree are eliminated in one turn: fewer turns, little more fill."""


@dataclass(frozen=True, slots=True)
class EliminationStep:
    """Nodes without an edge between them that were eliminated in one turn: `x[gone] = (b + sum of c x[neighbor]) /
    pivot`.

    `gone`, `pivot`, `starts`: (k,); `owner` (an index into `gone`), `neighbor`, `share` (c / pivot): one for each
    half-edge, ordered by owner; those of `gone[k]` begin at `starts[k]`. Nodes have their numbers in the whole graph.
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

    `steps` are those that `eliminate` kept.
    """

    nodes: Whole
    i: Whole
    j: Whole
    c: Array
    e: Array
    steps: list[EliminationStep] = field(default_factory=list)

    @classmethod
    def of(cls, laplacian: Laplacian, sigma: float = 0.0) -> Self:
        """Build L_c - sigma N, with as many negative eigenvalues as N^-1/2 L_c N^-1/2 has below `sigma`."""
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
    """Eliminate nodes of at most `degree` neighbors until `until` are left, or more than `edges` edges are.

    `keep` remembers the steps, for a solver. Returns False where it stopped for another reason than `until`.
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
    """Choose nodes of nearly the least degree, no two of them neighbors: each has the least (degree, lot) around it."""
    degrees, sums = form.degrees, form.sums
    small = degrees <= degree
    allowed = small & (-form.e <= 0.5 * sums)
    if not allowed.any():
        # next to an eigenvalue of its own (every leaf of a star): it goes late, for its pivot has lost digits
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

    # sums of d terms err by less than d units, and each further operation by one: bounds from both sides
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
    """Return the edges that join the neighbors of every eliminated node, rounded down."""
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
    order = np.argsort(key)
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    if not len(starts):
        return key, key, c
    counts = np.diff(starts, append=len(key))
    total = np.add.reduceat(c[order], starts) * (1.0 - (counts + 1) * UNIT * (counts > 1))
    key = key[starts]
    return key // size, key % size, total


def eliminate_dense(form: QuadraticForm) -> QuadraticForm:
    """Eliminate one node after the other, the one furthest from a change of sign first, in a full matrix of the
    weights.

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
