"""Messages that wait until what they say is on disk.

The core goes on as soon as the engine has computed; a Request or Reply leaves once the records up to it are durable.
So does Done, because a neighbor that has heard it waits for nothing more. Other messages leave at once: they only say
where this end stands, and are judged again in each session. A node holds at most one Request or Reply for each
neighbor, however long the disk stalls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from p2pfl.core.effects import Send
from p2pfl.core.messages import Done, Reply, Request

DRAIN_S = 5.0
"""The longest wait at a node's end for a disk that holds messages up."""
DRAINS = 100


class HeldSends:
    """The messages to all neighbors, in order. Flushes are counted as in `Flushing`."""

    def __init__(self, send: Callable[[Send], None]) -> None:
        self._send = send
        self._promised = 0
        """The flush that messages from now on depend on."""
        self._flushed = 0
        self._held: deque[tuple[int, Send]] = deque()

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        return len(self._held)

    def promise(self, flush: int) -> None:
        self._promised = max(self._promised, flush)

    def put(self, effect: Send) -> None:
        if self._promised <= self._flushed or not isinstance(effect.message, Request | Reply | Done):
            self._send(effect)
        elif not any(_is_repeated(effect, each) for _, each in self._held):
            self._held.append((self._promised, effect))

    def release(self, flush: int) -> None:
        """Send what depends on this flush or an earlier one, which is done."""
        self._flushed = max(self._flushed, flush)
        while self._held and self._held[0][0] <= self._flushed:
            self._send(self._held.popleft()[1])

    async def drain(self) -> None:
        """Wait until all has left, or for `DRAIN_S`."""
        for _ in range(DRAINS):
            if not self._held:
                return
            await asyncio.sleep(DRAIN_S / DRAINS)

    def forget(self) -> None:
        """Drop what is held: the disk has refused, and the sessions end."""
        self._held.clear()


def _is_repeated(effect: Send, held: Send) -> bool:
    """Return True for a message that is repeated while it waits: it leaves once."""
    if (held.peer, held.session) != (effect.peer, effect.session):
        return False
    return held.message is effect.message or (isinstance(effect.message, Done) and isinstance(held.message, Done))
