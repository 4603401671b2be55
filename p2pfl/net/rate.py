"""The bound on what all sessions of a node send together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import Any

BYTES_PER_KBIT = 125.0
SHORT_BYTES = 4096
"""The most bytes of a message that says where a node stands: others wait for it."""

Say = Callable[..., Awaitable[None]]


class SendingRate:
    """The bytes per second that all sessions may send together, on average.

    A chunk goes out at once, and the next one waits as long as this one should have taken. Sessions send their messages
    one after the other, each at the whole rate, because a peer demands a minimum pace of a message that has begun.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._turn = asyncio.Lock()

    @classmethod
    def of(cls, max_kbit_s: float | None) -> SendingRate | None:
        return None if max_kbit_s is None else cls(max_kbit_s * BYTES_PER_KBIT)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next chunk may go."""
        return max(0.0, self._free_at - now)

    def book(self, size: int, now: float) -> None:
        """Record that `size` bytes are sent."""
        self._free_at = max(self._free_at, now) + size / self.bytes_per_s

    async def carry(
        self, chunks: Iterable[bytes | memoryview], say: Say, beat_s: float, *, is_over: Callable[[], bool]
    ) -> None:
        """Send a message by `say`, chunk by chunk, none before its time; a short message does not wait, and later ones
        make up for it. Meanwhile, an empty chunk goes out every `beat_s`, which shows the other end that this one is
        there.
        """
        clock, chunks = asyncio.get_running_loop().time, iter(chunks)
        first, second = next(chunks), next(chunks, None)
        if second is None and len(first) <= SHORT_BYTES:
            await say(first)
            return
        turn = asyncio.ensure_future(self._turn.acquire())
        try:
            await _beat_until(turn, say, beat_s)
            for chunk in chain([first], [] if second is None else [second], chunks):
                while (wait_s := self.wait_s(clock())) > 0.0:
                    await _beat_until(asyncio.ensure_future(asyncio.sleep(wait_s)), say, beat_s)
                if is_over():
                    return
                await say(chunk)
        finally:
            if not turn.cancel():  # it was this message's turn
                self._turn.release()


async def _beat_until(done: asyncio.Future[Any], say: Say, beat_s: float) -> None:
    try:
        while not (await asyncio.wait({done}, timeout=beat_s))[0]:
            await say(b"")
    finally:
        done.cancel()
