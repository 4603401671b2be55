"""One end's view of a neighbor: the line to it, where it stands, and which versions were exchanged.

`EdgeLine` has the session and its greetings, the queued messages, and the neighbor's limits. A session opens with one
Hello each way; both ends judge the two messages exactly as sent, and send nothing else before that.

A line returns effects or a verdict and never calls the layer above: a caller that ends the session through it must
also tell the exchange (`Exchange.drop`).

`ToldLifetimes`: a node believes its neighbors within limits, and passes on news over all its lines. Edges keep flows
only in the conservative profile; the robust profile needs no news of lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from p2pfl.core.events import Alarm, CloseSession, Effect, NoteLifetime, Send
from p2pfl.core.limits import Fault, Patience, Reputation, ResyncLimit, TokenBucket, UsualTime, hearing_bucket
from p2pfl.core.members import FIRST_LIFETIME, Copies, Lifetime, Lifetimes, MemberProgress, News, digest_of
from p2pfl.core.messages import Done, Hello, LivesTold, Message, Ready, Reply, Request
from p2pfl.core.settings import ALWAYS, NEVER, Facts, Settings, Turns, schedule_index
from p2pfl.limits import HELLOS_PER_S, INBOX, MOST_LIVES_TOLD, UNANSWERED_S

REPEAT_S = 1.0


@dataclass(slots=True, kw_only=True)
class EdgeLine:
    """This end of the line to one neighbor."""

    peer: int
    exchanges_per_s: float
    news: TokenBucket
    """The limit on reports of lifetimes that this node accepts from the neighbor."""
    hearing: TokenBucket = field(init=False)
    """The limit on all messages from this neighbor, across its sessions."""
    greetings: TokenBucket = field(default_factory=lambda: TokenBucket(HELLOS_PER_S))
    """The limit on greetings that are answered, which may be a thousand times as long as what asks for them."""
    session: int | None = None
    """The number of the current session; None while there is none."""
    mine: Hello | None = None
    """This end's greeting of the session; `theirs` is the other end's."""
    theirs: Hello | None = None
    is_open: bool = False
    """True once both greetings are judged."""
    repeat_at: float = NEVER
    """When to repeat this end's greeting if the other end has stayed silent."""
    reputation: Reputation = field(default_factory=Reputation, repr=False, compare=False)
    resync_limit: ResyncLimit = field(default_factory=ResyncLimit)
    copies: Copies = field(default_factory=Copies)
    inbox: list[Message] = field(default_factory=list)
    """Messages queued until the engine has no work on the edge."""
    left_at: float | None = None
    """When the latest open session ended; None if none has."""
    barred: bool = False
    """True if the neighbor was removed from the federation, so that this end accepts no more sessions with it."""
    has_ended: bool = False
    """True if the neighbor's process has ended for good, as far as this node's launcher knows."""
    challenged_at: float = float("-inf")
    """When this end last told the neighbor that others know another lifetime of it."""

    def __post_init__(self) -> None:
        self.hearing = hearing_bucket(self.exchanges_per_s)

    def open(self, number: int, now: float, *, halted: bool) -> list[Effect]:
        """Replace the old session with a new one, or refuse the new one; after a refusal there is no session."""
        self.end()
        reputation = self.reputation
        if reputation.is_quarantined(now):
            rest_s = reputation.until - now
            return [CloseSession(peer=self.peer, session=number, reason="in quarantine", rest_s=rest_s)]
        if halted or self.barred or self.resync_limit.refuses(now):
            return [CloseSession(peer=self.peer, session=number, reason="resting")]
        self.session = number
        self.has_ended = False
        if not reputation.comes_back(now):
            return []
        return [Alarm(kind="probation", peer=self.peer, text="its quarantine is over")]

    def end(self) -> None:
        self.session = self.mine = self.theirs = None
        self.repeat_at = NEVER
        self.is_open = False
        self.inbox.clear()

    def drop(self, reason: str, rest_s: float = 0.0) -> list[Effect]:
        """End the session from this side."""
        number = self.session
        self.end()
        return [] if number is None else [CloseSession(peer=self.peer, session=number, reason=reason, rest_s=rest_s)]

    def blame(self, fault: Fault, text: str, now: float) -> list[Effect]:
        """Count a proven fault. Enough faults end the session for a while; only then are effects returned."""
        reputation = self.reputation
        if not reputation.note(fault, text, now):
            return []
        rest_s = reputation.until - now
        alarm = f"its messages are ignored for {rest_s:.0f} s, after {reputation.reasons}; the latest: {text}"
        reason = f"in quarantine for {rest_s:.0f} s: {fault}"
        return [Alarm(kind="quarantine", peer=self.peer, text=alarm), *self.drop(reason, rest_s=rest_s)]

    def is_flooded(self, now: float) -> bool:
        """Count a message; return True if it exceeds the limit. The next session then begins with a fresh limit."""
        if self.hearing.take(now) == 0.0:
            return False
        self.hearing = hearing_bucket(self.exchanges_per_s)
        return True

    def greet(self, hello: Hello, now: float) -> list[Effect]:
        """Send this end's greeting of this session."""
        self.mine = hello
        self.repeat_at = NEVER if self.theirs else now + REPEAT_S
        return self.say(hello)

    def hear_hello(self, hello: Hello, now: float) -> list[Effect]:
        """Store the neighbor's greeting, and repeat this end's own if the neighbor lacks it."""
        if self.theirs is None:
            self.theirs = hello
            self.repeat_at = NEVER
        if self.mine is None or hello.have_yours or self.greetings.take(now) > 0.0:
            return []
        return self.say(replace(self.mine, have_yours=True))

    def repeat(self, now: float) -> list[Effect]:
        """Repeat the greeting if the other end has been silent too long."""
        if self.mine is None or now < self.repeat_at:
            return []
        self.repeat_at = now + REPEAT_S
        return self.say(self.mine)

    def defer(self, message: Message) -> None:
        """Queue a few messages, at most one of them with a body. The neighbor repeats whatever is dropped here."""
        heavy = isinstance(message, Request | Reply)
        crowded = heavy and any(isinstance(waiting, Request | Reply) for waiting in self.inbox)
        if not crowded and len(self.inbox) < INBOX:
            self.inbox.append(message)

    def send(self, message: Message) -> list[Effect]:
        """Send on the open edge only; until both greetings are judged, only Hello is sent."""
        return self.say(message) if self.is_open else []

    def say(self, message: Message) -> list[Effect]:
        """Send in the current session, if there is one, whether or not the greetings have been judged."""
        if self.session is None:
            return []
        return [Send(peer=self.peer, session=self.session, message=message)]

    @property
    def is_shut(self) -> bool:
        """True if there will be no session, so that nothing waits for this neighbor."""
        return self.barred or self.has_ended or self.reputation.is_out or self.resync_limit.rests

    def was_open_lately(self, now: float, linger_s: float) -> bool:
        """Return True if the edge is open, or was open less than `linger_s` seconds ago."""
        return self.is_open or (self.left_at is not None and now < self.left_at + linger_s)


