"""When a node may send, as `hours` and `month_gb` in its file say. Times are those of the machine's own clock."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pfl.errors import StorageError
from p2pfl.foreign import UNREADABLE
from p2pfl.storage.disk import replace_file

FILE_NAME = "traffic.json"
GB = 1e9
DAY = timedelta(days=1)
TOTAL = "*"
"""The name under which the bytes with all neighbors together are counted; no node can have it."""
MOST_MONTHS = 12
"""A clock that is wrong counts in other months; this many are kept."""

Months = dict[str, dict[str, Annotated[int, Meta(ge=0)]]]

log = logging.getLogger("p2pfl")


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


def seconds_between(now: datetime, then: datetime) -> float:
    """Return the seconds from `now` to `then` by the machine's clock, whose hours may shift in between."""
    return then.timestamp() - now.timestamp()


class MonthCounts:
    """The bytes of this month by the name of what bounds them, kept in a file of the node's folder.

    A crash forgets a minute at most, and of much traffic five seconds. The counts of other months stay, because a clock
    that is wrong for a while must not make a month begin anew.
    """

    SOON_S, LATER_S = 5.0, 60.0

    def __init__(self, folder: Path, bounds_bytes: Mapping[str, float], now: datetime) -> None:
        self._path, self._bounds = folder / FILE_NAME, bounds_bytes
        self._process: dict[str, int] = {}
        self._written_at, self._unwritten = float("-inf"), 0
        self._months: Months = {}
        self._month = _name(now)
        try:
            self._months = msgspec.json.decode(self._path.read_bytes(), type=Months)
        except FileNotFoundError:
            pass
        except (OSError, *UNREADABLE) as error:
            log.warning("%s cannot be read: the bytes of this month are counted anew: %s", self._path, error)

    def used(self, name: str) -> int:
        return self._months.get(self._month, {}).get(name, 0)

    def add(self, process_bytes: Mapping[str, int], now: datetime, clock_s: float) -> None:
        """Count what this process has sent and received so far, by name, and write it from time to time."""
        self._month = _name(now)
        counts = self._months.setdefault(self._month, {})
        for name in self._bounds:
            grown = max(0, process_bytes.get(name, 0) - self._process.get(name, 0))
            counts[name] = counts.get(name, 0) + grown
            self._unwritten += grown
        self._process = dict(process_bytes)
        is_much = self._unwritten >= min(self._bounds.values()) / 1000
        if self._unwritten and clock_s - self._written_at >= (self.SOON_S if is_much else self.LATER_S):
            self.write(clock_s)

    def write(self, clock_s: float) -> None:
        """Write the counts. A disk that refuses gets them later."""
        for month in [month for month in self._months if month != self._month][: 1 - MOST_MONTHS]:
            del self._months[month]
        try:
            replace_file(self._path, [msgspec.json.encode(self._months)])
        except StorageError:
            return
        self._written_at, self._unwritten = clock_s, 0

    def closed_until(self, name: str, now: datetime) -> datetime | None:
        """Return when the next month begins if this one is used up, else None."""
        return next_month(now) if name in self._bounds and self.used(name) >= self._bounds[name] else None


def _name(now: datetime) -> str:
    return f"{now:%Y-%m}"
