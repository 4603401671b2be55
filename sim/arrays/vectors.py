"""The models of all nodes as rows of one tensor, moved by events.

Events are carried out in waves: whatever is the next event both of its node and of its edge goes at once. Rows are
moved a chunk at a time, so that scratch stays in the cache. An edge without a compressor keeps the model that its lower
end showed only while an exchange is under way; with one it keeps two replicas, as in `p2pfl.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2pfl.compress import Compressor
from p2pfl.engine.engine import chance_of
from sim.arrays.clock import Events, Kind
from sim.arrays.setting import Flows, MethodMemory

Integers = NDArray[np.int64]

CHUNK_FLOATS = 1 << 18
"""Values of one chunk: a megabyte."""

Train = Callable[[Integers, Integers, Tensor, "Tensor | None"], None]
"""(nodes (b,), rounds (b,), starts (b, d), corrections (b, d) or None): moves each start by a local round."""


class Vectors:
    """Models `x` (n, d), and what exchanges and rounds under way need."""

    def __init__(
        self,
        initial: Tensor,
        samples: NDArray[np.float64],
        ends: Integers,
        train: Train,
        *,
        compressor: Compressor | None = None,
        memory: MethodMemory | None = None,
    ) -> None:
        n, d = len(samples), len(initial)
        self.device = initial.device
        self.x = initial.repeat(n, 1)
        self.start = torch.zeros_like(self.x)
        """The start of the round under way; once that is trained, less its result."""
        self.trained = np.ones(n, np.bool_)
        self.rounds = np.zeros(n, np.int64)
        self.watched = np.full(n, -1, np.int64)
        """The row in `begun` of each node that is watched."""
        self.samples = samples
        self.ends, self.train, self.compressor, self.memory = ends, train, compressor, memory or MethodMemory()
        gives = self.memory.given(np.zeros(0, np.int64)) is not None
        self.given = torch.zeros_like(self.x) if gives else None
        """The vector that the method gives to the round under way."""
        self.flows = memory if isinstance(memory, Flows) else None
        self.pull = None if self.flows is None else 1.0 / self.flows.of_edges(ends)
        self.chunk = max(1, CHUNK_FLOATS // d)
        self.shown = torch.zeros(2 * len(ends) if compressor else 0, d, dtype=self.x.dtype, device=self.device)
        """Replicas: of the lower ends, then of the upper ones."""
        self.slots = torch.empty(0, d, dtype=self.x.dtype, device=self.device)
        """The model that the lower end showed, then the upper end's move, for exchanges under way without replicas."""
        self.watch(np.zeros(0, np.int64))
        self.slot_of = np.full(len(ends), -1, np.int64)
        self.free: list[int] = []
        self.seq = np.zeros(len(ends), np.int64)
        self.rate = np.zeros(len(ends))
        """The factor of the exchange under way."""

    def watch(self, nodes: Integers) -> None:
        """From now on keep in `begun` the models with which these nodes began their latest local round."""
        self.watched[nodes] = np.arange(len(nodes))
        self.begun = self.x[self._index(nodes)]

    def carry_out(self, events: Events) -> None:
        for wave in _waves(events, len(self.ends)):
            kinds, nodes, edges = events.kind[wave], events.node[wave], events.edge[wave]
            for kind in Kind:
                some = kinds == kind
                if some.any():
                    self._do(kind, nodes[some], edges[some], events.factor[wave][some])

    def _do(self, kind: Kind, nodes: Integers, edges: Integers, factor: NDArray[np.float64]) -> None:
        if kind is Kind.COMMIT and not self.trained[nodes].all():
            self._train_begun()
        if kind is Kind.FREEZE and self.compressor is None:
            self._take_slots(edges)
        if kind is Kind.APPLY:
            self.rate[edges] = factor
        do = (self._start, self._commit, self._freeze, self._apply, self._settle)[kind]
        for first in range(0, len(nodes), self.chunk):
            part = slice(first, first + self.chunk)
            do(nodes[part], edges[part])
        if kind is Kind.SETTLE and self.compressor is None:
            self.free += self.slot_of[edges].tolist()
            self.slot_of[edges] = -1

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _start(self, nodes: Integers, edges: Integers) -> None:
        del edges
        rows = self._index(nodes)
        self.start.index_copy_(0, rows, self.x.index_select(0, rows))
        self.trained[nodes] = False
        some = self.watched[nodes] >= 0
        self.begun[self._index(self.watched[nodes[some]])] = self.x[self._index(nodes[some])]
        if self.given is not None and (given := self.memory.given(nodes)) is not None:
            self.given.index_copy_(0, rows, given)

    def _commit(self, nodes: Integers, edges: Integers) -> None:
        del edges
        rows = self._index(nodes)
        less = self.start.index_select(0, rows)
        if self.memory.changes:
            less = -self.memory.commit(nodes, self.rounds[nodes] - 1, self.x.index_select(0, rows), less.neg_())
        self.x.index_add_(0, rows, less, alpha=-1)

    def _train_begun(self) -> None:
        """Train all rounds under way: each depends on its start alone."""
        begun = np.flatnonzero(~self.trained)
        for first in range(0, len(begun), self.chunk):
            nodes = begun[first : first + self.chunk]
            rows = self._index(nodes)
            models = self.start.index_select(0, rows)
            given = None if self.given is None else self.given.index_select(0, rows)
            self.train(nodes, self.rounds[nodes], models, given)
            self.start.index_add_(0, rows, models, alpha=-1)
        self.rounds[begun] += 1
        self.trained[begun] = True

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _take_slots(self, edges: Integers) -> None:
        missing = len(edges) - len(self.free)
        if missing > 0:
            had = len(self.slots)
            more = max(missing, had // 4)
            self.slots = torch.cat([self.slots, self.slots.new_empty(more, *self.slots.shape[1:])])
            self.free += range(had, had + more)
        self.slot_of[edges] = [self.free.pop() for _ in range(len(edges))]

    def _freeze(self, nodes: Integers, edges: Integers) -> None:
        shown = self.x.index_select(0, self._index(nodes))
        if self.compressor is None:
            self.slots.index_copy_(0, self._index(self.slot_of[edges]), shown)
        else:
            self.seq[edges] += 1
            self._show(self.compressor, shown, edges, 0)

    def _apply(self, nodes: Integers, edges: Integers) -> None:
        own = self.x.index_select(0, self._index(nodes))
        share = self._column(self.rate[edges] / self.samples[nodes])
        if self.compressor is None:
            places = self._index(self.slot_of[edges])
            move = self.slots.index_select(0, places).sub_(own).mul_(share)
            self.slots.index_copy_(0, places, move)
        else:
            upper = self._show(self.compressor, own, edges, 1)
            move = self.shown.index_select(0, self._index(edges)).sub_(upper).mul_(share)
        self._move(nodes, edges, move)

    def _settle(self, nodes: Integers, edges: Integers) -> None:
        if self.compressor is None:
            share = -self.samples[self.ends[edges, 1]] / self.samples[nodes]
            move = self.slots.index_select(0, self._index(self.slot_of[edges]))
        else:
            share, upper = self.rate[edges] / self.samples[nodes], self._index(edges + len(self.ends))
            move = self.shown.index_select(0, upper).sub_(self.shown.index_select(0, self._index(edges)))
        self._move(nodes, edges, move.mul_(self._column(share)))

    def _move(self, nodes: Integers, edges: Integers, move: Tensor) -> None:
        """Move models (b, d), and flows by n times that over the drift."""
        rows = self._index(nodes)
        self.x.index_add_(0, rows, move)
        if self.flows is not None and self.pull is not None:
            self.flows.sums.index_add_(0, rows, move.mul_(self._column(self.samples[nodes] * self.pull[edges])))

    def _show(self, compressor: Compressor, model: Tensor, edges: Integers, end: int) -> Tensor:
        """Add Q(x - h) to the replicas of this end, and return them (b, d)."""
        places = self._index(edges + end * len(self.ends))
        replica = self.shown.index_select(0, places)
        change = model.sub_(replica).cpu().numpy()
        chances = None
        if compressor.random:
            pairs = self.ends[edges] if end == 0 else self.ends[edges][:, ::-1]
            chances = [chance_of(int(a), int(b), 0, int(s)) for (a, b), s in zip(pairs, self.seq[edges], strict=True)]
        compressor.quantize_rows(change, chances=chances, out=change)
        replica += torch.from_numpy(change).to(self.device)
        self.shown.index_copy_(0, places, replica)
        return replica

    def _index(self, numbers: Integers) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)

    def _column(self, values: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(values[:, None]).to(self.x)


def _waves(events: Events, edges: int) -> Iterator[Integers]:
    """Yield the indices of events that may go at once, wave by wave: each after those of its node and its edge."""
    count = len(events)
    if not count:
        return
    before = np.full((2, count), -1, np.int64)
    for place, keys in enumerate((events.node, np.where(events.edge < 0, edges + np.arange(count), events.edge))):
        order = np.argsort(keys, kind="stable")
        same = keys[order[1:]] == keys[order[:-1]]
        before[place, order[1:][same]] = order[:-1][same]
    level = np.zeros(count + 1, np.int64)
    level[-1] = -1
    while True:
        new = 1 + np.maximum(level[before[0]], level[before[1]])
        if (new == level[:-1]).all():
            break
        level[:-1] = new
    order = np.argsort(level[:-1], kind="stable")
    yield from np.split(order, np.cumsum(np.bincount(level[:-1]))[:-1])
