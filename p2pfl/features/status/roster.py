"""A node's information about each member: its newest row of vitals, whether it is still there, and how much it sends.

The rows come from `spread`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from p2pfl.config.model import Edges, FederationConfig
from p2pfl.features.status.spread import LEAST_PERIOD_S, OVER, VitalsRow, period_s
from p2pfl.reporting.vitals import Vitals, is_among

Intervals = Mapping[str, tuple[float, float]]
QUIET_PERIODS = 3
QUIET_EXTRA_S = 15.0
"""A member counts as quiet this many seconds after QUIET_PERIODS periods; they allow for network delays."""
QUIET = (*OVER, "paused")
"""The phases in which nothing is expected of a member."""
LEAST_RATED_S = 0.5
"""The minimum time between two rows for computing a rate: delayed rows arrive together, and give no meaningful rate."""


class Roster:
    """The rows of all members.

    `federation` returns the node's current federation, `own` is the node's index. This node's own row is up to date;
    the one that the others have is older if there are many members.
    """

    def __init__(self, federation: Callable[[], FederationConfig], own: int) -> None:
        self.federation, self.own = federation, own
        self.rows: dict[int, VitalsRow] = {}
        """The newest row of each member, by index."""
        self.bytes_per_s: dict[int, float] = {}
        """The rate at which each member sent between its latest two rows."""
        self.intervals: dict[str, tuple[float, float]] = {}
        """The intervals of the scores in the node's own row."""
        self._joined: tuple[Edges, dict[int, list[int]]] = (), {}

    def note(self, row: VitalsRow) -> None:
        """Store a member's new row."""
        member = row.vitals.member
        before, self.rows[member] = self.rows.get(member), row
        if before is not None and row.said_at >= before.said_at + LEAST_RATED_S:
            sent = row.vitals.bytes_sent - before.vitals.bytes_sent
            self.bytes_per_s[member] = max(0.0, sent / (row.said_at - before.said_at))

    def note_own(self, vitals: Vitals, now: float, *, last: bool = False, intervals: Intervals | None = None) -> None:
        """Record this node's own vitals, no more often than members of a small federation send theirs.

        `intervals` are the intervals of its scores, for readers of this node only.
        """
        before = self.rows.get(self.own)
        changed = before is not None and _sessions(before.vitals) != _sessions(vitals)
        if before is None or changed or last or now >= before.said_at + LEAST_PERIOD_S:
            self.note(VitalsRow(vitals=vitals, raw=b"", said_at=now, source=None))
            self.intervals = dict(intervals or {})

    def forget(self, member: int) -> None:
        """Forget a former member."""
        self.rows.pop(member, None)

    def name_of(self, index: int) -> str:
        return self.federation().members[index].name

    def key_of(self, index: int) -> bytes | None:
        """Return a member's public key, or None if no current member has this index."""
        members = self.federation().members
        if index >= len(members) or members[index].retired:
            return None
        return members[index].key

    @property
    def period_s(self) -> float:
        """Return the time between two rows from a member, if nothing notable happens."""
        return period_s(len(self.federation().members))

    @property
    def quiet_after_s(self) -> float:
        return QUIET_PERIODS * self.period_s + QUIET_EXTRA_S

    def is_quiet(self, row: VitalsRow, now: float) -> bool:
        """Return True if a newer row from its member is overdue."""
        return row.source is not None and row.vitals.phase not in QUIET and now - row.said_at > self.quiet_after_s

    def is_lost(self, index: int, now: float) -> bool:
        """Return True if a member has neighbors with valid rows, and none of them hears from it.

        This node is never lost.
        """
        row = self.rows.get(index)
        if index == self.own or row is None or row.vitals.phase in QUIET:
            return False
        told = [self.rows.get(peer) for peer in self._neighbors().get(index, ())]
        words = [one.vitals for one in told if one is not None and self._counts(one, now)]
        return bool(words) and not any(_hears(vitals, index) for vitals in words)

    def is_gone(self, row: VitalsRow, now: float) -> bool:
        """Return True if nothing more is expected from a member: it is quiet, or no neighbor hears from it."""
        return self.is_quiet(row, now) or self.is_lost(row.vitals.member, now)

    def missing(self, now: float) -> int:
        """Return the number of members that have not ended and are currently not heard."""
        return sum(self.is_gone(row, now) for row in self.rows.values())

    def somebody_goes_on(self, now: float) -> bool:
        """Return True if another member that has not ended is heard."""
        return any(
            member != self.own and row.vitals.phase not in OVER and not self.is_gone(row, now)
            for member, row in self.rows.items()
        )

    def _neighbors(self) -> dict[int, list[int]]:
        """Return the neighbors of each member, recomputed when the edges change."""
        edges = self.federation().edges
        if self._joined[0] is not edges:
            found = defaultdict[int, list[int]](list)
            for a, b in edges:
                found[a].append(b)
                found[b].append(a)
            self._joined = edges, dict(found)
        return self._joined[1]

    def _counts(self, row: VitalsRow, now: float) -> bool:
        return row.vitals.phase not in OVER and not self.is_quiet(row, now)


def _sessions(vitals: Vitals) -> tuple[bytes, bytes, str]:
    return vitals.live, vitals.unheard, vitals.phase


def _hears(vitals: Vitals, index: int) -> bool:
    return is_among(index, vitals.live) and not is_among(index, vitals.unheard)
