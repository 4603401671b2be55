"""Report notable events of other members, based on their rows.

A member joins, finishes or starts over, is no longer heard, or runs different software.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from p2pfl.core.course import Course
from p2pfl.core.limits import TokenBucket
from p2pfl.features.status.spread import OVER, VitalsRow
from p2pfl.learn.metrics import Measure
from p2pfl.node.feed import Feed
from p2pfl.reporting.vitals import Vitals, scores

STARTING_S = 60.0
"""A member that appears within this many seconds counts as present from the start; the time is longer if rows are
rare.
"""
ROUNDS_A_KILL_LOSES = 10
"""A process that is killed may have reported this many rounds that its log does not have yet."""
LINES = 12.0
"""The most events that may be reported in a burst for members other than neighbors; after that, one in five minutes."""
LINES_PER_S = 1 / 300


@dataclass(slots=True, eq=False, kw_only=True)
class MemberNews:
    """Reports about other members. `raise_alarm` takes kind, member and text; `software` and `began_at` belong to this
    node.

    Times are monotonic.
    """

    core: Course
    feed: Feed
    raise_alarm: Callable[[str, int | None, str], None]
    software: str
    began_at: float
    measures: Callable[[], Sequence[Measure]] = tuple
    """The measures of the task, the main one first; empty while they are unknown."""
    quiet: set[int] = field(default_factory=set)
    """The members whose row is overdue."""
    left_out: int = 0
    lines: TokenBucket = field(default_factory=lambda: TokenBucket(LINES_PER_S, tokens=LINES, burst=LINES))

    def hear(self, row: VitalsRow, before: VitalsRow | None, now: float, *, starting_s: float = STARTING_S) -> None:
        """Report a member's new row. Until `starting_s` after the start, members do not count as having joined."""
        member, vitals = row.vitals.member, row.vitals
        if row.source is None:
            return
        if member in self.quiet:
            self.quiet.discard(member)
            self._mention("back", member, f"is back, in round {vitals.rounds}", now)
        if before is None:
            if now - self.began_at > starting_s and vitals.phase not in OVER:
                self._mention("joined", member, f"is seen for the first time, in round {vitals.rounds}", now)
        elif before.vitals.life != vitals.life:
            self._mention("new-life", member, "has started over, without what it had learned", now)
        if vitals.phase in OVER and (before is None or before.vitals.phase != vitals.phase) and now > self.began_at:
            kind = "finished" if vitals.phase == "finished" else "left"
            self._mention(kind, member, f"after round {vitals.rounds}{self._score(vitals)}", now)
        self._compare(member, vitals.software)

    def _score(self, vitals: Vitals) -> str:
        measures = self.measures()
        name, value = next(iter(scores(vitals, measures).items()))
        label = measures[0].label if measures else name
        return "" if value is None else f", {label} {value:.3f}"

    def _compare(self, member: int, software: str) -> None:
        text = f"it runs p2pfl {software}, this node {self.software}"
        if software == self.software:
            self.feed.settle("software-agrees", member)
        elif not self.feed.stands("software-differs", member):
            self.raise_alarm("software-differs", member, text)

    def hear_own(self, signed: Vitals, own: Vitals) -> None:
        """Compare this node's row with one that an earlier process of it has signed and a neighbor still has."""
        if signed.life == own.life and signed.rounds > own.rounds + ROUNDS_A_KILL_LOSES:
            text = f"it has signed a report of round {signed.rounds}, but its state on disk ended at round {own.rounds}"
            if not self.feed.reword("state-behind", None, text):
                self.raise_alarm("state-behind", None, text)

    def forget(self, member: int) -> None:
        """Forget a former member."""
        self.quiet.discard(member)
        self.feed.forget(member)

    def miss(self, member: int, age_s: float, now: float) -> None:
        """Report a member that has been silent for longer than expected."""
        if member not in self.quiet:
            self.quiet.add(member)
            self._mention("not-heard", member, f"its last report is {age_s:.0f} s old", now)

    def _mention(self, kind: str, member: int, text: str, now: float) -> None:
        """Log a line about a member.

        Neighbors have their own lines. If hundreds of members finish together, a few lines are enough.
        """
        if member in self.core.peers and kind in ("back", "joined", "not-heard"):
            return
        if self.lines.take(now) > 0.0:
            self.left_out += 1
            return
        more = f" (and {self.left_out} earlier events of other members)" if self.left_out else ""
        self.left_out = 0
        self.feed.tell(kind, member, text + more)
