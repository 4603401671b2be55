"""The clock of many nodes: when local rounds end, when exchanges happen, and with which factor; no vectors.

Time never depends on values: when a round ends and what an exchange weighs follow from speeds, latencies and draws
alone. So all nodes move at once, in windows so short that none of them ends two rounds in one. Per edge it is the
node's own transaction: the end with the lower index asks when it has a new version or when the other asks for one, a
request is frozen when it is asked, and one runs at a time (`p2pfl.core.exchange`). A node's next round begins when all
its edges have exchanged its version (`p2pfl.core.tick`).

Left out: the engine's queue, resyncs, joins, disks, bandwidth. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from p2pfl.core.training import SPREAD

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NEVER = np.inf
LEAST_WINDOW_S = 1e-4


class Kind(IntEnum):
    """What happens to vectors. `FREEZE` and `SETTLE` are at the edge's lower end, `APPLY` at its upper one."""

    START = 0
    COMMIT = 1
    FREEZE = 2
    APPLY = 3
    SETTLE = 4


class EdgePhase(IntEnum):
    IDLE = 0
    ASKED = 1
    APPLIED = 2


class NodePhase(IntEnum):
    WORKING = 0
    """A local or closing round is under way, until `tick_at`."""
    EXCHANGING = 1
    """The node has a new version that not all of its edges have exchanged."""
    WAITING = 2
    """It has done its rounds, and waits until all others have, or until `again_at`."""
    BARRIER = 3
    """It waits for its neighbors before the next closing round."""
    DONE = 4


