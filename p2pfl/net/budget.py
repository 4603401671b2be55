"""Bounds on messages under way: memory they hold together, and the rate each must keep."""

from __future__ import annotations

from p2pfl.errors import PeerFault


class ByteBudget:
    """Bytes of partly received messages, all sessions together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.used = 0

    def change(self, held: int, wanted: int) -> int:
        """Replace a session's `held` bytes by `wanted` and return these; PeerFault where there is no room."""
        if wanted > held and self.used - held + wanted > self._limit:
            raise PeerFault(f"{wanted} bytes under way are over what is left of {self._limit}")
        self.used += wanted - held
        return wanted


class Pace:
    """A message under way must bring `min_rate * window_s` bytes in every window."""

    def __init__(self, min_rate: float, window_s: float) -> None:
        self._least = min_rate * window_s
        self._window_s = window_s
        self._brought = 0
        self.deadline: float | None = None
        """when the window ends; None while no message is under way."""

    def note(self, now: float, size: int, *, under_way: bool) -> None:
        if not under_way:
            self.deadline = None
        elif self.deadline is None:
            self._open(now)
        else:
            self._brought += size
            if self._brought >= self._least:
                self._open(now)

    def _open(self, now: float) -> None:
        self.deadline = now + self._window_s
        self._brought = 0
