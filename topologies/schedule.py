"""A schedule is a repeating sequence of mixing matrices: round t mixes with `mixings[t % period]`.

A directed static graph is a schedule of one matrix. Weights are stored as fractions, so that a product of matrices can
be compared exactly with the averaging matrix: with D the least common denominator of a round, D W is an integer matrix,
and so is the product of several, over the product of their denominators. It is compared without rounding with J/n, the
matrix that gives every node the mean.

The size of a schedule is checked here too, before it is drawn or built.

How much it shrinks the distance to consensus is the spectral norm of D_t = W_t ... W_1 - J/n. All matrices have rows
and columns that sum to one, so the norm never grows with t and the first round with a norm below some value is found by
bisection, with dense matrices, up to `DENSE_LIMIT` nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topologies.eigen import eigenvalues
from topologies.errors import TopologyError
from topologies.graph import Topology

LINKS_LIMIT = 60_000_000
"""The maximum number of links in all rounds together: about a gigabyte."""
ROUNDS_LIMIT = 10_000


def check_links(family: str, nodes: int, links: int) -> None:
    """Refuse a schedule with more links than can be held. Raises TopologyError."""
    if links > LINKS_LIMIT:
        text = f"{family} on {nodes} nodes has about {links:,} links, more than can be held"
        raise TopologyError(text, key="nodes", value=nodes, allowed=f"fewer: up to {LINKS_LIMIT:,} links in all rounds")


def check_rounds(family: str, nodes: int, rounds: int, degree: int = 1) -> None:
    """Check a drawn schedule, in which a node has `degree` links per round."""
    if rounds > ROUNDS_LIMIT:
        key = f"{family}:rounds"
        raise TopologyError("too many", key=key, value=rounds, allowed=f"up to {ROUNDS_LIMIT}: they are repeated")
    check_links(family, nodes, nodes * degree * rounds)


Ints = NDArray[np.int64]
Array = NDArray[np.float64]

DENSE_SHARE = 16
"""A round in which a node receives from more than one node in this many is applied as a dense matrix."""


class Part(NamedTuple):
    """Links of one round that all have the same weight. Both arrays have shape (links,)."""

    receivers: Ints
    senders: Ints
    weight: Fraction


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """One round: node `receivers[e]` takes the share `numerators[e] / denominators[e]` of node `senders[e]`.

    The rest of its weight 1 stays with the node itself. Each array has shape (links,); an undirected edge is two links.
    The rows of W sum to one by construction; in the families here the columns do so too.
    """

    nodes: int
    receivers: Ints
    senders: Ints
    numerators: Ints
    denominators: Ints

    @classmethod
    def of(cls, nodes: int, shares: Mapping[tuple[int, int], Fraction]) -> MixingMatrix:
        """Make a matrix from W's entries off the diagonal: `shares[receiver, sender]`."""
        links = sorted(shares)
        array = np.array(links, dtype=np.int64).reshape(-1, 2)
        numerators = np.array([shares[link].numerator for link in links], dtype=np.int64)
        denominators = np.array([shares[link].denominator for link in links], dtype=np.int64)
        return cls(nodes, array[:, 0], array[:, 1], numerators, denominators)

    @classmethod
    def joined(cls, nodes: int, parts: Sequence[Part]) -> MixingMatrix:
        """Make a matrix from links in arrays, suitable for a million nodes. Without parts W is the identity."""
        none = np.empty(0, np.int64)
        receivers = np.concatenate([none, *(part.receivers for part in parts)])
        senders = np.concatenate([none, *(part.senders for part in parts)])
        if len({part.weight for part in parts}) == 1:
            # one number with a stride of zero: most rounds have a single weight, and this saves half of the memory
            above, below = (
                np.broadcast_to(np.int64(part), len(senders)) for part in parts[0].weight.as_integer_ratio()
            )
            return cls(nodes, receivers, senders, above, below)
        lengths = [len(part.receivers) for part in parts]
        numerators = np.repeat(np.array([part.weight.numerator for part in parts], np.int64), lengths)
        denominators = np.repeat(np.array([part.weight.denominator for part in parts], np.int64), lengths)
        return cls(nodes, receivers, senders, numerators, denominators)

    @cached_property
    def weights(self) -> Array:
        """The weights of the links. Shape (links,)."""
        return self.numerators / self.denominators

    @cached_property
    def layers(self) -> tuple[Ints, ...]:
        """All links, in groups in which no receiver occurs twice, each as an array of positions."""
        order = np.argsort(self.receivers, kind="stable")
        counts = np.bincount(self.receivers, minlength=self.nodes)
        rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        by_rank = np.argsort(rank, kind="stable")
        cuts = np.cumsum(np.bincount(rank))
        return tuple(np.split(order[by_rank], cuts[:-1])) if len(rank) else ()

    def dense(self) -> Array:
        """Return W as a matrix of shape (nodes, nodes), rows sum to 1."""
        matrix = np.zeros((self.nodes, self.nodes))
        np.add.at(matrix, (self.receivers, self.senders), self.weights)
        matrix[np.diag_indices(self.nodes)] += 1.0 - matrix.sum(axis=1)
        return matrix

    def apply(self, x: Array) -> Array:
        """Compute W x for x of shape (nodes,) or (nodes, d), without building the matrix if W is sparse."""
        if x.ndim == 1:
            flow = self.weights * (x[self.senders] - x[self.receivers])
            return np.asarray(x + np.bincount(self.receivers, flow, self.nodes))
        if len(self.layers) * DENSE_SHARE > self.nodes:
            return np.asarray(self.dense() @ x)
        moved = np.array(x, dtype=np.float64)
        for layer in self.layers:
            to = self.receivers[layer]
            moved[to] += self.weights[layer, None] * (x[self.senders[layer]] - x[to])
        return moved

    @property
    def messages(self) -> int:
        """The number of models sent in one round: one for each link."""
        return len(self.receivers)


