"""What either end of an edge does with a message or an answer of the engine: the table of transitions.

Initiator: Reply, Ask, Busy, Ready, Resync. Responder: Request, Resync. What does not fit is ignored or, if it
shows that the two ends disagree, leads to a resync. Only the initiator starts one in mid-session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from p2pfl.core.edge import FIRST_RESEND_S, INBOX, LAST_RESEND_S, Edge, stale_weight
from p2pfl.core.effects import Alarm, ApplyReply, ApplyRequest, Effect, NoteLife
from p2pfl.core.events import EngineResult, ReplyApplied, ReplyRefused, RequestApplied, RequestFrozen, RequestRefused
from p2pfl.core.facts import Told
from p2pfl.core.limits import hearing_bucket
from p2pfl.core.lives import Life, News
from p2pfl.core.messages import (
    MOST_LIVES_TOLD,
    Ask,
    Busy,
    Done,
    Hello,
    LivesTold,
    Message,
    Ready,
    Reply,
    Request,
    Resign,
    Resync,
)
from p2pfl.core.session import NEVER
from p2pfl.core.standing import Fault

CHALLENGE_EVERY_S = 5.0
"""How often a neighbor that is there is told of another life of its own, at most."""
LEAST_RETRY_S = 0.05
LONGEST_PACE_S = 3600.0

_TELLING = (Ready, Done, LivesTold, Resign)
"""messages that do not wait for the engine."""
_BEFORE_JUDGEMENT = (Hello, LivesTold, Resign)
"""Messages that are heard before both greetings are judged: they say nothing about the edge."""


def receive(edge: Edge, session: int, message: Message, now: float) -> list[Effect]:
    """A message arrived. Of another session: void. While the engine works on the edge: it waits.

    What only tells where the neighbor stands does not wait: the session may end before the engine answers.
    """
    if session != edge.greeting.number:
        return []
    if edge.hearing.take(now) > 0.0:
        text = "more messages than an honest node sends"
        edge.hearing = hearing_bucket(edge.settings.exchanges_per_s)  # the next session begins as the first did
        return [*edge.blame(Fault.FLOOD, text, now), *edge.drop_session(text)]
    if edge.busy and not isinstance(message, _TELLING):
        _put_by(edge, message)
        return []
    return _dispatch(edge, message, now)


def _put_by(edge: Edge, message: Message) -> None:
    """Bounded, and with at most one body: whatever is left out here will be sent again."""
    heavy = isinstance(message, Request | Reply)
    crowded = heavy and any(isinstance(waiting, Request | Reply) for waiting in edge.inbox)
    if not crowded and len(edge.inbox) < INBOX:
        edge.inbox.append(message)


def _dispatch(edge: Edge, message: Message, now: float) -> list[Effect]:
    if edge.is_open or isinstance(message, _BEFORE_JUDGEMENT):
        return _MESSAGES[type(message)](edge, message, now)
    return []


def _hello(edge: Edge, hello: Hello, now: float) -> list[Effect]:
    """Who speaks, and in which life, is settled before the two greetings are judged."""
    if edge.greeting.theirs is not None:
        return edge.hear_hello(hello, now)
    life = Life(hello.generation, hello.life)
    known = edge.lives.known.get(edge.peer)
    effects: list[Effect] = []
    news = edge.lives.greeted(edge.peer, life)
    if edge.copies.heard(hello.process, now):
        text = "one key speaks from two places: two running processes have its node.key; the later one must stop"
        effects.append(Alarm(kind="two-places", peer=edge.peer, text=text))
    number = edge.greeting.number
    effects += edge.hear_hello(hello, now)
    if news is not News.KNOWN:  # behind the new beginning that it may have led to: on a disk both are there, or neither
        effects.append(NoteLife(member=edge.peer, life=life))
    if edge.greeting.number != number:
        return effects
    if (other_s := edge.copies.other_for_s(hello.process, now)) is not None:
        effects += edge.say(Resign(process=hello.process, other_ms=int(1000 * other_s)))
    if not edge.settings.profile.keeps_flows:
        return effects
    lives = edge.lives.told()
    if known is not None and known.name != life.name and known.generation >= life.generation:
        lives.append((edge.peer, known))  # from it a node without memory learns which generation it is
    # When a federation begins, everybody is new to everybody: of that there is nothing to say.
    is_under_way = edge.facts.rounds > 0 or edge.lives.own.generation > 0
    if news is not News.KNOWN and (life.generation or is_under_way):
        edge.lives.note_news(edge.peer, edge.peer)
    return effects + _tell(edge, lives) + pass_on_due(edge.siblings, now)


def _tell(edge: Edge, lives: Sequence[tuple[int, Life]]) -> list[Effect]:
    rows = [(member, life.generation, life.name) for member, life in lives]
    parts = [tuple(rows[first : first + MOST_LIVES_TOLD]) for first in range(0, len(rows), MOST_LIVES_TOLD)]
    return [effect for part in parts for effect in edge.say(LivesTold(lives=part))]


def pass_on_due(edges: Mapping[int, Edge], now: float) -> list[Effect]:
    """Tell every neighbor of the lives that were news here, if some are due; all edges are those of one node."""
    lives = next(iter(edges.values())).lives
    if now < lives.due_at:
        return []
    news = lives.take_news(now)
    effects: list[Effect] = []
    for edge in edges.values():
        if edge.is_open:
            effects += _tell(edge, [(one, life) for one, source, life in news if edge.peer not in {one, source}])
    return effects


def _hear_lives(edge: Edge, message: LivesTold, now: float) -> list[Effect]:
    """What others say about lives: where a neighbor is in a new one, its edge begins anew at this end."""
    if not edge.settings.profile.keeps_flows:
        return []
    effects: list[Effect] = []
    told = {member: Life(generation, name) for member, generation, name in message.lives}
    for member, life in told.items():
        effects += _hear_life(edge, member, life, now)
    return effects + pass_on_due(edge.siblings, now)


def _hear_life(edge: Edge, member: int, life: Life, now: float) -> list[Effect]:
    lives = edge.lives
    if member == lives.index:
        return claimed(edge.siblings) if lives.claim(life) else []
    life = lives.later(member, life)
    news = lives.judge(member, life)
    if news in {News.KNOWN, News.STALE} or member >= edge.settings.members or edge.news.take(now) > 0.0:
        return []
    own_edge = edge.siblings.get(member)
    if news is News.NEW and own_edge is not None and own_edge.is_open:
        # It has greeted in its life of now. If there is another one, it must hear of that itself, and say which it is.
        if now < own_edge.challenged_at + CHALLENGE_EVERY_S:
            return []
        own_edge.challenged_at = now
        return _tell(own_edge, [(member, life)])
    lives.known[member] = life
    lives.note_news(edge.peer, member)
    if news is not News.NEW or own_edge is None:
        return [NoteLife(member=member, life=life)]
    own_edge.outlived = True
    return _renew(own_edge, now)


def claimed(edges: Mapping[int, Edge]) -> list[Effect]:
    """This node's life has become a later one. All neighbors hear of it, and of those who came without a past as well:
    they may have had one that nobody here remembers.
    """
    lives = next(iter(edges.values())).lives
    there = [edge for edge in edges.values() if edge.is_open]
    for edge in there:
        if edge.peer in lives.known and not lives.known[edge.peer].generation:
            lives.note_news(edge.peer, edge.peer)
    told = [effect for edge in there for effect in _tell(edge, [(lives.index, lives.own)])]
    return [NoteLife(member=None, life=lives.own), *told]


def _renew(edge: Edge, now: float) -> list[Effect]:
    """Begin anew what has outlived the neighbor's memory, once the engine is through with this edge."""
    if not edge.outlived or edge.busy:
        return []
    edge.outlived = False
    noted = NoteLife(member=edge.peer, life=edge.lives.known[edge.peer])
    if edge.record.is_blank:
        return [noted]
    return [*edge.resync(edge.record.incarnation + 1, "the neighbor is in a new life", now), noted]


