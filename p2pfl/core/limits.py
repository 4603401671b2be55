"""Limits on what one neighbor may cost: its exchanges, its part of the engine's time, its resyncs, and waits for it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp, log

from p2pfl.core.facts import NEVER

BURST = 32.0
LONGEST_WAIT_S = 60.0
TELLS_PER_S = 500.0
"""The most versions per second, on average, that a node sends a neighbor: a later version makes up for one left out."""
OTHERS_PER_S = 50.0
"""The most other messages per second: repeats come once a second, and 20 Busy a second each cause one more."""
HEARD_MULTIPLE = 2.0
LONGEST_STALL_S = 45.0
"""The seconds for which a process may hang and still accept all messages sent meanwhile; then its sessions end."""
FIRST_HEARD_S = 1.0
RESYNC_WINDOW_S = 60.0
RESYNCS_PER_WINDOW = 5
HOLD_S = 30.0

FIRST_PATIENCE_S = 1.0
PATIENCE_FLOOR_S = 0.02
PATIENCE_MULTIPLE = 4.0
MOST_MISSES = 10

WAIT_SHARE = 0.05
"""The share of the time that rounds may wait for one neighbor that is much slower than the others."""
WAIT_BURST_S = 3.0
"""The seconds that such a neighbor may cost at once, at the start or after a minute without: no minute costs more than
six.
"""
MINUTE_S = 60.0
SLOT_S = 5.0
LEAST_COST_S = 1.0
"""A neighbor that costs less than this in a minute does not set the pace."""
COST_MULTIPLE = 2.0
"""The neighbor that sets the pace costs at least this many times as much as any other."""

ENGINE_WINDOW_S = 20.0
"""The time over which the engine's past work is forgotten: after each such time it counts by 1/e less."""
ENGINE_SHARE_OF_ALL = 0.2
"""The share of the engine's time that one neighbor may take whatever the others do."""
ENGINE_SHARE_ALONE = 0.75
"""The share of the engine's time that a neighbor may take if it is the only one."""
ENGINE_MULTIPLE = 1.5

FIRST_REPEAT_S = 1.0
LAST_REPEAT_S = 16.0


@dataclass(slots=True)
class TokenBucket:
    """A token bucket: `rate_per_s` on average, at most `burst` at once."""

    rate_per_s: float
    tokens: float = BURST
    filled_at: float | None = None
    burst: float = BURST

    def take(self, now: float) -> float:
        """Take a token and return 0 if there is one, else return the seconds until the next one."""
        if self.filled_at is not None:
            self.tokens = min(self.burst, self.tokens + (now - self.filled_at) * self.rate_per_s)
        self.filled_at = now
        if self.tokens >= 1.0:
            self.tokens -= 1.0
            return 0.0
        return min(LONGEST_WAIT_S, (1.0 - self.tokens) / self.rate_per_s)


def hearing_bucket(exchanges_per_s: float) -> TokenBucket:
    """Return the limit on a neighbor's messages: twice what an honest one sends at most, in any stretch of time.

    An honest neighbor sends `TELLS_PER_S` of Ready, one Request or Reply per exchange, and `OTHERS_PER_S`: it freezes a
    request once the one before is answered, and repeats it by the clock. The bucket fills while this process hangs.
    """
    rate_per_s = HEARD_MULTIPLE * (TELLS_PER_S + exchanges_per_s + OTHERS_PER_S)
    burst = rate_per_s * LONGEST_STALL_S / HEARD_MULTIPLE
    return TokenBucket(rate_per_s, tokens=rate_per_s * FIRST_HEARD_S, burst=burst)


@dataclass(slots=True)
class ResyncBrake:
    """Refuses a neighbor's sessions for a while after too many resyncs of its edge."""

    times: list[float] = field(default_factory=list)
    held_until: float = float("-inf")
    rests: bool = False
    """True if the brake has held the edge since it last let a session in."""

    def count(self, now: float) -> bool:
        """Record one resync; return True if there were too many and the edge must rest."""
        self.times = [*(at for at in self.times if at >= now - RESYNC_WINDOW_S), now]
        if len(self.times) <= RESYNCS_PER_WINDOW:
            return False
        self.times.clear()
        self.held_until = now + HOLD_S
        self.rests = True
        return True

    def refuses(self, now: float) -> bool:
        """Return True if a session that comes now is turned away."""
        self.rests = now < self.held_until
        return self.rests


@dataclass(slots=True)
class Repeats:
    """The times at which to repeat what a neighbor may have missed: after 1, 2, 4 ... 16 s."""

    next_at: float = NEVER
    wait_s: float = FIRST_REPEAT_S

    def restart(self, now: float) -> None:
        """Begin anew, because something new was sent."""
        self.wait_s = FIRST_REPEAT_S
        self.next_at = now + FIRST_REPEAT_S

    def due(self, now: float) -> bool:
        if now < self.next_at:
            return False
        self.wait_s = min(2 * self.wait_s, LAST_REPEAT_S)
        self.next_at = now + self.wait_s
        return True


@dataclass(slots=True)
class WaitBudget:
    """The seconds that rounds may still wait for one neighbor beyond the others.

    The budget fills by `WAIT_SHARE` of the time. Patience alone begins anew with each exchange, so a neighbor that
    stutters could use it up every time.
    """

    seconds: float = WAIT_BURST_S
    filled_at: float | None = None

    def left_s(self, now: float) -> float:
        """Return the seconds left; with zero or less, rounds do not wait for the neighbor."""
        if self.filled_at is None or now <= self.filled_at:
            return self.seconds
        return min(WAIT_BURST_S, self.seconds + (now - self.filled_at) * WAIT_SHARE)

    def spend(self, waited_s: float, now: float) -> None:
        self.seconds = self.left_s(now) - waited_s
        self.filled_at = now