@dataclass(frozen=True, slots=True)
class Events:
    """Events (k,) in the order of time. `edge` is -1 for the rounds of a node, `factor` 0 where nothing is mixed."""

    time_s: Floats
    kind: NDArray[np.int8]
    node: Integers
    edge: Integers
    factor: Floats

    def __len__(self) -> int:
        return len(self.time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What decides about time. `ends` (m, 2) are the edges, the lower end first, `latency_s` (m,) one way.

    `round_s(nodes, rounds)` draws how long these local rounds take. `start_s` (n,) is when each node begins,
    `weigh` (taus,) the weight of an exchange by staleness, `factor` (m,) the mixing factor at weight 1. A node trains
    up to `beyond` rounds more while others are at work, spread over `SPREAD` times its training time as in
    `p2pfl.core.training`, or at once if there is no bound; `closing` rounds follow that only mix. `known_s` returns
    when each node knows that all are through (n,), from when each was (n,).
    """

    nodes: int
    ends: Integers
    latency_s: Floats
    engine_s: float
    shortest_s: float
    round_s: Callable[[Integers, Integers], Floats]
    start_s: Floats
    rounds: int
    beyond: int | None
    closing: int
    weigh: Floats
    factor: Floats
    known_s: Callable[[Floats], Floats]


class Clock:
    """The state of all nodes and edges; `windows` moves it to the end."""

    def __init__(self, course: Course) -> None:
        self.course = course
        n, m = course.nodes, len(course.ends)
        self.low, self.high = course.ends[:, 0].copy(), course.ends[:, 1].copy()
        self.phase = np.full(n, NodePhase.WORKING, np.int8)
        self.version = np.zeros(n, np.int64)
        self.rounds = np.zeros(n, np.int64)
        """Local rounds done."""
        self.closed = np.zeros(n, np.int64)
        self.closed_at = np.full(n, NEVER)
        """When the node reached its present count of closing rounds; NEVER before the first."""
        self.tick_at = np.full(n, NEVER)
        """When the node's next version is there, if that is known."""
        self.ticked_at = np.zeros(n)
        """When the node's latest version was there."""
        self.ready_at = np.zeros(n)
        """When all edges had exchanged the node's version."""
        self.through_at = np.full(n, NEVER)
        self.again_at = np.full(n, NEVER)
        """When a node that waits trains another round."""
        self.known_at: Floats | None = None
        """When each node knows that all are through."""
        self.state = np.zeros(m, np.int8)
        self.due = np.full(m, NEVER)
        self.free_at = np.zeros(m)
        self.own_at, self.wish_at = np.full(m, NEVER), np.full(m, NEVER)
        self.wish = np.zeros(m, np.int64)
        self.asked = np.full(m, -1, np.int64)
        """The lower end's version in the exchange under way, or in the last one; `heard` is the upper end's."""
        self.heard = np.full(m, -1, np.int64)
        self.seen = np.full((m, 2), -1, np.int64)
        """The versions of the last completed exchange, lower end first: -1 before any."""
        self.answered = np.full(m, -1, np.int64)
        self.served = np.full((m, 2), -1, np.int64)
        """The newest version of each end that was exchanged, and in `served_at` when that was known there."""
        self.served_at = np.zeros((m, 2))
        self.exchanged = np.zeros(m, np.int64)
        """How many exchanges each edge has begun to answer."""
        self.words = np.zeros(n, np.int64)
        """How many words (Ready) each node has sent."""
        self.staleness_sum, self.staleness_max, self.weighed = 0, 0, 0
        order = np.argsort(np.concatenate([self.low, self.high]), kind="stable")
        self._order = order
        degree = np.bincount(np.concatenate([self.low, self.high]), minlength=n)
        self._with_edges = np.flatnonzero(degree)
        self._first = np.concatenate([[0], np.cumsum(degree)])[self._with_edges]
        self.now_s = 0.0
        self._events: list[tuple[Floats, int, Integers, Integers, Floats]] = []

    # -- the run ------------------------------------------------------------------------------------------------------

    def windows(self) -> Iterator[Events]:
        """Yield the events of one window after the other, each later than those before."""
        yield self._begin()
        while not (self.phase == NodePhase.DONE).all():
            first = min(float(one.min(initial=NEVER)) for one in (self.tick_at, self.due, self.again_at))
            if self.known_at is not None:
                waiting = self.known_at[self.phase == NodePhase.WAITING]
                first = min(first, float(np.maximum(waiting, self.now_s).min(initial=NEVER)))
            if first == NEVER:
                raise AssertionError("the clock stands still")
            self._move(first + self._window_s())
            yield self._taken()

    def _window_s(self) -> float:
        course = self.course
        if (self.closed_at == NEVER).all():
            return course.shortest_s
        return max(LEAST_WINDOW_S, float(course.latency_s.min(initial=course.shortest_s)) + course.engine_s)

    def _begin(self) -> Events:
        """Exchange once before training: that fills the replicas and moves no model."""
        course = self.course
        at = np.maximum(course.start_s[self.low], course.start_s[self.high])
        edges = np.arange(len(self.low))
        zero = np.zeros(len(edges))
        self._note(Kind.FREEZE, at * 0, self.low, edges, zero)
        self._note(Kind.APPLY, at * 0 + course.engine_s, self.high, edges, zero)
        self._note(Kind.SETTLE, at * 0 + 2 * course.engine_s, self.low, edges, zero)
        self.seen[:] = self.served[:] = 0
        self.asked[:] = self.heard[:] = 0
        self.exchanged += 1
        self._start(np.arange(course.nodes), course.start_s)
        return self._taken()

    def _move(self, until_s: float) -> None:
        """Carry out all that happens before `until_s`."""
        course = self.course
        ticking = np.flatnonzero(self.tick_at < until_s)
        self._tick = np.full(course.nodes, NEVER)
        self._tick[ticking] = self.ticked_at[ticking] = self.tick_at[ticking]
        self.tick_at[ticking] = NEVER
        self.phase[ticking] = NodePhase.EXCHANGING
        closing = ticking[self.closed_at[ticking] < NEVER]
        self.closed[closing] += 1
        self.closed_at[closing] = self._tick[closing]
        training = ticking[self.closed_at[ticking] == NEVER]
        self.rounds[training] += 1
        self._trigger()
        while True:
            busy = np.flatnonzero(self.due < until_s)
            if not len(busy):
                break
            state = self.state[busy]
            self._ask(busy[state == EdgePhase.IDLE])
            self._apply(busy[state == EdgePhase.ASKED])
            self._settle(busy[state == EdgePhase.APPLIED])
        self.version[ticking] += 1
        self._tick = np.full(course.nodes, NEVER)
        self._go_on(until_s)
        self.now_s = until_s

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _trigger(self) -> None:
        """A new version: the lower end wants an exchange, the upper one says so."""
        own = self._tick[self.low]
        self.own_at = np.where(own < NEVER, own, self.own_at)
        said = self._tick[self.high]
        new = said < NEVER
        self.words += np.bincount(self.high[new], minlength=self.course.nodes)
        self.wish = np.where(new, self.version[self.high] + 1, self.wish)
        self.wish_at = np.where(new, np.minimum(self.wish_at, said + self.course.latency_s), self.wish_at)
        idle = self.state == EdgePhase.IDLE
        self.due[idle] = np.maximum(self.free_at, np.minimum(self.own_at, self.wish_at))[idle]

    def _version_at(self, node: Integers, time_s: Floats) -> Integers:
        found: Integers = self.version[node] + (self._tick[node] <= time_s)
        return found

    def _ask(self, edges: Integers) -> None:
        if not len(edges):
            return
        at, course = self.due[edges], self.course
        version = self._version_at(self.low[edges], at)
        own = (self.own_at[edges] <= at) & (version > self.served[edges, 0])
        wish = (self.wish_at[edges] <= at) & (self.wish[edges] > self.heard[edges])
        self.own_at[edges[self.own_at[edges] <= at]] = NEVER
        self.wish_at[edges[self.wish_at[edges] <= at]] = NEVER
        go = own | wish
        asking, idle = edges[go], edges[~go]
        self.due[idle] = np.maximum(self.free_at, np.minimum(self.own_at, self.wish_at))[idle]
        self.state[asking] = EdgePhase.ASKED
        self.asked[asking] = version[go]
        self.due[asking] = at[go] + course.engine_s + course.latency_s[asking]
        self._note(Kind.FREEZE, at[go], self.low[asking], asking, np.zeros(len(asking)))

    def _apply(self, edges: Integers) -> None:
        if not len(edges):
            return
        at, course = self.due[edges], self.course
        version = self._version_at(self.high[edges], at)
        self.heard[edges] = version
        tau = np.stack([self.asked[edges] - self.seen[edges, 0], version - self.seen[edges, 1]], axis=1)
        np.clip(tau, 0, len(self.course.weigh) - 1, out=tau)
        self.staleness_sum += int(tau.sum())
        self.staleness_max = max(self.staleness_max, int(tau.max(initial=0)))
        self.weighed += tau.size
        factor = course.factor[edges] * course.weigh[tau].min(axis=1)
        self._serve(edges, 1, version, at + course.engine_s)
        self.state[edges] = EdgePhase.APPLIED
        self.due[edges] = at + course.engine_s + course.latency_s[edges]
        self.exchanged[edges] += 1
        self._note(Kind.APPLY, at, self.high[edges], edges, factor)

    def _settle(self, edges: Integers) -> None:
        if not len(edges):
            return
        at = self.due[edges]
        self.seen[edges, 0], self.seen[edges, 1] = self.asked[edges], self.heard[edges]
        self.free_at[edges] = at + self.course.engine_s
        self._serve(edges, 0, self.asked[edges], self.free_at[edges])
        self.state[edges] = EdgePhase.IDLE
        self.due[edges] = np.maximum(self.free_at[edges], np.minimum(self.own_at[edges], self.wish_at[edges]))
        self._note(Kind.SETTLE, at, self.low[edges], edges, np.zeros(len(edges)))

    def _serve(self, edges: Integers, end: int, version: Integers, at: Floats) -> None:
        newer = version > self.served[edges, end]
        some = edges[newer]
        self.served[some, end] = version[newer]
        self.served_at[some, end] = at[newer]

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _go_on(self, until_s: float) -> None:
        """Let each node go on whose version all its edges have exchanged."""
        everything = self.phase == NodePhase.EXCHANGING
        if everything.any():
            behind = np.zeros(self.course.nodes, np.bool_)
            late = self.served.T.ravel() < self.version[np.concatenate([self.low, self.high])]
            behind[self._with_edges] = np.logical_or.reduceat(late[self._order], self._first)
            latest = np.zeros(self.course.nodes)
            latest[self._with_edges] = np.maximum.reduceat(self.served_at.T.ravel()[self._order], self._first)
            ready = np.flatnonzero(everything & ~behind)
            self.ready_at[ready] = np.maximum(latest[ready], self.ticked_at[ready])
            self._decide(ready)
        if self.known_at is None and (self.through_at < NEVER).all():
            self.known_at = self.course.known_s(self.through_at)
        if self.known_at is not None:
            waiting = np.flatnonzero((self.phase == NodePhase.WAITING) & (self.known_at < NEVER))
            self._close(waiting, np.maximum(self.ready_at[waiting], self.known_at[waiting]))
        again = np.flatnonzero(self.again_at < until_s)
        at, self.again_at[again] = self.again_at[again], NEVER
        self._start(again, at)
        self._pass_barrier()

    def _decide(self, nodes: Integers) -> None:
        """Train on, wait for the others, or close."""
        at, course = self.ready_at[nodes], self.course
        closing = self.closed_at[nodes] < NEVER
        self.phase[nodes[closing]] = NodePhase.BARRIER
        nodes, at = nodes[~closing], at[~closing]
        through = self.rounds[nodes] >= course.rounds
        fresh = nodes[through & (self.through_at[nodes] == NEVER)]
        self.through_at[fresh] = self.ready_at[fresh]
        over = through & (at >= (NEVER if self.known_at is None else self.known_at[nodes]))
        self._close(nodes[over], at[over])
        beyond = self.rounds[nodes] - course.rounds
        waits = through & ~over & (course.beyond is not None)
        if course.beyond is not None:
            own, at_first = nodes[waits], course.start_s[nodes[waits]]
            share = (beyond[waits] + 1) / max(1, course.beyond)
            again = at_first + (self.through_at[own] - at_first) * SPREAD**share
            self.again_at[own] = np.where(beyond[waits] < course.beyond, np.maximum(again, at[waits]), NEVER)
            self.phase[own] = NodePhase.WAITING
        trains = ~over & ~waits
        self._start(nodes[trains], at[trains])

    def _start(self, nodes: Integers, at: Floats) -> None:
        if not len(nodes):
            return
        self.phase[nodes] = NodePhase.WORKING
        ends = at + self.course.round_s(nodes, self.rounds[nodes])
        self.tick_at[nodes] = ends + self.course.engine_s
        nothing, none = np.full(len(nodes), -1, np.int64), np.zeros(len(nodes))
        self._note(Kind.START, at, nodes, nothing, none)
        self._note(Kind.COMMIT, ends, nodes, nothing, none)

    def _close(self, nodes: Integers, at: Floats) -> None:
        self.again_at[nodes] = NEVER
        self.closed_at[nodes] = at
        self.ready_at[nodes] = at
        self.phase[nodes] = NodePhase.BARRIER
        self.words[nodes] += 1

    def _pass_barrier(self) -> None:
        """Begin the next closing round where no neighbor is more than one behind."""
        here = np.flatnonzero(self.phase == NodePhase.BARRIER)
        if not len(here):
            return
        over = self.closed[here] >= self.course.closing
        self.phase[here[over]] = NodePhase.DONE
        there = np.where(self.closed_at < NEVER, self.closed, -1)
        lag = np.full(self.course.nodes, np.iinfo(np.int64).max)
        heard = np.zeros(self.course.nodes)
        for one, other in ((self.low, self.high), (self.high, self.low)):
            np.minimum.at(lag, one, there[other])
            same = (there[other] == self.closed[one]) & (self.closed_at[other] < NEVER)
            np.maximum.at(heard, one[same], (self.closed_at[other] + self.course.latency_s)[same])
        goes = here[~over & (lag[here] >= self.closed[here])]
        at = np.maximum(self.ready_at[goes], heard[goes])
        self.tick_at[goes] = at + self.course.engine_s
        self.phase[goes] = NodePhase.WORKING
        self.words[goes] += 1

    # -- events -------------------------------------------------------------------------------------------------------

    def _note(self, kind: Kind, at: Floats, node: Integers, edge: Integers, factor: Floats) -> None:
        if len(at):
            self._events.append((at, int(kind), node, edge, factor))

    def _taken(self) -> Events:
        """Take the events before now, in order; later ones wait."""
        parts = self._events or [(np.zeros(0), 0, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
        time_s = np.concatenate([part[0] for part in parts])
        kind = np.concatenate([np.full(len(part[0]), part[1], np.int8) for part in parts])
        node, edge, factor = (np.concatenate([part[place] for part in parts]) for place in (2, 3, 4))
        is_due = (time_s < self.now_s) | bool((self.phase == NodePhase.DONE).all())
        now, later = np.flatnonzero(is_due), np.flatnonzero(~is_due)
        self._events = []
        for one in range(5):
            rest = later[kind[later] == one]
            if len(rest):
                self._events.append((time_s[rest], one, node[rest], edge[rest], factor[rest]))
        order = now[np.argsort(time_s[now], kind="stable")]
        return Events(time_s[order], kind[order], node[order], edge[order], factor[order])
