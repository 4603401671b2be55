"""How long to wait, from how long things have taken: nobody types a time-out."""

from __future__ import annotations

from collections import deque

from p2pfl.features.sums.masks import WORD_BYTES

FIRST_S = 4.0
"""The guess before anything was measured."""
LEAST_S, MOST_S, MOST_BACKOFF = 0.5, 30.0, 4.0
TIMES = 4.0
SLOW_BYTES_PER_S = 500_000
"""A vector is given the time in which so slow a line moves one for each member. Set-ups are small: by the time of their
bytes a large vector would be waited for for hours.
"""


class SumPatience:
    """Measures whole stages of the protocol that nobody was late for, in seconds."""

    def __init__(self, first_s: float = FIRST_S) -> None:
        self._first_s = first_s
        self._stages: deque[float] = deque(maxlen=8)
        self._backoff = 1.0

    @property
    def wait_s(self) -> float:
        """Four times the slowest of the latest stages; twice as long after each failure in a row."""
        wait = TIMES * max(self._stages) if self._stages else self._first_s
        return min(max(wait, LEAST_S) * self._backoff, MOST_S)

    def wait_for_s(self, entries: int, members: int, sums: int) -> float:
        """The wait of a sum: that of a set-up, and as much again for as many bytes as a set-up moves; or the time on a
        slow line, if that is less.
        """
        times = entries * WORD_BYTES / (members * (100 + (48 + 64) * sums))
        return self.wait_s + min(self.wait_s * times, _slowly_s(entries, members))

    def more_beats(self, entries: int, members: int) -> int:
        """How many beats vectors may be on their way."""
        return int(_slowly_s(entries, members) / self.beat_s)

    @property
    def beat_s(self) -> float:
        """How often to look whether something was lost."""
        return self.wait_s / 8

    def took(self, stage_s: float) -> None:
        """A stage has come to its end. One that somebody was waited for, in vain, measures the waiting: left out."""
        if stage_s < self.wait_s:
            self._stages.append(stage_s)
            self._backoff = 1.0

    def failed(self) -> None:
        self._backoff = min(self._backoff * 2, MOST_BACKOFF)


def _slowly_s(entries: int, members: int) -> float:
    return members * entries * WORD_BYTES / SLOW_BYTES_PER_S