def _resign(edge: Edge, message: Resign, now: float) -> list[Effect]:
    """Acted upon by the node as a whole: where neighbors may lie, one alone must not end it."""
    is_later = 1000 * (now - edge.facts.started_at) < message.other_ms
    edge.copies.told_to_resign |= message.process == edge.start.name and is_later
    return []


def _request(edge: Edge, request: Request, now: float) -> list[Effect]:
    record = edge.record
    if edge.initiator:
        return []
    if request.incarnation < record.incarnation:
        return edge.send(Resync(incarnation=record.incarnation))
    effects: list[Effect] = []
    if request.incarnation > record.incarnation:
        effects = _begin_anew(edge, request.incarnation, now)
    if request.seq < record.seq or not edge.is_open:
        return effects
    if record.reply is not None and request.seq == record.seq and request.digest == record.request_digest:
        return effects + edge.send(record.reply)
    if request.seq != record.seq + 1 or request.digest == edge.refused:
        return effects + _refuse(edge, request)
    return effects + _accept(edge, request, now)


def _accept(edge: Edge, request: Request, now: float) -> list[Effect]:
    if edge.facts.halted:
        return []
    wait_s = edge.bucket.take(now)
    if wait_s > 0:
        return edge.send(Busy(incarnation=request.incarnation, seq=request.seq, retry_after_s=wait_s))
    edge.busy = True
    edge.saw(request.version, now)
    if request.version:
        edge.peer_level = NEVER
    staleness = min(request.staleness, stale_weight(edge, request.echo))
    # Left to right: the initiator bounds the result by the same products with its own figures in place of the minima.
    factor = edge.settings.profile.gamma_of(edge.peer) * min(request.weight, edge.facts.weight) * staleness
    return [
        ApplyRequest(
            peer=edge.peer,
            request=request,
            factor=factor,
            weight=edge.facts.weight,
            version=edge.facts.version,
            pace_s=edge.facts.pace_s,
        )
    ]


