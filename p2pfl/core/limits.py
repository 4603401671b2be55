"""Limits on what one neighbor may cost: exchanges, engine time, resyncs, and time spent waiting for it.

A neighbor's reputation is its proven faults, which no honest node commits, and the quarantine that follows. Only proven
faults count: sessions are authenticated, and both ends run one federation file. Slowness, silence, lost sessions,
Busy, staleness, a restart with an older state, and a rule's judgement never count: far honest nodes look the same.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log

from p2pfl.core.settings import NEVER, Facts
from p2pfl.limits import (
    ENGINE_SHARE_ALONE,
    ENGINE_SHARE_OF_ALL,
    FIRST_QUARANTINE_S,
    FORGIVEN_S,
    HEARD_MULTIPLE,
    LONGEST_QUARANTINE_S,
    LONGEST_STALL_S,
    LONGEST_WAIT_S,
    MESSAGE_BURST,
    MOST_MISSES,
    OTHERS_PER_S,
    PATIENCE_MULTIPLE,
    QUARANTINE_POINTS,
    RESYNC_HOLD_S,
    RESYNC_WINDOW_S,
    RESYNCS_PER_WINDOW,
    TELLS_PER_S,
    WAIT_BURST_S,
    WAIT_SHARE,
)

FIRST_HEARD_S = 1.0

FIRST_PATIENCE_S = 1.0
PATIENCE_FLOOR_S = 0.02

LEAST_COST_S = 1.0
"""A neighbor that has used less than this of its budget does not set the pace."""
COST_MULTIPLE = 2.0
"""The neighbor that sets the pace has used at least this many times as much as any other."""

ENGINE_WINDOW_S = 20.0
"""The time constant with which past engine work is forgotten: its weight falls by a factor of e in each."""
ENGINE_MULTIPLE = 1.5

FIRST_RESEND_S = 1.0
LAST_RESEND_S = 30.0
RESEND_MARGIN_S = 0.02
"""An answer may always be this much later than usual."""

LAST_REPEAT_S = 16.0


@dataclass(slots=True)
class TokenBucket:
    """A token bucket: `rate_per_s` on average, up to `burst` at once."""

    rate_per_s: float
    tokens: float = MESSAGE_BURST
    filled_at: float | None = None
    burst: float = MESSAGE_BURST

    def take(self, now: float) -> float:
        """Take a token and return 0 if there is one; otherwise return the seconds until the next one."""
        if self.filled_at is not None:
            self.tokens = min(self.burst, self.tokens + (now - self.filled_at) * self.rate_per_s)
        self.filled_at = now
        if self.tokens >= 1.0:
            self.tokens -= 1.0
            return 0.0
        return min(LONGEST_WAIT_S, (1.0 - self.tokens) / self.rate_per_s)


def hearing_bucket(exchanges_per_s: float) -> TokenBucket:
    """Return the limit on a neighbor's messages: twice the most that an honest one sends in any period.

    An honest neighbor sends `TELLS_PER_S` Ready messages, a Request or Reply per exchange, and `OTHERS_PER_S` others:
    it freezes a request once the one before is answered. The bucket fills while this process hangs.
    """
    rate_per_s = HEARD_MULTIPLE * (TELLS_PER_S + exchanges_per_s + OTHERS_PER_S)
    burst = rate_per_s * LONGEST_STALL_S / HEARD_MULTIPLE
    return TokenBucket(rate_per_s, tokens=rate_per_s * FIRST_HEARD_S, burst=burst)


@dataclass(slots=True)
class ResyncLimit:
    """Refuses a neighbor's sessions for a while after too many resyncs of its edge."""

    times: list[float] = field(default_factory=list)
    held_until: float = float("-inf")
    rests: bool = False
    """True if the limit has held the edge since it last let a session in."""

    def count(self, now: float) -> bool:
        """Record one resync; return True if there were too many and the edge must rest."""
        self.times = [*(at for at in self.times if at >= now - RESYNC_WINDOW_S), now]
        if len(self.times) <= RESYNCS_PER_WINDOW:
            return False
        self.times.clear()
        self.held_until = now + RESYNC_HOLD_S
        self.rests = True
        return True

    def refuses(self, now: float) -> bool:
        """Return True if a session that arrives now is turned away."""
        self.rests = now < self.held_until
        return self.rests