CHALLENGE_EVERY_S = 5.0
"""The shortest time between two messages telling a connected neighbor about another lifetime of its own, in seconds."""


@dataclass(slots=True, eq=False, repr=False)
class ToldLifetimes:
    """The part of a node that accepts and passes on news of members' lifetimes."""

    lifetimes: Lifetimes
    lines: Mapping[int, EdgeLine]
    facts: Facts
    settings: Settings

    def welcome(self, line: EdgeLine, new: Lifetime, old: Lifetime | None, news: News, now: float) -> list[Effect]:
        """Tell a neighbor that has just greeted which lifetimes this node knows.

        `new` is the lifetime in its greeting, `old` the one in which this node believed it to be.
        """
        if not self.settings.profile.keeps_flows:
            return []
        lifetimes = self.lifetimes.lifetimes_to_send()
        if old is not None and old.name != new.name and old.generation >= new.generation:
            lifetimes.append((line.peer, old))  # lets a node without memory learn its own generation
        # When a federation begins, every member is new to every other: that is no news.
        is_under_way = self.facts.rounds > 0 or self.lifetimes.own.generation > 0
        if news is not News.KNOWN and (new.generation or is_under_way):
            self.lifetimes.note_news(line.peer, line.peer)
        return _tell(line, lifetimes) + self.pass_on_due(now)

    def hear(self, line: EdgeLine, member: int, lifetime: Lifetime, now: float) -> tuple[list[Effect], bool]:
        """Process a neighbor's report of a lifetime. True if that member has lost its memory of our edge to it."""
        lifetimes = self.lifetimes
        if member == lifetimes.index:
            return self._announce_claim() if lifetimes.claim(lifetime) else [], False
        lifetime = lifetimes.raise_generation(member, lifetime)
        news = lifetimes.judge(member, lifetime)
        unknown = member >= self.settings.members or member in self.settings.retired
        if news in {News.KNOWN, News.STALE} or unknown or line.news.take(now) > 0.0:
            return [], False
        own_line = self.lines.get(member)
        if news is News.NEW and own_line is not None and own_line.is_open:
            # It has greeted in its current lifetime. It must learn of the other one itself, and say which one it is in.
            if now < own_line.challenged_at + CHALLENGE_EVERY_S:
                return [], False
            own_line.challenged_at = now
            return _tell(own_line, [(member, lifetime)]), False
        lifetimes.latest[member] = lifetime
        lifetimes.note_news(line.peer, member)
        if news is not News.NEW or own_line is None:
            return [NoteLifetime(member=member, lifetime=lifetime)], False
        return [], True

    def forget_removed(self) -> list[Effect]:
        """Forget the lifetimes of removed members, here and on disk."""
        gone = self.lifetimes.forget(self.settings.retired)
        return [NoteLifetime(member=member, lifetime=FIRST_LIFETIME) for member in gone]

    def pass_on_due(self, now: float) -> list[Effect]:
        """Send every neighbor the pending news of lifetimes, if it is due."""
        if now < self.lifetimes.due_at:
            return []
        news = self.lifetimes.take_news(now)
        effects: list[Effect] = []
        for line in self.lines.values():
            if line.is_open:
                rows = [(member, lifetime) for member, source, lifetime in news if line.peer not in {member, source}]
                effects += _tell(line, rows)
        return effects

    def claim_another(self) -> list[Effect]:
        """Claim a later lifetime if the others have moved on: a node without memory may have had an earlier one."""
        return self._announce_claim() if self.settings.profile.keeps_flows and self.lifetimes.claim_another() else []

    def _announce_claim(self) -> list[Effect]:
        """Tell all neighbors this node's later lifetime, and those in generation 0, which may have had others."""
        lifetimes = self.lifetimes
        there = [line for line in self.lines.values() if line.is_open]
        for line in there:
            if line.peer in lifetimes.latest and not lifetimes.latest[line.peer].generation:
                lifetimes.note_news(line.peer, line.peer)
        effects = [effect for line in there for effect in _tell(line, [(lifetimes.index, lifetimes.own)])]
        return [NoteLifetime(member=None, lifetime=lifetimes.own), *effects]


