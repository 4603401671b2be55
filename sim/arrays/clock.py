"""The clock of many nodes: when local rounds end, when exchanges happen, and with which factor; no vectors.

Time never depends on values: when a round ends and what an exchange weighs follow from speeds, latencies and draws
alone. So all nodes move at once, in windows so short that none of them ends two rounds in one. Per edge it is the
node's own transaction: the end with the lower index asks when it has a new version or when the other asks for one, a
request is frozen when it is asked, and one runs at a time (`p2pfl.core.exchange`). A node's next round begins when all
its edges have exchanged its version (`p2pfl.core.rounds`).

A node's engine does one thing after the other. Where windows are longer than an engine's operation, what one of them
frees joins the queue behind what came later: with windows of half an exchange's way 1% more exchanges.

Left out: resyncs, joins, disks and bandwidth. Times are in seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p2pfl.core.members import may_wait_s

LATEST_SOURCES = 16
"""The word of so many nodes, the last to complete their rounds, is followed to every other node."""


def known_s(timing: Timing, completed_s: Floats) -> Floats:
    """Return when each node knows that all have completed (n,): told at the end of rounds, or earlier by neighbors."""
    latest = np.argsort(completed_s)[-LATEST_SOURCES:].tolist()
    known, everything = completed_s.copy(), (1 << len(latest)) - 1
    ways: list[list[tuple[int, float]]] = [[] for _ in completed_s]
    for (low, high), hop_s in zip(timing.ends.tolist(), timing.latency_s.tolist(), strict=True):
        ways[low].append((high, hop_s))
        ways[high].append((low, hop_s))
    word_of, due = [0] * len(ways), [math.inf] * len(ways)
    step = 1 / timing.rounds
    ends = list(accumulate(timing.beyond or (), lambda end, begins: max(end, begins) + step, initial=1.0))
    events = [(float(completed_s[node]), node, 1 << bit) for bit, node in enumerate(latest)]
    heapify(events)
    while events:
        at, node, word = heappop(events)
        if word & ~word_of[node]:
            word_of[node] |= word
            if complete := word_of[node] == everything:
                known[node] = max(at, known[node])
            start_s, own_at = float(timing.start_s[node]), float(completed_s[node])
            own_s = own_at - start_s
            place = bisect_right(ends, (at - start_s) / own_s)
            if at < own_at or timing.beyond is None:
                told_at = at + (own_at - at) % (own_s * step)
            else:
                told_at = start_s + own_s * ends[place] if place < len(ends) else math.inf
            send_at = min(told_at, at + may_wait_s(at, own_at if own_at <= at else None, complete=complete))
            if send_at < due[node]:
                due[node] = send_at
                heappush(events, (send_at, node, 0))
        elif not word and at == due[node]:
            due[node] = math.inf
            for other, hop_s in ways[node]:
                if word_of[node] & ~word_of[other]:
                    heappush(events, (at + hop_s, other, word_of[node]))
    return known


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NEVER = np.inf
LEAST_WINDOW_S = 1e-4


class Kind(IntEnum):
    """The kinds of events at vectors. `FREEZE` and `SETTLE` are at the edge's lower end, `APPLY` at its upper one."""

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
    """A local or closing round is under way, until `ends_at`, or its version is on its way, until `tick_at`."""
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
class Timing:
    """Everything that decides about time. `ends` (m, 2) are the edges, the lower end first, `latency_s` (m,) one way.

    `round_s(nodes)` draws how long their next local rounds take. `start_s` (n,) is when each node begins,
    `weigh` (taus,) the weight of an exchange by staleness, `factor` (m,) the mixing factor at weight 1. `beyond` says
    when each of the rounds beyond those asked may begin, as multiples of the node's training time, as in
    `p2pfl.core.training`; without it they have no bound. `closing` rounds follow that only mix. With `replicas` an
    exchange before training fills them, and moves no model.
    """

    nodes: int
    ends: Integers
    latency_s: Floats
    engine_s: float
    shortest_s: float
    round_s: Callable[[Integers], Floats]
    start_s: Floats
    rounds: int
    beyond: Sequence[float] | None
    closing: int
    weigh: Floats
    factor: Floats
    replicas: bool


