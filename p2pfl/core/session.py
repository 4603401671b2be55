"""One edge's session: who greets, when the greeting is repeated, and when the edge is open.

Messages belong to the session that carried them. A session opens with one Hello each way; both ends judge the pair as
sent and nothing else flows before that.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from p2pfl.core.messages import Hello

REPEAT_S = 1.0
NEVER = float("inf")


@dataclass(slots=True)
class Greeting:
    """State of the session under way; `number` is None while there is none."""

    number: int | None = None
    mine: Hello | None = None
    theirs: Hello | None = None
    is_open: bool = False
    repeat_at: float = NEVER

    def begin(self, number: int) -> None:
        self.number = number
        self.mine = self.theirs = None
        self.is_open = False
        self.repeat_at = NEVER

    def end(self) -> None:
        self.number = self.mine = self.theirs = None
        self.repeat_at = NEVER
        self.is_open = False

    def compose(self, hello: Hello, now: float) -> Hello:
        """Fix what this end says in this session and return it for sending."""
        self.mine = hello
        self.repeat_at = NEVER if self.theirs else now + REPEAT_S
        return hello

    def hear(self, hello: Hello) -> Hello | None:
        """Take the other end's greeting; returns the answer it asks for, if any."""
        if self.theirs is None:
            self.theirs = hello
            self.repeat_at = NEVER
        if self.mine is None or hello.have_yours:
            return None
        return replace(self.mine, have_yours=True)

    def repeat(self, now: float) -> Hello | None:
        """The greeting once more, if the other end has been silent for too long."""
        if self.mine is None or now < self.repeat_at:
            return None
        self.repeat_at = now + REPEAT_S
        return self.mine
