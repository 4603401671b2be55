"""An oracle sees the vectors of all nodes at any time, and checks what no node can see; `checked` simulates with it.

It checks that `sum n_i x_i` plus what is in flight stays constant (the ledger books what training adds, and what a lost
disk or a new start takes away), and that the two ends of an edge hold the same replicas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from p2pfl.config import Edges
from p2pfl.core import ApplyReply, ApplyRequest, Bootstrap, ChangeEdges, CommitRound, Mix, Operation
from p2pfl.engine import EdgeState, slices_of
from p2pfl.learn import Vector
from p2pfl.reporting import Report
from sim import MESSAGE_CODES, ExactEngine, PreparedRun, TraceKind, Watch, simulate
from tests.invariants import check_invariants

Totals = NDArray[np.float64]
TOLERANCE = 1e-9
"""The relative error allowed in the conservation of sum n_i x_i, in float64."""


def checked(federation, *, tolerance: float = TOLERANCE, begin=None, **how) -> Report:
    """Simulate with every invariant checked after every event; a broken one is an AssertionError with the last
    events. `begin` is called with the run and its watch before the first.
    """
    latest: deque[tuple] = deque(maxlen=20)

    def watch(stage: PreparedRun) -> Invariants:
        trace, add = stage.world.trace, stage.world.trace.add
        trace.add = lambda *entry: (latest.append(entry), add(*entry))
        found = Invariants(stage, tolerance)
        if begin is not None:
            begin(stage, found)
        return found

    try:
        return simulate(federation, watch=watch, references=False, **how)
    except AssertionError as error:
        error.add_note("\n".join(map(in_words, latest)))
        raise


def in_words(entry: tuple) -> str:
    """Describe an entry of a trace."""
    time_ns, kind, a, b, n = entry
    names = {code: message.__name__ for message, code in MESSAGE_CODES.items()}
    base = kind & ~31
    about = TraceKind(kind).name if kind < TraceKind.SENT else f"{TraceKind(base).name} {names[kind - base]}"
    return f"{time_ns / 1e9:.9f} s  {about}  a={a} b={b} n={n}"


class Oracle(Watch):
    """Watches a world of exact engines; attach it before the world runs. `gammas` has each node's gammas by
    neighbor.
    """

    def __init__(self, engines: Sequence[ExactEngine], edges: Edges, gammas: Sequence[Mapping[int, float]]) -> None:
        self.engines = engines
        self.edges = edges
        self.gammas = gammas
        self.members = set(range(len(engines)))
        """The members whose models count."""
        self.lost: Totals | float = 0.0
        """The amount that changes of the graph have taken from the sum: halves of exchanges, which are also booked."""
        self.booked: Totals | float = 0.0
        self._largest = 1e-300
        """The largest sum of absolute terms so far: the scale of rounding errors, even if only booked amounts are
        left.
        """
        self._before: Totals | None = None
        self._unflushed: list[list[tuple[int, Totals]]] = [[] for _ in engines]
        """For each node, the amounts booked by commits not yet on disk, by their position among the unflushed
        changes.
        """
        self._replies: list[dict[int, int]] = [{} for _ in engines]
        """For each node and neighbor, the position of a reply that is not on disk."""
        self._widowed: list[list[tuple[int, Totals]]] = [[] for _ in engines]
        """For each node, unflushed replies and their D whose other half was lost with the neighbor's disk."""
        self._bare: dict[tuple[int, int], tuple[bytes, Totals]] = {}
        """For each edge without replicas, the digest of its latest request and the D that its responder applied."""
        self._orphaned: set[bytes] = set()
        """The digests of pending requests of an edge when one of its ends lost its disk."""
        self._is_orphan = False

    # -- as a watch -------------------------------------------------------------------------------------------------

    def before(self, index: int, operation: Operation) -> None:
        if isinstance(operation, Bootstrap | CommitRound | Mix):
            self._before = self._weighed(index)
        self._is_orphan = self._digest(index, operation) in self._orphaned
        if self._is_orphan:
            self._before = self.total()
        if isinstance(operation, ChangeEdges):
            self.drops(index, operation.dropped)
            self._before = self.total()
        if isinstance(operation, ApplyReply):
            self._check_factor(index, operation)

    def _check_factor(self, index: int, op: ApplyReply) -> None:
        """Check `k <= gamma a_i s_i` with the gamma of that edge's compressor; beyond it a step may not contract."""
        pending = self.engines[index].state.edges[op.peer].record.pending
        if pending is None:
            raise AssertionError("a reply is applied to which there is no request")
        most = self.gammas[index][op.peer] * pending.weight * pending.staleness
        if not 0.0 <= op.reply.factor <= most:
            raise AssertionError(f"node {index} takes a step of {op.reply.factor} where {most} is the most")

    def after(self, index: int, operation: Operation) -> None:
        """Book local rounds, starts from the neighbors' median, and robust rules, all of which move a model."""
        if isinstance(operation, ApplyRequest) and (moved := bare_move(self.engines[index], operation)) is not None:
            self._bare[operation.peer, index] = operation.request.digest, moved
        waiting = self.engines[index].store.buffered
        if not waiting:
            self._flushed(index)
        elif isinstance(operation, ApplyReply):
            self._replies[index][operation.peer] = waiting
        if isinstance(operation, Bootstrap | CommitRound | Mix) and self._before is not None:
            moved = self._weighed(index) - self._before if index in self.members else 0.0 * self._before
            self.booked = self.booked + moved
            if waiting:
                self._unflushed[index].append((waiting, moved))
        if isinstance(operation, ChangeEdges) and self._before is not None:
            moved = self.total() - self._before
            self.booked, self.lost = self.booked + moved, self.lost + moved
        if self._is_orphan and self._before is not None:
            moved = self.total() - self._before
            self.booked = self.booked + moved
            if waiting:
                self._unflushed[index].append((waiting, moved))

    def _digest(self, index: int, operation: Operation) -> bytes | None:
        """Return the digest of the request that is about to be applied, or whose reply is."""
        if isinstance(operation, ApplyRequest):
            return operation.request.digest
        edge = self.engines[index].state.edges.get(operation.peer) if isinstance(operation, ApplyReply) else None
        return None if edge is None or edge.record.pending is None else edge.record.pending.digest

    def crashes(self, index: int, kept: int) -> None:
        """Unbook the rounds missing from the disk of a node about to crash, as if they had never happened."""
        if index not in self.members:
            self._flushed(index)
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
        """Book the loss of a disk, so that the oracle looks at the disk, not at memory.

        A neighbor that applied a reply and crashes before it is on disk has nobody to ask for it again. One that has
        received a request or a reply, and was stopped, applies it when it goes on, though this end knows of none.
        """
        for initiator, responder in self.edges:
            if responder == index:
                self._widow(initiator, responder)
            edge = self.engines[initiator].state.edges.get(responder)
            if index in {initiator, responder} and edge is not None and edge.record.pending is not None:
                self._orphaned.add(edge.record.pending.digest)
        self.book(lambda: forget(index))

    def book(self, happen: Callable[[], None]) -> None:
        """Call `happen` and book the change of the sum as intended."""
        before = self.total()
        happen()
        self.booked = self.booked + (self.total() - before)

    def drops(self, index: int, peers: Iterable[int]) -> None:
        """Prepare for the loss of these edges: a neighbor may still take back an exchange on them."""
        for peer in peers:
            self._widow(peer, index)

    def _widow(self, initiator: int, responder: int) -> None:
        """Record that the other half of a reply that is not on the initiator's disk is about to be lost."""
        place = self._replies[initiator].get(responder)
        if place is not None and (flow := self._latest(initiator, responder)) is not None:
            self._widowed[initiator].append((place, flow))

    def _weighed(self, index: int) -> Totals:
        state = self.engines[index].state
        return state.samples * state.channels.astype(np.float64)

    # -- what it knows ------------------------------------------------------------------------------------------------

    def total(self) -> Totals:
        """Sum n_i x_i, minus every D that a responder has applied and its initiator has not yet. (d,)"""
        total = np.zeros(self.engines[0].state.channels.size)
        for index in self.members:
            total = total + self._weighed(index)
        for edge in self.edges:
            if self.members.issuperset(edge):
                total = total - self._in_flight(edge)
        return total

    def drift(self, start: Totals) -> float:
        """Return how far the sum has drifted from its start and the booked changes, relative to its largest terms."""
        terms = sum(float(engine.state.samples * np.abs(engine.state.channels).sum()) for engine in self.engines)
        self._largest = max(self._largest, terms)
        return float(np.abs(self.total() - start - self.booked).max()) / self._largest

    def _in_flight(self, edge: tuple[int, int]) -> Totals | float:
        ends = self._ends(*edge)
        if ends is None:
            return 0.0
        mine, theirs = ends[0].record, ends[1]
        reply = theirs.record.reply
        if mine.pending is None or reply is None or reply.request_digest != mine.pending.digest:
            return 0.0
        return self._moved(edge, theirs, reply.factor)

    def _latest(self, initiator: int, responder: int) -> Totals | None:
        """Return D of the latest transaction, if it is the same one at both ends."""
        ends = self._ends(initiator, responder)
        if ends is None:
            return None
        mine, theirs = ends
        reply = theirs.record.reply
        if reply is None or mine.record.chain != theirs.record.chain:
            return None
        return self._moved((initiator, responder), theirs, reply.factor)

    def _moved(self, edge: tuple[int, int], theirs: EdgeState, factor: float) -> Totals:
        """Return D of the latest transaction that the responder has applied."""
        if edge not in self._bare:  # a state read from the disk has room for replicas in any case
            return (theirs.peer - theirs.own).astype(np.float64) * factor
        digest, moved = self._bare[edge]
        if digest != theirs.record.request_digest:
            raise AssertionError(f"the edge {edge} has applied a request that was not seen")
        return moved

    def _ends(self, low: int, high: int) -> tuple[EdgeState, EdgeState] | None:
        """Return both ends of an edge; None if one of them does not have it yet, or no longer has it."""
        first, second = self.engines[low].state.edges.get(high), self.engines[high].state.edges.get(low)
        return None if first is None or second is None else (first, second)

    def replicas_agree(self, *, amnesia: bool = False) -> bool:
        """Return True if both ends of every edge with nothing pending hold the same replicas, and opposite vectors of
        the learning method, bit for bit.

        With `amnesia`, ends that have not yet noticed the other end's loss of memory are skipped.
        """
        return all(self._edge_agrees(edge, amnesia=amnesia) for edge in self.edges)

    def _edge_agrees(self, edge: tuple[int, int], *, amnesia: bool) -> bool:
        ends = self._ends(*edge)
        if ends is None:
            return True
        first, second = ends
        if first.record.pending is not None:
            return True
        if (first.record.incarnation, first.record.seq) != (second.record.incarnation, second.record.seq):
            return amnesia
        if first.record.chain != second.record.chain:
            return amnesia
        return (
            _are_equal(first.own, second.peer)
            and _are_equal(first.peer, second.own)
            and all(
                are_opposite(first.kept.get(name), second.kept.get(name))
                for name in first.kept.keys() | second.kept.keys()
            )
        )

    def mean(self) -> Totals:
        """Compute the n-weighted mean model, (d,)."""
        states = [self.engines[index].state for index in sorted(self.members)]
        weights = np.array([state.samples for state in states], dtype=np.float64)
        return np.average([state.model.astype(np.float64) for state in states], axis=0, weights=weights)