def _tell(line: EdgeLine, lifetimes: Sequence[tuple[int, Lifetime]]) -> list[Effect]:
    rows = [(member, lifetime.generation, lifetime.name) for member, lifetime in lifetimes]
    parts = [tuple(rows[first : first + MOST_LIVES_TOLD]) for first in range(0, len(rows), MOST_LIVES_TOLD)]
    return [effect for part in parts for effect in line.say(LivesTold(lives=part))]


UNANSWERED_ROUNDS = 10
LONG_ABSENCE_S = 60.0
"""A longer absence is reported; a shorter one keeps the count of rounds without an exchange, or cuts would hide it."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """A neighbor's progress. `facts` belong to this node, `turns` to the edge."""

    peer: int
    facts: Facts = field(repr=False, compare=False)
    members: MemberProgress = field(repr=False, compare=False)
    turns: Turns
    version: int = 0
    """The version that the neighbor is known to have."""
    first_heard: int | None = None
    """The neighbor's version in its first greeting since this node started."""
    trained: int = 0
    """The highest progress in training that the neighbor has reported, in rounds or seconds."""
    requested_version: int | None = None
    """The version for which the neighbor asks for an exchange; None if it asks for none."""
    level: float = 0.0
    """The number of hops around the neighbor within which all nodes are connected; infinite once it has begun."""
    settled: int | None = None
    """The hops around the neighbor within which all active members have completed training; None if it sent none."""
    closing: int | None = None
    """The number of mixing rounds that the neighbor has begun since it stopped training; None before that."""
    closing_heard_at: float = float("-inf")
    """When the neighbor last began the closing round that this end waits for; set once a round, whatever it claims."""
    done: bool = False
    """True if the neighbor only answers from now on."""

    def hear_hello(self, hello: Hello, now: float) -> None:
        """Record the first greeting of a session."""
        self.version = hello.version  # a neighbor whose disk was wiped counts from zero again
        self.members.note_session(self.peer, now)
        self.first_heard = hello.version if self.first_heard is None else self.first_heard
        self.done, self.closing = hello.done, hello.closing
        self.level, self.settled = NEVER if hello.level is None else float(hello.level), None
        self.trained = max(self.trained, hello.trained)
        known = digest_of(hello.begun, hello.through)
        self.members.hear(self.peer, known, hello.begun, hello.through, now, bound=hello.bound)

    def hear_ready(self, ready: Ready, now: float) -> None:
        self.note_version(ready.version, now)
        self.trained = max(self.trained, ready.trained)
        self.members.hear(self.peer, ready.known, ready.begun, ready.through, now, bound=ready.bound)
        self.settled = ready.level if self.level == NEVER else None
        self.level = NEVER if ready.level is None else max(self.level, ready.level)
        if ready.closing is not None:
            awaited = self.is_awaited
            self.closing = max(self.closing or 0, ready.closing)
            if awaited and not self.is_awaited:
                self.closing_heard_at = now
        # Both ends know the edge's turns: in another round, a Ready only informs and does not ask for an exchange.
        if self.turns.is_active(schedule_index(ready.version, ready.closing)):
            self.requested_version = max(self.requested_version or 0, ready.version)

    def hear_done(self, done: Done) -> None:
        self.version = max(self.version, done.version)
        self.done = True

    def note_version(self, version: int, now: float) -> None:
        """Record that the neighbor has shown this version."""
        if version > self.version:
            self.version = version
            self.members.note_progress(self.peer, now)

    @property
    def has_stopped(self) -> bool:
        """True if the neighbor has stopped training."""
        return self.done or self.closing is not None

    def has_closed(self, rounds: int) -> bool:
        """Return True if the neighbor has stopped training and done that many mixing rounds since."""
        return self.done or (self.closing is not None and self.closing >= rounds)

    # -- closing rounds in a schedule ---------------------------------------------------------------------------------

    @property
    def keeps_step(self) -> bool:
        """True if this pair exchanges once in each closing round of a schedule, when both are in the same round.

        During training each end is answered at once: mixing out of order still converges, only more slowly. The closing
        rounds wait for the neighbors anyway, so a schedule that averages exactly in one period does so here. Once the
        rounds no longer wait, they too mix in any order.
        """
        facts = self.facts
        closes = facts.closing is not None and not facts.out_of_step and not facts.done
        return closes and self.turns.period > 1

    @property
    def is_awaited(self) -> bool:
        """True if the neighbor has yet to begin the closing round that this end is in."""
        return self.keeps_step and not self.has_closed(self.facts.closing or 0)

    @property
    def awaits_us(self) -> bool:
        """True if the neighbor is in a closing round that this end has yet to begin."""
        return self.keeps_step and not self.done and (self.closing or 0) > (self.facts.closing or 0)