def _begin_anew(edge: Edge, incarnation: int, now: float) -> list[Effect]:
    """In mid-session an honest end does so only where this one has refused a request."""
    text = "the neighbor began anew"
    effects = [] if edge.asked_anew else edge.blame(Fault.RESYNC, text, now)
    return effects + edge.resync(incarnation, text, now)


def _refuse(edge: Edge, request: Request) -> list[Effect]:
    edge.asked_anew = True
    return edge.send(Ask(incarnation=request.incarnation, seq=request.seq, request_digest=request.digest))


def _reply(edge: Edge, reply: Reply, now: float) -> list[Effect]:
    pending = edge.record.pending
    if pending is None or not _answers(edge, reply):
        return []
    if not 0.0 <= reply.factor <= edge.settings.profile.gamma_of(edge.peer) * pending.weight * pending.staleness:
        text = f"mixing factor {reply.factor} out of bounds"
        return edge.blame(Fault.FACTOR, text, now) + _give_up(edge, text, now)
    edge.busy = True
    return [ApplyReply(peer=edge.peer, reply=reply)]


def _answers(edge: Edge, message: Reply | Ask) -> bool:
    """Whether the message names the very request that is pending."""
    pending = edge.record.pending
    return (
        pending is not None
        and message.incarnation == edge.record.incarnation
        and message.seq == pending.seq
        and message.request_digest == pending.digest
    )


def _give_up(edge: Edge, reason: str, now: float) -> list[Effect]:
    """The pending request cannot be completed: begin a new incarnation and say so."""
    effects = edge.resync(edge.record.incarnation + 1, reason, now)
    effects += edge.send(Resync(incarnation=edge.record.incarnation))
    return effects + edge.exchange_if_wanted(now)


def _resync(edge: Edge, message: Resync, now: float) -> list[Effect]:
    """It means "already adopted": one that is not newer than ours changes nothing."""
    if message.incarnation <= edge.record.incarnation:
        return []
    effects = _begin_anew(edge, message.incarnation, now)
    return effects + edge.exchange_if_wanted(now)


def _ask(edge: Edge, ask: Ask, now: float) -> list[Effect]:
    if not _answers(edge, ask):
        return []
    text = "the neighbor refused a request"
    return edge.blame(Fault.RESYNC, text, now) + _give_up(edge, text, now)


