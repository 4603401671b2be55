"""What the engine answers the core, told without looking at a vector.

A message's body is a token: the edge, and the number of the request on it. It stands for a payload of known size, and
two tokens are equal where the payloads would be. The records of the edges move as `p2pfl.engine.changes` moves them.

Both ends of an edge see one stored pair of replicas (`Pairs`) for as long as they are in the same incarnation: it is as
the responder has it, and the initiator is never more than half a transaction behind. An end that begins a new
incarnation turns to a blank pair, and the other end follows to the same one. Records are those of the engines: what is
done, not what the cores have heard of.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from math import ceil
from typing import Any

from msgspec.structs import force_setattr

from p2pfl.core.effects import (
    ApplyReply,
    ApplyRequest,
    Bootstrap,
    CommitRound,
    Freeze,
    Mix,
    NoteLife,
    Operation,
    ResetEdge,
    StartRound,
)
from p2pfl.core.events import Bootstrapped, Event, Mixed, ReplyApplied, RequestApplied, RequestFrozen, RoundCommitted
from p2pfl.core.lives import FIRST_LIFE, Life, Start
from p2pfl.core.messages import DIGEST_BYTES, Reply, Request, request_digest
from p2pfl.core.records import EdgeRecord, next_chain
from p2pfl.engine.codecs import Claim, as_weighed, chance_of
from p2pfl.learn.interface import Vector
from p2pfl.learn.methods import Method, Round
from sim.lazy.operations import BeginOp, CommitOp, FreezeOp, MixOp, ReplyOp, RequestOp, ResetOp, SketchOp
from sim.lazy.plane import Plane
from sim.lazy.rows import MisjudgedError
from sim.machine import Boot

TOKEN = struct.Struct("<II")
SOME_DIGEST = bytes(DIGEST_BYTES)
"""Placeholder for an audit's digest: both ends share one stored replica here."""

Records = Callable[[int, int], EdgeRecord]
"""From (node, peer) to the record at that node's end of the edge."""


