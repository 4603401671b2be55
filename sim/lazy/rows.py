"""The arithmetic of `p2pfl.engine`, for many nodes at once: the same operations in the same order, row by row.

Rows are gathered into scratch memory a few at a time, so that what one step writes the next still finds in the cache.
Elementwise operations give a row the same bits in whatever company it is. Rows that belong to different edges go each
through the compressor of its own (`EdgeCodecs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress import Compressor, make_compressor
from p2pfl.config.model import FederationConfig
from p2pfl.engine.engine import NORM_CEILING, NORM_MULTIPLE
from p2pfl.errors import LearningError
from p2pfl.learn.interface import Vector
from p2pfl.learn.methods import Method, Round
from p2pfl.methods.method import MODEL, overrides
from p2pfl.plugins import FAILURES, describe_failure
from sim.lazy.operations import BeginOp, CommitOp, Exchange, FreezeOp, ReplyOp, RequestOp
from sim.lazy.requests import RequestRows
from sim.learning.grouped import RoundStarts

Rows2 = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

CACHE_BYTES = 1 << 20
"""Size of the scratch rows that one step works on."""
TRAINING_ROWS = 1024
MARGIN = 0.99
"""A check that comes this close to its limit is left to the engine."""

HELD = "held"
"""The name under which initiators keep the replica of their neighbor's model, where a robust rule mixes."""

Lies = Callable[[Rows2, list[int], list[int]], None]
"""Turns, in place, the models (b, d) of these nodes into what they show for the n-th time; -1: the truth."""


class Learners(Protocol):
    """Trains many nodes at once: see `sim.learning.batched`."""

    def train(self, nodes: Ints, rounds: Ints, starts: RoundStarts, out: Rows2) -> NDArray[np.floating[Any]]: ...


class MisjudgedError(Exception):
    """A vector may fail a check, or a local round fail: what was taken to pass has to be decided one at a time."""


