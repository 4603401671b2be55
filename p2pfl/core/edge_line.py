"""The line to one neighbor: its session and greeting, the queued messages, and the neighbor's limits.

A session opens with one Hello each way; both ends judge the two messages exactly as sent, and send nothing else before
that.

A line returns effects or a verdict and never calls the layer above: a caller that ends the session through it must also
tell the exchange (`Exchange.drop`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from p2pfl.core.effects import Alarm, CloseSession, Effect, Send
from p2pfl.core.facts import NEVER
from p2pfl.core.limits import ResyncBrake, TokenBucket, hearing_bucket
from p2pfl.core.lives import Copies
from p2pfl.core.messages import Hello, Message, Reply, Request
from p2pfl.core.standing import Fault, Standing

REPEAT_S = 1.0


@dataclass(slots=True)
class Greeting:
    """The state of the current session; `number` is None while there is none."""

    number: int | None = None
    mine: Hello | None = None
    theirs: Hello | None = None
    is_open: bool = False
    repeat_at: float = NEVER

    def begin(self, number: int) -> None:
        self.end()
        self.number = number

    def end(self) -> None:
        self.number = self.mine = self.theirs = None
        self.repeat_at = NEVER
        self.is_open = False

    def compose(self, hello: Hello, now: float) -> Hello:
        """Set this end's greeting of this session and return it for sending."""
        self.mine = hello
        self.repeat_at = NEVER if self.theirs else now + REPEAT_S
        return hello

    def hear(self, hello: Hello) -> Hello | None:
        """Store the other end's greeting; return the answer it asks for, or None."""
        if self.theirs is None:
            self.theirs = hello
            self.repeat_at = NEVER
        if self.mine is None or hello.have_yours:
            return None
        return replace(self.mine, have_yours=True)

    def repeat(self, now: float) -> Hello | None:
        """Return the greeting to repeat if the other end has been silent too long, else None."""
        if self.mine is None or now < self.repeat_at:
            return None
        self.repeat_at = now + REPEAT_S
        return self.mine


INBOX = 8


@dataclass(slots=True, kw_only=True)
class EdgeLine:
    """This end of the line to one neighbor."""

    peer: int
    exchanges_per_s: float
    news: TokenBucket
    """The limit on reports of lives that this node accepts from the neighbor."""
    hearing: TokenBucket = field(init=False)
    """The limit on all messages from this neighbor, across its sessions."""
    greeting: Greeting = field(default_factory=Greeting)
    standing: Standing = field(default_factory=Standing, repr=False, compare=False)
    brake: ResyncBrake = field(default_factory=ResyncBrake)
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
    """When this end last told the neighbor that others know another life of it."""

    def __post_init__(self) -> None:
        self.hearing = hearing_bucket(self.exchanges_per_s)

    def open(self, number: int, now: float, *, halted: bool) -> list[Effect]:
        """Replace the old session with a new one, or refuse the new one; after a refusal there is no session."""
        self.end()
        standing = self.standing
        if standing.is_quarantined(now):
            rest_s = standing.until - now
            return [CloseSession(peer=self.peer, session=number, reason="in quarantine", rest_s=rest_s)]
        if halted or self.barred or self.brake.refuses(now):
            return [CloseSession(peer=self.peer, session=number, reason="resting")]
        self.greeting.begin(number)
        self.has_ended = False
        if not standing.comes_back(now):
            return []
        return [Alarm(kind="probation", peer=self.peer, text="its quarantine is over")]

    def end(self) -> None:
        self.greeting.end()
        self.inbox.clear()

    def drop(self, reason: str, rest_s: float = 0.0) -> list[Effect]:
        """End the session from this side."""
        number = self.greeting.number
        self.end()
        return [] if number is None else [CloseSession(peer=self.peer, session=number, reason=reason, rest_s=rest_s)]

    def blame(self, fault: Fault, text: str, now: float) -> list[Effect]:
        """Count a proven fault. Enough faults end the session for a while; only then are effects returned."""
        standing = self.standing
        if not standing.note(fault, text, now):
            return []
        rest_s = standing.until - now
        alarm = f"its messages are ignored for {rest_s:.0f} s, after {standing.reasons}; the latest: {text}"
        reason = f"in quarantine for {rest_s:.0f} s: {fault}"
        return [Alarm(kind="quarantine", peer=self.peer, text=alarm), *self.drop(reason, rest_s=rest_s)]

    def is_flooded(self, now: float) -> bool:
        """Count a message; return True if it exceeds the limit. The next session then begins with a fresh limit."""
        if self.hearing.take(now) == 0.0:
            return False
        self.hearing = hearing_bucket(self.exchanges_per_s)
        return True

    def hear_hello(self, hello: Hello) -> list[Effect]:
        """Store the neighbor's greeting, and repeat this end's own if the neighbor lacks it."""
        answer = self.greeting.hear(hello)
        return self.say(answer) if answer else []

    def defer(self, message: Message) -> None:
        """Queue a few messages, at most one of them with a body. The neighbor repeats whatever is dropped here."""
        heavy = isinstance(message, Request | Reply)
        crowded = heavy and any(isinstance(waiting, Request | Reply) for waiting in self.inbox)
        if not crowded and len(self.inbox) < INBOX:
            self.inbox.append(message)

    def send(self, message: Message) -> list[Effect]:
        """Send on the open edge only; until both greetings are judged, only Hello is sent."""
        return self.say(message) if self.greeting.is_open else []

    def say(self, message: Message) -> list[Effect]:
        """Send in the current session, if there is one, whether or not the greetings have been judged."""
        if self.greeting.number is None:
            return []
        return [Send(peer=self.peer, session=self.greeting.number, message=message)]

    @property
    def is_shut(self) -> bool:
        """True if there will be no session, so that nothing waits for this neighbor."""
        return self.barred or self.has_ended or self.standing.is_out or self.brake.rests

    def was_open_lately(self, now: float, linger_s: float) -> bool:
        """Return True if the edge is open, or was open less than `linger_s` seconds ago."""
        return self.greeting.is_open or (self.left_at is not None and now < self.left_at + linger_s)