class LazyEngine:
    """One node's data plane as its host sees it. `edges` maps a neighbor to the number of the edge.

    A liar's `lie(peer)` is asked before it shows something, and returns the number of that lie.

    `rate` is the learning rate after so many rounds and seconds. `drawing` are the neighbors whose payloads are encoded
    with chance.
    """

    figure: float | None = None
    """Where a figure must improve, operations are not put off."""

    def __init__(
        self,
        plane: Plane,
        pairs: Pairs,
        *,
        index: int,
        edges: Mapping[int, int],
        drawing: frozenset[int] = frozenset(),
        samples: int,
        steps: int,
        rate: Callable[[int, float], float],
        method: Method,
        lie: Callable[[int], int] | None = None,
        claim: Claim = as_weighed,
    ) -> None:
        self.plane = plane
        self.pairs = pairs
        self.index = index
        self.edges = edges
        self.drawing = drawing
        self.local_samples = samples
        self.steps = steps
        self.rate = rate
        self.round_rate = 0.0
        """The learning rate of the round under way."""
        self.method = method
        self.lie = lie
        self.claim = claim
        self.undo: list[tuple[bool, int, Callable[[], None]]] | None = [] if index in plane.crashing else None
        """Per change not on disk: whether vectors moved, the pair seen again (-1: none), and how to undo the rest."""
        self._forget()

    def _forget(self) -> None:
        self.started = False
        self.samples = self.local_samples
        self.version = self.rounds = self.alone = 0
        self.elapsed_s = 0.0
        self.terms = self.method.no_terms
        self.unmixed = False
        """Whether neighbors see the model before the latest mix."""
        self.life = FIRST_LIFE
        self.lives: dict[int, Life] = {}
        self.records = {peer: EdgeRecord() for peer in self.edges}

    # -- life and death ----------------------------------------------------------------------------------------------

    def boot(self, name: int) -> Boot:
        fresh, self.started = not self.started, True
        if fresh:
            self.life = Life(0, name)
        return Boot(
            fresh=fresh,
            samples=self.samples,
            version=self.version,
            rounds=self.rounds,
            elapsed_s=self.elapsed_s,
            alone=self.alone,
            start=Start(self.life, name),
            lives=dict(self.lives),
            records={} if fresh else {peer: copy(record) for peer, record in self.records.items()},
        )

    def crash(self, kept: int = 0) -> None:
        if self.undo is None:
            raise RuntimeError("a node crashed of which the plan says that it never will")
        lost = self.undo[kept:]
        self.plane.lose(self.index, sum(moved for moved, _, _ in lost))
        self.unmixed = False
        for _, _, take_back in reversed(lost):
            take_back()
        self.undo.clear()
        for edge in self.edges.values():
            self.pairs.compare(edge)

    def forget(self) -> None:
        self._forget()
        self.plane.forget(self.index)
        for edge in self.edges.values():
            self.pairs.leave(edge, self.index)

    # -- operations --------------------------------------------------------------------------------------------------

    def amend(self, neighbors: tuple[int, ...]) -> None:
        raise AssertionError(f"node {self.index} is to have the neighbors {neighbors}: such a run goes one by one")

    def run(self, operation: Operation) -> Event | None:
        return DONE_BY[type(operation)](self, operation)

    def freeze(self, op: Freeze) -> Event:
        edge = self.edges[op.peer]
        ticket, after = self.pairs.freeze(edge)
        request = Request(
            incarnation=op.incarnation,
            seq=op.seq,
            version=op.version,
            echo=op.echo,
            weight=self.claim(op.weight),
            staleness=op.staleness,
            pace_s=op.pace_s,
            terms=self.terms,
            audit=SOME_DIGEST if op.audit else b"",
            body=TOKEN.pack(edge, ticket),
        )
        # Nobody else has seen it yet.
        force_setattr(request, "digest", request_digest(request))
        self.records[op.peer].freeze(request)
        pair = self.pairs.of(edge, self.index)
        chance = self._chance(op.peer, op.incarnation, op.seq)
        self.plane.put(self.index, FreezeOp(edge, pair, after, self._next_lie(op.peer), ticket, chance, self.unmixed))
        self._flushed()
        return RequestFrozen(peer=op.peer, request=request)

    def apply_request(self, op: ApplyRequest) -> Event:
        request, record = op.request, self.records[op.peer]
        edge, ticket = TOKEN.unpack(request.body)
        reply = Reply(
            incarnation=request.incarnation,
            seq=request.seq,
            request_digest=request.digest,
            version=op.version,
            factor=op.factor,
            weight=self.claim(op.weight),
            pace_s=op.pace_s,
            terms=self.method.agree(self.terms, request.terms),
            body=request.body,
        )
        chain = next_chain(record.chain, request, reply)
        self.pairs.apply(edge, ticket)
        record.settle_request(request, reply, chain)
        pair = self.pairs.of(edge, self.index)
        lie, chance = self._next_lie(op.peer), self._chance(op.peer, request.incarnation, request.seq)
        noted = RequestOp(edge, pair, ticket, lie, op.factor, self.samples, reply.terms, chance, self.unmixed)
        self.plane.put(self.index, noted)
        self._flushed()
        return RequestApplied(peer=op.peer, request=request, reply=reply, chain=chain)

    def apply_reply(self, op: ApplyReply) -> Event:
        reply, record = op.reply, self.records[op.peer]
        pending = record.pending
        if pending is None:
            raise ValueError("a reply reached the engine without a pending request")
        edge, ticket = TOKEN.unpack(reply.body)
        chain = next_chain(record.chain, pending, reply)
        moves = reply.factor != 0.0 or self.plane.mixes
        self._remember_record(op.peer, moves=moves)
        record.settle_reply(reply, chain)
        if moves:
            pair = self.pairs.of(edge, self.index)
            self.plane.put(self.index, ReplyOp(edge, pair, ticket, reply.factor, self.samples, reply.terms))
        return ReplyApplied(peer=op.peer, reply=reply, chain=chain)

    def reset(self, op: ResetEdge) -> None:
        edge = self.edges[op.peer]
        keeps = bool(self.method.kept_edges) or self.plane.mixes
        self._remember_record(op.peer, moves=keeps)
        self.records[op.peer].reset(op.incarnation)
        self.pairs.enter(edge, self.index, op.incarnation)
        if keeps:
            self.plane.put(self.index, ResetOp(2 * edge + (self.index > op.peer)))

    def commit(self, op: CommitRound) -> Event:
        self._remember_figures(moved=op.trained)
        if op.trained:
            self.samples = max(1, self.local_samples, ceil(op.least_samples))
            about = Round(steps=self.steps, learning_rate=self.round_rate, samples=self.samples, rho=op.rho)
            self.terms = self.method.terms(about)
            self.plane.put(self.index, CommitOp(self.steps, self.round_rate, self.samples, op.rho))
        self.version, self.alone, self.unmixed = op.version, op.alone, False
        self.rounds += op.trained
        self.elapsed_s = op.elapsed_s
        return RoundCommitted(version=self.version, rounds=self.rounds, samples=self.samples, failed=False)

    def bootstrap(self, op: Bootstrap) -> Event:
        self.plane.drain()
        replicas = [self.pairs.peer_replica(self.edges[peer], self.index, self.records[peer]) for peer in op.peers]
        self.plane.replace_by_median(self.index, replicas)
        self.unmixed = False
        self.rounds = self.rounds if op.rounds is None else op.rounds
        self.elapsed_s = self.elapsed_s if op.elapsed_s is None else op.elapsed_s
        self._flushed()
        return Bootstrapped()

    def mix(self, op: Mix) -> Event:
        self._remember_figures(moved=True)
        pairs = tuple(
            -1 - self.edges[peer] if self.index < peer else self.pairs.of(self.edges[peer], self.index)
            for peer in op.peers
        )
        self.plane.put(self.index, MixOp(op, pairs))
        self.unmixed = True
        return Mixed()

    def note_life(self, op: NoteLife) -> None:
        self._remember_lives()
        if op.member is None:
            self.life = op.life
        else:
            self.lives[op.member] = op.life

    def _chance(self, peer: int, incarnation: int, seq: int) -> int:
        """What the encoder draws from in this transaction, where it does."""
        return chance_of(self.index, peer, incarnation, seq) if peer in self.drawing else 0

    def _next_lie(self, peer: int) -> int:
        return -1 if self.lie is None else self.lie(peer)

    # -- local rounds ------------------------------------------------------------------------------------------------

    def begin_round(self, effect: StartRound) -> None:
        self.round_rate = self.rate(effect.index, self.elapsed_s)
        op = BeginOp(effect.index, effect.accompanied, self.samples, self.elapsed_s, effect.away)
        self.plane.put(self.index, op)

    def end_round(self) -> tuple[int, int]:
        return self.steps, self.local_samples

    def sketch(self, tick: int) -> None:
        self.plane.put(self.index, SketchOp(tick))

    # -- what a crash takes back -------------------------------------------------------------------------------------

    def _flushed(self) -> None:
        if self.undo:
            self.undo.clear()

    def _remember_record(self, peer: int, *, moves: bool) -> None:
        if self.undo is None:
            return
        edge = self.edges[peer]
        record, pair = copy(self.records[peer]), self.pairs.of(edge, self.index)

        def take_back() -> None:
            self.records[peer] = record
            self.pairs.put_back(edge, self.index, pair)

        self.undo.append((moves, pair, take_back))

    def _remember_figures(self, *, moved: bool) -> None:
        if self.undo is None:
            return
        figures = self.samples, self.version, self.rounds, self.terms, self.elapsed_s, self.alone

        def take_back() -> None:
            self.samples, self.version, self.rounds, self.terms, self.elapsed_s, self.alone = figures

        self.undo.append((moved, -1, take_back))

    def _remember_lives(self) -> None:
        if self.undo is None:
            return
        life, lives = self.life, dict(self.lives)

        def take_back() -> None:
            self.life, self.lives = life, lives

        self.undo.append((False, -1, take_back))


