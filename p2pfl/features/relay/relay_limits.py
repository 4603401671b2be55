"""What one relay may cost a node, whatever it sends: lines that it opens, visits, and frames that belong to no line."""

from __future__ import annotations

import os
from collections import deque
from time import monotonic

from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.features.relay.relay_frames import SILENCE_S
from p2pfl.net.doorway import visit_bucket
from p2pfl.net.limits import Limits

DOUBTS_LAST_S = 300.0
MOST_KEYS = 1024
"""The most members whose doubts and visits are counted: a relay may make up any number of them."""
VISITS_PER_S, VISIT_BURST = 1.0, 32.0
"""The limit on visits through one relay; each may bring a MiB."""
STRAYS_PER_S, STRAY_BURST = 500.0, 8000.0
"""The limit on frames that belong to no line: an honest relay passes on what was under way when a line ended."""


class Doubts:
    """How often lines to each member were lately spoiled or cut at one relay."""

    def __init__(self) -> None:
        self._times: dict[bytes, deque[float]] = {}

    def count(self, key: bytes) -> int:
        found, before = self._times.get(key, deque()), monotonic() - DOUBTS_LAST_S
        while found and found[0] < before:
            found.popleft()
        return len(found)

    def mark(self, key: bytes) -> None:
        """Count one more; of members that a relay makes up, only the latest are remembered."""
        times = self._times.pop(key, None) or deque(maxlen=64)
        self._times[key] = times
        times.append(monotonic())
        if len(self._times) > MOST_KEYS:
            del self._times[next(iter(self._times))]


class RelayLimits:
    """The limits on one relay; times are those of the loop."""

    def __init__(self, limits: Limits) -> None:
        self.doubts = Doubts()
        self._opens = TokenBucket(limits.handshakes_per_s, tokens=limits.handshake_burst, burst=limits.handshake_burst)
        self._strays = TokenBucket(STRAYS_PER_S, tokens=STRAY_BURST, burst=STRAY_BURST)
        self._visits = TokenBucket(VISITS_PER_S, tokens=VISIT_BURST, burst=VISIT_BURST)
        self._visits_of: dict[bytes, TokenBucket] = {}

    def may_open(self, now: float) -> bool:
        """Count a line that others open; return True if there are no more than all members together would open."""
        return self._opens.take(now) == 0.0

    def count_visit(self, key: bytes, now: float) -> None:
        """Raises PeerFault if the charter cannot have so much news."""
        own = self._visits_of.pop(key, None) or visit_bucket()
        self._visits_of[key] = own
        if len(self._visits_of) > MOST_KEYS:
            del self._visits_of[next(iter(self._visits_of))]
        if own.take(now) > 0.0 or self._visits.take(now) > 0.0:
            raise PeerFault("more visits through one relay than the charter can have news for")

    def count_stray(self, now: float) -> None:
        """Count a frame that serves nothing. Raises PeerFault if there are more than an honest relay sends."""
        if self._strays.take(now) > 0.0:
            raise PeerFault("more frames for lines that do not exist than an honest relay sends")


class Pulse:
    """Pings, and the round trip that they measure. Their numbers are random, so nobody can answer one in advance."""

    def __init__(self) -> None:
        self._number: int | None = None
        """The number of the ping that has no answer yet."""
        self._sent_at = 0.0

    def beat(self, now: float) -> int:
        """Return the number of the next ping. Raises TimeoutError if an earlier one has had no answer for long."""
        if self._number is None:
            self._number, self._sent_at = int.from_bytes(os.urandom(8)), now
        elif now - self._sent_at > SILENCE_S:
            raise TimeoutError
        return self._number

    def answer(self, number: int, now: float) -> float | None:
        """Return the round trip in seconds; None if this answers no ping."""
        if number != self._number:
            return None
        self._number = None
        return now - self._sent_at
