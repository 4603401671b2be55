"""The transactions of one edge: how each end handles messages about them, and answers from the engine.

The initiator (lower index) freezes a request and repeats it until it is answered. The responder answers each new
request once and repeats the logged answer for free. Transactions run one at a time, and conserve sum n_i x_i under
loss, duplication, reordering and durable crashes. A message that does not fit is ignored or, if it shows that the two
ends disagree, leads to a resync; only the initiator starts one in mid-session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

from p2pfl.core.events import (
    Alarm,
    ApplyReply,
    ApplyRequest,
    Effect,
    EngineResult,
    Freeze,
    Refused,
    ReplyApplied,
    RequestApplied,
    RequestFrozen,
    ResetEdge,
)
from p2pfl.core.limits import LAST_RESEND_S, RESEND_MARGIN_S, EngineTime, Fault, ResendTimer, TokenBucket
from p2pfl.core.messages import Ask, Busy, EdgeRecord, Reply, Request, Resync, Transaction
from p2pfl.core.neighbor import EdgeLine, Progress, Service
from p2pfl.core.settings import NEVER, Facts, Settings, Weighing
from p2pfl.limits import LARGEST_COUNTER, LONGEST_JUMP

LEAST_RETRY_S = 0.05
NEVER_ASKED = "the engine answered an operation that this end of the edge never asks for"
FILLED = 2
"""How many transactions fill empty replicas: the first carries a whole model, with 13 times the usual error."""


@dataclass(slots=True, kw_only=True)
class Exchange(ABC):
    """One end's transactions: `ExchangeInitiator` or `ExchangeResponder`; `busy` while the engine works on the edge."""

    line: EdgeLine
    facts: Facts = field(repr=False, compare=False)
    settings: Settings = field(repr=False, compare=False)
    progress: Progress
    service: Service
    weighing: Weighing
    bucket: TokenBucket
    """The limit on exchanges that the neighbor may ask for."""
    engine_time: EngineTime = field(repr=False, compare=False)
    """Engine time used by each neighbor."""
    record: EdgeRecord
    busy: bool = False
    leaves: bool = False
    """True if the edge is about to be removed: an exchange under way completes, and no new one begins."""

    has_refused: bool = False
    """True if this end has refused a request in this incarnation, so that a new incarnation is due."""
    resend_at: float = NEVER
    """When `resend` must be called next."""

    initiates: ClassVar[bool]
    """True at the end with the lower index."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """True if both ends have carried out the same transactions, as far as this end knows."""

    @abstractmethod
    def hear(self, message: Transaction, now: float) -> list[Effect]:
        """Handle a message about transactions. A message not meant for this end is ignored."""

    @abstractmethod
    def conclude(self, result: EngineResult, now: float) -> list[Effect]:
        """Handle an answer from the engine: update the record and answer the neighbor."""

    def begin_if_due(self, now: float) -> list[Effect]:  # noqa: ARG002 - a responder only answers
        """Freeze the next request if this end initiates, nothing is pending, and either end has something new."""
        return []

    def resend(self, now: float) -> list[Effect]:  # noqa: ARG002 - a responder only answers
        """Send the pending request, byte for byte the same each time."""
        return []

    def forget(self) -> None:
        """Drop the state of the previous incarnation."""
        self.has_refused, self.resend_at = False, NEVER

    def pause(self) -> None:
        """Drop the state of the previous session."""
        self.service.pause()
        self.engine_time.pause(self.line.peer)
        self.progress.requested_version = None

    def blame(self, fault: Fault, text: str, now: float) -> list[Effect]:
        """Count a proven fault, which no honest node commits; enough faults end the session for a while."""
        effects = self.line.blame(fault, text, now)
        if effects:
            self.pause()
        return effects

    def drop(self, reason: str) -> list[Effect]:
        """End the session from this side."""
        effects = self.line.drop(reason)
        self.pause()
        return effects

    def resync(self, incarnation: int, reason: str, now: float, *, notice: bool = False) -> list[Effect]:
        """Adopt `incarnation`: zero replicas and sequence, no pending request. After too many of them the edge rests.

        `notice` means that one end was restarted without replicas, which is no cause for alarm.
        """
        record, peer = self.record, self.line.peer
        if incarnation > min(LARGEST_COUNTER, record.incarnation + LONGEST_JUMP):
            text = "incarnation out of range"
            return [*self.blame(Fault.COUNTER, text, now), *self.drop(text)]
        text = f"{reason}; incarnation {record.incarnation} ended after {record.seq} transactions"
        if notice:
            text = f"{reason}: both ends begin anew with their models as they are"
        elif record.pending is not None:
            text += f", request {record.pending.seq} dropped"
        record.reset(incarnation)
        self.service.exchanged = self.weighing.report = None
        self.forget()
        effects: list[Effect] = [
            ResetEdge(peer=peer, incarnation=incarnation),
            Alarm(kind="resync", peer=peer, text=text, notice=notice),
        ]
        if self.line.resync_limit.count(now):
            effects.append(Alarm(kind="resync-storm", peer=peer, text="the edge was reset too often, and rests"))
            effects += self.drop("resyncs repeat")
        return effects

    def _refused(self, result: Refused, now: float) -> list[Effect]:
        """Report a message that failed a check, and count its fault if it proves one."""
        kind = "request-refused" if isinstance(result.message, Request) else "reply-refused"
        effects: list[Effect] = [Alarm(kind=kind, peer=self.line.peer, text=result.reason)]
        return effects if result.fault is None else effects + self.blame(result.fault, result.reason, now)

    def begin_anew(self, incarnation: int, now: float) -> list[Effect]:
        """Follow a neighbor that began a new incarnation. In mid-session an honest one does so only after a refusal."""
        text = "the neighbor began anew"
        effects = [] if self.has_refused else self.blame(Fault.RESYNC, text, now)
        return effects + self.resync(incarnation, text, now)

    def hear_resync(self, message: Resync, now: float) -> list[Effect]:
        """Follow a Resync, which means "already adopted"; ignore one that is not newer than this end's incarnation."""
        if message.incarnation <= self.record.incarnation:
            return []
        effects = self.begin_anew(message.incarnation, now)
        return effects + self.begin_if_due(now)

    @property
    def gathers(self) -> bool:
        """True if this node joins, and must keep what neighbors show where an edge has no replicas."""
        return self.facts.joining and bool(self.settings.fragments)

    def share(self) -> float:
        """Return the weight of the neighbor's replica in a rule; 0 if there is no replica to mix with."""
        if not self.line.is_open or self.record.seq < FILLED:
            return 0.0
        return self.weighing.share()