@dataclass(slots=True)
class WaitedLately:
    """The time that rounds have waited for one neighbor in the last minute, kept in slots of five seconds."""

    slots: dict[int, float] = field(default_factory=dict)

    def add(self, waited_s: float, now: float) -> None:
        slot = int(now // SLOT_S)
        if slot not in self.slots:
            self.slots = {at: sum_s for at, sum_s in self.slots.items() if self._counts(at, now)}
        self.slots[slot] = self.slots.get(slot, 0.0) + waited_s

    def total_s(self, now: float) -> float:
        return sum(sum_s for at, sum_s in self.slots.items() if self._counts(at, now))

    @staticmethod
    def _counts(slot: int, now: float) -> bool:
        return slot * SLOT_S > now - MINUTE_S


def pace_setter(waited_s: Mapping[int, float]) -> int | None:
    """Return the neighbor that cost rounds most waiting time in the last minute; None if several cost the same."""
    most = max(waited_s, key=lambda peer: waited_s[peer], default=None)
    if most is None or waited_s[most] < LEAST_COST_S:
        return None
    others_s = max((cost_s for peer, cost_s in waited_s.items() if peer != most), default=0.0)
    return most if waited_s[most] >= COST_MULTIPLE * others_s else None


@dataclass(slots=True)
class Patience:
    """The time a round waits for an edge: a multiple of its measured exchange time, halved by each miss in a row."""

    longest_s: float
    exchange_s: float | None = None
    misses: int = 0
    budget: WaitBudget = field(default_factory=WaitBudget)
    waited: WaitedLately = field(default_factory=WaitedLately)

    def wait_s(self) -> float:
        base = FIRST_PATIENCE_S
        if self.exchange_s is not None:
            base = PATIENCE_MULTIPLE * self.exchange_s + PATIENCE_FLOOR_S
        base = min(base, self.longest_s)
        return float(base * 0.5**self.misses) if self.misses else base

    def note_exchange(self, took_s: float | None) -> None:
        """Note a completed exchange, in time or not; `took_s` enters the average if it is known."""
        self.misses = 0
        if took_s is None:
            return
        average_s = took_s if self.exchange_s is None else self.exchange_s
        self.exchange_s = 0.8 * average_s + 0.2 * took_s

    def note_miss(self) -> None:
        self.misses = min(self.misses + 1, MOST_MISSES)

    def afford_s(self, usual_s: float, now: float) -> float:
        """Return the seconds that a tick that begins now may wait for this edge; the other edges usually take
        `usual_s`.
        """
        left_s = self.budget.left_s(now)
        return _noise_s(usual_s) + left_s if left_s > 0.0 else 0.0

    def book_wait(self, alone_s: float, wait_s: float, usual_s: float, now: float) -> None:
        """Book a wait of `wait_s` for this edge; for `alone_s` of it all other edges were done.

        A wait that the other edges might have caused as well is noise and costs nothing: otherwise equal nodes would
        use up their budgets.
        """
        self.waited.add(alone_s, now)
        if wait_s > _noise_s(usual_s):
            self.budget.spend(alone_s, now)


def _noise_s(usual_s: float) -> float:
    """Return the wait up to which a neighbor does not count as slow: exchange times on a busy machine vary as much."""
    return PATIENCE_MULTIPLE * usual_s + PATIENCE_FLOOR_S


class EngineTime:
    """The engine's time that each neighbor has lately cost, and how long a neighbor that exceeded its part must wait.

    `exchanges_per_s` limits the number of exchanges, but one of a large model may take a thousand times as long as one
    of a small model. A neighbor may take a fifth of the time, or 1.5 times the (lower) median of the other live edges:
    where rounds are so short that the engine is always at work, honest neighbors take equal parts of all of it.
    """

    __slots__ = ("_live", "_spent")

    def __init__(self) -> None:
        self._spent: dict[int, tuple[float, float]] = {}
        """The seconds of engine time of each neighbor, past time weighing less, and the time at which the sum was
        taken.
        """
        self._live: set[int] = set()

    def begin(self, peer: int) -> None:
        """Note that the edge is open."""
        self._live.add(peer)

    def pause(self, peer: int) -> None:
        """Note that the session has ended; the time spent is not forgotten."""
        self._live.discard(peer)

    def spend(self, peer: int, cost_s: float, now: float) -> None:
        """Book `cost_s` seconds of the engine's work on an exchange with that neighbor."""
        if cost_s > 0.0:
            self._spent[peer] = self._lately_s(peer, now) + cost_s, now

    def wait_s(self, peer: int, now: float) -> float:
        """Return 0 if the engine may work for that neighbor, else the seconds until it may."""
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
    """The lower median of one figure of each edge, kept in order while single figures change."""

    __slots__ = ("_figures", "_ordered")

    def __init__(self) -> None:
        self._figures: dict[int, float] = {}
        self._ordered: list[float] = []

    def note(self, peer: int, figure_s: float | None) -> None:
        """Set the figure of the edge to `peer`; None or 0: the edge does not count."""
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
