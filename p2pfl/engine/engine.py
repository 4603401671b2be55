"""The data plane: it carries out the core's operations on vectors, and makes no decisions.

Every operation first computes and checks, then changes the state, so that a refused message leaves no trace. Replicas
are bit-identical at both ends: decoded values are added by separate float operations in a fixed order, and both ends
compute D = k (h_i - h_j) in the same way. Each change is also a `Change` that `redo` can repeat after a crash.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from queue import SimpleQueue
from typing import NamedTuple, assert_never

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from p2pfl.aggregate import Rule, liars_of
from p2pfl.compress import Payload, make_compressor, require_replicas
from p2pfl.config.model import FederationConfig
from p2pfl.core.events import (
    ApplyReply,
    ApplyRequest,
    Bootstrap,
    Bootstrapped,
    ChangeEdges,
    CommitRound,
    Event,
    Freeze,
    Mix,
    Mixed,
    NoteLifetime,
    Operation,
    Refused,
    ReplyApplied,
    RequestApplied,
    RequestFrozen,
    ResetEdge,
    RoundCommitted,
    StartRound,
)
from p2pfl.core.limits import Fault
from p2pfl.core.messages import Reply, Request, next_chain, request_digest
from p2pfl.core.settings import turn_of
from p2pfl.engine.changes import (
    BudgetWasSpent,
    Change,
    EdgesWereChanged,
    EdgeWasReset,
    LifetimeWasTold,
    ModelWasReplaced,
    ReplyWasApplied,
    RequestWasApplied,
    RequestWasFrozen,
    RoundWasCommitted,
    redo,
    settle,
)
from p2pfl.engine.rounds import (
    FragmentMean,
    NodeSeen,
    RuleMixer,
    distance,
    gathered,
    has_moved,
    median,
    norm,
    round_change,
)
from p2pfl.engine.state import (
    Bodies,
    Codecs,
    EdgeState,
    NodeState,
    check_moved,
    gathered_values,
    lead,
    slices_of,
)
from p2pfl.errors import LearningError, PeerFault
from p2pfl.learn.interface import LocalRound, RoundStart, Vector
from p2pfl.learn.privacy.accounting import Spend
from p2pfl.limits import NORM_CEILING, NORM_MULTIPLE
from p2pfl.methods import Method, Round, overrides
from p2pfl.methods.method import own_failures
from p2pfl.plugins import FAILURES, describe_failure

LARGEST_TERM = 1e300


class Occasion(NamedTuple):
    """The transaction for which a vector is shown: sequence number `seq` within an incarnation of the edge."""

    incarnation: int
    seq: int


@dataclass(frozen=True, slots=True)
class Forgery:
    """Bytes that no encoder has made, sent in place of a vector; a neighbor must refuse them."""

    body: Payload


Show = Callable[[Vector, int, Occasion], Vector | Forgery]
"""(channels (c d,), peer, occasion) -> the vector (c d,) that this neighbor sees; it must be finite and not change
later.
"""
Trained = tuple[Vector, LocalRound]
Claim = Callable[[float], float]
"""The weight a_i of this node -> the weight that its messages carry."""


def as_it_is(channels: Vector, peer: int, occasion: Occasion) -> Vector:
    """Show the channels unchanged."""
    del peer, occasion
    return channels


def as_weighed(weight: float) -> float:
    """Send the weight unchanged."""
    return weight


_PLACE = struct.Struct("<QQQQ")


def chance_of(sender: int, receiver: int, incarnation: int, seq: int) -> int:
    """Return a 64-bit random seed for the sender's payload in this transaction, the same in nodes and simulations."""
    place = _PLACE.pack(sender, receiver, incarnation, seq)
    return int.from_bytes(blake2b(place, digest_size=8, person=b"p2pfl-chance").digest(), "little")


class Outcome(Struct, frozen=True, gc=False):
    """The outcome of an operation.

    `event` is the answer, if any; `change` is what must become durable, if anything. If `urgent`, the change must be
    durable before the event may have consequences outside.
    """

    event: Event | None
    change: Change | None
    urgent: bool = False


class AuditFault(PeerFault):
    """The replicas at the two ends differ."""


class ClaimFault(PeerFault):
    """The peer's figures are impossible under our settings; it may be running another task."""