DONE_BY: dict[type, Callable[[LazyEngine, Any], Event | None]] = {
    Freeze: LazyEngine.freeze,
    ApplyRequest: LazyEngine.apply_request,
    ApplyReply: LazyEngine.apply_reply,
    ResetEdge: LazyEngine.reset,
    CommitRound: LazyEngine.commit,
    Bootstrap: LazyEngine.bootstrap,
    Mix: LazyEngine.mix,
    NoteLife: LazyEngine.note_life,
}
"""How each operation is done; once for all nodes."""


class Pairs:
    """`ends` are the edges as (initiator, responder), by number."""

    def __init__(self, ends: Sequence[tuple[int, int]], plane: Plane) -> None:
        self.ends = ends
        self.plane = plane
        self.rows = plane.rows
        self.records: Records
        self.remembered: Callable[[], Iterable[int]]
        """Pairs that a crash may bring back."""
        self._initiators = list(range(len(ends)))
        self._responders = list(range(len(ends)))
        self._issued = [0] * len(ends)
        self._applied = [0] * len(ends)
        """Per edge, the latest ticket issued and (this) the latest whose application was noted."""

    # -- tickets ------------------------------------------------------------------------------------------------------

    def freeze(self, edge: int) -> tuple[int, int]:
        """A new ticket, and which one must be applied before this request may take the last one's place."""
        self._issued[edge] += 1
        return self._issued[edge], self._applied[edge]

    def apply(self, edge: int, ticket: int) -> None:
        if ticket != self._issued[edge]:
            raise MisjudgedError("a request was applied whose place another has taken")
        self._applied[edge] = ticket

    # -- who sees what ------------------------------------------------------------------------------------------------

    def of(self, edge: int, node: int) -> int:
        return self._initiators[edge] if node == self.ends[edge][0] else self._responders[edge]

    def put_back(self, edge: int, node: int, pair: int) -> None:
        (self._initiators if node == self.ends[edge][0] else self._responders)[edge] = pair

    def enter(self, edge: int, node: int, incarnation: int) -> None:
        """A new incarnation begins at this end: both replicas are zero. If the other end is there, it has done nothing
        in it yet. (The same number may come again, after both ends have lost their disks.)
        """
        first, second = self.ends[edge]
        other = second if node == first else first
        follows = self.records(other, node).incarnation == incarnation
        self.put_back(edge, node, self.of(edge, other) if follows else self._blank_pair())

    def leave(self, edge: int, node: int) -> None:
        """This end has lost its replicas."""
        self.put_back(edge, node, self._blank_pair())
        self.compare(edge)

    def compare(self, edge: int) -> None:
        """Ends that have done nothing together, as far as either remembers, go on without a new incarnation."""
        first, second = self.ends[edge]
        one, other = self.records(first, second), self.records(second, first)
        unknown = (0, 0)
        if (one.incarnation, one.seq) == (other.incarnation, other.seq) == unknown:
            self._initiators[edge] = self._responders[edge] = self._blank_pair()
            self._applied[edge] = 0
            self.plane.begin_edge_anew(edge)

    def _blank_pair(self) -> int:
        """Churn that takes disks would else fill the memory with pairs that nobody sees."""
        blanks = self.rows.blanks
        if not blanks:
            self.plane.drain()
            seen = {*self._initiators, *self._responders, *self.remembered()}
            self.rows.blank([pair for pair in range(len(self.rows.own)) if pair not in seen])
        return blanks.pop()

    def peer_replica(self, edge: int, node: int, record: EdgeRecord) -> Vector:
        """What this end holds of its neighbor, once everything noted is done."""
        if node != self.ends[edge][0]:
            replica: Vector = self.rows.own[self._responders[edge]]
        elif record.pending is not None and self._applied[edge] == self._issued[edge]:
            replica = self.rows.before[edge]
        else:
            replica = self.rows.peer[self._initiators[edge]]
        return replica