class Clock:
    """The state of all nodes and edges; `windows` moves it to the end."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        n, m = timing.nodes, len(timing.ends)
        self.low, self.high = timing.ends[:, 0].copy(), timing.ends[:, 1].copy()
        self.phase = np.full(n, NodePhase.WORKING, np.int8)
        self.version = np.zeros(n, np.int64)
        self.rounds = np.zeros(n, np.int64)
        """Local rounds done."""
        self.closed = np.full(n, -1, np.int64)
        """Closing rounds done, -1 before they begin, and when the last of these was."""
        self.closed_at = np.full(n, NEVER)
        self.ends_at = np.full(n, NEVER)
        """When the local or closing round under way ends, and then, in `tick_at`, when its version is there."""
        self.tick_at = np.full(n, NEVER)
        self.ready_at = np.zeros(n)
        self.completed_at = np.full(n, NEVER)
        self.again_at = np.full(n, NEVER)
        """When a node that waits trains another round."""
        self.known_at = np.full(n, NEVER)
        """When each node knows that all have completed their rounds; NEVER while one has not."""
        self.free = np.zeros(n)
        """When the node's engine has done what it was asked."""
        self.state = np.zeros(m, np.int8)
        self.due = np.full(m, NEVER)
        self.free_at = np.zeros(m)
        self.own_at, self.wish_at = np.full(m, NEVER), np.full(m, NEVER)
        self.wish = np.zeros(m, np.int64)
        self.asked = np.zeros(m, np.int64)
        """The lower end's version in the exchange under way, or in the last one; `heard` is the upper end's."""
        self.heard = np.zeros(m, np.int64)
        self.seen = np.zeros((m, 2), np.int64)
        """The versions of the last completed exchange, lower end first."""
        self.served = np.zeros((m, 2), np.int64)
        """The newest version of each end that was exchanged."""
        self.late = np.zeros(n, np.int64)
        """How many edges have not exchanged the node's version; `ready_at` is when the latest of the others had."""
        self.exchanged = np.ones(m, np.int64)
        """How many exchanges each edge has begun to answer."""
        self.words = np.zeros(n, np.int64)
        """How many words (Ready) each node has sent."""
        self.staleness_sum, self.staleness_max, self.weighed = 0, 0, 0
        both = np.concatenate([self.low, self.high])
        self._order = np.argsort(both, kind="stable")
        self.degree = np.bincount(both, minlength=n)
        self._first = np.cumsum(self.degree) - self.degree
        self.now_s = 0.0
        self._events: list[tuple[NDArray[Any], ...]] = []

    # -- the run ------------------------------------------------------------------------------------------------------

    def windows(self, look_s: float) -> Iterator[Events]:
        """Yield the events of one stretch of time after the other, some of them up to the next multiple of `look_s`."""
        yield self._begin()
        look_at = 0.0
        timing, enough = self.timing, self.timing.nodes + 3 * len(self.low)
        window_s = (float(timing.latency_s.min(initial=timing.shortest_s)) + timing.engine_s) / 2
        window_s = max(LEAST_WINDOW_S, min(timing.shortest_s, max(timing.engine_s, window_s)))
        while (self.phase < NodePhase.DONE).any() or self.state.any():
            first = min(
                float(times.min(initial=NEVER)) for times in (self.ends_at, self.tick_at, self.due, self.again_at)
            )
            waiting = self.known_at[self.phase == NodePhase.WAITING]
            first = min(first, float(np.maximum(waiting, self.now_s).min(initial=NEVER)))
            if first == NEVER:
                raise AssertionError("the clock stands still")
            self._move(first + window_s)
            noted = sum(len(part[0]) for part in self._events) * (4 if (self.known_at < NEVER).any() else 1)
            if self.now_s >= look_at or noted >= enough:
                look_at = (self.now_s // look_s + 1) * look_s
                yield self._taken()
        yield self._taken()

    def _begin(self) -> Events:
        if self.timing.replicas:
            edges, zero, engine_s = np.arange(len(self.low)), np.zeros(len(self.low)), self.timing.engine_s
            self._note(Kind.FREEZE, zero, self.low, edges)
            self._note(Kind.APPLY, zero + engine_s, self.high, edges)
            self._note(Kind.SETTLE, zero + 2 * engine_s, self.low, edges)
        self._start(np.arange(self.timing.nodes), self.timing.start_s)
        return self._taken()

    def _move(self, until_s: float) -> None:
        """Carry out all that happens before `until_s`."""
        self._tick = np.full(self.timing.nodes, NEVER)
        self.now_s = max(self.now_s, until_s)
        while True:
            self._note_ticks(np.flatnonzero(self.tick_at < until_s))
            ending, busy = np.flatnonzero(self.ends_at < until_s), np.flatnonzero(self.due < until_s)
            if not len(ending) + len(busy):
                self._go_on(until_s)
                if not (self.ends_at < until_s).any():
                    break
                continue
            state = self.state[busy]
            asking = self._wanted(busy[state == EdgePhase.IDLE])
            applying, settling = busy[state == EdgePhase.ASKED], busy[state == EdgePhase.APPLIED]
            nodes = np.concatenate([ending, self.low[asking], self.high[applying], self.low[settling]])
            at = np.concatenate([self.ends_at[ending], *(self.due[edges] for edges in (asking, applying, settling))])
            cuts = np.cumsum([len(ending), len(asking), len(applying)])
            ends, asks, applies, settles = np.split(self._answered_at(nodes, at), cuts)
            self.tick_at[ending], self.ends_at[ending] = ends, NEVER
            self._ask(asking, asks)
            self._apply(applying, applies)
            self._settle(settling, settles)
        self.version += self._tick < NEVER

    def _answered_at(self, nodes: Integers, at: Floats) -> Floats:
        """Return when each node's engine, which does one thing after the other, answers what is asked of it at `at`."""
        if not len(nodes):
            return at
        order = np.lexsort((at, nodes))
        node, engine_s = nodes[order], self.timing.engine_s
        begins = np.concatenate([[True], node[1:] != node[:-1]])
        group = np.cumsum(begins) - 1
        place = np.arange(len(node)) - np.flatnonzero(begins)[group]
        least = np.where(begins, np.maximum(at[order], self.free[node]), at[order]) - engine_s * place
        apart = group * (np.ptp(least) + 1.0)
        answered = np.maximum.accumulate(least + apart) - apart + engine_s * (place + 1)
        self.free[node] = answered
        back: Floats = np.empty_like(answered)
        back[order] = answered
        return back

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _note_ticks(self, nodes: Integers) -> None:
        """A new version: the lower end of each edge wants an exchange, the upper one says so."""
        if not len(nodes):
            return
        at, closes = self.tick_at[nodes], self.closed[nodes] >= 0
        self._tick[nodes], self.tick_at[nodes] = at, NEVER
        self.phase[nodes] = NodePhase.EXCHANGING
        self.closed[nodes] += closes
        self.closed_at[nodes[closes]] = at[closes]
        self.rounds[nodes] += ~closes
        degree = self.degree[nodes]
        self.late[nodes], self.ready_at[nodes] = degree, at
        source = np.repeat(np.arange(len(nodes)), degree)
        place = np.arange(len(source)) + (self._first[nodes] - np.cumsum(degree) + degree)[source]
        upper, edges = np.divmod(self._order[place], len(self.low))
        own, said = edges[upper == 0], edges[upper == 1]
        self.own_at[own] = at[source[upper == 0]]
        self.wish[said] = self.version[self.high[said]] + 1
        said_at = at[source[upper == 1]] + self.timing.latency_s[said]
        self.wish_at[said] = np.minimum(self.wish_at[said], said_at)
        self.words[nodes] += np.where(closes, degree, np.bincount(source, upper, len(nodes)).astype(np.int64))
        self._wait(edges[self.state[edges] == EdgePhase.IDLE])

    def _wait(self, edges: Integers) -> None:
        """Let idle edges wait until either end has something new."""
        self.due[edges] = np.maximum(self.free_at[edges], np.minimum(self.own_at[edges], self.wish_at[edges]))

    def _version_at(self, node: Integers, time_s: Floats) -> Integers:
        version: Integers = self.version[node] + (self._tick[node] <= time_s)
        return version

    def _wanted(self, edges: Integers) -> Integers:
        """Return those of the idle edges that are due whose lower end asks for an exchange."""
        at = self.due[edges]
        own, wish = self.own_at[edges] <= at, self.wish_at[edges] <= at
        self.own_at[edges[own]] = self.wish_at[edges[wish]] = NEVER
        own &= self._version_at(self.low[edges], at) > self.served[edges, 0]
        go = own | (wish & (self.wish[edges] > self.heard[edges]))
        self._wait(edges[~go])
        return edges[go]

    def _ask(self, edges: Integers, answered: Floats) -> None:
        at = self.due[edges]
        self.state[edges] = EdgePhase.ASKED
        self.asked[edges] = self._version_at(self.low[edges], at)
        self.due[edges] = answered + self.timing.latency_s[edges]
        self._note(Kind.FREEZE, at, self.low[edges], edges)

    def _apply(self, edges: Integers, answered: Floats) -> None:
        at, timing = self.due[edges], self.timing
        version = self._version_at(self.high[edges], at)
        self.heard[edges] = version
        tau = np.stack([self.asked[edges] - self.seen[edges, 0], version - self.seen[edges, 1]], axis=1)
        np.clip(tau, 0, len(timing.weigh) - 1, out=tau)
        self.staleness_sum += int(tau.sum())
        self.staleness_max = max(self.staleness_max, int(tau.max(initial=0)))
        self.weighed += tau.size
        factor = timing.factor[edges] * timing.weigh[tau].min(axis=1)
        self._serve(edges, 1, version, answered)
        self.state[edges] = EdgePhase.APPLIED
        self.due[edges] = answered + timing.latency_s[edges]
        self.exchanged[edges] += 1
        self._note(Kind.APPLY, at, self.high[edges], edges, factor)

    def _settle(self, edges: Integers, answered: Floats) -> None:
        at = self.due[edges]
        self.seen[edges, 0], self.seen[edges, 1] = self.asked[edges], self.heard[edges]
        self.free_at[edges] = answered
        self._serve(edges, 0, self.asked[edges], answered)
        self.state[edges] = EdgePhase.IDLE
        self._wait(edges)
        self._note(Kind.SETTLE, at, self.low[edges], edges)

    def _serve(self, edges: Integers, end: int, version: Integers, at: Floats) -> None:
        newer = version > self.served[edges, end]
        self.served[edges[newer], end] = version[newer]
        node = (self.low, self.high)[end][edges]
        newer &= version == self.version[node] + (self._tick[node] < NEVER)
        np.subtract.at(self.late, node[newer], 1)
        np.maximum.at(self.ready_at, node[newer], at[newer])

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _go_on(self, until_s: float) -> None:
        """Let each node go on whose version all its edges have exchanged."""
        self._decide(np.flatnonzero((self.phase == NodePhase.EXCHANGING) & (self.late == 0)))
        if (self.known_at == NEVER).any() and (self.completed_at < NEVER).all():
            self.known_at = known_s(self.timing, self.completed_at)
        know = (self.known_at < NEVER) & (self.known_at <= self.again_at)
        waiting = np.flatnonzero((self.phase == NodePhase.WAITING) & know)
        self._close(waiting, np.maximum(self.ready_at[waiting], self.known_at[waiting]))
        again = np.flatnonzero(self.again_at < until_s)
        at, self.again_at[again] = self.again_at[again], NEVER
        self._start(again, at)
        self._pass_barrier()

    def _decide(self, nodes: Integers) -> None:
        """Train on, wait for the others, or close."""
        at, timing = self.ready_at[nodes], self.timing
        closing = self.closed[nodes] >= 0
        self.phase[nodes[closing]] = NodePhase.BARRIER
        nodes, at = nodes[~closing], at[~closing]
        completed = self.rounds[nodes] >= timing.rounds
        fresh = nodes[completed & (self.completed_at[nodes] == NEVER)]
        self.completed_at[fresh] = self.ready_at[fresh]
        over = completed & (at >= self.known_at[nodes])
        self._close(nodes[over], at[over])
        waits = completed & ~over & (timing.beyond is not None)
        if timing.beyond is not None:
            own, at_first = nodes[waits], timing.start_s[nodes[waits]]
            begins = np.append(timing.beyond, NEVER)[np.minimum(self.rounds[own] - timing.rounds, len(timing.beyond))]
            self.again_at[own] = np.maximum(at_first + (self.completed_at[own] - at_first) * begins, at[waits])
            self.phase[own] = NodePhase.WAITING
        trains = ~over & ~waits
        self._start(nodes[trains], at[trains])

    def _start(self, nodes: Integers, at: Floats) -> None:
        if not len(nodes):
            return
        self.phase[nodes] = NodePhase.WORKING
        self.ends_at[nodes] = ends = at + self.timing.round_s(nodes)
        self._note(Kind.START, at, nodes)
        self._note(Kind.COMMIT, ends, nodes)

    def _close(self, nodes: Integers, at: Floats) -> None:
        self.again_at[nodes] = NEVER
        self.closed[nodes] = 0
        self.closed_at[nodes] = self.ready_at[nodes] = at
        self.phase[nodes] = NodePhase.BARRIER
        self.words[nodes] += self.degree[nodes]

    def _pass_barrier(self) -> None:
        """Begin the next closing round where no neighbor is more than one behind."""
        here = np.flatnonzero(self.phase == NodePhase.BARRIER)
        if not len(here):
            return
        over = self.closed[here] >= self.timing.closing
        self.phase[here[over]] = NodePhase.DONE
        least = np.full(self.timing.nodes, np.iinfo(np.int64).max)
        heard = np.zeros(self.timing.nodes)
        for ends, other in ((self.low, self.high), (self.high, self.low)):
            np.minimum.at(least, ends, self.closed[other])
            same = self.closed[other] == self.closed[ends]
            np.maximum.at(heard, ends[same], (self.closed_at[other] + self.timing.latency_s)[same])
        goes = here[~over & (least[here] >= self.closed[here])]
        at = np.maximum(self.ready_at[goes], heard[goes])
        self.ends_at[goes] = at
        self.phase[goes] = NodePhase.WORKING

    # -- events -------------------------------------------------------------------------------------------------------

    def _note(self, kind: Kind, at: Floats, node: Integers, edge: ArrayLike = -1, factor: ArrayLike = 0.0) -> None:
        if len(at):
            n = len(at)
            self._events.append((at, np.full(n, kind, np.int8), node, np.full(n, edge), np.full(n, factor)))

    def _taken(self) -> Events:
        """Take the events before now, in order; later ones wait."""
        columns = [np.concatenate(column) for column in zip(*self._events, strict=True)]
        time_s, kind = columns[:2]
        is_due = (time_s < self.now_s) | bool((self.phase == NodePhase.DONE).all())
        due, later = np.flatnonzero(is_due), np.flatnonzero(~is_due)
        due, later = due[np.argsort(time_s[due], kind="stable")], later[np.argsort(kind[later], kind="stable")]
        self._events = [tuple(column[later] for column in columns)]
        return Events(*(column[due] for column in columns))
