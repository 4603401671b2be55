"""A world in which every vector is known at any time, and an oracle that checks what no node can see.

That is: `sum n_i x_i` plus what is in flight stays constant (the ledger books what training adds, and what a lost disk
or a new start takes away), and the two ends of an edge hold the same replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress import Compressor
from p2pfl.config.model import Edges
from p2pfl.core.effects import ApplyReply, Bootstrap, CommitRound, Mix, Operation
from p2pfl.core.settings import Conservative, Settings
from p2pfl.engine.codecs import Codecs
from p2pfl.learn.interface import Learner, Vector
from p2pfl.learn.methods import Method
from p2pfl.learn.methods.plain import Plain
from sim.cluster import Cluster, ConstantPace, Surroundings, all_neighbors
from sim.exact import ExactEngine, ExactPlan
from sim.kernel import NS
from sim.worlds.model import LinkSpec, SlowNodes

Totals = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlan:
    """`round_s` and `start_s` map a node to its round's duration and its start; absent: the default, 0."""

    edges: Edges
    schedule: tuple[Edges, ...] = ()
    learners: tuple[Learner, ...]
    settings: Settings
    compressor: Compressor
    edge_compressors: Mapping[tuple[int, int], Compressor] = field(default_factory=dict)
    method: Method = field(default_factory=Plain)
    dtype: type[np.floating] = np.float32
    links: LinkSpec = field(default_factory=LinkSpec)
    slow: tuple[SlowNodes, ...] = ()
    seed: int = 0
    default_round_s: float = 0.05
    round_s: Mapping[int, float] = field(default_factory=dict)
    start_s: Mapping[int, float] = field(default_factory=dict)
    engine_s: float = 0.0005

    def compressor_of(self, i: int, j: int) -> Compressor:
        return self.edge_compressors.get((min(i, j), max(i, j)), self.compressor)

    def codecs_of(self, index: int, peers: Sequence[int]) -> Codecs:
        return Codecs(self.compressor, {peer: self.compressor_of(index, peer) for peer in peers})

    def gammas_of(self, index: int, peers: Sequence[int]) -> Mapping[int, float]:
        """By neighbor, the step that goes well with the compressor of that edge."""
        size = self.learners[0].size * len(self.method.channels)
        return {peer: self.compressor_of(index, peer).gamma(size) for peer in peers}