def _busy(edge: Edge, busy: Busy, now: float) -> list[Effect]:
    pending = edge.record.pending
    if pending is not None and (busy.incarnation, busy.seq) == (edge.record.incarnation, pending.seq):
        edge.resend_at = now + min(max(busy.retry_after_s, LEAST_RETRY_S), LAST_RESEND_S)
    return []


def conclude(edge: Edge, result: EngineResult, now: float) -> list[Effect]:
    """The engine answered: move the record, tell the neighbor, then read what has waited."""
    edge.busy = False
    effects = _RESULTS[type(result)](edge, result, now)
    effects += _renew(edge, now)
    effects += edge.greet(now)
    while edge.inbox and not edge.busy:
        effects += _dispatch(edge, edge.inbox.pop(0), now)
    return effects + edge.exchange_if_wanted(now)


def _frozen(edge: Edge, result: RequestFrozen, now: float) -> list[Effect]:
    edge.record.freeze(result.request)
    edge.resend_s = FIRST_RESEND_S
    return edge.resend(now)


def _settle_request(edge: Edge, result: RequestApplied, now: float) -> list[Effect]:
    request, reply = result.request, result.reply
    edge.record.settle_request(request, reply, result.chain)
    _hear(edge, reply.factor, request.weight, request.pace_s, request.echo)
    edge.complete(reply.version, now)
    return edge.send(reply)


def _request_refused(edge: Edge, result: RequestRefused, now: float) -> list[Effect]:
    edge.refused = result.request.digest
    effects: list[Effect] = [Alarm(kind="request-refused", peer=edge.peer, text=result.reason)]
    if result.fault is not None:
        effects += edge.blame(result.fault, result.reason, now)
    if edge.brake.count(now):
        return [*effects, *edge.drop_session("too many requests that cannot be accepted")]
    return [*effects, *_refuse(edge, result.request)]


def _settle_reply(edge: Edge, result: ReplyApplied, now: float) -> list[Effect]:
    pending = edge.record.pending
    if pending is None:
        raise ValueError("the engine applied a reply to no request")
    edge.record.settle_reply(result.reply, result.chain)
    edge.resend_at = NEVER
    edge.saw(result.reply.version, now)
    _hear(edge, result.reply.factor, result.reply.weight, result.reply.pace_s, pending.version)
    edge.complete(pending.version, now)
    return []


def _reply_refused(edge: Edge, result: ReplyRefused, now: float) -> list[Effect]:
    effects: list[Effect] = [Alarm(kind="reply-refused", peer=edge.peer, text=result.reason)]
    if result.fault is not None:
        effects += edge.blame(result.fault, result.reason, now)
    return effects + _give_up(edge, result.reason, now)


def _hear(edge: Edge, factor: float, weight: float, pace_s: float, echo: int | None) -> None:
    """Keep what the neighbor told of itself. Where models move toward each other, so do both ends' estimates of the
    pace; a heuristic figure, so neither frozen nor conserved.
    """
    facts, pace_s = edge.facts, min(pace_s, LONGEST_PACE_S)
    edge.told = None if echo is None else Told(weight=weight, pace_s=pace_s, echo=min(echo, facts.version))
    share = min(1.0, factor / facts.samples)
    facts.pace_s += share * (pace_s - facts.pace_s)


_MESSAGES: Mapping[type[Message], Callable[[Edge, Any, float], list[Effect]]] = {
    Hello: _hello,
    Request: _request,
    Reply: _reply,
    Ready: Edge.hear_ready,
    Done: Edge.hear_done,
    Resync: _resync,
    Ask: _ask,
    Busy: _busy,
    LivesTold: _hear_lives,
    Resign: _resign,
}
_RESULTS: Mapping[type[EngineResult], Callable[[Edge, Any, float], list[Effect]]] = {
    RequestFrozen: _frozen,
    RequestApplied: _settle_request,
    RequestRefused: _request_refused,
    ReplyApplied: _settle_reply,
    ReplyRefused: _reply_refused,
}
