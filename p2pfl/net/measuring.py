"""Measuring a way to a node: what the exchanges of a session take; without one, how many bytes a second it takes.

Only the first proves something, because the peer has sealed what comes back: a relay can answer fast, open lines fast,
and hold back bodies. The second is sent in place of the third message of a handshake. Whoever knows a node's public key
may ask; it costs the node at most `MOST_BYTES` to receive, which a stranger could send anyway, and shows nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from statistics import median

from p2pfl.errors import PeerFault
from p2pfl.net.line import GoneError, Line

MEASURE = b"p2pfl-measure-1\n"
"""What such a message begins with; a third message is sealed, and does not."""
SIZES = (0, 4 * 1024, 32 * 1024, 192 * 1024)
"""The bytes sent in turn, each once the one before has been acknowledged; the first shows the round trip alone."""
MOST_BYTES = 256 * 1024
LONGEST_S = 1.0
"""A message is not sent if it would take longer than this at the rate of the one before."""
PATIENCE_S = 4.0
SLOT_S = 3.0
"""One exchange in so many seconds is a sample of how long exchanges take; a longer one is several."""
MOST_SAMPLES, LEAST_SAMPLES = 30, 3
"""The samples that count: those of about the last minute and a half. What holds for half of that time decides."""
MOST_OF_IT = 4.0
"""At least a fourth of the time counts as sending: one round trip says little of the next where the ends are busy."""


class ExchangeTimes:
    """How long the exchanges of one session take, from the beginning of a request to the end of its reply. Times are
    the loop's, in seconds.
    """

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=MOST_SAMPLES)
        self._digest = b""
        """The digest of the request that has no reply yet; empty if there is none."""
        self._begun_at = 0.0
        self._next_at = float("-inf")

    def begin(self, digest: bytes, now: float) -> None:
        """Record that a request is sent; a repeated one began when it was sent first."""
        if digest != self._digest:
            self._digest, self._begun_at = digest, now

    def end(self, digest: bytes, now: float) -> None:
        """Record the reply to the request with that digest."""
        if digest and digest == self._digest:
            if now >= self._next_at:
                self._samples.extend([now - self._begun_at, *self._slots(now)])
                self._next_at = now + SLOT_S
            self._digest = b""

    def typical_s(self, now: float) -> float | None:
        """Return the median, which counts the exchange under way, too; None while too little is known."""
        samples = [*self._samples, *(self._slots(now) if self._digest else ())][-MOST_SAMPLES:]
        return median(samples) if len(samples) >= LEAST_SAMPLES else None

    def _slots(self, now: float) -> list[float]:
        """Return the time of the exchange under way, once for each slot that it has taken."""
        took_s = now - self._begun_at
        return [took_s] * min(MOST_SAMPLES, int(took_s / SLOT_S))


async def measure(line: Line) -> float | None:
    """Return the bytes per second that reach the other end, or fewer where that takes no longer than a round trip.

    None if the other end does not say, as the version before.
    """
    rate: float | None = None
    with suppress(GoneError, TimeoutError, PeerFault):
        async with asyncio.timeout(PATIENCE_S):
            trip_s = await _send(line, SIZES[0])
            for size in SIZES[1:]:
                if rate is not None and size / rate > LONGEST_S:
                    break
                took_s = await _send(line, size)
                rate = size / max(took_s - trip_s, took_s / MOST_OF_IT)
    return rate


async def _send(line: Line, size: int) -> float:
    """Send so many bytes; return how long it took until they were acknowledged."""
    began = time.monotonic()
    message = MEASURE + bytes(size)
    await line.send(message)
    if await line.receive() != _receipt(message):
        raise PeerFault("no receipt for what was sent to measure")
    return time.monotonic() - began


async def answer_measures(line: Line) -> bytes:
    """Acknowledge what only measures the way; return the first other message. Raises PeerFault: it is too much."""
    came = 0
    while (said := await line.receive()).startswith(MEASURE):
        came += len(said)
        if came > MOST_BYTES:
            raise PeerFault("more bytes than it takes to measure the way")
        await line.send(_receipt(said))
    return said


def _receipt(message: bytes) -> bytes:
    return MEASURE + len(message).to_bytes(8, "little")
