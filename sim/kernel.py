"""Virtual time: actions in the order of (nanoseconds, sequence). Nothing here, or above, reads a clock.

Future actions lie unsorted in slots of equal length; a slot is sorted when its turn comes. One heap of everything would
miss the cache at every step once a run has thousands of nodes.

Time is whole nanoseconds, so sums of times are exact and the same everywhere; seconds are for the core, which knows no
other unit. Code that can compute in nanoseconds does.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable

NS = 1_000_000_000

SLOT_BITS = 17
"""2^17 ns: less than most delays, so that few entries are put into the slot whose turn it is."""

Action = Callable[[], object]
Entry = tuple[int, int, Action]


class Kernel:
    """Runs actions in the order of their virtual times; ties in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._due: list[Entry] = []
        """Sorted actions of the current slot, done and to do; `_place` is the next."""
        self._place = 0
        self._slot = -1
        self._later: dict[int, list[Entry]] = {}
        self._slots: list[int] = []
        """Heap of the keys of `_later`."""
        self._sequence = 0
        self._halted = False

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.now_ns / NS

    @property
    def events(self) -> int:
        """The number of actions run so far, the current one included."""
        return self._sequence - self.pending

    @property
    def pending(self) -> int:
        """The number of actions that are still to come."""
        return len(self._due) - self._place + sum(map(len, self._later.values()))

    @property
    def next_ns(self) -> int:
        """The time of the next action; now, if there is none."""
        if self._place < len(self._due):
            return self._due[self._place][0]
        return min(self._later[self._slots[0]])[0] if self._slots else self.now_ns

    def at_ns(self, time_ns: int, action: Action) -> None:
        """Run `action` at `time_ns`, or now if that has passed."""
        self._sequence += 1
        if time_ns < self.now_ns:  # noqa: PLR1730 - max() is a call, on the hottest path there is
            time_ns = self.now_ns
        slot = time_ns >> SLOT_BITS
        if slot <= self._slot:
            insort(self._due, (time_ns, self._sequence, action))
        elif slot in self._later:
            self._later[slot].append((time_ns, self._sequence, action))
        else:
            self._later[slot] = [(time_ns, self._sequence, action)]
            heapq.heappush(self._slots, slot)

    def at(self, time_s: float, action: Action) -> None:
        """Run `action` at virtual time `time_s`, or now if that has passed.

        When the action runs, the deadline has passed as the core will compare it: `now >= time_s` holds.
        """
        time_ns = int(time_s * NS)
        while time_ns / NS < time_s:
            time_ns += 1
        self.at_ns(time_ns, action)

    def after(self, delay_s: float, action: Action) -> None:
        self.at(self.now_ns / NS + delay_s, action)

    def step(self) -> bool:
        """Run the next action; False if there is none."""
        if self._place == len(self._due) and not self._turn():
            return False
        self.now_ns, _, action = self._due[self._place]
        self._place += 1
        action()
        return True

    def _turn(self, until_ns: float = float("inf")) -> bool:
        """Turn to the next slot, if one begins by then."""
        if not self._slots or self._slots[0] << SLOT_BITS > until_ns:
            return False
        self._slot = heapq.heappop(self._slots)
        self._due, self._place = self._later.pop(self._slot), 0
        self._due.sort()
        return True

    def run(self, until_ns: int, stop: Callable[[], bool] | None = None) -> bool:
        """Run all actions up to and including `until_ns`; True if `stop`, called after every action, or `halt` ended it
        early.

        Afterwards the time is `until_ns`, unless it was ended or nothing more will ever happen: then it is the time of
        the last action.
        """
        self._halted = False
        while self._place < len(self._due) or self._turn(until_ns):
            time_ns, _, action = self._due[self._place]
            if time_ns > until_ns:
                break
            self._place += 1
            self.now_ns = time_ns
            action()
            if self._halted or (stop is not None and stop()):
                return True
        if self.pending:
            self.now_ns = max(self.now_ns, until_ns)
        return False

    def halt(self) -> None:
        """End `run` after the current action."""
        self._halted = True
