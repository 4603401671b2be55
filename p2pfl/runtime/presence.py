"""Which neighbors are there: one line when one is lost or comes back, and an alarm when it stays away.

A session may end and another begin at once, as when it is renewed: who is back within seconds was never lost. Nor is a
neighbor that has finished, or one that is in quarantine, or all of them while the own disk refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from p2pfl.core.core import Core
from p2pfl.core.effects import Alarm

notice = logging.getLogger("p2pfl.notice")

LOST_S = 3.0
ALARM_S = 60.0
"""How long a neighbor is away before that is an alarm."""
FIRST_LINES = 10
LATER_LINES = 100
"""Of a neighbor that comes and goes, the first FIRST_LINES lines are logged, then one in LATER_LINES."""


@dataclass(slots=True)
class Absence:
    """What is known of one neighbor without a session; `since` by the loop's clock."""

    since: float
    reason: str = ""
    told: bool = False
    alarmed: bool = False


class Presence:
    """Told of sessions as they open and end; `look` is called about once a second."""

    def __init__(
        self, core: Core, *, name_of: Callable[[int], str], on_alarm: Callable[[Alarm], None], now: float
    ) -> None:
        self.core = core
        self.name_of = name_of
        self.on_alarm = on_alarm
        self.away = {peer: Absence(now) for peer in core.edges}
        self.known: set[int] = set()
        """Neighbors that have had a session since the start."""
        self._lines = dict.fromkeys(core.edges, 0)

    def opened(self, peer: int, now: float) -> None:
        absence = self.away.pop(peer, None)
        if absence is not None and (absence.told or absence.alarmed):
            what = "back" if peer in self.known else "there"
            self._tell(peer, "neighbor-back (%s): %s after %.0f s", what, now - absence.since)
        self.known.add(peer)

    def ended(self, peer: int, reason: str, now: float) -> None:
        self.away.setdefault(peer, Absence(now, reason))

    def look(self, now: float) -> None:
        for peer, absence in sorted(self.away.items()):
            if self._may_be_away(peer):
                continue
            away_s = now - absence.since
            if peer in self.known and away_s >= LOST_S and not absence.told:
                absence.told = True
                self._tell(peer, "neighbor-away (%s): %s", absence.reason)
            if away_s >= ALARM_S and not absence.alarmed:
                absence.alarmed = True
                since = f"since {absence.reason}" if peer in self.known else "since this node started"
                text = f"no session for {away_s:.0f} s, {since}"
                self.on_alarm(Alarm(kind="neighbor-lost", peer=peer, text=text))

    def _may_be_away(self, peer: int) -> bool:
        edge = self.core.edges[peer]
        return edge.progress.done or edge.line.standing.is_out or self.core.facts.halted

    def _tell(self, peer: int, text: str, *values: object) -> None:
        self._lines[peer] += 1
        if self._lines[peer] <= FIRST_LINES or self._lines[peer] % LATER_LINES == 0:
            notice.info(text, self.name_of(peer), *values)
