"""The bounds on what a node sends: on all sessions together, and on those with single neighbors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any

BYTES_PER_KBIT = 125.0
SHORT_BYTES = 4096
"""The most bytes of a message that says where a node stands: others wait for it."""

Say = Callable[..., Coroutine[Any, Any, None]]


class SendingRate:
    """The bytes per second that may be sent, on average. A chunk goes out at once, and the next one waits as long as
    this one should have taken.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next chunk may go."""
        return max(0.0, self._free_at - now)

    def book(self, size: int, now: float) -> None:
        """Record that `size` bytes are sent."""
        self._free_at = max(self._free_at, now) + self.takes_s(size)

    def takes_s(self, size: int) -> float:
        """Return the seconds that `size` bytes take."""
        return size / self.bytes_per_s


class SendingRates:
    """The rate of all sessions together, and those of single neighbors by index.

    Sessions send their messages one after the other, each at the whole rate, because a peer demands a minimum pace of a
    message that has begun. Beside them go those to a neighbor with a rate of its own, or that reads more slowly than
    the rate allows: the others do not wait for it.
    """

    def __init__(
        self, all_kbit_s: float | None = None, neighbor_kbit_s: Mapping[int, float] = MappingProxyType({})
    ) -> None:
        self._all = None if all_kbit_s is None else SendingRate(all_kbit_s * BYTES_PER_KBIT)
        self._own = {peer: SendingRate(kbit_s * BYTES_PER_KBIT) for peer, kbit_s in neighbor_kbit_s.items()}
        self._turn = asyncio.Lock()

    def bound(self, peer: int) -> float | None:
        """Return how many bytes per second may be sent to that neighbor; None if there is no bound."""
        return min((rate.bytes_per_s for rate in self._of(peer)), default=None)

    def wait_s(self, peer: int, now: float) -> float:
        """Return the seconds until the next chunk to that neighbor may go."""
        return max((rate.wait_s(now) for rate in self._of(peer)), default=0.0)

    def book(self, peer: int, size: int, now: float) -> None:
        """Record that `size` bytes are sent to that neighbor."""
        for rate in self._of(peer):
            rate.book(size, now)

    async def carry(
        self, peer: int, chunks: Iterable[bytes | memoryview], say: Say, beat_s: float, *, is_over: Callable[[], bool]
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
        turn: asyncio.Future[Any] | None = None
        if self._all is not None and peer not in self._own:
            turn = asyncio.ensure_future(self._turn.acquire())
        try:
            if turn is not None:
                await _beat_until(turn, say, beat_s)
            for chunk in chain([first], [] if second is None else [second], chunks):
                while (wait_s := self.wait_s(peer, clock())) > 0.0:
                    await _beat_until(asyncio.ensure_future(asyncio.sleep(wait_s)), say, beat_s)
                if is_over():
                    return
                sending = asyncio.ensure_future(say(chunk))
                try:
                    if turn is not None and not await self._is_quick(sending, len(chunk)):
                        self._turn.release()
                        turn = None
                    await sending
                finally:
                    sending.cancel()
        finally:
            if turn is not None and not turn.cancel():  # it was this message's turn
                self._turn.release()

    async def _is_quick(self, sending: asyncio.Future[None], size: int) -> bool:
        """Wait until a chunk is sent; return False if it takes longer than the rate of all asks for."""
        usual_s = None if self._all is None else self._all.takes_s(size)
        return sending in (await asyncio.wait({sending}, timeout=usual_s))[0]

    def _of(self, peer: int) -> list[SendingRate]:
        return [rate for rate in (self._all, self._own.get(peer)) if rate is not None]


async def _beat_until(done: asyncio.Future[Any], say: Say, beat_s: float) -> None:
    try:
        while not (await asyncio.wait({done}, timeout=beat_s))[0]:
            await say(b"")
    finally:
        done.cancel()
