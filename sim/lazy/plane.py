"""All vectors of a run, and what is still to be done to them.

Each node has a queue, in the order in which its core asked. Between nodes only messages bind: a request can be applied
once it is frozen, a reply once the request is applied. Of what could be done now, the kind with most nodes goes first,
and training goes last: so that as many local rounds as possible are computed in one call.

The two replicas of an edge are the same bits at both ends (but for the moment between the two halves of a transaction),
so they are stored once for each incarnation, as the responder has them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pfl.aggregate import Rule
from p2pfl.learn.interface import Vector
from p2pfl.learn.methods import Method
from sim.lazy.mixing import Mixers
from sim.lazy.operations import (
    COMMIT,
    KINDS,
    BeginOp,
    CommitOp,
    FreezeOp,
    MixOp,
    Op,
    ReplyOp,
    RequestOp,
    ResetOp,
    SketchOp,
)
from sim.lazy.rows import EdgeCodecs, Learners, Lies, Rows, Rows2

OPERATIONS_PER_NODE = 24
LEAST_PENDING = 20_000

Undo = tuple[Vector, int, dict[str, Vector]]
"""A node's model, and what is kept at one end of an edge (-1: at none), as they were before a change."""


class Begun:
    """With which models (nodes, d) the latest local rounds of some nodes began; `of` are those that are watched."""

    def __init__(self, of: Sequence[int], models: Rows2) -> None:
        self._places = np.full(len(models), -1)
        self._places[list(of)] = np.arange(len(of))
        self._rows = models[list(of)]

    def note(self, nodes: NDArray[np.int64], models: Rows2) -> None:
        """These `nodes` begin a round now."""
        places = self._places[nodes]
        watched = places >= 0
        self._rows[places[watched]] = models[nodes[watched]]

    def rows(self, nodes: Sequence[int]) -> Rows2:
        """Of `nodes` that are watched, (len(nodes), d)."""
        rows: Rows2 = self._rows[self._places[list(nodes)]]
        return rows