@dataclass(slots=True)
class ResendTimer:
    """How long to wait for the answer to a request before sending it again: RFC 6298, with a margin of 20 ms.

    What is measured includes the transfer of both bodies. A request that was sent twice measures nothing, because its
    answer may be to either; the doubled wait stays until one sent once is answered (Karn and Partridge 1987).
    """

    wait_s: float = FIRST_RESEND_S
    smoothed_s: float | None = None
    deviation_s: float = 0.0

    def note(self, took_s: float) -> None:
        """Record how long an answer took."""
        if self.smoothed_s is None:
            self.smoothed_s, self.deviation_s = took_s, took_s / 2
        else:
            self.deviation_s += (abs(self.smoothed_s - took_s) - self.deviation_s) / 4
            self.smoothed_s += (took_s - self.smoothed_s) / 8
        self.wait_s = min(self.smoothed_s + max(RESEND_MARGIN_S, 4 * self.deviation_s), LAST_RESEND_S)

    def back_off(self) -> None:
        self.wait_s = min(2 * self.wait_s, LAST_RESEND_S)


@dataclass(slots=True)
class Repeats:
    """When to repeat what a neighbor may have missed: after `facts.repeat_s`, then twice that, up to 16 s."""

    facts: Facts
    next_at: float = NEVER
    wait_s: float = 0.0

    def restart(self, now: float) -> None:
        """Start over, because something new was sent."""
        self.wait_s = self.facts.repeat_s
        self.next_at = now + self.wait_s

    def due(self, now: float) -> bool:
        if now < self.next_at:
            return False
        self.wait_s = min(2 * self.wait_s, LAST_REPEAT_S)
        self.next_at = now + self.wait_s
        return True


def pace_setter(used_s: Mapping[int, float]) -> int | None:
    """Return the neighbor that has used most of its budget, by now; None if several have used about as much."""
    most_s, most = max(((cost_s, peer) for peer, cost_s in used_s.items()), default=(0.0, None))
    others_s = max((cost_s for peer, cost_s in used_s.items() if peer != most), default=0.0)
    return most if most_s >= max(LEAST_COST_S, COST_MULTIPLE * others_s) else None


@dataclass(slots=True)
class Patience:
    """How long a round waits for an edge: a multiple of its measured exchange time, halved by each consecutive miss.

    Patience alone starts over with each exchange, so a stuttering neighbor could use it up every time. So there is a
    budget, too: how much longer rounds may wait for this neighbor than for others. It fills by `WAIT_SHARE` of time.
    """

    longest_s: float
    exchange_s: float | None = None
    misses: int = 0
    budget_s: float = WAIT_BURST_S
    filled_at: float | None = None

    def wait_s(self) -> float:
        wait_s = FIRST_PATIENCE_S if self.exchange_s is None else _noise_s(self.exchange_s)
        return float(min(wait_s, self.longest_s) * 0.5**self.misses)

    def note_exchange(self, took_s: float | None) -> None:
        """Record a completed exchange, in time or not; `took_s` enters the average if it is known."""
        self.misses = 0
        if took_s is None:
            return
        average_s = took_s if self.exchange_s is None else self.exchange_s
        self.exchange_s = 0.8 * average_s + 0.2 * took_s

    def note_miss(self) -> None:
        self.misses = min(self.misses + 1, MOST_MISSES)

    def afford_s(self, usual_s: float, now: float) -> float:
        """Return how long a round that begins now may wait for this edge; the other edges usually take `usual_s`."""
        left_s = self.left_s(now)
        return _noise_s(usual_s) + left_s if left_s > 0.0 else 0.0

    def left_s(self, now: float) -> float:
        """Return the seconds left in the budget; at zero or less, rounds do not wait for the neighbor."""
        if self.filled_at is None or now <= self.filled_at:
            return self.budget_s
        return min(WAIT_BURST_S, self.budget_s + (now - self.filled_at) * WAIT_SHARE)

    def used_s(self, now: float) -> float:
        return WAIT_BURST_S - self.left_s(now)

    def book_wait(self, alone_s: float, wait_s: float, usual_s: float, now: float) -> None:
        """Charge a wait of `wait_s` to this edge; for `alone_s` of it, all other edges had finished.

        A wait that other edges could have caused is noise and costs nothing: equal nodes would use up their budgets.
        """
        if wait_s > _noise_s(usual_s):
            self.budget_s, self.filled_at = self.left_s(now) - alone_s, now


