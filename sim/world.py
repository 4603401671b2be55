"""A federation under virtual time: hosts, links, faults, and an oracle that knows every vector.

The oracle checks what no node can see: that `sum n_i x_i` plus what is in flight stays constant (the ledger books what
a lost disk or a new start takes away), and that the two ends of an edge hold the same replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from p2pfl.compress import Compressor
from p2pfl.config.model import Edges
from p2pfl.core import invariants
from p2pfl.core.effects import Bootstrap, Operation
from p2pfl.core.events import Event
from p2pfl.core.facts import Settings
from p2pfl.core.turns import turns_of
from p2pfl.learn.interface import Learner
from sim.host import Host, HostPlan
from sim.kernel import Kernel
from sim.network import LinkPlan, Network

Totals = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """`round_s` and `start_s` map a node to its round's duration and its start; absent: the default, 0.

    `schedule` has the edges of each round where the graph changes; `edges` is then the union.
    """

    edges: Edges
    schedule: tuple[Edges, ...] = ()
    learners: tuple[Learner, ...]
    settings: Settings
    compressor: Compressor
    beta: float = 0.0
    dtype: type[np.floating] = np.float32
    link: LinkPlan = field(default_factory=LinkPlan)
    seed: int = 0
    default_round_s: float = 0.05
    round_s: Mapping[int, float] = field(default_factory=dict)
    start_s: Mapping[int, float] = field(default_factory=dict)
    engine_s: float = 0.0005
    check: bool = True
    """check every invariant of a core after every event it takes."""


class World:
    def __init__(self, plan: WorldPlan) -> None:
        self.plan = plan
        self.kernel = Kernel()
        self.network = Network(
            kernel=self.kernel,
            edges=plan.edges,
            plan=plan.link,
            seed=plan.seed,
            max_body_bytes=plan.compressor.size_bytes(plan.learners[0].size),
            deliver=self.deliver,
            alive=lambda index: self.hosts[index].alive,
        )
        self.booked: Totals | float = 0.0
        self.hosts = [self._host(index) for index in range(len(plan.learners))]
        for host in self.hosts:
            self.kernel.at(plan.start_s.get(host.plan.index, 0.0), partial(self.start, host.plan.index))

    def _host(self, index: int) -> Host:
        plan = self.plan
        host_plan = HostPlan(
            index=index,
            neighbors=tuple(sorted(b if a == index else a for a, b in plan.edges if index in (a, b))),
            turns=turns_of(index, plan.schedule),
            settings=plan.settings,
            compressor=plan.compressor,
            beta=plan.beta,
            learner=plan.learners[index],
            dtype=plan.dtype,
            round_s=plan.round_s.get(index, plan.default_round_s),
            engine_s=plan.engine_s,
        )
        return Host(host_plan, self.kernel, self.network, self._book)

    # -- what happens -----------------------------------------------------------------------------------------------

    def start(self, index: int) -> None:
        self.hosts[index].start()
        for edge in self.plan.edges:
            if index in edge:
                self.network.open(edge)

    def crash(self, index: int, *, amnesia: bool = False, kept: int = 0) -> None:
        """As kill -9 does; with `amnesia` the disk is lost too, and the ledger books what went with it."""
        host = self.hosts[index]
        if not host.alive:
            return
        before = self.total()
        host.crash(kept)
        if amnesia:
            host.forget()
            self.booked = self.booked + (self.total() - before)
        for edge in self.plan.edges:
            if index in edge:
                self.network.cut(edge, redial=False)

    def restart(self, index: int) -> None:
        if not self.hosts[index].alive:
            self.start(index)

    def deliver(self, index: int, event: Event) -> None:
        host = self.hosts[index]
        if host.alive:
            host.take(event)
            if self.plan.check:
                invariants.check(host.core)

    def run(self, *, until_s: float, finish: bool = True) -> None:
        """Go on to virtual time `until_s`, or until every node has finished."""
        while self.kernel.now < until_s:
            if finish and all(host.finished for host in self.hosts):
                return
            if not self.kernel.step():
                return

    # -- the oracle -------------------------------------------------------------------------------------------------

    def total(self) -> Totals:
        """The sum of n_i x_i, less every D that a responder has applied and its initiator has not yet. (d,)"""
        total = np.zeros(self.hosts[0].engine.state.model.size)
        for host in self.hosts:
            state = host.engine.state
            total = total + state.samples * state.model.astype(np.float64)
        for edge in self.plan.edges:
            total = total - self._in_flight(edge)
        return total

    def _in_flight(self, edge: tuple[int, int]) -> Totals | float:
        initiator, responder = (self.hosts[end].engine.state for end in edge)
        mine, theirs = initiator.edges[edge[1]].record, responder.edges[edge[0]]
        reply = theirs.record.reply
        if mine.pending is None or reply is None or reply.request_digest != mine.pending.digest:
            return 0.0
        return (theirs.peer - theirs.own).astype(np.float64) * reply.factor

    def replicas_agree(self, *, amnesia: bool = False) -> bool:
        """Whether both ends of every edge with nothing pending hold the same replicas, bit for bit.

        With `amnesia`, ends that have not yet found out that one of them forgot are passed over.
        """
        return all(self._edge_agrees(edge, amnesia=amnesia) for edge in self.plan.edges)

    def _edge_agrees(self, edge: tuple[int, int], *, amnesia: bool) -> bool:
        a, b = edge
        first, second = self.hosts[a].engine.state.edges[b], self.hosts[b].engine.state.edges[a]
        if first.record.pending is not None:
            return True
        if (first.record.incarnation, first.record.seq) != (second.record.incarnation, second.record.seq):
            return amnesia
        if first.record.chain != second.record.chain:
            return amnesia
        return np.array_equal(first.own, second.peer) and np.array_equal(first.peer, second.own)

    def mean(self) -> Totals:
        """The n-weighted mean model, (d,)."""
        states = [host.engine.state for host in self.hosts]
        weights = np.array([state.samples for state in states], dtype=np.float64)
        return np.average([state.model.astype(np.float64) for state in states], axis=0, weights=weights)

    def consensus_distance(self) -> float:
        """Root mean square distance of the models to their mean, over the norm of that mean."""
        models = np.array([host.engine.state.model.astype(np.float64) for host in self.hosts])
        mean = models.mean(axis=0)
        return float(np.sqrt(np.mean(np.sum((models - mean) ** 2, axis=1))) / max(np.linalg.norm(mean), 1e-300))

    def _book(self, index: int, operation: Operation) -> None:
        """A start from the neighbors' median replaces a model: the ledger takes the difference."""
        if isinstance(operation, Bootstrap):
            state = self.hosts[index].engine.state
            after = np.median([state.edges[peer].peer for peer in operation.peers], axis=0)
            self.booked = self.booked + state.samples * (after - state.model).astype(np.float64)