class Plane:
    """`nodes` models that all begin at `initial` (d,), `edges` pairs of replicas; `crashing` may need an undo.

    `rules` has each node's robust rule; it is empty in the conservative profile.
    """

    def __init__(
        self,
        *,
        nodes: int,
        edges: Sequence[tuple[int, int]],
        initial: Vector,
        learners: Learners,
        codecs: EdgeCodecs,
        method: Method,
        crashing: frozenset[int] = frozenset(),
        lies: Lies | None = None,
        sketch: Any = None,
        rules: Sequence[Rule] = (),
    ) -> None:
        self.initial = initial
        self.learners = learners
        self.crashing = crashing
        self.sketch = sketch
        self.rows = Rows(nodes=nodes, pairs=len(edges), initial=initial, codecs=codecs, method=method, lies=lies)
        self.mixes = bool(rules)
        self._mixers = Mixers(rules, self.rows)
        if self.rows.kept:
            self.rows.know_ends(edges)
        self.rows.initiators = [low for low, _ in edges]
        self.rows.crashing = crashing
        self.edges = edges
        self.losses = np.full(nodes, np.nan)
        self._losses = np.full(nodes, np.nan)
        """Per node, the loss of the latest round that ended and (this) of the latest computed, maybe still running."""
        self.sketches: list[dict[int, NDArray[np.float64]]] = [{} for _ in range(nodes)]
        self.begun: Begun | None = None
        self.pending = 0
        self.most_pending = max(LEAST_PENDING, OPERATIONS_PER_NODE * nodes)
        self.batches = self.done = 0
        self._queues: list[deque[Op]] = [deque() for _ in range(nodes)]
        self._active: list[int] = []
        self._ready: list[list[int]] = [[] for _ in range(KINDS)]
        self._training: dict[int, BeginOp] = {}
        self._held: list[int] = []
        self._waiting: dict[int, list[int]] = {}
        self._frozen = [0] * len(edges)
        """Per edge, the latest ticket whose request is encoded and (next) the latest that is applied."""
        self._applied = [0] * len(edges)
        self._undo: dict[int, list[Undo]] = {node: [] for node in crashing}
        self._act: tuple[Callable[[list[int], list[Any]], None], ...] = (
            self._begin,
            self._commit,
            self._freeze,
            self._request,
            self._reply,
            self._sketch,
            self._reset,
            self._mix,
        )

    # -- from the control plane --------------------------------------------------------------------------------------

    def put(self, node: int, op: Op) -> None:
        """Note what is to be done to `node`, after all that was noted for it before."""
        queue = self._queues[node]
        if not queue:
            self._active.append(node)
        queue.append(op)
        self.pending += 1
        if self.pending >= self.most_pending:
            self.drain()

    def drain(self) -> None:
        """Do everything but the local rounds that nobody waits for yet."""
        self._do_ready()
        while self._held:
            self._train()
            self._do_ready()
        if self._waiting:
            raise AssertionError(f"operations wait for what was never noted: {self._waiting}")
        self.pending = 0

    def _do_ready(self) -> None:
        """Do what waits for no local round."""
        active, self._active = self._active, []
        for node in active:
            self._place(node)
        while True:
            kind = max(range(KINDS), key=lambda one: len(self._ready[one]))
            nodes, self._ready[kind] = self._ready[kind], []
            if not nodes:
                break
            self._run(kind, nodes)

    def models(self) -> Rows2:
        """All models as they are now, (nodes, d): a view."""
        self.drain()
        return self.rows.models

    def begun_models(self, nodes: Sequence[int]) -> Rows2:
        """With which models the latest local rounds of `nodes` began, (len(nodes), d): they must be watched."""
        self.drain()
        if self.begun is None:
            raise AssertionError("no node is watched")
        return self.begun.rows(nodes)

    # -- crashes -----------------------------------------------------------------------------------------------------

    def lose(self, node: int, changes: int) -> None:
        """Take back the last `changes` of what was done to the node; a round that it was training never ends."""
        self.drain()
        self._training.pop(node, None)
        undo = self._undo[node]
        for _ in range(changes):
            model, end, kept = undo.pop()
            self.rows.put_back(node, model)
            self.rows.put_kept(end, kept)
        undo.clear()

    def forget(self, node: int) -> None:
        self.rows.put_back(node, self.initial)
        self.rows.drop_kept(node)

    def begin_edge_anew(self, edge: int) -> None:
        """No request of this edge counts as applied any more."""
        self._applied[edge] = 0

    def replace_by_median(self, node: int, replicas: Sequence[Vector]) -> None:
        """Of replicas (d,) as they are once everything noted is done."""
        self.rows.put_back(node, np.median(replicas, axis=0).astype(self.rows.dtype))
        if node in self._undo:
            self._undo[node].clear()

    # -- the order of things -----------------------------------------------------------------------------------------

    def _place(self, node: int) -> None:
        """Where the node's next operation stands: it can be done, or waits for training or for a message."""
        op = self._queues[node][0]
        if isinstance(op, CommitOp):
            (self._held if node in self._training else self._ready[COMMIT]).append(node)
        elif isinstance(op, FreezeOp | RequestOp | ReplyOp):
            done = self._frozen if isinstance(op, RequestOp) else self._applied
            if done[op.edge] >= (op.after if isinstance(op, FreezeOp) else op.ticket):
                self._ready[op.kind].append(node)
            else:
                self._waiting.setdefault(op.edge, []).append(node)
        else:
            self._ready[op.kind].append(node)

    def _run(self, kind: int, nodes: list[int]) -> None:
        queues = self._queues
        ops = [queues[node].popleft() for node in nodes]
        self.batches += 1
        self.done += len(ops)
        self.pending -= len(ops)
        self._act[kind](nodes, ops)
        for node in nodes:
            if queues[node]:
                self._place(node)

    def _wake(self, edge: int) -> None:
        for node in self._waiting.pop(edge, ()):
            self._place(node)

    # -- what can be done together -----------------------------------------------------------------------------------

    def _begin(self, nodes: list[int], ops: list[BeginOp]) -> None:
        which = np.array(nodes)
        self.rows.begin(which, [op.samples for op in ops], [op.away for op in ops])
        if self.begun is not None:
            self.begun.note(which, self.rows.models)
        for node, op in zip(nodes, ops, strict=True):
            self._training[node] = op

    def _train(self) -> None:
        """Every local round in flight, in one call; then those nodes go on that waited."""
        ended = list(self._training)
        nodes = np.array(ended, np.int64)
        ops = [self._training.pop(node) for node in ended]
        self._losses[nodes] = self.rows.train(self.learners, nodes, ops)
        self.batches += 1
        self.done += len(nodes)
        self._ready[COMMIT] += [node for node in self._held if node not in self._training]
        self._held = [node for node in self._held if node in self._training]

    def _commit(self, nodes: list[int], ops: list[CommitOp]) -> None:
        self._remember(nodes)
        self.losses[nodes] = self._losses[nodes]
        self.rows.commit(np.array(nodes), ops)

    def _freeze(self, nodes: list[int], ops: list[FreezeOp]) -> None:
        self.rows.freeze(nodes, ops)
        self._flushed(nodes)
        for op in ops:
            self._frozen[op.edge] = op.ticket
            if op.edge in self._waiting:
                self._wake(op.edge)

    def _request(self, nodes: list[int], ops: list[RequestOp]) -> None:
        self.rows.request(nodes, ops)
        self._flushed(nodes)
        for op in ops:
            self._applied[op.edge] = op.ticket
            if op.edge in self._waiting:
                self._wake(op.edge)

    def _reply(self, nodes: list[int], ops: list[ReplyOp]) -> None:
        self._remember(nodes, [2 * op.edge for op in ops])
        self.rows.reply(nodes, ops)

    def _reset(self, nodes: list[int], ops: list[ResetOp]) -> None:
        ends = [op.end for op in ops]
        self._remember(nodes, ends)
        for end in ends:
            self.rows.drop_end(end)

    def _mix(self, nodes: list[int], ops: list[MixOp]) -> None:
        self._remember(nodes)
        for node, op in zip(nodes, ops, strict=True):
            self._mixers.mix(node, op)

    def _sketch(self, nodes: list[int], ops: list[SketchOp]) -> None:
        for node, op in zip(nodes, ops, strict=True):
            self.sketches[node][op.tick] = self.sketch.of(self.rows.models[node])

    def _remember(self, nodes: list[int], ends: list[int] | None = None) -> None:
        """The disk does not know yet what is about to be done to these nodes, and to what is kept at these ends."""
        if not self._undo:
            return
        for place, node in enumerate(nodes):
            if node in self.crashing:
                end = -1 if ends is None else ends[place]
                self._undo[node].append((self.rows.copy_of(node), end, self.rows.kept_at(end)))

    def _flushed(self, nodes: list[int]) -> None:
        if self._undo:
            for node in self.crashing.intersection(nodes):
                self._undo[node].clear()
