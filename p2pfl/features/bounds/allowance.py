"""When a node may send, as `hours` and `month_gb` in its file say. Times are those of the machine's own clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path

FILE_NAME = "traffic.json"
GB = 1e9
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours from `start` to `end` every day, over midnight if the end is earlier."""

    start: time
    end: time

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Parse `HH:MM-HH:MM`."""
        start, end = (time.fromisoformat(part) for part in text.split("-"))
        return cls(start, end)

    def closed_until(self, now: datetime) -> datetime | None:
        """Return when they begin again; None within them."""
        clock = now.time()
        within = self.start <= clock < self.end
        if self.end < self.start:
            within = clock >= self.start or clock < self.end
        if within:
            return None
        begin = datetime.combine(now.date(), self.start)
        return begin if begin > now else begin + DAY


def next_month(now: datetime) -> datetime:
    """Return the first moment of the next month."""
    return datetime.combine((now.replace(day=28) + 4 * DAY).replace(day=1).date(), time())


class MonthCount:
    """The bytes of this month, kept in a file of the node's folder. A crash forgets a minute or 0.1% of the bound."""

    LATER_S = 60.0

    def __init__(self, folder: Path, bound_bytes: float, now: datetime) -> None:
        self._path, self._bound = folder / FILE_NAME, bound_bytes
        self._process_bytes = 0
        self._written_at, self._written = float("-inf"), -1
        self.month, self.used = _name(now), 0
        try:
            kept = json.loads(self._path.read_text(encoding="ascii"))
            if kept["month"] == self.month:
                self.used = int(kept["bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            pass

    def add(self, process_bytes: int, now: datetime, clock_s: float) -> None:
        """Count what this process has sent and received so far, and write it from time to time."""
        if _name(now) != self.month:
            self.month, self.used = _name(now), 0
        self.used += max(0, process_bytes - self._process_bytes)
        self._process_bytes = process_bytes
        grown = self.used - self._written
        if grown >= self._bound / 1000 or (grown and clock_s - self._written_at >= self.LATER_S):
            self.write(clock_s)

    def write(self, clock_s: float) -> None:
        """Write the count. A disk that refuses gets it later."""
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps({"month": self.month, "bytes": self.used}), encoding="ascii")
            new.replace(self._path)
        except OSError:
            return
        self._written_at, self._written = clock_s, self.used

    def closed_until(self, now: datetime) -> datetime | None:
        """Return when the next month begins if this one is used up, else None."""
        return next_month(now) if self.used >= self._bound else None


def _name(now: datetime) -> str:
    return f"{now:%Y-%m}"
