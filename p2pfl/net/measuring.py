"""Measuring a way to a node by itself, in place of the third message of a handshake: how many bytes a second it takes.

Whoever knows a node's public key may ask; it costs the node at most `MOST_BYTES` to receive, which a stranger could
send anyway, and shows nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

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
MOST_OF_IT = 4.0
"""At least a fourth of the time counts as sending: one round trip says little of the next where the ends are busy."""


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
