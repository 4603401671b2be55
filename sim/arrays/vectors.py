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
from p2pfl.engine.arithmetic import chance_of
from sim.arrays.clock import Events, Kind
from sim.arrays.methods import Flows, Memory

Integers = NDArray[np.int64]

CHUNK_FLOATS = 1 << 18
"""Values of one chunk: a megabyte."""

Train = Callable[[Integers, Integers, Tensor, "Tensor | None"], None]
"""(nodes (b,), rounds (b,), starts (b, d), corrections (b, d) or None): replaces each start by what the local round
adds.
"""


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
        memory: Memory | None = None,
    ) -> None:
        n, d = len(samples), len(initial)
        self.device = initial.device
        self.x = initial.repeat(n, 1)
        self.start = torch.zeros_like(self.x)
        """The start of the round under way; once that is trained, what it adds."""
        self.trained = np.ones(n, np.bool_)
        self.rounds = np.zeros(n, np.int64)
        self.watched = np.full(n, -1, np.int64)
        """The row in `begun` of each node that is watched."""
        self.weight = torch.as_tensor(1.0 / samples, dtype=self.x.dtype, device=self.device)
        self.ends, self.train, self.compressor, self.memory = ends, train, compressor, memory or Memory()
        gives = self.memory.given(np.zeros(0, np.int64)) is not None
        self.given = torch.zeros_like(self.x) if gives else None
        """What the method gives to the round under way."""
        self.flows = memory if isinstance(memory, Flows) else None
        if self.flows is not None:
            self.pull = self.x.new_tensor(1.0 / self.flows.of_edges(ends))
        self.chunk = max(1, CHUNK_FLOATS // d)
        self.shown = torch.zeros(2 * len(ends) if compressor else 0, d, dtype=self.x.dtype, device=self.device)
        """Replicas: of the lower ends, then of the upper ones."""
        self.slots = torch.empty(0, d, dtype=self.x.dtype, device=self.device)
        """What the lower end showed, then D, for each exchange under way where there are no replicas."""
        self.watch(np.zeros(0, np.int64))
        self.slot_of = np.full(len(ends), -1, np.int64)
        self.free: list[int] = []
        self.seq = np.zeros(len(ends), np.int64)
        self.rate = torch.zeros(len(ends), dtype=self.x.dtype, device=self.device)
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
        do = (self._start, self._commit, self._freeze, self._apply, self._settle)[kind]
        for first in range(0, len(nodes), self.chunk):
            part = slice(first, first + self.chunk)
            do(nodes[part], edges[part], torch.as_tensor(factor[part], dtype=self.x.dtype, device=self.device))
        if kind is Kind.SETTLE and self.compressor is None:
            self.free += self.slot_of[edges].tolist()
            self.slot_of[edges] = -1

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _start(self, nodes: Integers, edges: Integers, factor: Tensor) -> None:
        del edges, factor
        rows = self._index(nodes)
        self.start.index_copy_(0, rows, self.x.index_select(0, rows))
        self.trained[nodes] = False
        some = self.watched[nodes] >= 0
        self.begun[self._index(self.watched[nodes[some]])] = self.x[self._index(nodes[some])]
        if self.given is not None and (given := self.memory.given(nodes)) is not None:
            self.given.index_copy_(0, rows, given)

    def _commit(self, nodes: Integers, edges: Integers, factor: Tensor) -> None:
        del edges, factor
        rows = self._index(nodes)
        models, change = self.x.index_select(0, rows), self.start.index_select(0, rows)
        self.x.index_copy_(0, rows, models + self.memory.commit(nodes, self.rounds[nodes] - 1, models, change))

    def _train_begun(self) -> None:
        """Train all rounds under way: each depends on its start alone."""
        begun = np.flatnonzero(~self.trained)
        for first in range(0, len(begun), self.chunk):
            nodes = begun[first : first + self.chunk]
            rows = self._index(nodes)
            starts = self.start.index_select(0, rows)
            given = None if self.given is None else self.given.index_select(0, rows)
            self.train(nodes, self.rounds[nodes], starts, given)
            self.start.index_copy_(0, rows, starts)
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

    def _freeze(self, nodes: Integers, edges: Integers, factor: Tensor) -> None:
        del factor
        shown = self.x.index_select(0, self._index(nodes))
        if self.compressor is None:
            self.slots.index_copy_(0, self._index(self.slot_of[edges]), shown)
        else:
            self.seq[edges] += 1
            self._show(shown, edges, 0)

    def _apply(self, nodes: Integers, edges: Integers, factor: Tensor) -> None:
        rows, own = self._index(nodes), None
        own = self.x.index_select(0, rows)
        self.rate[self._index(edges)] = factor
        if self.compressor is None:
            places = self._index(self.slot_of[edges])
            move = self.slots.index_select(0, places).sub_(own).mul_(factor[:, None])
            self.slots.index_copy_(0, places, move)
        else:
            move = self._show(own, edges, 1).neg_().add_(self.shown.index_select(0, self._index(edges)))
            move.mul_(factor[:, None])
        self._move(rows, edges, move, 1.0)

    def _settle(self, nodes: Integers, edges: Integers, factor: Tensor) -> None:
        if self.compressor is None:
            move = self.slots.index_select(0, self._index(self.slot_of[edges]))
        else:
            lower, upper = self._index(edges), self._index(edges + len(self.ends))
            factor = self.rate[lower]
            move = self.shown.index_select(0, lower).sub_(self.shown.index_select(0, upper)).mul_(factor[:, None])
        self._move(self._index(nodes), edges, move, -1.0)

    def _move(self, rows: Tensor, edges: Integers, move: Tensor, sign: float) -> None:
        """Move models by D/n, and flows by D over the drift."""
        if self.flows is not None:
            self.flows.sums.index_add_(0, rows, move * (self.pull[self._index(edges), None] * sign))
        self.x.index_add_(0, rows, move.mul_(self.weight[rows, None] * sign))

    def _show(self, model: Tensor, edges: Integers, end: int) -> Tensor:
        """Add Q(x - h) to the replicas of this end, and return them (b, d)."""
        if self.compressor is None:
            raise ValueError("there are no replicas")
        places = self._index(edges + end * len(self.ends))
        replica = self.shown.index_select(0, places)
        change = model.sub_(replica).cpu().numpy()
        chances = None
        if self.compressor.random:
            pairs = self.ends[edges] if end == 0 else self.ends[edges][:, ::-1]
            chances = [chance_of(int(a), int(b), 0, int(s)) for (a, b), s in zip(pairs, self.seq[edges], strict=True)]
        self.compressor.quantize_rows(change, chances=chances, out=change)
        replica += torch.from_numpy(change).to(self.device)
        self.shown.index_copy_(0, places, replica)
        return replica

    def _index(self, numbers: Integers) -> Tensor:
        return torch.as_tensor(numbers, device=self.device)


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
