"""The standing of a neighbor: its proven faults, which no honest node commits, and the quarantine that follows.

Only proven faults count: sessions are authenticated, and both ends run one federation file. Slowness, silence, lost
sessions, Busy, staleness, a restart with an older state, and a rule's judgement of a model never count: distant honest
nodes, or those with other data, look the same.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

FORGIVEN_S = 300.0
"""The seconds in which one point is forgiven; points fall linearly, so that every machine computes the same."""
ENOUGH = 4.5
"""The points that lead to quarantine: five refused models within two minutes."""
PROBATION = 3.0
"""The points with which a neighbor returns from quarantine."""
FORGOTTEN = 1.0
"""The points below which the next quarantine is as short as the first."""
FIRST_TERM_S = 60.0
LONGEST_TERM_S = 3600.0


class Fault(enum.StrEnum):
    """The kinds of proven faults."""

    PAYLOAD = "payload"
    """A model is not finite, has a wrong size, or is absurdly long."""
    FACTOR = "factor"
    """A mixing factor is above what both ends can compute."""
    COUNTER = "counter"
    """A counter is larger than any node can reach."""
    AUDIT = "audit"
    """The replicas differ at the two ends: the neighbor's arithmetic, or its word, is not ours."""
    RESYNC = "resync"
    """The neighbor began the edge anew in mid-session, although nothing was refused."""
    FLOOD = "flood"
    """The neighbor sent more messages than any honest node."""
    MALFORMED = "malformed"
    """The neighbor sealed bytes that are no message."""


POINTS: Mapping[Fault, float] = {
    Fault.PAYLOAD: 1.0,
    Fault.FACTOR: 2.0,
    Fault.COUNTER: 2.0,
    Fault.AUDIT: 1.0,
    Fault.RESYNC: 0.5,
    Fault.FLOOD: 2.5,
    Fault.MALFORMED: 1.0,
}
"""The points of each fault: a machine may fail once or twice, and an edge may begin anew because of a fault in our
models.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A standing as the user sees it.

    `score` is 1 where nothing is proven, 0 in quarantine; `faults` counts by kind since this process started;
    `probation`: the neighbor is back from a quarantine, and not yet forgiven.
    """

    score: float
    faults: dict[str, int]
    latest: str
    quarantined_s: float
    probation: bool
    quarantines: int


class Standing:
    """The standing of one neighbor. Each quarantine lasts twice as long as the one before, up to an hour."""

    __slots__ = ("_counts", "_noted_at", "_points", "_term_s", "latest", "quarantines", "returned", "until")

    def __init__(self) -> None:
        self.until = float("-inf")
        self.latest = ""
        self.returned = False
        """True if the end of the latest quarantine has been reported."""
        self.quarantines = 0
        self._counts: dict[Fault, int] = {}
        self._points = 0.0
        self._noted_at = 0.0
        self._term_s = FIRST_TERM_S

    def note(self, fault: Fault, text: str, now: float) -> bool:
        """Count a fault; return True if the neighbor must go into quarantine now."""
        self._counts[fault] = self._counts.get(fault, 0) + 1
        self.latest = text
        points = self.points(now)
        if points < FORGOTTEN:
            self._term_s = FIRST_TERM_S
        self._points, self._noted_at = points + POINTS[fault], max(now, self.until)
        if self._points < ENOUGH or self.is_quarantined(now):
            return False
        self.until = now + self._term_s
        self._term_s = min(2 * self._term_s, LONGEST_TERM_S)
        self._points, self._noted_at = PROBATION, self.until
        self.quarantines += 1
        self.returned = False
        return True

    def points(self, now: float) -> float:
        """Return the points that are left; nothing is forgiven in quarantine."""
        return max(0.0, self._points - max(0.0, now - self._noted_at) / FORGIVEN_S)

    def is_quarantined(self, now: float) -> bool:
        return now < self.until

    @property
    def is_out(self) -> bool:
        """True if the neighbor is in quarantine or has not come back since: no wait includes it."""
        return self.quarantines > 0 and not self.returned

    def comes_back(self, now: float) -> bool:
        """End a quarantine whose time is over; return True only the first time."""
        back = self.is_out and not self.is_quarantined(now)
        self.returned = self.returned or back
        return back

    @property
    def reasons(self) -> str:
        """The faults with their counts, such as `payload 4, factor 1`."""
        return ", ".join(f"{kind} {count}" for kind, count in self._faults().items())

    def _faults(self) -> dict[str, int]:
        return {str(fault): self._counts[fault] for fault in Fault if fault in self._counts}

    def view(self, now: float) -> View:
        quarantined, points = self.is_quarantined(now), self.points(now)
        return View(
            score=0.0 if quarantined else max(0.0, 1.0 - points / ENOUGH),
            faults=self._faults(),
            latest=self.latest,
            quarantined_s=max(0.0, self.until - now) if quarantined else 0.0,
            probation=bool(self.quarantines) and not quarantined and points >= FORGOTTEN,
            quarantines=self.quarantines,
        )