def _are_equal(first: Vector, other: Vector) -> bool:
    """Return True if two replicas are the same, bit for bit; one that an edge does without counts as zero."""
    if first.size and other.size:
        return np.array_equal(first, other)
    return not first.any() and not other.any()


def are_opposite(first: Vector | None, other: Vector | None) -> bool:
    """Return True if the vectors at the two ends are each other's negative, bit for bit; None counts as zero."""
    if first is None or other is None:
        return all(kept is None or not kept.any() for kept in (first, other))
    return np.array_equal(first, -other)


def bare_move(engine: ExactEngine, op: ApplyRequest) -> Totals | None:
    """Return the D (c d,) of an exchange that a responder has just applied without replicas; None if it has them, or
    has refused the request.
    """
    reply, state = engine.state.edges[op.peer].record.reply, engine.state
    fragments = engine.plan.codecs.fragments_of(op.peer)
    if fragments is None or reply is None or reply.request_digest != op.request.digest:
        return None
    moved = np.zeros(state.channels.size)
    slices, before = slices_of(state, fragments, fragments.read_fragment(reply.body)), 0
    size = sum(part.stop - part.start for part in slices)
    theirs, ours = (fragments.decode_fragment(body, size) for body in (op.request.body, reply.body))
    for part in slices:
        here = slice(before, before + part.stop - part.start)
        moved[part] = theirs[here].astype(np.float64) - ours[here]
        before = here.stop
    return moved * reply.factor


class Invariants(Oracle):
    """Checks after every event that each core is consistent, that sum n_i x_i matches the ledger, and that idle edges
    agree bit for bit.
    """

    def __init__(self, stage: PreparedRun, tolerance: float) -> None:
        super().__init__([host.engine for host in stage.world.hosts], stage.script.edges, stage.gammas)
        self.world, self.tolerance, self.begun = stage.world, tolerance, self.total()
        # An end that refuses what a liar shows restarts the edge before the other end knows, as after a crash without a
        # disk. So does one that got an edge back that the other never knew to be gone.
        changing = len(stage.script.steps) > 1 or bool(stage.script.liars)
        self.forgetful = changing or bool(stage.script.faults.crashing)

    def look(self) -> bool:
        drift = self.drift(self.begun)
        if not drift <= self.tolerance:
            raise AssertionError(f"sum n_i x_i is off by {drift:.3g} (relative)")
        if not self.replicas_agree(amnesia=self.forgetful):
            raise AssertionError("the ends of an edge hold different replicas")
        for host in self.world.hosts:
            if host.alive:
                check_invariants(host.core)
        return False
