"""Virtual time: a heap of (nanoseconds, sequence). Nothing here, or above, reads a clock.

Time is whole nanoseconds, so sums of times are exact and the same everywhere; seconds are for the core, which knows no
other unit. Whoever can compute in nanoseconds does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

NS = 1_000_000_000

Action = Callable[[], object]


class Kernel:
    """Runs actions in the order of their virtual times; ties in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, Action]] = []
        self._sequence = 0
        self._halted = False

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.now_ns / NS

    @property
    def events(self) -> int:
        """How many actions have been run, the one that runs now included."""
        return self._sequence - len(self._heap)

    @property
    def pending(self) -> int:
        """How many actions are still to come."""
        return len(self._heap)

    @property
    def next_ns(self) -> int:
        """When the next action is due; now, if there is none."""
        return self._heap[0][0] if self._heap else self.now_ns

    def at_ns(self, time_ns: int, action: Action) -> None:
        """Run `action` at `time_ns`, or now if that has passed."""
        self._sequence += 1
        if time_ns < self.now_ns:  # noqa: PLR1730 - max() is a call, on the hottest path there is
            time_ns = self.now_ns
        heapq.heappush(self._heap, (time_ns, self._sequence, action))

    def at(self, time_s: float, action: Action) -> None:
        """Run `action` at virtual time `time_s`, or now if that has passed.

        A deadline must have passed, as the core will compare it, when its action runs: `now >= time_s` holds then.
        """
        time_ns = int(time_s * NS)
        while time_ns / NS < time_s:
            time_ns += 1
        self.at_ns(time_ns, action)

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now_ns / NS + delay_s, action)

    def step(self) -> bool:
        """Run the next action; False if there is none."""
        if not self._heap:
            return False
        self.now_ns, _, action = heapq.heappop(self._heap)
        action()
        return True

    def run(self, until_ns: int, stop: Callable[[], bool] | None = None) -> bool:
        """Run what is due up to and including `until_ns`; True if `stop`, asked after every action, or `halt`, called
        by one, ended it before.

        Afterwards it is `until_ns`, unless it was ended or nothing more will ever happen: then it is the time of the
        last action.
        """
        heap, pop = self._heap, heapq.heappop
        self._halted = False
        while heap and heap[0][0] <= until_ns:
            self.now_ns, _, action = pop(heap)
            action()
            if self._halted or (stop is not None and stop()):
                return True
        if heap and self.now_ns < until_ns:
            self.now_ns = until_ns
        return False

    def halt(self) -> None:
        """End `run` after the action under way."""
        self._halted = True
