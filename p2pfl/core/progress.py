"""Where a neighbor stands, by what it has told since this node started: its versions, rounds, level and end."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2pfl.core.ending import Ending, digest_of
from p2pfl.core.facts import Facts
from p2pfl.core.messages import Done, Hello, Ready
from p2pfl.core.session import NEVER
from p2pfl.core.turns import Turns, place


@dataclass(slots=True, kw_only=True)
class Progress:
    """Of one neighbor. `facts` are the own ones, `turns` those of the edge to it."""

    peer: int
    facts: Facts = field(repr=False, compare=False)
    ending: Ending = field(repr=False, compare=False)
    turns: Turns
    version: int = 0
    """The version that the neighbor is known to have."""
    first_heard: int | None = None
    """The neighbor's version in its first greeting since this node started."""
    trained: int = 0
    """The most own rounds (or seconds) that the neighbor has told of."""
    wish: int | None = None
    """The version with which the neighbor asks for an exchange; None: it asks for none."""
    level: float = 0.0
    """How many hops around the neighbor everybody is there; infinite once it has begun."""
    closing: int | None = None
    """How many mixing rounds the neighbor has begun since it stopped training; None before."""
    closing_heard_at: float = float("-inf")
    """When the neighbor last began a closing round in which it was awaited: once in a round, whatever it claims."""
    done: bool = False
    """Whether the neighbor only answers from now on."""

    def hear_hello(self, hello: Hello, now: float) -> None:
        """The first greeting of a session."""
        self.version = hello.version  # after a wipe it counts anew
        self.ending.met(self.peer, now)
        self.first_heard = hello.version if self.first_heard is None else self.first_heard
        self.done, self.closing = hello.done, hello.closing
        self.level = _level(hello.level)
        self.trained = max(self.trained, hello.trained)
        self.ending.hear(self.peer, digest_of(hello.begun, hello.through), hello.begun, hello.through, now)

    def hear_ready(self, ready: Ready, now: float) -> None:
        self.saw(ready.version, now)
        self.trained = max(self.trained, ready.trained)
        self.ending.hear(self.peer, ready.known, ready.begun, ready.through, now)
        self.level = max(self.level, _level(ready.level))
        if ready.closing is not None:
            awaited = self.is_awaited
            self.closing = max(self.closing or 0, ready.closing)
            if awaited and not self.is_awaited:
                self.closing_heard_at = now
        # Both ends know the edge's turns: what is said in another round tells something, and asks for nothing.
        if self.turns.active(place(ready.version, ready.closing)):
            self.wish = max(self.wish or 0, ready.version)

    def hear_done(self, done: Done) -> None:
        self.version = max(self.version, done.version)
        self.done = True

    def saw(self, version: int, now: float) -> None:
        """The neighbor has shown that it is in that version."""
        if version > self.version:
            self.version = version
            self.ending.progressed(self.peer, now)

    @property
    def has_stopped(self) -> bool:
        """Whether the neighbor has stopped training."""
        return self.done or self.closing is not None

    def has_closed(self, rounds: int) -> bool:
        """Whether the neighbor has stopped training and done that many mixing rounds since."""
        return self.done or (self.closing is not None and self.closing >= rounds)

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
    def is_awaited(self) -> bool:
        """Whether the neighbor has yet to begin the closing round that this end is in."""
        return self.keeps_step and not self.has_closed(self.facts.closing or 0)

    @property
    def awaits_us(self) -> bool:
        """Whether the neighbor is in a closing round that this end has yet to begin."""
        return self.keeps_step and not self.done and (self.closing or 0) > (self.facts.closing or 0)


def _level(told: int | None) -> float:
    return NEVER if told is None else float(told)