def _noise_s(usual_s: float) -> float:
    """Return the wait below which a neighbor does not count as slow: exchange times on a busy machine vary as much."""
    return PATIENCE_MULTIPLE * usual_s + PATIENCE_FLOOR_S


class EngineTime:
    """The engine time that each neighbor has recently used, and how long one that exceeded its share must wait.

    `exchanges_per_s` limits the number of exchanges, but one with a large model may take a thousand times as long as
    one with a small model. A neighbor may take a fifth of the time, or 1.5 times the (lower) median of the other live
    edges: where rounds are so short that the engine is always busy, honest neighbors share all of it equally.
    """

    __slots__ = ("_live", "_spent")

    def __init__(self) -> None:
        self._spent: dict[int, tuple[float, float]] = {}
        """Each neighbor's decayed sum of engine time in seconds, and when the sum was last updated."""
        self._live: set[int] = set()

    def begin(self, peer: int) -> None:
        """Record that the edge is open."""
        self._live.add(peer)

    def pause(self, peer: int) -> None:
        """Record that the session has ended; the time spent is not forgotten."""
        self._live.discard(peer)

    def forget(self, peer: int) -> None:
        """Forget a neighbor whose edge is removed."""
        self._live.discard(peer)
        self._spent.pop(peer, None)

    def spend(self, peer: int, cost_s: float, now: float) -> None:
        """Charge `cost_s` seconds of engine work to that neighbor."""
        if cost_s > 0.0:
            self._spent[peer] = self._lately_s(peer, now) + cost_s, now

    def wait_s(self, peer: int, now: float) -> float:
        """Return 0 if the engine may work for that neighbor; otherwise the seconds until it may."""
        if peer not in self._spent:
            return 0.0
        others = sorted(self._lately_s(other, now) for other in self._live if other != peer)
        share = ENGINE_SHARE_OF_ALL if others else ENGINE_SHARE_ALONE
        allowed_s = max(share * ENGINE_WINDOW_S, ENGINE_MULTIPLE * others[(len(others) - 1) // 2] if others else 0.0)
        spent_s = self._lately_s(peer, now)
        return ENGINE_WINDOW_S * log(spent_s / allowed_s) if spent_s > allowed_s else 0.0

    def _lately_s(self, peer: int, now: float) -> float:
        spent_s, at = self._spent.get(peer, (0.0, now))
        return spent_s * exp((at - now) / ENGINE_WINDOW_S)


class UsualTime:
    """The lower median of one figure over the edges, kept in order as single figures change."""

    __slots__ = ("_figures", "_ordered")

    def __init__(self) -> None:
        self._figures: dict[int, float] = {}
        self._ordered: list[float] = []

    def note(self, peer: int, figure_s: float | None) -> None:
        """Set the figure for the edge to `peer`; with None or 0 the edge does not count."""
        before = self._figures.get(peer)
        if figure_s == before:
            return
        if before is not None:
            del self._figures[peer]
            del self._ordered[bisect_left(self._ordered, before)]
        if figure_s:
            self._figures[peer] = figure_s
            insort(self._ordered, figure_s)

    def median_s(self, default_s: float) -> float:
        ordered = self._ordered
        return ordered[(len(ordered) - 1) // 2] if ordered else default_s


PROBATION = 3.0
"""The points that a neighbor still has when it returns from quarantine."""
FORGOTTEN = 1.0
"""If the points are below this, the next quarantine is as short as the first."""


class Fault(enum.StrEnum):
    """The kinds of proven faults."""

    PAYLOAD = "payload"
    """A model is not finite, has the wrong size, or has an absurdly large norm."""
    FACTOR = "factor"
    """A mixing factor is above what both ends can compute."""
    COUNTER = "counter"
    """A counter is larger than any node can reach."""
    AUDIT = "audit"
    """The replicas at the two ends differ: the neighbor computes differently from us, or lies."""
    RESYNC = "resync"
    """The neighbor restarted the edge in mid-session although nothing was refused."""
    FLOOD = "flood"
    """The neighbor sent more messages than any honest node."""
    MALFORMED = "malformed"
    """The neighbor sealed bytes that are not a message."""


POINTS = {Fault.FACTOR: 2.0, Fault.COUNTER: 2.0, Fault.RESYNC: 0.5, Fault.FLOOD: 2.5}
"""The points of faults that have not 1: a machine may fail once or twice, an edge restart by a fault in our models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A reputation as shown to the user.

    `score` is 1 if nothing is proven, 0 in quarantine; `faults` counts by kind since this process started; `probation`
    means that the neighbor is back from quarantine and not yet forgiven.
    """

    score: float
    faults: dict[str, int]
    latest: str
    quarantined_s: float
    probation: bool
    quarantines: int


class Reputation:
    """The reputation of one neighbor. Each quarantine lasts twice as long as the one before, up to an hour."""

    __slots__ = ("_counts", "_noted_at", "_points", "_term_s", "latest", "quarantines", "returned", "until")

    def __init__(self) -> None:
        self.until = float("-inf")
        self.latest = ""
        self.returned = False
        """True if the end of the latest quarantine has been reported."""
        self.quarantines = 0
        self._counts: dict[Fault, int] = {}
        self._points = 0.0
        self._noted_at = 0.0
        self._term_s = FIRST_QUARANTINE_S

    def note(self, fault: Fault, text: str, now: float) -> bool:
        """Count a fault; return True if the neighbor must go into quarantine now."""
        self._counts[fault] = self._counts.get(fault, 0) + 1
        self.latest = text
        points = self.points(now)
        if points < FORGOTTEN:
            self._term_s = FIRST_QUARANTINE_S
        self._points, self._noted_at = points + POINTS.get(fault, 1.0), max(now, self.until)
        if self._points < QUARANTINE_POINTS or self.is_quarantined(now):
            return False
        self.until = now + self._term_s
        self._term_s = min(2 * self._term_s, LONGEST_QUARANTINE_S)
        self._points, self._noted_at = PROBATION, self.until
        self.quarantines += 1
        self.returned = False
        return True

    def points(self, now: float) -> float:
        """Return the points that remain; none are forgiven during quarantine."""
        return max(0.0, self._points - max(0.0, now - self._noted_at) / FORGIVEN_S)

    def is_quarantined(self, now: float) -> bool:
        return now < self.until

    @property
    def is_out(self) -> bool:
        """True if the neighbor is in quarantine or has not been back since; nothing waits for it."""
        return self.quarantines > 0 and not self.returned

    def comes_back(self, now: float) -> bool:
        """End a quarantine whose time is up; return True only the first time."""
        back = self.is_out and not self.is_quarantined(now)
        self.returned = self.returned or back
        return back

    @property
    def reasons(self) -> str:
        """The faults with their counts, such as `payload 4, factor 1`."""
        return ", ".join(f"{kind} {count}" for kind, count in self._faults().items())

    def _faults(self) -> dict[str, int]:
        return {str(fault): self._counts[fault] for fault in Fault if fault in self._counts}

    def view(self, now: float) -> View:
        quarantined, points = self.is_quarantined(now), self.points(now)
        return View(
            score=0.0 if quarantined else max(0.0, 1.0 - points / QUARANTINE_POINTS),
            faults=self._faults(),
            latest=self.latest,
            quarantined_s=max(0.0, self.until - now) if quarantined else 0.0,
            probation=bool(self.quarantines) and not quarantined and points >= FORGOTTEN,
            quarantines=self.quarantines,
        )