class Schedule:
    """A schedule, at rest without `mixings`. `directed`: some matrix is not symmetric. `random`: the seed drew them."""

    def __init__(
        self,
        spec: str,
        nodes: int,
        mixings: Sequence[MixingMatrix],
        seed: int = 0,
        *,
        directed: bool,
        random: bool = False,
    ) -> None:
        self.spec = spec
        self.nodes = nodes
        self.mixings = tuple(mixings) or (MixingMatrix.joined(nodes, []),)
        self.seed = seed
        self.directed = directed
        self.random = random

    @property
    def period(self) -> int:
        return len(self.mixings)

    def mixing(self, t: int) -> MixingMatrix:
        return self.mixings[t % self.period]

    def union(self) -> Topology:
        """Return all links of a period as one undirected graph; a federation keeps sessions for its edges."""
        keys = [np.empty(0, np.int64)]
        for mixing in self.mixings:
            low, high = np.minimum(mixing.receivers, mixing.senders), np.maximum(mixing.receivers, mixing.senders)
            # an undirected edge comes as two links
            chosen = slice(None) if self.directed else mixing.receivers < mixing.senders
            keys.append((low * self.nodes + high)[chosen])
        links = np.sort(np.concatenate(keys))
        links = links[np.concatenate([[True], links[1:] != links[:-1]])[: len(links)]]
        return Topology(self.spec, self.nodes, np.stack(np.divmod(links, self.nodes), axis=1), self.seed)


RATIONAL_LIMIT = 128
"""The most nodes for an exact proof; above that, the fall of a random start's disagreement shows exactness."""
PROBES = 3
ZERO = 1e-12
AWAY = 1e-6
"""The threshold for a fall to zero: no geometric decay passes from above AWAY to below ZERO in one round; only an exact
schedule does.
"""

Whole = NDArray[np.object_]


def exact_after(schedule: Schedule) -> int | None:
    """Find the smallest t with W_t ... W_1 = J/n, up to one period or 2 log2 n rounds, whichever is more.

    Proven by rational arithmetic up to `RATIONAL_LIMIT` nodes.
    """
    if schedule.nodes == 1:
        return 0
    rounds = max(schedule.period, 2 * schedule.nodes.bit_length())
    if schedule.nodes <= RATIONAL_LIMIT:
        return _by_fractions(schedule, rounds)
    return _by_probes(schedule, rounds)


def product(schedule: Schedule, rounds: int) -> tuple[Whole, int]:
    """Compute W_rounds ... W_1 as a matrix of Python integers, shape (nodes, nodes), over one denominator."""
    return next(islice(_products(schedule), rounds - 1, None))


def _products(schedule: Schedule) -> Iterator[tuple[Whole, int]]:
    """Yield the product of one round, of two, and so on."""
    matrix, below = np.zeros((schedule.nodes, schedule.nodes), dtype=object), 1
    matrix[np.diag_indices(schedule.nodes)] = 1
    for t in count():
        matrix, factor = _applied(schedule.mixing(t), matrix)
        below *= factor
        yield matrix, below