class Oracle:
    """Watches a world of exact engines. Attach it before the world runs. `gammas` has each node's by neighbor."""

    def __init__(self, engines: Sequence[ExactEngine], edges: Edges, gammas: Sequence[Mapping[int, float]]) -> None:
        self.engines = engines
        self.edges = edges
        self.gammas = gammas
        self.booked: Totals | float = 0.0
        self._largest = 1e-300
        """that the terms of the sum have been: what was booked may be all that is left, and is rounded as they were."""
        self._before: Totals | None = None
        self._unflushed: list[list[tuple[int, Totals]]] = [[] for _ in engines]
        """of each node: what its commits booked that are not on its disk, by their place among all that are not."""
        self._replies: list[dict[int, int]] = [{} for _ in engines]
        """of each node: the places of replies that are not on its disk, by neighbor."""
        self._widowed: list[list[tuple[int, Totals]]] = [[] for _ in engines]
        """of each node: such replies, and their D, whose other half has gone with the neighbor's disk."""

    # -- as a watch -------------------------------------------------------------------------------------------------

    def before(self, index: int, operation: Operation) -> None:
        if isinstance(operation, Bootstrap | CommitRound | Mix):
            self._before = self._weighed(index)
        if isinstance(operation, ApplyReply):
            self._check_factor(index, operation)

    def _check_factor(self, index: int, op: ApplyReply) -> None:
        """`k <= gamma a_i s_i`, with the gamma of that edge's compressor: beyond it a step may not contract."""
        pending = self.engines[index].state.edges[op.peer].record.pending
        if pending is None:
            raise AssertionError("a reply is applied to which there is no request")
        most = self.gammas[index][op.peer] * pending.weight * pending.staleness
        if not 0.0 <= op.reply.factor <= most:
            raise AssertionError(f"node {index} takes a step of {op.reply.factor} where {most} is the most")

    def after(self, index: int, operation: Operation) -> None:
        """A local round, a start from the neighbors' median and a robust rule move a model: the ledger takes the
        difference.
        """
        waiting = self.engines[index].store.buffered
        if not waiting:
            self._flushed(index)
        elif isinstance(operation, ApplyReply):
            self._replies[index][operation.peer] = waiting
        if isinstance(operation, Bootstrap | CommitRound | Mix) and self._before is not None:
            moved = self._weighed(index) - self._before
            self.booked = self.booked + moved
            if waiting:
                self._unflushed[index].append((waiting, moved))

    def crashes(self, index: int, kept: int) -> None:
        """About to: rounds that the disk does not know have not been."""
        for place, moved in self._unflushed[index]:
            if place > kept:
                self.booked = self.booked - moved
        for place, moved in self._widowed[index]:
            if place > kept:
                self.booked = self.booked + moved
        self._flushed(index)

    def _flushed(self, index: int) -> None:
        self._unflushed[index].clear()
        self._replies[index].clear()
        self._widowed[index].clear()

    def forgets(self, index: int, forget: Callable[[int], None]) -> None:
        """The ledger books what goes with a lost disk: it is on it that the oracle looks, not on memory.

        A neighbor that has taken in a reply, and crashes before it is on its disk, has no one to ask for it again.
        """
        for initiator, responder in self.edges:
            place = self._replies[initiator].get(index) if responder == index else None
            if place is not None and (flow := self._latest(initiator, responder)) is not None:
                self._widowed[initiator].append((place, flow))
        before = self.total()
        forget(index)
        self.booked = self.booked + (self.total() - before)

    def _weighed(self, index: int) -> Totals:
        state = self.engines[index].state
        return state.samples * state.channels.astype(np.float64)

    # -- what it knows ------------------------------------------------------------------------------------------------

    def total(self) -> Totals:
        """The sum of n_i x_i, less every D that a responder has applied and its initiator has not yet. (d,)"""
        total = np.zeros(self.engines[0].state.channels.size)
        for index in range(len(self.engines)):
            total = total + self._weighed(index)
        for edge in self.edges:
            total = total - self._in_flight(edge)
        return total

    def drift(self, start: Totals) -> float:
        """How far the sum is from what it was at the start and what was booked since, relative to its largest terms."""
        terms = sum(float(engine.state.samples * np.abs(engine.state.channels).sum()) for engine in self.engines)
        self._largest = max(self._largest, terms)
        return float(np.abs(self.total() - start - self.booked).max()) / self._largest

    def _in_flight(self, edge: tuple[int, int]) -> Totals | float:
        initiator, responder = (self.engines[end].state for end in edge)
        mine, theirs = initiator.edges[edge[1]].record, responder.edges[edge[0]]
        reply = theirs.record.reply
        if mine.pending is None or reply is None or reply.request_digest != mine.pending.digest:
            return 0.0
        return (theirs.peer - theirs.own).astype(np.float64) * reply.factor

    def _latest(self, initiator: int, responder: int) -> Totals | None:
        """D of the latest transaction, if it is the same one at both ends."""
        mine, theirs = self.engines[initiator].state.edges[responder], self.engines[responder].state.edges[initiator]
        reply = theirs.record.reply
        if reply is None or mine.record.chain != theirs.record.chain:
            return None
        return (theirs.peer - theirs.own).astype(np.float64) * reply.factor

    def replicas_agree(self, *, amnesia: bool = False) -> bool:
        """Whether both ends of every edge with nothing pending hold the same replicas, and opposite vectors of the
        learning method, bit for bit.

        With `amnesia`, ends that have not yet found out that one of them forgot are passed over.
        """
        return all(self._edge_agrees(edge, amnesia=amnesia) for edge in self.edges)

    def _edge_agrees(self, edge: tuple[int, int], *, amnesia: bool) -> bool:
        a, b = edge
        first, second = self.engines[a].state.edges[b], self.engines[b].state.edges[a]
        if first.record.pending is not None:
            return True
        if (first.record.incarnation, first.record.seq) != (second.record.incarnation, second.record.seq):
            return amnesia
        if first.record.chain != second.record.chain:
            return amnesia
        replicas = np.array_equal(first.own, second.peer) and np.array_equal(first.peer, second.own)
        return replicas and all(
            are_opposite(first.kept.get(name), second.kept.get(name)) for name in first.kept.keys() | second.kept.keys()
        )

    def mean(self) -> Totals:
        """The n-weighted mean model, (d,)."""
        states = [engine.state for engine in self.engines]
        weights = np.array([state.samples for state in states], dtype=np.float64)
        return np.average([state.model.astype(np.float64) for state in states], axis=0, weights=weights)


def are_opposite(one: Vector | None, other: Vector | None) -> bool:
    """Whether what the ends of an edge keep is each other's negative, bit for bit; None is zero."""
    if one is None or other is None:
        return all(kept is None or not kept.any() for kept in (one, other))
    return np.array_equal(one, -other)


class OpenWorld(Cluster[ExactEngine]):
    """A world of exact engines with its oracle, every invariant checked after every event."""

    def __init__(self, plan: OpenPlan) -> None:
        self.plan = plan
        count, size = len(plan.learners), plan.learners[0].size * len(plan.method.channels)
        neighbors = all_neighbors(count, plan.edges)
        engines = [
            ExactEngine(
                ExactPlan(
                    index=index,
                    neighbors=neighbors[index],
                    learner=learner,
                    codecs=plan.codecs_of(index, neighbors[index]),
                    method=plan.method,
                    dtype=plan.dtype,
                )
            )
            for index, learner in enumerate(plan.learners)
        ]
        gammas = [plan.gammas_of(index, neighbors[index]) for index in range(count)]
        self.oracle = Oracle(engines, plan.edges, gammas)
        super().__init__(
            Surroundings(
                body_bytes={edge: plan.compressor_of(*edge).size_bytes(size) for edge in plan.edges},
                schedule=plan.schedule,
                links=plan.links,
                slow=plan.slow,
                seed=plan.seed,
                start_ns={index: round(start_s * NS) for index, start_s in plan.start_s.items()},
                engine_ns=round(plan.engine_s * NS),
            ),
            engines,
            settings=[replace(plan.settings, profile=Conservative(gammas=some)) for some in gammas],
            paces=[ConstantPace(round(plan.round_s.get(index, plan.default_round_s) * NS)) for index in range(count)],
            steps=[1] * count,
            watch=self.oracle,
        )

    def go(self, *, until_s: float, finish: bool = True) -> None:
        self.run(until_ns=round(until_s * NS), finish=finish)

    def crash(self, index: int, *, amnesia: bool = False, kept: int = 0) -> None:
        if self.hosts[index].alive:
            self.oracle.crashes(index, kept)
            super().crash(index, kept=kept)
            if amnesia:
                self.oracle.forgets(index, self.forget)
