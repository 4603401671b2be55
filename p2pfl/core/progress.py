"""The progress of one edge: where the neighbor says it stands, and which of this node's versions were exchanged."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2pfl.core.census import Census, digest_of
from p2pfl.core.effects import Alarm, Effect
from p2pfl.core.facts import NEVER, Facts
from p2pfl.core.limits import Patience, UsualTime
from p2pfl.core.messages import Done, Hello, Ready
from p2pfl.core.staleness import ALWAYS, Turns, schedule_index

UNANSWERED_ROUNDS = 10
UNANSWERED_S = 45.0
"""A neighbor with a session that exchanges nothing for so many rounds, and so many seconds, is reported."""
LONG_ABSENCE_S = 60.0
"""The absence after which a neighbor is reported for having no session.

Shorter absences do not reset the count of rounds in which nothing was exchanged: otherwise a neighbor that cuts each
session in time would never be noticed.
"""


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a neighbor. `facts` are those of this node, `turns` those of the edge."""

    peer: int
    facts: Facts = field(repr=False, compare=False)
    census: Census = field(repr=False, compare=False)
    turns: Turns
    version: int = 0
    """The version that the neighbor is known to have."""
    first_heard: int | None = None
    """The neighbor's version in its first greeting since this node started."""
    trained: int = 0
    """The most rounds (or seconds) of training that the neighbor has reported."""
    requested_version: int | None = None
    """The version with which the neighbor asks for an exchange; None: it asks for none."""
    level: float = 0.0
    """The number of hops around the neighbor within which all nodes are connected; infinite once it has begun."""
    settled: int | None = None
    """The number of hops around the neighbor within which all members that take part are through; None: it has sent
    none.
    """
    closing: int | None = None
    """The number of mixing rounds that the neighbor has begun since it stopped training; None before."""
    closing_heard_at: float = float("-inf")
    """The time at which the neighbor last began the closing round that this end waits for: once a round, whatever it
    claims.
    """
    done: bool = False
    """True if the neighbor only answers from now on."""

    def hear_hello(self, hello: Hello, now: float) -> None:
        """Take the first greeting of a session."""
        self.version = hello.version  # a neighbor whose disk was wiped counts from zero again
        self.census.note_session(self.peer, now)
        self.first_heard = hello.version if self.first_heard is None else self.first_heard
        self.done, self.closing = hello.done, hello.closing
        self.level, self.settled = _level(hello.level), None
        self.trained = max(self.trained, hello.trained)
        known = digest_of(hello.begun, hello.through)
        self.census.hear(self.peer, known, hello.begun, hello.through, now, bound=hello.bound)

    def hear_ready(self, ready: Ready, now: float) -> None:
        self.note_version(ready.version, now)
        self.trained = max(self.trained, ready.trained)
        self.census.hear(self.peer, ready.known, ready.begun, ready.through, now, bound=ready.bound)
        self.settled = ready.level if self.level == NEVER else None
        self.level = max(self.level, _level(ready.level))
        if ready.closing is not None:
            awaited = self.is_awaited
            self.closing = max(self.closing or 0, ready.closing)
            if awaited and not self.is_awaited:
                self.closing_heard_at = now
        # Both ends know the edge's turns: a Ready in another round informs, and asks for no exchange.
        if self.turns.is_active(schedule_index(ready.version, ready.closing)):
            self.requested_version = max(self.requested_version or 0, ready.version)

    def hear_done(self, done: Done) -> None:
        self.version = max(self.version, done.version)
        self.done = True

    def note_version(self, version: int, now: float) -> None:
        """Note that the neighbor has shown this version."""
        if version > self.version:
            self.version = version
            self.census.note_progress(self.peer, now)

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

        In training each end is answered at once: out of order, mixing still converges, only more slowly. The closing
        rounds wait for the neighbors anyway, so one period of a schedule that averages exactly does so here. Once the
        rounds no longer wait, they mix in any order too.
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


def _level(hops: int | None) -> float:
    return NEVER if hops is None else float(hops)


@dataclass(slots=True, kw_only=True)
class Service:
    """The service of one edge: it is *served* in a round once the version of that round was exchanged."""

    peer: int
    facts: Facts = field(repr=False, compare=False)
    turns: Turns
    """The rounds of this node that use the edge; both ends answer in any round."""
    usual: UsualTime = field(repr=False, compare=False)
    """The usual time of an exchange on the live edges of the node."""
    patience: Patience
    exchanged: int | None = None
    """This node's version in the last completed exchange."""
    exchanges: int = 0
    served_at: float = float("-inf")
    """The time at which a version of this node was last exchanged for the first time, so that its wait was over."""
    unanswered: int = 0
    """The number of rounds in a row in which the edge was open and had its turn, but nothing was exchanged."""
    unanswered_from: float = 0.0
    is_reported: bool = False
    """True if the alarm that nothing is exchanged was raised."""
    left_at: float = float("-inf")
    """The time at which the latest session ended."""
    asked_at: float | None = None
    """The time at which this end began to wait for the current exchange: at the freeze, or with its Ready."""

    @property
    def has_turn(self) -> bool:
        """True if this node's current round uses this edge."""
        turns = self.turns
        return turns is ALWAYS or turns.is_active(schedule_index(self.facts.version, self.facts.closing))

    @property
    def is_served(self) -> bool:
        """True if this node's current version has taken part in a completed exchange, or need not."""
        exchanged, facts, turns = self.exchanged, self.facts, self.turns
        if exchanged is not None and exchanged >= facts.version:
            return True
        # The same as `has_turn`, which would be one more call for every late edge after every event.
        return turns is not ALWAYS and not turns.is_active(schedule_index(facts.version, facts.closing))

    @property
    def is_mute(self) -> bool:
        """True if nothing was exchanged for many rounds in which there was a session."""
        return self.unanswered >= UNANSWERED_ROUNDS

    def complete(self, version: int, now: float, *, live: bool) -> None:
        """Note a completed exchange of this node's `version`; `live`: its session is still open."""
        self.served_at = self.served_at if self.is_served else now
        self.exchanged = version
        self.exchanges += 1
        self.unanswered, self.is_reported = 0, False
        self.patience.note_exchange(None if self.asked_at is None else now - self.asked_at)
        self.asked_at = None
        if live:
            self.usual.note(self.peer, self.patience.exchange_s)

    def begin(self) -> None:
        """Note that the edge is open."""
        self.usual.note(self.peer, self.patience.exchange_s)

    def pause(self) -> None:
        """Note that the session has ended."""
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
        """Note that the round begun at `began_at` no longer waits for an exchange that did not come."""
        self.patience.note_miss()
        self.go_without(began_at)

    def go_without(self, began_at: float) -> None:
        """Note that the round begun at `began_at` has ended without an exchange although there is a session."""
        self.unanswered_from = self.unanswered_from if self.unanswered else began_at
        self.unanswered += 1

    def complain(self, now: float) -> list[Effect]:
        """Raise one alarm if there is a session and nothing is exchanged: no other part would notice."""
        silent_s = now - self.unanswered_from
        if self.is_reported or self.unanswered < UNANSWERED_ROUNDS or silent_s < UNANSWERED_S:
            return []
        self.is_reported = True
        text = f"the session is open, but nothing was exchanged for {self.unanswered} rounds ({silent_s:.0f} s)"
        return [Alarm(kind="nothing-exchanged", peer=self.peer, text=text)]
