"""The time of the event loop that strangers may take, by their address and all together.

Bytes say little about this time: an empty ping costs more than a kilobyte of one message. So the CPU time of the loop's
thread is measured around all work for a connection that is no session yet, and charged to the budget of its address and
to the budget of all strangers. A budget may be overdrawn; no newcomer is let in before it has filled again. Addresses
of members have their own budgets, so that a flood from elsewhere keeps no member out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from types import coroutine
from typing import Any, TypeVar

SHARE_OF_ALL = 0.1
"""The share of the loop's time that all strangers together may take, and those at members' addresses as much again."""
SHARE_OF_ONE = 0.06
"""The share of the loop's time of one address, or of one /64 of IPv6."""
SHARE_OF_ACCEPTING = 0.03
"""The share that may go to connections that are closed as soon as they are accepted."""
BURST_S = 0.1
NEIGHBOR_BURST_S = 0.02
"""The additional burst for each neighbor: all may be behind one address, and start together."""
MOST_GROUPS = 1024
"""The most groups of addresses that have a budget, of strangers and of members each."""
EVENT_S = 3e-5
"""The time that the loop and the system take for one event beside the measured one."""

T = TypeVar("T")


@dataclass(slots=True)
class TimeBudget:
    """A budget of seconds: `share` of the time, at most `burst_s` at once. It may be overdrawn."""

    share: float
    burst_s: float
    left_s: float = field(init=False)
    filled_at: float | None = None

    def __post_init__(self) -> None:
        self.left_s = self.burst_s

    def fill(self, now: float) -> float:
        """Fill the budget up to `now`, and return the seconds that are left."""
        if self.filled_at is not None:
            self.left_s = min(self.burst_s, self.left_s + (now - self.filled_at) * self.share)
        self.filled_at = now
        return self.left_s

    def spend(self, cost_s: float, now: float) -> None:
        """Spend a cost; a negative one is given back."""
        self.left_s = min(self.burst_s, self.fill(now) - cost_s)

    def wait_s(self, now: float) -> float:
        """Return the seconds until there is something left."""
        return max(0.0, -self.fill(now) / self.share)


class Pot:
    """The budget of one kind of address as a whole, and one for each group of addresses."""

    def __init__(self, burst_s: float) -> None:
        self.all = TimeBudget(SHARE_OF_ALL, burst_s)
        self._burst_s = burst_s
        self._groups: dict[str, TimeBudget] = {}

    def allow(self, burst_s: float) -> None:
        """Set how much may be spent at once from now on."""
        self._burst_s = burst_s
        for purse in (self.all, *self._groups.values()):
            purse.left_s += burst_s - purse.burst_s
            purse.burst_s = burst_s

    def left_s(self, group: str, now: float) -> float:
        """Return the seconds that are left for that group: the lower of the two figures."""
        return min(self.all.fill(now), self._purse(group).fill(now))

    def spend(self, group: str, cost_s: float, now: float) -> None:
        self.all.spend(cost_s, now)
        self._purse(group).spend(cost_s, now)

    def _purse(self, group: str) -> TimeBudget:
        purse = self._groups.pop(group, None) or TimeBudget(SHARE_OF_ONE, self._burst_s)
        self._groups[group] = purse
        if len(self._groups) > MOST_GROUPS:
            del self._groups[next(iter(self._groups))]
        return purse


class LoopTime:
    """The budgets of strangers and of members' addresses. `clock` is the time in which they fill."""

    def __init__(self, neighbors: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._strangers, self._known = Pot(BURST_S), Pot(BURST_S)
        self._known_groups: dict[str, None] = {}
        self.expect(neighbors)

    def expect(self, neighbors: int) -> None:
        """Set the number of neighbors."""
        for pot in (self._strangers, self._known):
            pot.allow(BURST_S + NEIGHBOR_BURST_S * neighbors)

    def know(self, group: str) -> None:
        """Note that a member has, or had, that address: the latest `MOST_GROUPS` are remembered."""
        self._known_groups.pop(group, None)
        self._known_groups[group] = None
        if len(self._known_groups) > MOST_GROUPS:
            del self._known_groups[next(iter(self._known_groups))]

    def may_enter(self, group: str) -> bool:
        """Return True if a new connection from that group may enter."""
        return self._pot(group).left_s(group, self._clock()) > 0.0

    def may_go_on(self, group: str) -> bool:
        """Return True if a connection that was let in may go on: it is not dropped for later ones."""
        return self._pot(group).left_s(group, self._clock()) > -BURST_S

    def spend(self, group: str, cost_s: float) -> None:
        """Spend a cost; a negative one is given back, because it was for a member."""
        self._pot(group).spend(group, cost_s, self._clock())

    def _pot(self, group: str) -> Pot:
        return self._known if group in self._known_groups else self._strangers


class Stopwatch:
    """A context that reports the CPU time of this thread, and the fixed cost of an event."""

    __slots__ = ("_began", "_tell")

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._tell(time.thread_time() - self._began + EVENT_S)


@coroutine
def measure(work: Coroutine[Any, Any, T], watch: Stopwatch) -> Generator[Any, Any, T]:
    """Do the work, and measure each of its steps, from one wait to the next."""
    thrown: BaseException | None = None
    try:
        while True:
            try:
                with watch:
                    waits_for = work.send(None) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            try:
                yield waits_for
                thrown = None
            except BaseException as error:  # noqa: BLE001 - it is meant for the work
                thrown = error
    finally:
        del thrown  # it refers to this frame
