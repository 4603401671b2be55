"""Limits on what a stranger or a neighbor may cost, and on how long anything may take. Seconds and bytes throughout.

`Limits` are for one node. Its connections count bytes where they come (`transport.Tap`), its sessions those of
incomplete messages (`link`) and of what they send (`outbox`).

Bytes say little about the loop's time: an empty ping costs more than a kilobyte of a message. So its CPU time is
measured around all work for a connection that is not a session yet, and charged to the budgets of its address and of
all strangers (`CpuQuota`). A budget may be overdrawn; no newcomer is let in before it has refilled. Addresses of
members have their own budgets, so that a flood from elsewhere keeps no member out. Where the node gets only a share of
a core (`CoreShare`), its CPU time costs more: a second of a fifth of a core lasts five seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import coroutine
from typing import Any, TypeVar

from p2pfl.limits import ADDRESS_SHARE, MOST_GROUPS, NEIGHBOR_BURST_S, QUOTA_BURST_S, STRANGERS_SHARE

EVENT_S = 3e-5
"""The time that the loop and the system take for one event in addition to the measured time."""

LOOK_S = 0.5
"""How often the share of a core that this process gets is measured, while anybody asks."""
LEAST_SHARE = 0.2
"""A smaller share counts as this one: also then a few neighbors may greet at once."""
THREADS = Path("/proc/self/task")

T = TypeVar("T")
K = TypeVar("K")


def latest(table: dict[K, T], key: K, make: Callable[[], T], most: int = MOST_GROUPS) -> T:
    """Return what a table counts for a key, made anew if it is not there; only the `most` latest are remembered."""
    value = table.pop(key, None)
    table[key] = value = make() if value is None else value
    if len(table) > most:
        del table[next(iter(table))]
    return value


def count_threads() -> dict[str, tuple[int, int]]:
    """Return for each thread of this process how long it ran, and how long it was ready and had to wait; nothing where
    the system is not Linux.
    """
    counts = {}
    with suppress(OSError):
        for thread in THREADS.iterdir():
            with suppress(OSError):  # it has ended
                ran, waited, _ = (thread / "schedstat").read_text().split()
                counts[thread.name] = int(ran), int(waited)
    return counts


class CoreShare:
    """The share of a core that this process lately got when it was ready: others, and quotas, take the rest."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        count: Callable[[], dict[str, tuple[int, int]]] = count_threads,
    ) -> None:
        self._clock, self._count = clock, count
        self._looked_at, self._share, self._counts = clock(), 1.0, count()

    def __call__(self) -> float:
        now = self._clock()
        if now >= self._looked_at + LOOK_S:
            self._looked_at, before, self._counts = now, self._counts, self._count()
            gone = [(new, before.get(thread, (0, 0))) for thread, new in self._counts.items()]
            ran, waited = (sum(new[which] - old[which] for new, old in gone) for which in (0, 1))
            self._share = min(1.0, max(LEAST_SHARE, ran / (ran + waited))) if ran + waited > 0 else 1.0
        return self._share


core_share = cache(CoreShare)
"""The share of this process."""


@dataclass(slots=True)
class TimeBudget:
    """A budget of seconds: it fills at `share` of elapsed time, up to `burst_s`. It may be overdrawn."""

    share: float
    burst_s: float
    left_s: float = field(init=False)
    filled_at: float | None = None

    def __post_init__(self) -> None:
        self.left_s = self.burst_s

    def fill(self, now: float) -> float:
        """Fill the budget up to `now`, and return the seconds left."""
        if self.filled_at is not None:
            self.left_s = min(self.burst_s, self.left_s + (now - self.filled_at) * self.share)
        self.filled_at = now
        return self.left_s

    def spend(self, cost_s: float, now: float) -> None:
        """Charge a cost; a negative one is a refund."""
        self.left_s = min(self.burst_s, self.fill(now) - cost_s)

    def wait_s(self, now: float) -> float:
        """Return the seconds until there is something left."""
        return max(0.0, -self.fill(now) / self.share)


class GroupQuotas:
    """The budget of one kind of address as a whole, and one for each group of addresses."""

    def __init__(self, burst_s: float) -> None:
        self.all = TimeBudget(STRANGERS_SHARE, burst_s)
        self._burst_s = burst_s
        self._groups: dict[str, TimeBudget] = {}

    def allow(self, burst_s: float) -> None:
        """Set how much may be spent at once from now on."""
        self._burst_s = burst_s
        for purse in (self.all, *self._groups.values()):
            purse.left_s += burst_s - purse.burst_s
            purse.burst_s = burst_s

    def left_s(self, group: str, now: float) -> float:
        """Return the seconds left for that group: the lower of the two figures."""
        return min(self.all.fill(now), self._budget(group).fill(now))

    def spend(self, group: str, cost_s: float, now: float) -> None:
        self.all.spend(cost_s, now)
        self._budget(group).spend(cost_s, now)

    def _budget(self, group: str) -> TimeBudget:
        return latest(self._groups, group, lambda: TimeBudget(ADDRESS_SHARE, self._burst_s))


class CpuQuota:
    """The budgets of strangers and of members' addresses. `clock` is the time by which they fill."""

    def __init__(self, neighbors: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._strangers, self._known = GroupQuotas(QUOTA_BURST_S), GroupQuotas(QUOTA_BURST_S)
        self._known_groups: dict[str, bool] = {}
        self.expect(neighbors)

    def expect(self, neighbors: int) -> None:
        """Set the number of neighbors."""
        for pot in (self._strangers, self._known):
            pot.allow(QUOTA_BURST_S + NEIGHBOR_BURST_S * neighbors)

    def know(self, group: str) -> None:
        """Record that a member has, or had, that address; the latest `MOST_GROUPS` are remembered."""
        latest(self._known_groups, group, lambda: True)

    def may_enter(self, group: str) -> bool:
        """Return True if a new connection from that group may enter."""
        return self._pot(group).left_s(group, self._clock()) > 0.0

    def may_go_on(self, group: str) -> bool:
        """Return True if a connection that was let in may continue: it is not dropped in favor of later ones."""
        return self._pot(group).left_s(group, self._clock()) > -QUOTA_BURST_S

    def spend(self, group: str, cost_s: float) -> None:
        """Charge a cost; a negative one is a refund, because it was for a member."""
        self._pot(group).spend(group, cost_s, self._clock())

    def _pot(self, group: str) -> GroupQuotas:
        return self._known if group in self._known_groups else self._strangers


class Stopwatch:
    """A context that reports the CPU time of this thread, and the fixed cost of an event, at the price of a core."""

    __slots__ = ("_began", "_tell")

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._tell((time.thread_time() - self._began + EVENT_S) / core_share()())


@coroutine
def measure(work: Coroutine[Any, Any, T], watch: Stopwatch) -> Generator[Any, Any, T]:
    """Do the work, and measure each of its steps from one wait to the next."""
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
