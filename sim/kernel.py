"""Virtual time: a heap of (nanoseconds, sequence). Nothing here, or above, reads a clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable

NS = 1_000_000_000


class Kernel:
    """Runs actions in the order of their virtual times; ties in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.now_ns / NS

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Run `action` at virtual time `time_s`, or now if that has passed."""
        self._sequence += 1
        time_ns = max(self.now_ns, int(time_s * NS))
        if time_ns / NS < time_s:
            # A deadline must have passed, as the core will compare it, when its action runs.
            time_ns += 1
        heapq.heappush(self._heap, (time_ns, self._sequence, action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay_s, action)

    def step(self) -> bool:
        """Run the next action; False if there is none."""
        if not self._heap:
            return False
        self.now_ns, _, action = heapq.heappop(self._heap)
        self.events += 1
        action()
        return True
