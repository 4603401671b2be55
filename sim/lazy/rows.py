"""The arithmetic of `p2pfl.engine`, for many nodes at once: the same operations in the same order, row by row.

Rows are gathered into scratch memory a few at a time, so that what one step writes the next still finds in the cache.
Elementwise operations give a row the same bits in whatever company it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.engine.engine import NORM_CEILING, NORM_MULTIPLE
from p2pfl.errors import LearningError
from p2pfl.learn.interface import Vector
from sim.lazy.edge_codecs import EdgeCodecs

Rows2 = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

CACHE_BYTES = 1 << 20
"""of scratch rows that one step works on."""
TRAINING_ROWS = 1024
FREEZE_CHANCE, REQUEST_CHANCE = 6, 8
"""where in an operation the chance stands, on edges whose compressor draws."""
MARGIN = 0.99
"""a check that comes so close to its limit is left to the engine."""

Lies = Callable[[Rows2, list[int], list[int]], None]
"""turns, in place, the models (b, d) of these nodes into what they show, each for the so-many-th time; -1: the
truth."""
Op = tuple[Any, ...]
"""kind, then: BEGIN round, corrected, variate scale | COMMIT rho | FREEZE edge, pair, after, lie, ticket | REQUEST and
REPLY edge, pair, ticket, lie (-1 in a REPLY), factor, n, flow scale | SKETCH tick | RESET end. `after`: the ticket that
must be applied first. On an edge whose compressor draws, FREEZE and REQUEST end with the chance of that encoding. An
`end` is 2 edge + 0 for the initiator's, 1 for the responder's.
"""


class Learners(Protocol):
    """Trains many nodes at once: see `sim.learning`."""

    def train(  # noqa: PLR0917 - as `sim.learning` has it
        self,
        nodes: Ints,
        rounds: Ints,
        starts: Rows2,
        corrections: Rows2 | None,
        corrected: NDArray[np.bool_],
        out: Rows2,
    ) -> NDArray[np.floating[Any]]: ...


class MisjudgedError(Exception):
    """A vector may fail a check, or a local round fail: what was taken to pass has to be decided one at a time."""


class Rows:
    """`models` x (nodes, d); `requests` is the decoded q of the request under way on each edge. `flows` (ends, d) has
    the flow S at each end of an edge, None where there is no control variate.

    `own` (pairs, d) is the replica of the initiator's model, `peer` that of the responder's.
    """

    def __init__(
        self, *, nodes: int, pairs: int, initial: Vector, codecs: EdgeCodecs, flows: bool, lies: Lies | None
    ) -> None:
        size, dtype = initial.size, initial.dtype
        self.size, self.dtype = size, dtype
        self.blanks: list[int] = []
        """pairs of replicas, both zero, that no end of an edge has seen yet."""
        self.codecs = codecs
        self.lies = lies
        self.models: Rows2 = np.tile(initial, (nodes, 1))
        self.flows: Rows2 | None = np.zeros((2 * pairs, size), dtype) if flows else None
        self.starts: Rows2 = np.zeros((nodes, size), dtype)
        self.corrections: Rows2 | None = np.zeros((nodes, size), dtype) if flows else None
        self._ends: Ints = np.zeros(0, np.int64)
        self._first: Ints = np.zeros(nodes + 1, np.int64)
        """`_ends[_first[node]:_first[node + 1]]` are a node's ends, in the order of its neighbors."""
        self.own: Rows2 = np.zeros((pairs, size), dtype)
        self.peer: Rows2 = np.zeros((pairs, size), dtype)
        self.requests: Rows2 = np.zeros((pairs, size), np.float32)
        self.before: dict[int, Vector] = {}
        """of an edge whose initiator may ask for its neighbors' median: `peer` before the latest transaction."""
        self.initiators: list[int] = []
        """of the edges."""
        self.crashing: frozenset[int] = frozenset()
        self.may_join = set(range(nodes))
        """nodes that may ask: those that have not begun a round, by whatever luck they come too late, or may crash."""
        self._zero: Vector = np.zeros(size, dtype)
        self.chunk = max(1, CACHE_BYTES // (4 * size * initial.itemsize))
        self.scratch = [np.empty((self.chunk, size), dtype) for _ in range(4)]
        self.safe_square = (MARGIN * NORM_MULTIPLE) ** 2 * size

    # -- local rounds ------------------------------------------------------------------------------------------------

    def know_ends(self, edges: Sequence[tuple[int, int]]) -> None:
        """Which ends are whose."""
        lows, highs = np.array(edges, np.int64).reshape(-1, 2).T
        numbers = np.arange(len(lows))
        owners, others = np.concatenate([lows, highs]), np.concatenate([highs, lows])
        order = np.lexsort((others, owners))
        self._ends = np.concatenate([2 * numbers, 2 * numbers + 1])[order]
        self._first = np.searchsorted(owners[order], np.arange(len(self._first)))

    def corrected(self, nodes: Ints, scales: Sequence[float]) -> Rows2:
        """The control variates (b, d) of these nodes: the sums of their flows, each times its scale -beta/n."""
        if self.flows is None:
            raise ValueError("there is no control variate")
        total: Rows2 = np.zeros((len(nodes), self.size), self.dtype)
        first, count = self._first[nodes], self._first[nodes + 1] - self._first[nodes]
        for place in range(int(count.max(initial=0))):
            some = np.flatnonzero(count > place)
            total[some] += self.flows[self._ends[first[some] + place]]
        total *= np.array(scales, self.dtype)[:, None]
        return total

    def begin(self, nodes: Ints, scales: list[float]) -> None:
        if len(self.may_join) > len(self.crashing):
            self._have_begun(nodes)
        for some in self._chunks(len(nodes)):
            which = nodes[some]
            self.starts[which] = self._take(0, self.models, which)
            if self.corrections is not None:
                self.corrections[which] = self.corrected(which, scales[some])

    def train(
        self, learners: Learners, nodes: Ints, rounds: Ints, corrected: NDArray[np.bool_]
    ) -> NDArray[np.floating[Any]]:
        """`starts` becomes what the round changed; returns the losses (b,)."""
        losses = np.empty(len(nodes))
        for first in range(0, len(nodes), TRAINING_ROWS):
            some = slice(first, first + TRAINING_ROWS)
            which = nodes[some]
            starts = self.starts[which]
            corrections = None if self.corrections is None else self.corrections[which]
            out = np.empty_like(starts)
            try:
                losses[some] = learners.train(which, rounds[some], starts, corrections, corrected[some], out)
            except LearningError as error:
                raise MisjudgedError(f"a local round failed: {error}") from error
            out -= starts
            self.starts[which] = out
        return losses

    def commit(self, nodes: Ints, rho: list[float]) -> None:
        rates = np.array(rho, self.dtype)[:, None]
        for some in self._chunks(len(nodes)):
            which = nodes[some]
            delta = self._take(0, self.starts, which)
            delta *= rates[some]
            model = self._take(1, self.models, which)
            model += delta
            if not (_squares(model) <= MARGIN * NORM_CEILING**2).all():
                raise MisjudgedError("a local round may have ended in no finite model")
            self.models[which] = model

    # -- transactions ------------------------------------------------------------------------------------------------

    def freeze(self, nodes: list[int], ops: Sequence[Op]) -> None:
        which, on, of = np.array(nodes), np.array([op[1] for op in ops]), np.array([op[2] for op in ops])
        for some in self._chunks(len(nodes)):
            shown = self._shown(self._take(0, self.models, which[some]), nodes[some], [op[4] for op in ops[some]])
            shown -= self._take(1, self.own, of[some])
            self.requests[on[some]] = self._through_the_codec(shown, on[some], ops[some], FREEZE_CHANCE)

    def request(self, nodes: list[int], ops: Sequence[Op]) -> None:
        """The responder's half: both replicas move, and its model by D/n."""
        which, columns = np.array(nodes), _columns(ops, self.dtype)
        for some in self._chunks(len(nodes)):
            on, of = columns.edges[some], columns.pairs[some]
            own = self._take(0, self.own, of)
            own += self.requests[on]
            self._check(own)
            self.own[of] = own
            model = self._take(1, self.models, which[some])
            shown = self.scratch[2][: len(of)]
            np.copyto(shown, model)
            shown = self._shown(shown, nodes[some], [op[4] for op in ops[some]])
            peer = self._take(3, self.peer, of)
            shown -= peer
            self._keep_before(on, peer)
            peer += self._through_the_codec(shown, on, ops[some], REQUEST_CHANCE)
            self._check(peer)
            self.peer[of] = peer
            own -= peer
            self._move(which[some], model, own, columns, some, 1)

    def reply(self, nodes: list[int], ops: Sequence[Op]) -> None:
        """The initiator's half: the replicas have moved already."""
        which, columns = np.array(nodes), _columns(ops, self.dtype)
        for some in self._chunks(len(nodes)):
            of = columns.pairs[some]
            peer = self._take(0, self.peer, of)
            peer -= self._take(1, self.own, of)
            self._move(which[some], self._take(1, self.models, which[some]), peer, columns, some, 0)

    def _move(  # noqa: PLR0917 - rows, then which of them
        self, nodes: Ints, model: Rows2, difference: Rows2, columns: Columns, some: slice, side: int
    ) -> None:
        """X += D/n, S += D/drift; `difference` is used up. Where k = 0 nothing moves, not even -0 to 0. `side` is that
        of the ends.
        """
        moving = columns.factors[some, 0] != 0.0
        ends = 2 * columns.edges[some] + side
        if not moving.all():
            kept = np.flatnonzero(moving)
            nodes, model, difference, ends = nodes[kept], model[kept], difference[kept], ends[kept]
        factors, samples, scales = (one[some][moving] for one in (columns.factors, columns.samples, columns.scales))
        difference *= factors
        model += difference / samples
        self.models[nodes] = model
        if self.flows is not None:
            driven = np.flatnonzero(scales[:, 0])
            if len(driven) < len(nodes):
                difference, scales, ends = difference[driven], scales[driven], ends[driven]
            difference *= scales
            self.flows[ends] += difference

    def _through_the_codec(self, vectors: Rows2, edges: Ints, ops: Sequence[Op], chance: int) -> NDArray[np.float32]:
        """What the other end decodes of each row; `chance` is where in an operation its own stands."""
        try:
            return self.codecs.quantize(vectors, edges, lambda row: int(ops[row][chance]))
        except ValueError as error:
            raise MisjudgedError("a vector is not finite") from error

    def _shown(self, models: Rows2, nodes: list[int], times: list[int]) -> Rows2:
        if self.lies is not None and max(times) >= 0:
            self.lies(models, nodes, times)
        return models

    def _check(self, replicas: Rows2) -> None:
        """Below this a replica passes the engine's check whatever the model is."""
        if not (_squares(replicas) <= self.safe_square).all():
            raise MisjudgedError("a neighbor's model may be refused")

    # -- one node at a time ------------------------------------------------------------------------------------------

    def _keep_before(self, edges: Ints, peer: Rows2) -> None:
        if self.may_join:
            for place, edge in enumerate(edges.tolist()):
                if self.initiators[edge] in self.may_join:
                    self.before[edge] = peer[place].copy() if peer[place].any() else self._zero

    def _have_begun(self, nodes: Ints) -> None:
        self.may_join.difference_update(nodes.tolist())
        self.may_join |= self.crashing
        if len(self.may_join) == len(self.crashing):
            self.before = {edge: row for edge, row in self.before.items() if self.initiators[edge] in self.crashing}

    def copy_of(self, node: int) -> Vector:
        copied: Vector = self.models[node].copy()
        return copied

    def put_back(self, node: int, model: Vector) -> None:
        self.models[node] = model

    def flow_at(self, end: int) -> Vector | None:
        """A copy; None for no end (-1), or where nothing flows."""
        return None if end < 0 or self.flows is None else self.flows[end].copy()

    def put_flow(self, end: int, flow: Vector | None) -> None:
        """None: nothing has flowed there."""
        if self.flows is not None:
            self.flows[end] = 0.0 if flow is None else flow

    def drop_flows(self, node: int) -> None:
        if self.flows is not None:
            self.flows[self._ends[self._first[node] : self._first[node + 1]]] = 0.0

    def blank(self, unseen: list[int]) -> None:
        """Pairs that nobody sees any more become zero; where they are few, new ones join them in `blanks`."""
        self.own[unseen] = self.peer[unseen] = 0.0
        self.blanks += unseen
        pairs = len(self.own)
        wanted = max(16, pairs // 8)
        if len(self.blanks) < wanted:
            more = np.zeros((wanted, self.size), self.dtype)
            self.own, self.peer = np.concatenate([self.own, more]), np.concatenate([self.peer, more])
            self.blanks += range(pairs, pairs + wanted)

    # -- rows in the cache -------------------------------------------------------------------------------------------

    def _chunks(self, count: int) -> list[slice]:
        return [slice(first, first + self.chunk) for first in range(0, count, self.chunk)]

    def _take(self, place: int, source: Rows2, rows: Ints) -> Rows2:
        out = self.scratch[place][: len(rows)]
        np.take(source, rows, axis=0, out=out, mode="clip")
        return out


class Columns:
    """The figures of some operations, each as a column (b, 1) of the models' type."""

    def __init__(self, ops: Sequence[Op], dtype: np.dtype[Any]) -> None:
        self.edges = np.array([op[1] for op in ops])
        self.pairs = np.array([op[2] for op in ops])
        self.factors = np.array([op[5] for op in ops], dtype)[:, None]
        self.samples = np.array([op[6] for op in ops], dtype)[:, None]
        self.scales = np.array([op[7] for op in ops], dtype)[:, None]


def _columns(ops: Sequence[Op], dtype: np.dtype[Any]) -> Columns:
    return Columns(ops, dtype)


def _squares(rows: Rows2) -> NDArray[np.floating[Any]]:
    with np.errstate(over="ignore", invalid="ignore"):
        squares: NDArray[np.floating[Any]] = np.einsum("ij,ij->i", rows, rows)
    return squares
