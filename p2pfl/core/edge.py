"""One edge: its session, its transactions, and when it wants the next one.

The initiator (lower index) freezes a request and repeats it until it is answered; the responder answers each new
request once and repeats the logged answer for free. Transactions, one at a time, conserve sum n_i x_i under loss,
duplication, reordering and durable crashes. `exchange` holds what either role does with a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from p2pfl.core.effects import Alarm, CloseSession, Effect, Freeze, ResetEdge, Send
from p2pfl.core.ending import Ending, digest_of
from p2pfl.core.facts import Facts, Told
from p2pfl.core.limits import TELLS_PER_S, Patience, ResyncBrake, TokenBucket, UsualTime, hearing_bucket
from p2pfl.core.lives import NO_START, Copies, Lives, Start, news_bucket
from p2pfl.core.messages import Done, Hello, Message, Ready, Request
from p2pfl.core.records import EdgeRecord, consistent
from p2pfl.core.session import NEVER, Greeting, level_told
from p2pfl.core.settings import Settings
from p2pfl.core.staleness import LIMIT
from p2pfl.core.standing import Fault, Standing
from p2pfl.core.turns import ALWAYS, Turns, place

INBOX = 8
FIRST_RESEND_S = 1.0
LAST_RESEND_S = 30.0
LARGEST_COUNTER = 2**53 - 2
LONGEST_JUMP = 2**20
"""of an incarnation: a liar must not use them all up, and no honest end has begun so often."""
FILLED = 2
"""transactions: the first after empty replicas carries a whole model, with an error 13 times its usual size."""


@dataclass(slots=True, kw_only=True)
class Edge:
    """`busy` while the engine works on this edge: messages wait in `inbox` until it answers.

    `turns` says which of the own rounds use this edge; both ends answer in any. `siblings` are all edges of the node,
    this one included.
    """

    peer: int
    initiator: bool
    facts: Facts
    settings: Settings
    ending: Ending = field(repr=False, compare=False)
    lives: Lives = field(repr=False, compare=False)
    turns: Turns = ALWAYS
    usual: UsualTime = field(default_factory=UsualTime, repr=False, compare=False)
    """of an exchange on the node's live edges."""
    siblings: Mapping[int, Edge] = field(default_factory=dict, repr=False, compare=False)
    start: Start = NO_START
    """This node's own process, as it is told in Hello."""
    copies: Copies = field(default_factory=Copies)
    left_at: float | None = None
    """When the latest open session ended; None while none has."""
    challenged_at: float = float("-inf")
    """When the neighbor was last told that others know of another life of its own."""
    news: TokenBucket = field(init=False)
    """Of words about lives."""
    outlived: bool = False
    """Whether the neighbor is heard to have lost what this end remembers of the edge."""
    peer_trained: int = 0
    """The most own rounds (or seconds) that the neighbor has told of since this node started."""
    record: EdgeRecord = field(default_factory=EdgeRecord)
    greeting: Greeting = field(default_factory=Greeting)
    brake: ResyncBrake = field(default_factory=ResyncBrake)
    standing: Standing = field(default_factory=Standing, repr=False, compare=False)
    asked_anew: bool = False
    """whether this end has refused a request of this incarnation: the next one is due."""
    bucket: TokenBucket = field(init=False)
    hearing: TokenBucket = field(init=False)
    """of all messages, in whatever session."""
    telling: TokenBucket = field(init=False)
    patience: Patience = field(init=False)
    busy: bool = False
    offered: float = 0.0
    """the most that k may be by the latest request of this end."""
    inbox: list[Message] = field(default_factory=list)
    told: Told | None = None
    exchanged: int | None = None
    """own version in the last completed exchange."""
    served_at: float = float("-inf")
    """When the latest exchange was through that the own version of then had waited for."""
    peer_ready: int | None = None
    peer_version: int = 0
    first_heard: int | None = None
    """the neighbor's version in its first greeting since this node started."""
    peer_closing: int | None = None
    closing_heard_at: float = float("-inf")
    """when the neighbor last began a closing round in which it was awaited: once in a round, whatever it claims."""
    peer_level: float = 0.0
    """infinite once the neighbor has begun."""
    peer_done: bool = False
    refused: bytes = b""
    """digest of the last request that failed a check: it fails again, whatever happens."""
    resend_at: float = NEVER
    resend_s: float = FIRST_RESEND_S
    asked_at: float | None = None
    """when this end began to wait for the exchange under way: the freeze, or the Ready."""
    noted_at: float = NEVER
    """what `timers` knows of `wakes_at`."""
    audit_next: bool = True
    exchanges: int = 0
    staleness: int = 0
    """turns, at the last exchange that was weighed."""
    staleness_count: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0

    def __post_init__(self) -> None:
        self.bucket = TokenBucket(self.settings.exchanges_per_s)
        self.hearing = hearing_bucket(self.settings.exchanges_per_s)
        self.telling = TokenBucket(TELLS_PER_S)
        self.news = news_bucket(self.settings.members)
        self.patience = Patience(self.settings.max_wait_s)
        if self.record.pending is not None:
            self.offered = self.record.pending.weight * self.record.pending.staleness

    # -- session ------------------------------------------------------------------------------------------------

    def open_session(self, number: int, now: float) -> list[Effect]:
        """A session is up: it replaces the old one before anything is said."""
        self._forget_session()
        if self.standing.is_quarantined(now):
            rest_s = self.standing.until - now
            return [CloseSession(peer=self.peer, session=number, reason="in quarantine", rest_s=rest_s)]
        if self.facts.halted or self.brake.refuses(now):
            return [CloseSession(peer=self.peer, session=number, reason="resting")]
        self.greeting.begin(number)
        if not self.standing.comes_back(now):
            return self.greet(now)
        return [Alarm(kind="probation", peer=self.peer, text="its quarantine is over"), *self.greet(now)]

    def blame(self, fault: Fault, text: str, now: float) -> list[Effect]:
        """Count what no honest node does; enough of it ends the session for a while."""
        standing = self.standing
        if not standing.note(fault, text, now):
            return []
        rest_s = standing.until - now
        alarm = f"nothing is heard from it for {rest_s:.0f} s, after {standing.reasons}; the latest: {text}"
        reason = f"in quarantine for {rest_s:.0f} s: {fault}"
        return [Alarm(kind="quarantine", peer=self.peer, text=alarm), *self.drop_session(reason, rest_s=rest_s)]

    def close_session(self, number: int) -> list[Effect]:
        if number == self.greeting.number:
            self._forget_session()
        return []

    def drop_session(self, reason: str, rest_s: float = 0.0) -> list[Effect]:
        """End the session from this side."""
        number = self.greeting.number
        self._forget_session()
        return [] if number is None else [CloseSession(peer=self.peer, session=number, reason=reason, rest_s=rest_s)]

    def _forget_session(self) -> None:
        self.greeting.end()
        self.usual.note(self.peer, None)
        self.inbox.clear()
        self.peer_ready = self.asked_at = None
        self.resend_at = NEVER
        self.audit_next = True

    def greet(self, now: float) -> list[Effect]:
        """Compose Hello once the engine is through with this edge, so that it tells a settled state."""
        greeting = self.greeting
        if self.busy or greeting.number is None or greeting.mine is not None:
            return []
        facts, own = self.facts, self.lives.own
        begun, through = self.ending.tell(self.peer)
        hello = self.record.hello(
            version=facts.version,
            closing=facts.closing,
            level=facts.level,
            done=facts.done,
            have_yours=greeting.theirs is not None,
            generation=own.generation,
            life=own.name,
            process=self.start.name,
            trained=facts.trained,
            begun=begun,
            through=through,
        )
        return [*self.say(greeting.compose(hello, now)), *self._judge(now)]

    def hear_hello(self, hello: Hello, now: float) -> list[Effect]:
        first = self.greeting.theirs is None
        answer = self.greeting.hear(hello)
        effects = self.say(answer) if answer else []
        if first:
            self.peer_version = hello.version  # after a wipe it counts anew
            self.ending.met(self.peer, now)
            self.first_heard = hello.version if self.first_heard is None else self.first_heard
            self.peer_done, self.peer_closing = hello.done, hello.closing
            self.peer_level = level_told(hello.level)
            self.peer_trained = max(self.peer_trained, hello.trained)
            self.ending.hear(self.peer, digest_of(hello.begun, hello.through), hello.begun, hello.through, now)
            effects += self._judge(now)
        return effects

    def _judge(self, now: float) -> list[Effect]:
        """Both greetings are known: open the edge, resynchronized if they contradict each other."""
        mine, theirs = self.greeting.mine, self.greeting.theirs
        if mine is None or theirs is None or self.greeting.is_open:
            return []
        effects: list[Effect] = []
        pair = (mine, theirs) if self.initiator else (theirs, mine)
        if not consistent(*pair):
            blank = not (mine.has_replicas and theirs.has_replicas)
            reason = "greetings disagree"
            if blank:
                reason = f"{'it' if mine.has_replicas else 'this end'} was started without replicas"
            effects += self.resync(max(mine.incarnation, theirs.incarnation) + 1, reason, now, notice=blank)
            if self.greeting.number is None:
                return effects
        self.greeting.is_open = True
        self.usual.note(self.peer, self.patience.exchange_s)
        return effects + self._catch_up(mine) + self.resend(now) + self.exchange_if_wanted(now)

    def _catch_up(self, mine: Hello) -> list[Effect]:
        """Say what has changed since the greeting was composed."""
        if self.facts.done and not mine.done:
            return self.send(Done(version=self.facts.version))
        facts = self.facts
        changed = (facts.version, facts.closing, facts.level) != (mine.version, mine.closing, mine.level)
        return self.announce() if changed or self.ending.has_news_for(self.peer) else []

    def resync(self, incarnation: int, reason: str, now: float, *, notice: bool = False) -> list[Effect]:
        """Adopt `incarnation`: replicas zero, sequence zero, pending dropped; counted, logged, and braked.

        `notice`: an end that was restarted without replicas, as a person may plan it, is nothing to be alarmed about.
        """
        if incarnation > min(LARGEST_COUNTER, self.record.incarnation + LONGEST_JUMP):
            text = "incarnation out of range"
            return [*self.blame(Fault.COUNTER, text, now), *self.drop_session(text)]
        old = self.record
        text = f"{reason}; incarnation {old.incarnation} ended after {old.seq} transactions"
        if notice:
            text = f"{reason}: both ends begin anew with their models as they are"
        elif old.pending is not None:
            text += f", request {old.pending.seq} dropped"
        self.record.reset(incarnation)
        self.exchanged = self.told = None
        self.resend_at = NEVER
        self.refused = b""
        self.asked_anew = False
        effects: list[Effect] = [
            ResetEdge(peer=self.peer, incarnation=incarnation),
            Alarm(kind="resync", peer=self.peer, text=text, notice=notice),
        ]
        if self.brake.count(now):
            effects.append(Alarm(kind="resync-storm", peer=self.peer, text="resyncs repeat; the edge rests"))
            effects += self.drop_session("resyncs repeat")
        return effects

    def send(self, message: Message) -> list[Effect]:
        """Say something on the open edge; before both greetings are judged nothing but Hello flows."""
        return self.say(message) if self.is_open else []

    def say(self, message: Message) -> list[Effect]:
        """Say something that needs no judged greetings, in whatever session there is."""
        if self.greeting.number is None:
            return []
        return [Send(peer=self.peer, session=self.greeting.number, message=message)]

    # -- closing rounds in a schedule ---------------------------------------------------------------------------------

    @property
    def keeps_step(self) -> bool:
        """In the closing rounds of a schedule a pair exchanges once, when both are in the same round.

        While they train, each end is answered at once, in whatever round the other is, and what was mixed in another
        order than the schedule's has only mixed less. The closing rounds wait for the neighbors anyway: there, one
        period of a schedule that averages exactly shall do so. Once they wait no longer, they too mix in any order:
        those of all nodes would be void because one still trains.
        """
        facts = self.facts
        closes = facts.closing is not None and not facts.out_of_step and not facts.done
        return closes and self.turns.period > 1

    @property
    def awaits_peer(self) -> bool:
        """Whether the neighbor has yet to begin the closing round that this end is in."""
        return self.keeps_step and not self.has_closed(self.facts.closing or 0)

    @property
    def _is_awaited(self) -> bool:
        """Whether the neighbor is in a closing round that this end has yet to begin."""
        return self.keeps_step and not self.peer_done and (self.peer_closing or 0) > (self.facts.closing or 0)

    # -- wanting an exchange --------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.greeting.is_open

    @property
    def served(self) -> bool:
        """Whether the own version of now has taken part in a completed exchange, or need not."""
        exchanged = self.exchanged
        return (exchanged is not None and exchanged >= self.facts.version) or not self.has_turn

    @property
    def is_late(self) -> bool:
        """Whether the latest tick waits for this edge, as far as its patience goes."""
        return self.greeting.is_open and not self.served

    @property
    def has_turn(self) -> bool:
        """Whether the own round of now uses this edge."""
        turns = self.turns
        return turns is ALWAYS or turns.active(place(self.facts.version, self.facts.closing))

    def tick(self, now: float) -> list[Effect]:
        """The node has a new version: exchange it (initiator), or ask for an exchange (responder), if it is the
        edge's turn. Closing rounds are told in any case.
        """
        tells = self.facts.closing is not None or self.ending.has_news_for(self.peer)
        if self.initiator:
            return (self.announce() if tells else []) + self.exchange_if_wanted(now)
        asks = self.has_turn
        if asks and self.is_open and self.asked_at is None:
            self.asked_at = now
        if not tells and (not asks or self.telling.take(now) > 0.0):
            return []
        return self.announce()

    def announce(self, *, answer: bool = False) -> list[Effect]:
        """An `answer` to news has none itself: two who cannot agree would answer each other for ever."""
        if not self.is_open:
            return []
        facts = self.facts
        begun, through = (
            (b"", b"") if answer or not self.ending.has_news_for(self.peer) else self.ending.tell(self.peer)
        )
        ready = Ready(
            version=facts.version,
            closing=facts.closing,
            level=facts.level,
            trained=facts.trained,
            known=self.ending.digest,
            begun=begun,
            through=through,
        )
        return self.send(ready)

    @property
    def is_shut(self) -> bool:
        return self.standing.is_out or self.brake.rests

    def is_behind(self, level: int) -> bool:
        """Before the first round: whether the neighbor is not there, or has not told of that level."""
        return not self.is_shut and (not self.greeting.is_open or self.peer_level < level)

    @property
    def has_stopped(self) -> bool:
        """Whether the neighbor has stopped training."""
        return self.peer_done or self.peer_closing is not None

    def still_trains(self, now: float, linger_s: float) -> bool:
        """Whether the neighbor is there, or was a short time ago, and has not stopped training."""
        there = self.is_open or (self.left_at is not None and now < self.left_at + linger_s)
        return there and not self.has_stopped

    def saw(self, version: int, now: float) -> None:
        """The neighbor has shown that it is in that version."""
        if version > self.peer_version:
            self.peer_version = version
            self.ending.progressed(self.peer, now)

    def has_closed(self, rounds: int) -> bool:
        """Whether the neighbor has stopped training and done that many mixing rounds since."""
        return self.peer_done or (self.peer_closing is not None and self.peer_closing >= rounds)

    def hear_ready(self, ready: Ready, now: float) -> list[Effect]:
        self.saw(ready.version, now)
        self.peer_trained = max(self.peer_trained, ready.trained)
        self.ending.hear(self.peer, ready.known, ready.begun, ready.through, now)
        self.peer_level = max(self.peer_level, level_told(ready.level))
        if ready.closing is not None:
            awaited = self.awaits_peer
            self.peer_closing = max(self.peer_closing or 0, ready.closing)
            if awaited and not self.awaits_peer:
                self.closing_heard_at = now
        # Both ends know the edge's turns: what is said in another round tells something, and asks for nothing.
        if self.turns.active(place(ready.version, ready.closing)):
            self.peer_ready = max(self.peer_ready or 0, ready.version)
        answer = self.announce(answer=True) if ready.begun or ready.through else []
        return answer + self.exchange_if_wanted(now)

    def hear_done(self, done: Done, _now: float) -> list[Effect]:
        self.peer_version = max(self.peer_version, done.version)
        self.peer_done = True
        return []

    def exchange_if_wanted(self, now: float) -> list[Effect]:
        """Freeze the next request if this end initiates, nothing is pending, and either end has something new."""
        record = self.record
        if not self.initiator or self.busy or record.pending is not None:
            return []
        if not self.greeting.is_open or self.facts.halted or not self._has_reason(now):
            return []
        self.busy = True
        self.asked_at = now
        weight, staleness = offer(self), stale_weight(self, record.known)
        self.offered = weight * staleness
        audit = self.audit_next or (record.seq + 1) % self.settings.audit_every == 0
        self.audit_next = False
        return [
            Freeze(
                peer=self.peer,
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
        """An own version to tell, or the neighbor's wish: each Ready is worth one exchange, within its tokens.

        An edge without replicas is filled in whatever round: an exchange that fills them moves no model, and the
        edge's next turn would be spent on it.
        """
        heard = self.record.heard
        own = heard is None or not (self.served or self.awaits_peer)
        if not own and self._is_awaited:
            return False
        wish, self.peer_ready = self.peer_ready, None
        if own:
            return True
        unheard = wish is not None and (heard is None or heard < wish)
        return unheard and self.bucket.take(now) == 0.0

    @property
    def is_out(self) -> bool:
        """Whether a request of this end is being frozen, or waits for the end of its exchange."""
        return self.initiator and self.is_open and (self.busy or self.record.pending is not None)

    def complete(self, version: int, now: float) -> None:
        """An exchange in which the own `version` took part is through."""
        self.served_at = self.served_at if self.served else now
        self.exchanged = version
        self.exchanges += 1
        self.patience.exchanged(None if self.asked_at is None else now - self.asked_at)
        self.asked_at = None
        if self.is_open:
            self.usual.note(self.peer, self.patience.exchange_s)

    # -- time -------------------------------------------------------------------------------------------------------

    def resend(self, now: float) -> list[Effect]:
        """Send the pending request, the same bytes each time."""
        pending: Request | None = self.record.pending
        if pending is None or not self.is_open:
            self.resend_at = NEVER
            return []
        self.resend_at = now + self.resend_s
        self.resend_s = min(2 * self.resend_s, LAST_RESEND_S)
        return self.send(pending)

    def wake(self, now: float) -> list[Effect]:
        hello = self.greeting.repeat(now)
        effects = self.say(hello) if hello else []
        if now >= self.resend_at:
            effects += self.resend(now)
        return effects

    @property
    def wakes_at(self) -> float:
        """When `wake` must be called next."""
        repeat_at, resend_at = self.greeting.repeat_at, self.resend_at
        return repeat_at if repeat_at < resend_at else resend_at  # noqa: FURB136 - min() is a call, after every event


# -- how much an exchange counts: the weight that an end offers, and what staleness leaves of it -----------------------


def offer(edge: Edge) -> float:
    """a_i of the next request: n_i/(deg_i+1), or half of what the requests that are out have left of n_i.

    D counts from the model at the freeze, and moves the own model when the Reply comes. Were the shares a_i/n_i of
    all requests that are out to sum to more than 1, the model could be thrown past its neighbors, further each
    time. On a static graph at most deg_i are out, and they sum to deg_i/(deg_i+1). In a schedule deg_i counts the
    edges of one round, and neighbors in other rounds may ask for theirs at the same time: halving what is left
    keeps the sum below 1 whatever comes together. A neighbor without a session keeps nothing from the others: its
    D comes once, after the session has.
    """
    facts = edge.facts
    if facts.degree >= len(edge.siblings):
        return facts.weight
    out = [other.offered for other in edge.siblings.values() if other is not edge and other.is_out and other.offered]
    if len(out) < facts.degree:
        return facts.weight
    return min(facts.weight, max(0.0, facts.samples - sum(out)) / 2)


def stale_weight(edge: Edge, known: int | None) -> float:
    """s(tau), tau = turns of the edge since the own version that the peer's replica held when it last sent.

    On a static graph that is the number of rounds. In a schedule an edge that rests for P rounds is not late.
    """
    if known is None or edge.facts.joining:
        return 0.0
    edge.staleness = edge.turns.between(known, edge.facts.version)
    edge.staleness_count += 1
    edge.staleness_sum += edge.staleness
    edge.staleness_max = max(edge.staleness_max, edge.staleness)
    weight = edge.settings.staleness(edge.staleness)
    # An edge that once fell to zero must be able to come back.
    return max(weight, edge.settings.staleness(LIMIT)) if edge.record.last_factor_zero else weight


def share(edge: Edge) -> float:
    """a_ij s_j of the robust profile, min(a_i, a_j) s(tau) / n_i: at most 1/(deg_i+1) whatever the neighbor claims.

    0 where nothing is known that could be mixed. tau is the neighbor's as above, by what it told in the latest
    exchange; beyond the limit nothing counts under any staleness, or a replica from long ago would hold on for ever.
    """
    told = edge.told
    if told is None or not edge.is_open or is_young(edge):
        return 0.0
    tau = edge.turns.between(told.echo, edge.facts.version)
    if tau > LIMIT:
        return 0.0
    return min(edge.facts.weight, told.weight) / edge.facts.samples * edge.settings.staleness(tau)


def is_young(edge: Edge) -> bool:
    """Whether the replicas are not filled yet."""
    return edge.record.seq < FILLED