@final
@dataclass(slots=True, kw_only=True)
class ExchangeInitiator(Exchange):
    """The end with the lower index, which opens transactions.

    `siblings` holds the exchanges on all edges of the node, this one included.
    """

    siblings: Mapping[int, Exchange] = field(repr=False, compare=False)
    offered_factor: float = 0.0
    """The largest k that this end's latest request allows."""
    audit_next: bool = True
    timer: ResendTimer = field(default_factory=ResendTimer)
    sent_at: float | None = None
    """When the pending request was sent, if it was sent once."""

    initiates = True

    @property
    def is_settled(self) -> bool:
        return self.record.pending is None

    def __post_init__(self) -> None:
        if self.record.pending is not None:
            self.offered_factor = self.record.pending.weight * self.record.pending.staleness

    def hear(self, message: Transaction, now: float) -> list[Effect]:
        match message:
            case Reply():
                return self._hear_reply(message, now)
            case Busy():
                return self._hear_busy(message, now)
            case Ask():
                return self._hear_ask(message, now)
            case Resync():
                return self.hear_resync(message, now)
        return []

    def conclude(self, result: EngineResult, now: float) -> list[Effect]:
        match result:
            case RequestFrozen():
                self.record.freeze(result.request)
                self.sent_at = now
                return self._send(now)
            case ReplyApplied():
                return self._settle(result, now)
            case Refused():
                return self._refused(result, now) + self._give_up(result.reason, now)
        raise ValueError(NEVER_ASKED)

    def pause(self) -> None:
        Exchange.pause(self)
        self.resend_at = NEVER
        self.audit_next = True

    # -- when to ask for an exchange ----------------------------------------------------------------------------------

    def begin_if_due(self, now: float) -> list[Effect]:
        record = self.record
        if self.busy or self.leaves or record.pending is not None:
            return []
        if not self.line.is_open or self.facts.halted or not self._has_reason(now):
            return []
        self.busy = True
        self.service.asked_at = now
        weight = self._offer()
        staleness = self.weighing.staleness_weight(record.known, fell_to_zero=record.last_factor_zero)
        self.offered_factor = weight * staleness
        audit = self.audit_next or (record.seq + 1) % self.settings.audit_every == 0
        self.audit_next = False
        return [
            Freeze(
                peer=self.line.peer,
                incarnation=record.incarnation,
                seq=record.seq + 1,
                version=self.facts.version,
                echo=record.heard,
                weight=weight,
                staleness=staleness,
                pace_s=self.facts.pace_s,
                audit=audit,
            )
        ]

    def _has_reason(self, now: float) -> bool:
        """Return True if this end has a new version to send, or if the neighbor asks for an exchange.

        Each Ready may cause one exchange, within the neighbor's tokens. An edge without replicas is filled in any
        round: an exchange that fills them moves no model, and would waste the edge's next turn.
        """
        heard, progress = self.record.heard, self.progress
        own = heard is None or not (self.service.is_served or progress.is_awaited)
        if not own and progress.awaits_us:
            return False
        wish, progress.requested_version = progress.requested_version, None
        if own:
            return True
        is_new = wish is not None and (heard is None or heard < wish)
        return is_new and self.engine_time.wait_s(self.line.peer, now) == 0.0 and self.bucket.take(now) == 0.0

    def _offer(self) -> float:
        """Return a_i for the next request, that of the profile, or half of the part of n_i not taken by open requests.

        D is computed from the model at the freeze, and moves this node's model when the Reply arrives. If the shares
        a_i/n_i of all open requests added up to more than 1, the model could overshoot its neighbors, ever further. On
        a static graph at most deg_i are open, so the sum is at most deg_i/(deg_i+1). In a schedule deg_i counts the
        edges of one round, and neighbors of others may ask at the same time: halving what is left keeps the sum below
        1. A neighbor without a session takes nothing: D arrives once. Requests about different fragments never meet.
        """
        facts = self.facts
        weight = self.settings.profile.weight_of(self.line.peer, facts)
        if facts.degree >= len(self.siblings):
            return weight
        others = [
            other
            for other in self.siblings.values()
            if isinstance(other, ExchangeInitiator) and other is not self and _meet(self, other)
        ]
        out = [other.offered_factor for other in others if other.offered_factor and other.is_out]
        if len(out) < facts.degree:
            return weight
        return min(weight, max(0.0, facts.samples - sum(out)) / 2)

    @property
    def is_out(self) -> bool:
        """True if a request from this end is being frozen, or is waiting for its exchange to complete."""
        return self.line.is_open and (self.busy or self.record.pending is not None)

    def resend(self, now: float) -> list[Effect]:
        if self.record.pending is not None:
            if now >= self.resend_at and self.timer.smoothed_s is not None:
                self.facts.repeat_s = self.timer.smoothed_s + RESEND_MARGIN_S
            self.sent_at = None
            self.timer.back_off()
        return self._send(now)

    def _send(self, now: float) -> list[Effect]:
        pending: Request | None = self.record.pending
        if pending is None or not self.line.is_open:
            self.resend_at = NEVER
            return []
        self.resend_at = now + self.timer.wait_s
        return self.line.say(pending)

    # -- answers of the responder ------------------------------------------------------------------------------------

    def _hear_reply(self, reply: Reply, now: float) -> list[Effect]:
        pending = self.record.pending
        if pending is None or not self._answers(reply):
            return []
        if self.sent_at is not None:
            self.timer.note(now - self.sent_at)
            self.sent_at = None
        most = self.settings.profile.gamma_of(self.line.peer) * pending.weight * pending.staleness
        if not 0.0 <= reply.factor <= most:
            text = f"mixing factor {reply.factor} out of bounds"
            return self.blame(Fault.FACTOR, text, now) + self._give_up(text, now)
        self.busy = True
        return [ApplyReply(peer=self.line.peer, reply=reply, gather=self.gathers)]

    def _hear_busy(self, busy: Busy, now: float) -> list[Effect]:
        pending = self.record.pending
        if pending is not None and (busy.incarnation, busy.seq) == (self.record.incarnation, pending.seq):
            self.resend_at = now + min(max(busy.retry_after_s, LEAST_RETRY_S), LAST_RESEND_S)
        return []

    def _hear_ask(self, ask: Ask, now: float) -> list[Effect]:
        if not self._answers(ask):
            return []
        text = "the neighbor refused a request"
        return self.blame(Fault.RESYNC, text, now) + self._give_up(text, now)

    def _answers(self, message: Reply | Ask) -> bool:
        """Return True if the message names exactly the pending request."""
        pending = self.record.pending
        return (
            pending is not None
            and message.incarnation == self.record.incarnation
            and message.seq == pending.seq
            and message.request_digest == pending.digest
        )

    def _give_up(self, reason: str, now: float) -> list[Effect]:
        """Begin a new incarnation and tell the neighbor, because the pending request cannot be completed."""
        effects = self.resync(self.record.incarnation + 1, reason, now)
        effects += self.line.send(Resync(incarnation=self.record.incarnation))
        return effects + self.begin_if_due(now)

    def _settle(self, result: ReplyApplied, now: float) -> list[Effect]:
        pending, reply = self.record.pending, result.reply
        if pending is None:
            raise ValueError("the engine applied a reply to no request")
        self.record.settle_reply(reply, result.chain)
        self.resend_at = NEVER
        self.progress.note_version(reply.version, now)
        self.weighing.hear(reply.factor, reply.weight, reply.pace_s, pending.version)
        self.service.complete(pending.version, now, live=self.line.is_open)
        return []