def _applied(mixing: MixingMatrix, matrix: Whole) -> tuple[Whole, int]:
    """Return D W times `matrix`, and D."""
    below = math.lcm(1, *set(mixing.denominators.tolist()))
    shares: Any = mixing.numerators.astype(object) * (below // mixing.denominators.astype(object))
    moved = matrix * below
    for layer in mixing.layers:
        to = mixing.receivers[layer]
        moved[to] += shares[layer, None] * (matrix[mixing.senders[layer]] - matrix[to])
    return moved, below


def _by_fractions(schedule: Schedule, rounds: int) -> int | None:
    for t, (matrix, below) in enumerate(islice(_products(schedule), rounds)):
        # one entry first: comparing all of them costs as much as the round
        if matrix[0, 0] * schedule.nodes == below and bool((matrix * schedule.nodes == below).all()):
            return t + 1
    return None


def _by_probes(schedule: Schedule, rounds: int) -> int | None:
    x = np.random.default_rng(0).standard_normal((PROBES, schedule.nodes))
    before = 1.0
    for t in range(rounds):
        x = np.stack([schedule.mixing(t).apply(row) for row in x])
        away = float(np.abs(x - x.mean(axis=1, keepdims=True)).max())
        if away < ZERO:
            return t + 1 if before > AWAY else None
        before = away
    return None


DENSE_LIMIT = 2_000
DOUBLINGS = 48
"""The number of doublings of the number of periods before a schedule counts as never reaching consensus."""
TOLERANCE = 1e-6
TIE = 1e-9
"""The relative distance at which a norm counts as equal to epsilon: it is rounding error."""
ROUNDING = 1e-12
"""A norm below this may be zero: the products have an error of that size."""
RELIABLE = 1e-9
"""A norm above this is known to TOLERANCE despite rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodContraction:
    """The contraction of one period. `norm` is the norm of D over the period.

    `residual`: of the eigenvector of D^T D for that norm, or the bound on all its eigenvalues. `rounds`: the smallest t
    with a norm of at most epsilon, None if never.
    """

    norm: float
    rounds: int | None
    method: str
    residual: float
    certified: bool


def contraction(schedule: Schedule, epsilon: float) -> PeriodContraction | None:
    """Compute the contraction of a schedule on two or more nodes whose union is connected; None if it is too large."""
    if schedule.nodes > DENSE_LIMIT:
        return None
    whole = _start(schedule)
    for t in range(schedule.period):
        whole = schedule.mixing(t).apply(whole)
    solved = eigenvalues(whole.T @ whole)
    square = max(0.0, float(solved.values[-1]))
    return PeriodContraction(
        norm=math.sqrt(square),
        rounds=_first_below(schedule, whole, epsilon),
        method="dense",
        residual=solved.bound,
        certified=square > RELIABLE**2 and solved.bound <= TOLERANCE * square,
    )


def _start(schedule: Schedule) -> Array:
    """Return I - J/n: products without the part that all have in common."""
    return np.eye(schedule.nodes) - 1.0 / schedule.nodes


def _first_below(schedule: Schedule, whole: Array, epsilon: float) -> int | None:
    """Find the smallest t with ||D_t|| <= epsilon; `whole` is D over one period.

    The number of periods is doubled until it is enough, then bisected, then reduced round by round within at most one
    period: no round removes the rounding error in the direction of the mean.
    """
    epsilon *= 1.0 + TIE
    powers = [whole]
    while above(powers[-1], epsilon):
        if len(powers) > DOUBLINGS:
            return None
        powers.append(powers[-1] @ powers[-1])
    value, periods = _start(schedule), 0
    for exponent in range(len(powers) - 2, -1, -1):
        further = powers[exponent] @ value
        if above(further, epsilon):
            value, periods = further, periods + (1 << exponent)
    rounds = 0
    while rounds < schedule.period and above(value, epsilon):
        value = schedule.mixing(rounds).apply(value)
        rounds += 1
    return periods * schedule.period + rounds


def above(value: Array, epsilon: float) -> bool:
    """Return True if the spectral norm is larger than `epsilon`. Bounds come first, all singular values only if the
    bounds do not decide.
    """
    size = float(np.linalg.norm(value))
    if size <= epsilon or size > epsilon * math.sqrt(len(value)):
        return size > epsilon
    x = np.random.default_rng(0).standard_normal(len(value))
    for _ in range(8):
        y = value @ x
        if np.linalg.norm(y) > epsilon * np.linalg.norm(x):
            return True
        x = value.T @ y
    return bool(np.linalg.eigvalsh(value.T @ value)[-1] > epsilon * epsilon)