class Engine:
    """Runs operations on one node's state. `rule` is used in the robust profile; it is None in the conservative one."""

    def __init__(
        self,
        *,
        index: int,
        state: NodeState,
        codecs: Codecs,
        method: Method | None = None,
        rule: Rule | None = None,
    ) -> None:
        self.index = index
        self.state = state
        self.codecs = codecs
        state.fit_replicas(codecs.need_replicas)
        self.method = method or Method()
        self.mixer = None if rule is None else RuleMixer(rule, NORM_CEILING)
        self.show: Show = as_it_is
        self.claim: Claim = as_weighed
        """Functions that choose which model (`show`) and which weight (`claim`) neighbors see."""
        self.exchanges = 0
        """The number of exchanges applied by this process, over all edges."""
        self._given: Mapping[str, Vector] = {}
        """The vectors that the method gave to the current local round."""
        self.gathering: FragmentMean | None = None
        """The mean of what neighbors have shown, without replicas, since this node joins; None while it does not."""
        self.outcomes: SimpleQueue[Trained | Callable[[Vector], LocalRound] | None] = SimpleQueue()
        """Results of local rounds; each CommitRound with `trained` takes the next one.

        A result is the model (d,) at the start, whose memory then belongs to the engine, and the trained round; it is
        None if the round failed. Or it is what makes the round from the present model, when it is committed. The memory
        of the round's `vector` then belongs to the engine; or it is the model, written to, where it is all channels.
        """

    def run(self, operation: Operation) -> Outcome:
        match operation:
            case Freeze():
                return self._freeze(operation)
            case ApplyRequest() | ApplyReply():
                return self._apply(operation)
            case ResetEdge(peer=peer, incarnation=incarnation):
                return self._done(None, EdgeWasReset(peer=peer, incarnation=incarnation))
            case ChangeEdges(added=added, dropped=dropped):
                if self.mixer is not None:
                    self.mixer.forget(dropped)
                change = EdgesWereChanged(added=added, dropped=dropped)
                return self._done(None, change, urgent=True) if added or dropped else Outcome(None, None)
            case CommitRound():
                return self._commit(operation)
            case Bootstrap():
                return self._bootstrap(operation)
            case Mix():
                return self._mix(operation)
            case NoteLifetime(member=member, lifetime=lifetime):
                return self._done(None, LifetimeWasTold(member=member, lifetime=lifetime))
        assert_never(operation)

    def pay(self, spend: Spend) -> Change:
        """Record what the next round will spend; this must be on disk before the round begins."""
        change = BudgetWasSpent(spend=spend)
        redo(self.state, change, codecs=self.codecs, method=self.method)
        return change

    def begin_round(self, asked: StartRound) -> RoundStart:
        """Return the start of a local round, in its own memory unless it is `in_place`.

        A method that needs company does not see the edges to neighbors that are away.
        """
        method, self._given, self.gathering = self.method, {}, None
        elapsed_s, closing = self.state.elapsed_s, asked.closing
        model = self.state.model if asked.in_place else self.state.model.copy()
        if not overrides(method, "gradient") or (method.needs_company and not asked.accompanied):
            return RoundStart(model, elapsed_s=elapsed_s, closing=closing)
        away = asked.away if method.needs_company else ()
        with own_failures("the learning method"):
            vectors = dict(method.begin(NodeSeen.of(self.state, method, away=away)))
            if vectors.keys() != set(method.given):
                raise LearningError(f"the learning method gives {sorted(vectors)}, and declares {sorted(method.given)}")
        self._given = {name: self._copy_if_shared(vector) for name, vector in vectors.items()}
        return RoundStart(model, self._given, method, elapsed_s, closing)

    def _copy_if_shared(self, vector: Vector) -> Vector:
        """Return a copy if the memory belongs to the state, because exchanges continue while a round trains."""
        state = self.state
        theirs = [  # vectors of the state
            state.channels,
            *state.kept.values(),
            *(v for edge in state.edges.values() for v in edge.kept.values()),
        ]
        return vector.copy() if any(np.may_share_memory(vector, each) for each in theirs) else vector

    # -- transactions ---------------------------------------------------------------------------------------------

    def _freeze(self, op: Freeze) -> Outcome:
        edge, body = self.state.edges[op.peer], self._encode(op.peer, op.incarnation, op.seq)
        request = Request(
            incarnation=op.incarnation,
            seq=op.seq,
            version=op.version,
            echo=op.echo,
            weight=self.claim(op.weight),
            staleness=op.staleness,
            pace_s=op.pace_s,
            terms=self.state.terms,
            audit=edge.digest(initiator=True) if op.audit else b"",
            body=body.body if isinstance(body, Forgery) else body,
        )
        request = replace(request, digest=request_digest(request))
        change = RequestWasFrozen(peer=op.peer, request=request)
        return self._done(RequestFrozen(peer=op.peer, request=request), change, urgent=True)

    def _apply(self, op: ApplyRequest | ApplyReply) -> Outcome:
        """Carry out an exchange, or refuse it before anything has changed."""
        try:
            outcome = self._apply_request(op) if isinstance(op, ApplyRequest) else self._apply_reply(op)
        except PeerFault as error:
            proven = Fault.AUDIT if isinstance(error, AuditFault) else Fault.PAYLOAD
            reason, fault = str(error), None if isinstance(error, ClaimFault) else proven
        else:
            self.gathering = self.gathering if op.gather else None
            return outcome
        message = op.request if isinstance(op, ApplyRequest) else op.reply
        return Outcome(Refused(peer=op.peer, message=message, reason=reason, fault=fault), None)

    def _apply_request(self, op: ApplyRequest) -> Outcome:
        edge, request = self.state.edges[op.peer], op.request
        if request.audit and request.audit != edge.digest(initiator=False):
            raise AuditFault("replicas differ at the two ends")
        terms = self._agree(self.state.terms, request.terms)
        bodies = self._read_incoming(op.peer, request.body, request.seq)
        body = self._encode(op.peer, request.incarnation, request.seq, bodies)
        if not isinstance(body, Forgery):
            self._check_outcome(*lead(self.state, edge, op.factor, bodies))
            self._check_moved(edge, op.factor, terms, bodies)
        reply = Reply(
            incarnation=request.incarnation,
            seq=request.seq,
            request_digest=request.digest,
            version=op.version,
            factor=op.factor,
            weight=self.claim(op.weight),
            pace_s=op.pace_s,
            terms=terms,
            body=body.body if isinstance(body, Forgery) else body,
        )
        chain = next_chain(edge.record.chain, request, reply)
        if isinstance(body, Forgery):  # the neighbor must refuse it, so nothing moves here either
            return Outcome(RequestApplied(peer=op.peer, request=request, reply=reply, chain=chain), None)
        change = RequestWasApplied(peer=op.peer, request=request, reply=reply, chain=chain)
        self._settle(change, bodies, gather=op.gather)
        return Outcome(RequestApplied(peer=op.peer, request=request, reply=reply, chain=chain), change, urgent=True)

    def _apply_reply(self, op: ApplyReply) -> Outcome:
        edge, reply = self.state.edges[op.peer], op.reply
        pending = edge.record.pending
        if pending is None:
            raise ValueError("a reply reached the engine without a pending request")
        if self._agree(pending.terms, reply.terms) != reply.terms:
            raise ClaimFault("the agreed terms of the learning method contradict ours")
        bodies = self._read_incoming(op.peer, reply.body, pending.seq, pending.body)
        self._check_outcome(*lead(self.state, edge, reply.factor, bodies))
        self._check_moved(edge, reply.factor, reply.terms, bodies)
        chain = next_chain(edge.record.chain, pending, reply)
        change = ReplyWasApplied(peer=op.peer, reply=reply, chain=chain)
        self._settle(change, bodies, gather=op.gather)
        return Outcome(ReplyApplied(peer=op.peer, reply=reply, chain=chain), change)

    def _settle(self, change: RequestWasApplied | ReplyWasApplied, bodies: Bodies, *, gather: bool) -> None:
        with own_failures("the learning method"):
            settle(self.state, change, self.method, bodies)
        if gather and bodies.fragment is not None:
            self.gathering = gathered(self.gathering, self.state, bodies)
        self.exchanges += 1

    def _encode(self, peer: int, incarnation: int, seq: int, bodies: Bodies | None = None) -> Payload | Forgery:
        """Encode the vector shown to the neighbor minus the neighbor's replica of it; `bodies` get it as the own one.

        Without replicas it is a fragment of the vector (n,), which both ends round by the same draws.
        """
        shown = self.show(self.state.shown, peer, Occasion(incarnation, seq))
        if isinstance(shown, Forgery):
            return shown
        codec, fragments, scratch = self.codecs.of(peer), self.codecs.fragments_of(peer), self.state.scratch
        if fragments is not None:
            scratch.fit(shown.dtype)
            number = turn_of(fragments.count, self.index, peer, seq)
            values = gathered_values(shown, slices_of(self.state, fragments, number), scratch.spare)
            chance = chance_of(min(self.index, peer), max(self.index, peer), incarnation, seq)
            payload = fragments.encode_fragment(values, number, chance=chance)
            if bodies is not None:
                self.codecs.take_own(bodies, peer, payload)
            return payload
        chance = chance_of(self.index, peer, incarnation, seq) if codec.random else 0
        return scratch.encode(codec, shown, self.state.edges[peer].own, chance=chance, bodies=bodies)

    def _read_incoming(self, peer: int, body: Payload, seq: int, own: Payload | None = None) -> Bodies:
        """Return the neighbor's payload and, if given, this node's `own`, to be decoded. Raises PeerFault."""
        fragments = self.codecs.fragments_of(peer)
        if fragments is not None:
            number, due = fragments.read_fragment(body), turn_of(fragments.count, self.index, peer, seq)
            if number != due:
                raise PeerFault(f"fragment {number} where it is the turn of {due}")
        return self.codecs.bodies(self.state, peer, body, own)

    def _check_outcome(self, replica: float, after: float) -> None:
        """Check the norms of the neighbor's replica and of the model after the exchange.

        Raises PeerFault if the replica is not finite or its norm is absurdly larger than our own model's, or if the
        model would become unusable.
        """
        limit = NORM_MULTIPLE * math.sqrt(self.state.channels.size)
        if not replica <= limit:
            limit += NORM_MULTIPLE * norm(self.state.channels)
        if not replica <= min(limit, NORM_CEILING):
            raise PeerFault("the neighbor's model is not finite or its norm is far too large")
        if not after <= NORM_CEILING:
            raise PeerFault("the exchange would carry the model too far")

    def _agree(self, ours: tuple[float, ...], theirs: tuple[float, ...]) -> tuple[float, ...]:
        """Agree on terms with a neighbor.

        Raises ClaimFault if the method fails on the neighbor's terms, or refuses them.
        """
        try:
            if len(theirs) == len(self.method.no_terms) and self.method.valid(theirs):
                return tuple(float(term) for term in self.method.agree(ours, theirs))
        except FAILURES as error:
            raise ClaimFault(f"the learning method cannot take the terms: {describe_failure(error)}") from error
        raise ClaimFault("the terms of the learning method are impossible in this federation")

    def _check_moved(self, edge: EdgeState, factor: float, terms: tuple[float, ...], bodies: Bodies) -> None:
        """Check the vectors kept by a user's method, which may not be finite; those of our own methods always are."""
        if not self.method.is_users:
            return
        try:
            check_moved(self.state, edge, factor, terms, self.method, bodies)
        except FAILURES as error:
            raise PeerFault(f"the learning method cannot take the exchange: {describe_failure(error)}") from error

    # -- this node's rounds ------------------------------------------------------------------------------------------

    def _commit(self, op: CommitRound) -> Outcome:
        change = RoundWasCommitted(
            version=op.version,
            rounds=self.state.rounds + op.trained,
            samples=self.state.samples,
            terms=self.state.terms,
            elapsed_s=op.elapsed_s,
            alone=op.alone,
            delta=None,
            best=op.best,
        )
        failed = False
        if op.trained:
            outcome = self.outcomes.get_nowait()
            if callable(outcome):
                model = self.state.model
                outcome = model, outcome(model)
            taken = None if outcome is None else self._complete_round(op, *outcome, change)
            failed, change = taken is None, taken or change
        event = RoundCommitted(version=change.version, rounds=change.rounds, samples=change.samples, failed=failed)
        return self._done(event, change, urgent=op.at_once)

    def _complete_round(
        self, op: CommitRound, start: Vector, local: LocalRound, change: RoundWasCommitted
    ) -> RoundWasCommitted | None:
        """Complete `change` with what the method makes of a local round; None if the result is not a usable model."""
        samples = max(1, local.samples, int(np.ceil(op.least_samples)))
        if local.vector is start and np.may_share_memory(start, self.state.channels):  # it was made in place
            return replace(change, samples=samples, channels=self.state.channels, local=local.local or None)
        about = Round(
            steps=local.steps,
            learning_rate=local.learning_rate,
            samples=samples,
            rho=op.rho,
            loss=local.loss if self.method.needs_loss else math.nan,
            moved=distance(local.vector, start) if self.method.needs_loss else math.nan,
            terms=self.state.terms,
        )
        with own_failures("the learning method"):
            new, after = round_change(self.state, start, local.vector, self.method, about, self._given)
            terms = tuple(float(term) for term in self.method.terms(about))
            if len(terms) != len(self.method.no_terms) or not all(0.0 <= term <= LARGEST_TERM for term in terms):
                raise LearningError(f"the learning method has the terms {terms} after a round")
        if not after <= NORM_CEILING:
            return None
        self._given = {}
        parts = list(new.change.values())
        return replace(
            change,
            samples=samples,
            terms=terms,
            delta=parts[0] if len(parts) == 1 else np.concatenate(parts),
            local=local.local or None,
            kept=dict(new.kept) or None,
        )

    def _bootstrap(self, op: Bootstrap) -> Outcome:
        """Replace the model by the coordinate median of the neighbors' replicas, and what they have shown without them
        by the mean of that; or by what another algorithm has brought.
        """
        given = None if op.peers else self.outcomes.get_nowait()
        gathering, self.gathering = self.gathering, None
        if isinstance(given, tuple):
            model = given[1].vector
        else:
            edges = [self.state.edges[peer] for peer in op.peers]
            model = median([edge.peer for edge in edges if edge.has_replicas] or [self.state.channels])
            model = model if gathering is None else gathering.result(model)
        change = ModelWasReplaced(model=model, rounds=op.rounds, elapsed_s=op.elapsed_s)
        return self._done(Bootstrapped(), change, urgent=True)

    def _mix(self, op: Mix) -> Outcome:
        """Mix by the rule, but keep showing the earlier model.

        If neighbors saw mixed models in the middle of a round, these would all look alike, and a rule would treat its
        node's own round as the outlier.
        """
        if self.mixer is None:
            raise ValueError("a node without a rule was asked to mix by a rule")
        own, replicas = self.state.channels, [self.state.edges[peer].peer for peer in op.peers]
        model = self.mixer.mix(own, replicas, op)
        if model is None:
            return Outcome(Mixed(failed=True), None)
        event, before = Mixed(moved=has_moved(own, replicas, model)), own.copy()
        outcome = self._done(event, ModelWasReplaced(model=model))
        self.state.unmixed = before
        return outcome

    def _done(self, event: Event | None, change: Change, *, urgent: bool = False) -> Outcome:
        redo(self.state, change, codecs=self.codecs, method=self.method)
        return Outcome(event, change, urgent)