def _meet(own: ExchangeInitiator, other: ExchangeInitiator) -> bool:
    """Return True if the next request of `own` and the open request of the other are about the same values."""
    count = own.settings.fragments.get(own.line.peer)
    if count is None or count != own.settings.fragments.get(other.line.peer):
        return True
    pending = other.record.pending
    theirs = other.record.seq + 1 if pending is None else pending.seq
    return (own.record.seq + 1 + own.line.peer - theirs - other.line.peer) % count == 0


@final
@dataclass(slots=True, kw_only=True)
class ExchangeResponder(Exchange):
    """The end with the higher index, which answers requests."""

    refused: bytes = b""
    """The digest of the last request that failed a check; it would fail again."""
    is_answered: bool = False
    """True if the initiator has the latest reply, because it has since asked for a newer exchange."""

    initiates = False

    @property
    def is_settled(self) -> bool:
        return self.record.reply is None or self.is_answered

    def hear(self, message: Transaction, now: float) -> list[Effect]:
        match message:
            case Request():
                return self._hear_request(message, now)
            case Resync():
                return self.hear_resync(message, now)
        return []

    def conclude(self, result: EngineResult, now: float) -> list[Effect]:
        match result:
            case RequestApplied():
                return self._settle(result, now)
            case Refused(message=Request() as request):
                return self._request_refused(request, result, now)
        raise ValueError(NEVER_ASKED)

    def forget(self) -> None:
        Exchange.forget(self)
        self.refused = b""

    def _hear_request(self, request: Request, now: float) -> list[Effect]:
        record = self.record
        if request.incarnation < record.incarnation:
            return self.line.send(Resync(incarnation=record.incarnation))
        effects: list[Effect] = []
        if request.incarnation > record.incarnation:
            effects = self.begin_anew(request.incarnation, now)
        if request.seq < record.seq or not self.line.is_open:
            return effects
        if record.reply is not None and request.seq == record.seq and request.digest == record.request_digest:
            self.facts.repeat_s = min(self.facts.repeat_s, self.service.patience.wait_s())
            return effects + self.line.say(record.reply)
        if request.seq != record.seq + 1 or request.digest == self.refused:
            return effects + self._refuse(request)
        return effects + self._accept(request, now)

    def _accept(self, request: Request, now: float) -> list[Effect]:
        facts, progress, peer = self.facts, self.progress, self.line.peer
        self.is_answered = True
        if facts.halted:
            return []
        wait_s = self.engine_time.wait_s(self.line.peer, now) or self.bucket.take(now)
        if self.leaves:
            wait_s = self.service.patience.wait_s()
        if wait_s > 0:
            return self.line.send(Busy(incarnation=request.incarnation, seq=request.seq, retry_after_s=wait_s))
        self.busy = True
        progress.note_version(request.version, now)
        if request.version:
            progress.level = NEVER
        own_staleness = self.weighing.staleness_weight(request.echo, fell_to_zero=self.record.last_factor_zero)
        staleness = min(request.staleness, own_staleness)
        # Multiply from left to right: the initiator bounds the result by the same products, with its own figures in
        # place of the minima.
        profile = self.settings.profile
        weight = profile.weight_of(peer, facts)
        factor = profile.gamma_of(peer) * min(request.weight, weight) * staleness
        return [
            ApplyRequest(
                peer=peer,
                request=request,
                factor=factor,
                weight=weight,
                version=facts.version,
                pace_s=facts.pace_s,
                gather=self.gathers,
            )
        ]

    def _refuse(self, request: Request) -> list[Effect]:
        self.has_refused = True
        ask = Ask(incarnation=request.incarnation, seq=request.seq, request_digest=request.digest)
        return self.line.send(ask)

    def _settle(self, result: RequestApplied, now: float) -> list[Effect]:
        request, reply = result.request, result.reply
        self.is_answered = False
        self.record.settle_request(request, reply, result.chain)
        self.weighing.hear(reply.factor, request.weight, request.pace_s, request.echo)
        self.service.complete(reply.version, now, live=self.line.is_open)
        return self.line.send(reply)

    def _request_refused(self, request: Request, result: Refused, now: float) -> list[Effect]:
        self.refused = request.digest
        effects = self._refused(result, now)
        if self.line.resync_limit.count(now):
            return [*effects, *self.drop("too many requests that cannot be accepted")]
        return [*effects, *self._refuse(request)]
