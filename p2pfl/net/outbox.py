"""The queue of a session's outgoing messages.

On a slow line it keeps fewer and newer ones, rather than a longer queue. An edge has one transaction at a time, so the
older of two bodies is void, and at most one waits behind the one being sent. The core repeats unanswered requests. A
live session loses nothing, so a repeat is sent only if the body was sent long ago. Of messages that only say where a
node stands, only the latest counts.
"""

from __future__ import annotations

import asyncio
from collections import deque

from p2pfl.core.messages import Message, Ready, Reply, Request
from p2pfl.wire import Receipt, SessionMessage, Side

REPEAT_MULTIPLE = 4.0
"""A body is repeated after this many times its sending time: the answer may take as long."""
LEAST_REPEAT_S = 30.0
"""The earliest repeat: on a fast line the answer waits for the peer's processor or disk, which a repeat would
burden.
"""
MOST_WAITING: dict[type[SessionMessage], int] = {Request: 1, Reply: 1, Ready: 4}
"""The maximum number of queued messages per kind. In a schedule an earlier Ready may ask for an exchange where the
latest does not.
"""

Name = tuple[object, ...]


class Outbox:
    """The queue of outgoing messages, at most `limit` of them. Times are the loop's, in seconds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Message] = deque()
        self._aside: deque[Side] = deque()
        """Side-channel messages, sent when no gossip is waiting."""
        self._receipt: Receipt | None = None
        self._filled = asyncio.Event()
        self._closed = False
        self._latest: Name | None = None
        """The name of the body that was most recently begun."""
        self._begun_s = 0.0
        self._repeat_at = float("inf")
        self.idle = asyncio.Event()
        """Set while nothing is waiting or being sent, and from `close` on."""
        self.idle.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Message, now: float, *, hearing: bool) -> bool:
        """Queue a message; return False if there is no room.

        `hearing` says that a body is arriving from the peer, which may be the answer.
        """
        if self._closed or self._is_needless(message, now, hearing=hearing):
            return True
        self._make_room(message)
        if len(self._waiting) >= self._limit:
            return False
        self._waiting.append(message)
        self._filled.set()
        self.idle.clear()
        return True

    def put_aside(self, message: Side, most: int) -> bool:
        """Queue a side-channel message; return False if `most` messages of its channel are already waiting."""
        if self._closed or sum(other.channel == message.channel for other in self._aside) >= most:
            return False
        self._aside.append(message)
        self._filled.set()
        self.idle.clear()
        return True

    def put_receipt(self, receipt: Receipt) -> None:
        """Send the latest receipt before anything else; it replaces one that waits."""
        if not self._closed:
            self._receipt = receipt
            self._filled.set()

    async def take(self, now: float) -> Message | Side | Receipt | None:
        """Wait for the next message; None once closed. `now` is when the previous message had been sent."""
        if self._repeat_at == float("inf"):
            self._repeat_at = now + max(LEAST_REPEAT_S, REPEAT_MULTIPLE * (now - self._begun_s))
        if not (self._waiting or self._aside or self._receipt or self._closed):
            self.idle.set()
            self._filled.clear()
            await self._filled.wait()
        if self._receipt is not None:
            receipt, self._receipt = self._receipt, None
            return receipt
        if self._waiting:
            return self._waiting.popleft()
        return self._aside.popleft() if self._aside else None

    def begin(self, message: Message | Side | Receipt, now: float) -> None:
        """Record that the message is being sent."""
        name = name_of(message)
        if name is not None:
            self._latest, self._begun_s, self._repeat_at = name, now, float("inf")

    def allow_repeat(self) -> None:
        """Allow the body to be sent again, because the peer has asked for it."""
        self._latest = None

    def close(self) -> None:
        """Drop the queued messages."""
        self._closed = True
        self._waiting.clear()
        self._aside.clear()
        self._receipt = None
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
        """Drop the oldest message of a kind that already fills its share of the queue."""
        most = MOST_WAITING.get(type(message))
        alike = [place for place, other in enumerate(self._waiting) if type(other) is type(message)]
        if most is not None and len(alike) >= most:
            del self._waiting[alike[0]]


def name_of(message: SessionMessage) -> Name | None:
    """Return a name unique to a message with a body on its edge; it does not keep the body alive."""
    match message:
        case Request(incarnation=incarnation, seq=seq, digest=digest):
            return Request, incarnation, seq, digest
        case Reply(incarnation=incarnation, seq=seq, request_digest=digest):
            return Reply, incarnation, seq, digest
    return None