def codecs_of(federation: FederationConfig, index: int) -> Codecs:
    """Return the codecs that member `index` uses with its neighbors.

    Raises UserError if a compressor does not exist, if error feedback would not converge with it, or if it leaves no
    replicas for a robust rule.
    """
    own = {i + j - index: spec for (i, j), spec in federation.edge_compressors.items() if index in (i, j)}
    made = {peer: make_compressor(spec) for peer, spec in own.items()}
    codecs = Codecs(make_compressor(federation.gossip.compressor), made)
    if liars_of(federation.gossip.rule):
        for codec in (codecs.default, *made.values()):
            require_replicas(codec, federation.gossip.rule)
    return codecs


def fragments_of(codecs: Codecs, peers: Iterable[int]) -> dict[int, int]:
    """Return the neighbors whose edges have no replicas, and how many fragments each takes."""
    compressors = ((peer, codecs.fragments_of(peer)) for peer in peers)
    return {peer: fragments.count for peer, fragments in compressors if fragments is not None}


def gammas_of(federation: FederationConfig, index: int, size: int) -> dict[int, float]:
    """Return the mixing step between member `index` and each of its neighbors, for models of `size` values."""
    codecs, gamma = codecs_of(federation, index), federation.gossip.gamma
    return {peer: gamma * codecs.of(peer).gamma(size) for peer in federation.neighbors(index)}


def recode(engine: Engine, codecs: Codecs) -> None:
    """Let the engine use these compressors from now on."""
    engine.codecs = codecs
    engine.state.fit_replicas(codecs.need_replicas)