class Rows:
    """`models` x (nodes, d); `requests` has the decoded q of each request under way. `kept` (ends, d) has, by name,
    what the learning method keeps at each end of an edge.

    `own` (pairs, d) is the replica of the initiator's model, `peer` that of the responder's.
    """

    def __init__(
        self, *, nodes: int, pairs: int, initial: Vector, codecs: EdgeCodecs, method: Method, lies: Lies | None
    ) -> None:
        size, dtype = initial.size, initial.dtype
        self.size, self.dtype = size, dtype
        self.blanks: list[int] = []
        """Pairs of replicas, both zero, that no end of an edge has used yet."""
        self.codecs = codecs
        self.lies = lies
        self.models: Rows2 = np.tile(initial, (nodes, 1))
        self.method = method
        self.kept: dict[str, Rows2] = {name: np.zeros((2 * pairs, size), dtype) for name in method.kept_edges}
        self.unmixed: Rows2 = np.zeros((0, size), dtype)
        """The models before the latest mix by a rule."""
        self.starts: Rows2 = np.zeros((nodes, size), dtype)
        self.by_method = overrides(method, "gradient")
        self.given: dict[str, Rows2] = {name: np.zeros((nodes, size), dtype) for name in method.given}
        self._ends: Ints = np.zeros(0, np.int64)
        self._first: Ints = np.zeros(nodes + 1, np.int64)
        """`_ends[_first[node]:_first[node + 1]]` are a node's ends, in the order of its neighbors."""
        self._others: Ints = np.zeros(0, np.int64)
        """Of each of the same, the neighbor."""
        self.own: Rows2 = np.zeros((pairs, size), dtype)
        self.peer: Rows2 = np.zeros((pairs, size), dtype)
        self.requests = RequestRows(pairs, size)
        self.before: dict[int, Vector] = {}
        """By edge whose initiator may ask for its neighbors' median: `peer` before the latest transaction."""
        self.initiators: list[int] = []
        """Initiators of the edges."""
        self.crashing: frozenset[int] = frozenset()
        self.may_join = set(range(nodes))
        """Nodes that may still ask for a median: those that have not begun a round, or may crash."""
        self._zero: Vector = np.zeros(size, dtype)
        self.chunk = max(1, CACHE_BYTES // (4 * size * initial.itemsize))
        self.scratch = [np.empty((self.chunk, size), dtype) for _ in range(4)]
        self.safe_square = (MARGIN * NORM_MULTIPLE) ** 2 * size

    def mix_by_rules(self) -> None:
        """Robust rules mix, and exchanges move no model."""
        self.unmixed = np.zeros_like(self.models)
        self.kept[HELD] = np.zeros((2 * len(self.own), self.size), self.dtype)

    # -- local rounds ------------------------------------------------------------------------------------------------

    def know_ends(self, edges: Sequence[tuple[int, int]]) -> None:
        """Which ends are whose."""
        lows, highs = np.array(edges, np.int64).reshape(-1, 2).T
        numbers = np.arange(len(lows))
        owners, others = np.concatenate([lows, highs]), np.concatenate([highs, lows])
        order = np.lexsort((others, owners))
        self._ends = np.concatenate([2 * numbers, 2 * numbers + 1])[order]
        self._others = others[order]
        self._first = np.searchsorted(owners[order], np.arange(len(self._first)))

    def sum_of_edges(self, nodes: Ints, name: str, away: Mapping[int, tuple[int, ...]]) -> Rows2:
        """The sums (b, d) of what is kept at the ends of each of these nodes, but to the neighbors that are away from
        it.
        """
        total: Rows2 = np.zeros((len(nodes), self.size), self.dtype)
        first, count = self._first[nodes], self._first[nodes + 1] - self._first[nodes]
        for place in range(int(count.max(initial=0))):
            some = np.flatnonzero(count > place)
            if away:
                there = [self._others[first[row] + place] not in away.get(int(nodes[row]), ()) for row in some]
                some = some[there]
            total[some] += self.kept[name][self._ends[first[some] + place]]
        return total

    def given_to(
        self, nodes: Ints, samples: Sequence[int], away: Sequence[tuple[int, ...]] = ()
    ) -> Mapping[str, Rows2]:
        """What the method gives to a round (b, d) of each of these nodes, from whose neighbors those are `away`."""
        gone = {int(node): peers for node, peers in zip(nodes, away, strict=False) if peers}
        seen = SeenRows(self, nodes, np.array(samples, np.float64)[:, None], gone if self.method.needs_company else {})
        with self._as_alone():
            return self._plain(self.method.begin(seen))

    @contextmanager
    def _as_alone(self) -> Iterator[None]:
        """A method that chokes on rows may be right one node at a time, or fails there with a word of its own."""
        try:
            yield
        except FAILURES as error:
            raise MisjudgedError(f"the learning method failed with rows: {describe_failure(error)}") from error

    def _plain(self, rows: Mapping[str, Rows2]) -> Mapping[str, Rows2]:
        """Where a number has widened them, they have other bits than alone."""
        if any(one.dtype != self.dtype for one in rows.values()):
            raise MisjudgedError("the learning method gives vectors of another type with rows")
        return rows

    def begin(self, nodes: Ints, samples: list[int], away: list[tuple[int, ...]]) -> None:
        if len(self.may_join) > len(self.crashing):
            self._have_begun(nodes)
        for some in self._chunks(len(nodes)):
            which = nodes[some]
            self.starts[which] = self._take(0, self.models, which)
            if self.given:
                for name, rows in self.given_to(which, samples[some], away[some]).items():
                    self.given[name][which] = rows

    def train(self, learners: Learners, nodes: Ints, ops: Sequence[BeginOp]) -> NDArray[np.floating[Any]]:
        """`starts` becomes what the round changed; returns the losses (b,)."""
        losses = np.empty(len(nodes))
        for first in range(0, len(nodes), TRAINING_ROWS):
            some = slice(first, first + TRAINING_ROWS)
            which = nodes[some]
            rounds, begun = self._round_starts(which, ops[some])
            out = np.empty_like(begun.models)
            try:
                losses[some] = learners.train(which, rounds, begun, out)
            except LearningError as error:
                raise MisjudgedError(f"a local round failed: {error}") from error
            out -= begun.models
            self.starts[which] = out
        return losses

    def _round_starts(self, nodes: Ints, ops: Sequence[BeginOp]) -> tuple[Ints, RoundStarts]:
        """The numbers (b,) of these nodes' rounds, and copies of what they start from."""
        rounds = np.array([op.index for op in ops], np.int64)
        accompanied = np.array([op.accompanied for op in ops], np.bool_)
        by_method = accompanied if self.method.needs_company else np.ones(len(nodes), np.bool_)
        by_method = by_method & self.by_method
        for rows_given in self.given.values():
            rows_given[nodes[~by_method]] = 0.0
        given = {name: rows[nodes] for name, rows in self.given.items()}
        return rounds, RoundStarts(self.starts[nodes], by_method, given, np.array([op.elapsed_s for op in ops]))

    def commit(self, nodes: Ints, ops: Sequence[CommitOp]) -> None:
        for some in self._chunks(len(nodes)):
            which = nodes[some]
            about = _rounds(ops[some])
            seen = SeenRows(self, which, about.samples)
            with self._as_alone():
                change = self._plain(self.method.trained(self._take(0, self.starts, which), seen, about).change)
            model = self._take(1, self.models, which)
            model += change.get(MODEL, 0.0)
            if not (_squares(model) <= MARGIN * NORM_CEILING**2).all():
                raise MisjudgedError("a local round may have ended in no finite model")
            self.models[which] = model

    # -- transactions ------------------------------------------------------------------------------------------------

    def freeze(self, nodes: list[int], ops: Sequence[FreezeOp]) -> None:
        which, on, of = np.array(nodes), np.array([op.edge for op in ops]), np.array([op.pair for op in ops])
        for some in self._chunks(len(nodes)):
            shown = self._take(0, self.models, which[some])
            self._put_unmixed(shown, which[some], ops[some])
            shown = self._shown(shown, nodes[some], [op.lie for op in ops[some]])
            shown -= self._take(1, self.own, of[some])
            self.requests.put(on[some], self._through_the_codec(shown, on[some], ops[some]))

    def request(self, nodes: list[int], ops: Sequence[RequestOp]) -> None:
        """The responder's half: both replicas move, and its model by D/n."""
        which, columns = np.array(nodes), Columns(ops, self.dtype, self.method)
        for some in self._chunks(len(nodes)):
            on, of = columns.edges[some], columns.pairs[some]
            own = self._take(0, self.own, of)
            # One that a crash may undo is applied again.
            own += self.requests.of(on, drop=not self.crashing)
            self._check(own)
            self.own[of] = own
            model = self._take(1, self.models, which[some])
            shown = self.scratch[2][: len(of)]
            np.copyto(shown, model)
            self._put_unmixed(shown, which[some], ops[some])
            shown = self._shown(shown, nodes[some], [op.lie for op in ops[some]])
            peer = self._take(3, self.peer, of)
            shown -= peer
            self._keep_before(on, peer)
            peer += self._through_the_codec(shown, on, ops[some])
            self._check(peer)
            self.peer[of] = peer
            own -= peer
            self._move(which[some], model, own, columns, some, 1)

    def reply(self, nodes: list[int], ops: Sequence[ReplyOp]) -> None:
        """The initiator's half: the replicas have moved already."""
        which, columns = np.array(nodes), Columns(ops, self.dtype, self.method)
        for some in self._chunks(len(nodes)):
            of = columns.pairs[some]
            peer = self._take(0, self.peer, of)
            if HELD in self.kept:
                self.kept[HELD][2 * columns.edges[some]] = peer
            peer -= self._take(1, self.own, of)
            self._move(which[some], self._take(1, self.models, which[some]), peer, columns, some, 0)

    def _move(  # noqa: PLR0917 - rows, then which of them
        self, nodes: Ints, model: Rows2, difference: Rows2, columns: Columns, some: slice, side: int
    ) -> None:
        """X += D/n, and what the method makes of it at the ends; `difference` is used up. Where k = 0 nothing moves,
        not even -0 to 0. `side` is that of the ends.
        """
        moving = columns.factors[some, 0] != 0.0
        ends = 2 * columns.edges[some] + side
        if not moving.all():
            if not moving.any():
                return
            some_do = np.flatnonzero(moving)
            nodes, model, difference, ends = nodes[some_do], model[some_do], difference[some_do], ends[some_do]
        factors, samples = (one[some][moving] for one in (columns.factors, columns.samples))
        difference *= factors
        model += difference / samples
        self.models[nodes] = model
        if self.kept:
            terms = [column[some][moving] for column in columns.terms]
            keeping = columns.keeping[some][moving]
            if not keeping.all():
                difference, ends, terms = difference[keeping], ends[keeping], [column[keeping] for column in terms]
            at_ends = {name: rows[ends] for name, rows in self.kept.items()}
            with self._as_alone():
                moved = self._plain(self.method.moved(at_ends, difference, tuple(terms)))
            for name, new in moved.items():
                self.kept[name][ends] = new

    def _through_the_codec(
        self, vectors: Rows2, edges: Ints, ops: Sequence[FreezeOp] | Sequence[RequestOp]
    ) -> NDArray[np.float32]:
        """What the other end decodes of each row."""
        try:
            return self.codecs.quantize(vectors, edges, lambda row: ops[row].chance)
        except ValueError as error:
            raise MisjudgedError("a vector is not finite") from error

    def _put_unmixed(self, shown: Rows2, nodes: Ints, ops: Sequence[FreezeOp | RequestOp]) -> None:
        """Neighbors see the model before the latest mix."""
        places = [place for place, op in enumerate(ops) if op.unmixed] if len(self.unmixed) else []
        if places:
            shown[places] = self.unmixed[nodes[places]]

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

    def drop_replicas(self) -> None:
        """Forget all but the models: the run is over."""
        none: Rows2 = np.zeros((0, self.size), self.dtype)
        self.own = self.peer = self.starts = none
        self.requests = RequestRows(0, self.size)

    def copy_of(self, node: int) -> Vector:
        copied: Vector = self.models[node].copy()
        return copied

    def put_back(self, node: int, model: Vector) -> None:
        self.models[node] = model

    def kept_at(self, end: int) -> dict[str, Vector]:
        """Copies of what is kept at one end; none for no end (-1)."""
        return {} if end < 0 else {name: rows[end].copy() for name, rows in self.kept.items()}

    def put_kept(self, end: int, kept: Mapping[str, Vector]) -> None:
        for name, vector in kept.items():
            self.kept[name][end] = vector

    def drop_end(self, end: int) -> None:
        for rows in self.kept.values():
            rows[end] = 0.0

    def drop_kept(self, node: int) -> None:
        for rows in self.kept.values():
            rows[self._ends[self._first[node] : self._first[node + 1]]] = 0.0

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
    """The figures of some exchanges, each as a column (b, 1): those of the models in their type, `terms` as they are.

    `keeping` (b,): the exchange changes what its edge keeps.
    """

    def __init__(self, ops: Sequence[Exchange], dtype: np.dtype[Any], method: Method) -> None:
        self.edges = np.array([op.edge for op in ops])
        self.pairs = np.array([op.pair for op in ops])
        self.factors = _column([op.factor for op in ops]).astype(dtype)
        self.samples = _column([op.samples for op in ops]).astype(dtype)
        self.terms = [_column([op.terms[place] for op in ops]) for place in range(len(method.no_terms))]
        self.keeping = np.array([method.moves(op.terms) for op in ops], np.bool_)


class SeenRows:
    """Some nodes as their method sees them: see `NodeVectors`. What they keep outside edges is not put off. `away` are
    the neighbors, by node, whose edges are left out.
    """

    def __init__(
        self,
        rows: Rows,
        nodes: Ints,
        samples: NDArray[np.float64],
        away: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        self._rows, self._nodes, self._away = rows, nodes, away or {}
        self.samples = samples
        self.kept: dict[str, Rows2] = {}

    @property
    def channels(self) -> dict[str, Rows2]:
        return {MODEL: self._rows.models[self._nodes]}

    @property
    def given(self) -> dict[str, Rows2]:
        return {name: rows[self._nodes] for name, rows in self._rows.given.items()}

    def sum_of_edges(self, name: str, channel: str = MODEL) -> Rows2:  # noqa: ARG002 - there is one
        return self._rows.sum_of_edges(self._nodes, name, self._away)


class EdgeCodecs:
    """`kinds` are the different compressors, `kind_of` (edges,) which of them each edge uses."""

    def __init__(self, kinds: Sequence[Compressor], kind_of: Sequence[int]) -> None:
        self.kinds = kinds
        self.kind_of = np.array(kind_of, np.int64)

    @classmethod
    def same(cls, compressor: Compressor, edges: int) -> EdgeCodecs:
        return cls((compressor,), [0] * edges)

    @classmethod
    def of(cls, federation: FederationConfig) -> EdgeCodecs:
        specs = [federation.compressor_of(*edge) for edge in federation.edges]
        kinds = list(dict.fromkeys(specs)) or [federation.gossip.compressor]
        return cls([make_compressor(spec) for spec in kinds], [kinds.index(spec) for spec in specs])

    def quantize(self, rows: Rows2, edges: Ints, chance: Callable[[int], int]) -> NDArray[np.float32]:
        """What the other end decodes of each row (b, d), which goes over these edges (b,).

        `chance(row)` is asked only where a compressor draws.
        Raises ValueError: a row is not finite.
        """
        if len(self.kinds) == 1:
            return _quantized(self.kinds[0], rows, range(len(rows)), chance)
        found = np.empty(rows.shape, np.float32)
        kinds = self.kind_of[edges]
        for kind in np.unique(kinds).tolist():
            places = np.flatnonzero(kinds == kind)
            found[places] = _quantized(self.kinds[kind], rows[places], places.tolist(), chance)
        return found


def _rounds(ops: Sequence[CommitOp]) -> Round:
    """Without losses: those are not known yet when terms are asked for."""
    return Round(
        steps=_column([op.steps for op in ops]),
        learning_rate=_column([op.learning_rate for op in ops]),
        samples=_column([op.samples for op in ops]),
        rho=_column([op.rho for op in ops]),
    )


def _column(values: Sequence[float]) -> NDArray[np.float64]:
    return np.array(values, np.float64)[:, None]


def _squares(rows: Rows2) -> NDArray[np.floating[Any]]:
    with np.errstate(over="ignore", invalid="ignore"):
        squares: NDArray[np.floating[Any]] = np.einsum("ij,ij->i", rows, rows)
    return squares


def _quantized(
    compressor: Compressor, rows: Rows2, places: Sequence[int], chance: Callable[[int], int]
) -> NDArray[np.float32]:
    return compressor.quantize_rows(rows, chances=[chance(row) for row in places] if compressor.random else None)
