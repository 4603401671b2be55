"""What one session has still to send: newer and fewer messages on a slow line, instead of a longer line.

An edge has one transaction at a time, so of two bodies the older is void, and at most one waits behind the one under
way. The core says a request again that is not answered; a session that is alive loses nothing, so that is passed on
only when the line has been free of it for long. Of what merely tells where a node stands the latest counts.
"""

from __future__ import annotations

import asyncio
from collections import deque

from p2pfl.core.messages import Message, Ready, Reply, Request

REPEAT_MULTIPLE = 4.0
"""A body is repeated after this many times its sending time: the answer is as long."""
LEAST_REPEAT_S = 30.0
"""The earliest repeat: behind a fast line the answer waits for the peer's processor or disk, which a repeat burdens."""
MOST_WAITING: dict[type[Message], int] = {Request: 1, Reply: 1, Ready: 4}
"""How many messages of a kind wait at most. In a schedule the latest Ready may ask for nothing where others did."""

Name = tuple[object, ...]


class Outbox:
    """At most `limit` messages wait. Times are the loop's, in seconds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Message] = deque()
        self._filled = asyncio.Event()
        self._closed = False
        self._latest: Name | None = None
        """The name of the body that was begun last."""
        self._begun_s = 0.0
        self._repeat_at = float("inf")
        self.idle = asyncio.Event()
        """Set while nothing waits or is under way, and from `close` on."""
        self.idle.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Message, now: float, *, hearing: bool) -> bool:
        """False where there is no room. `hearing`: a body is coming from the peer, which may be the answer."""
        if self._closed or self._is_needless(message, now, hearing=hearing):
            return True
        self._make_room(message)
        if len(self._waiting) >= self._limit:
            return False
        self._waiting.append(message)
        self._filled.set()
        self.idle.clear()
        return True

    async def take(self, now: float) -> Message | None:
        """The next message, when there is one; None once it is closed. At `now` the one before had been sent."""
        if self._repeat_at == float("inf"):
            self._repeat_at = now + max(LEAST_REPEAT_S, REPEAT_MULTIPLE * (now - self._begun_s))
        if not self._waiting and not self._closed:
            self.idle.set()
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft() if self._waiting else None

    def begin(self, message: Message, now: float) -> None:
        """The message is being sent."""
        name = name_of(message)
        if name is not None:
            self._latest, self._begun_s, self._repeat_at = name, now, float("inf")

    def allow_repeat(self) -> None:
        """The peer has asked for the body again."""
        self._latest = None

    def close(self) -> None:
        """Drop what waits."""
        self._closed = True
        self._waiting.clear()
        self._filled.set()
        self.idle.set()

    def _is_needless(self, message: Message, now: float, *, hearing: bool) -> bool:
        name = name_of(message)
        if name is None:
            return message in self._waiting
        if any(name == name_of(other) for other in self._waiting):
            return True
        return name == self._latest and (hearing or now < self._repeat_at)

    def _make_room(self, message: Message) -> None:
        """For the newest of its kind."""
        most = MOST_WAITING.get(type(message))
        alike = [place for place, other in enumerate(self._waiting) if type(other) is type(message)]
        if most is not None and len(alike) >= most:
            del self._waiting[alike[0]]


def name_of(message: Message) -> Name | None:
    """What tells a message with a body from all others of its edge; it keeps no body alive."""
    match message:
        case Request(incarnation=incarnation, seq=seq, digest=digest):
            return Request, incarnation, seq, digest
        case Reply(incarnation=incarnation, seq=seq, request_digest=digest):
            return Reply, incarnation, seq, digest
    return None