@dataclass(slots=True, kw_only=True)
class Service:
    """The service of one edge, which is *served* in a round once that round's version has been exchanged."""

    peer: int
    facts: Facts = field(repr=False, compare=False)
    turns: Turns
    """The rounds of this node that use the edge; both ends answer in any round."""
    usual: UsualTime = field(repr=False, compare=False)
    """The usual exchange time on the node's live edges."""
    patience: Patience
    exchanged: int | None = None
    """This node's version in the last completed exchange."""
    exchanges: int = 0
    served_at: float = float("-inf")
    """When a version of this node was last exchanged for the first time, which ended its wait."""
    unanswered: int = 0
    """The number of consecutive rounds in which the edge was open and had its turn, but nothing was exchanged."""
    unanswered_from: float = 0.0
    is_reported: bool = False
    """True if an alarm that nothing is exchanged has been raised."""
    left_at: float = float("-inf")
    """When the latest session ended."""
    asked_at: float | None = None
    """When this end began to wait for the current exchange: at the freeze, or with its Ready."""

    @property
    def has_turn(self) -> bool:
        """True if this node's current round uses this edge."""
        turns = self.turns
        return turns is ALWAYS or turns.is_active(schedule_index(self.facts.version, self.facts.closing))

    @property
    def is_served(self) -> bool:
        """True if this node's current version has been in a completed exchange, or need not be."""
        exchanged, facts, turns = self.exchanged, self.facts, self.turns
        if exchanged is not None and exchanged >= facts.version:
            return True
        # This is `has_turn` inlined: the call would be made for every late edge after every event.
        return turns is not ALWAYS and not turns.is_active(schedule_index(facts.version, facts.closing))

    @property
    def is_mute(self) -> bool:
        """True if nothing was exchanged over many rounds with a session."""
        return self.unanswered >= UNANSWERED_ROUNDS

    def complete(self, version: int, now: float, *, live: bool) -> None:
        """Record a completed exchange of this node's `version`; `live` says that its session is still open."""
        self.served_at = self.served_at if self.is_served else now
        self.exchanged = version
        self.exchanges += 1
        self.unanswered, self.is_reported = 0, False
        self.patience.note_exchange(None if self.asked_at is None else now - self.asked_at)
        self.asked_at = None
        if live:
            self.usual.note(self.peer, self.patience.exchange_s)

    def begin(self) -> None:
        """Record that the edge is open."""
        self.usual.note(self.peer, self.patience.exchange_s)

    def pause(self) -> None:
        """Record that the session has ended."""
        self.usual.note(self.peer, None)
        self.asked_at = None

    def resume(self, now: float) -> None:
        """Note a new session."""
        absent_s = now - self.left_at
        if absent_s >= LONG_ABSENCE_S:
            self.unanswered, self.is_reported = 0, False
        else:
            self.unanswered_from += absent_s

    def miss(self, began_at: float) -> None:
        """Record that the round begun at `began_at` has stopped waiting for an exchange."""
        self.patience.note_miss()
        self.go_without(began_at)

    def go_without(self, began_at: float) -> None:
        """Record that the round begun at `began_at` ended without an exchange although there is a session."""
        self.unanswered_from = self.unanswered_from if self.unanswered else began_at
        self.unanswered += 1

    def complain(self, now: float) -> list[Effect]:
        """Raise one alarm if there is a session but nothing is exchanged; no other part would notice."""
        silent_s = now - self.unanswered_from
        if self.is_reported or self.unanswered < UNANSWERED_ROUNDS or silent_s < UNANSWERED_S:
            return []
        self.is_reported = True
        text = f"the session is open, but nothing was exchanged for {self.unanswered} rounds ({silent_s:.0f} s)"
        return [Alarm(kind="nothing-exchanged", peer=self.peer, text=text)]
