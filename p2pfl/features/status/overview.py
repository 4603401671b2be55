"""What readers get of a federation: all that one node knows of it, what has changed since they were told, the past.

Rows are those that members have said of themselves (`net/spread.py`). A step is what all open pages are told once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from p2pfl.config.model import Edges, FederationConfig, Member
from p2pfl.features.status.curves import FIGURES, Curves
from p2pfl.features.status.spread import LEAST_PERIOD_S, OVER, VitalsRow, period_s
from p2pfl.learn.metrics import Measure
from p2pfl.node.feed import Feed
from p2pfl.reporting.overview import FederationStatus, FederationStep, MemberRow
from p2pfl.reporting.status import PrivacyStatus
from p2pfl.reporting.vitals import Vitals, is_among, members_of, scores, word
from p2pfl.software import software

Intervals = Mapping[str, tuple[float, float]]
QUIET_PERIODS = 3
QUIET_EXTRA_S = 15.0
"""A member is quiet after so many periods, and this for the way."""
LEAST_RATED_S = 0.5
"""Rows that were held up come together: how much was sent between them says nothing of a second."""


class Overview:
    """`federation` gives the one that the node holds now, `rows` are the latest of each member, by index.

    `measures` are those of the node's own task, the main one first; empty while they are not known. The own row is not
    the one that the others have: with many members that is old.
    """

    def __init__(
        self,
        *,
        federation: Callable[[], FederationConfig],
        own: int,
        rows: Mapping[int, VitalsRow],
        feed: Feed,
        measures: Callable[[], Sequence[Measure]],
        privacy: Callable[[], PrivacyStatus | None] = lambda: None,
    ) -> None:
        self.federation, self.own, self.rows, self.feed, self.measures = federation, own, rows, feed, measures
        self.privacy = privacy
        self.curves = Curves()
        self._rates: dict[int, float] = {}
        self._shown: dict[int, tuple[object, MemberRow]] = {}
        """Of each member its latest row for readers, and what that was made of."""
        self._own: VitalsRow | None = None
        self._intervals: dict[str, tuple[float, float]] = {}
        self._told: dict[int, MemberRow] = {}
        """The rows of the latest step."""
        self._shape: object = None
        """Members, edges, rounds and measures as of the latest step."""
        self._point: dict[str, list[float | None]] | None = None
        self._joined: tuple[Edges, dict[int, list[int]]] = (), {}
        self._number = self._events_shown = 0
        self._alarms_shown = -1

    def note_row(self, row: VitalsRow, before: VitalsRow | None) -> None:
        """How much a member has sent since its row before."""
        if before is not None and row.said_at >= before.said_at + LEAST_RATED_S:
            sent = row.vitals.bytes_sent - before.vitals.bytes_sent
            self._rates[row.vitals.member] = max(0.0, sent / (row.said_at - before.said_at))

    def note_own(self, vitals: Vitals, now: float, *, last: bool = False, intervals: Intervals | None = None) -> None:
        """How this node is now; no more often than members of a small federation tell of themselves. `intervals` are
        those of its scores, for readers of this node only.
        """
        changed = self._own is not None and _sessions(self._own.vitals) != _sessions(vitals)
        if self._own is None or changed or last or now >= self._own.said_at + LEAST_PERIOD_S:
            before, self._own = self._own, VitalsRow(vitals=vitals, raw=b"", said_at=now, source=None)
            self._intervals = dict(intervals or {})
            self.note_row(self._own, before)

    def keep_point(self, now: float) -> None:
        """One more point of the curves, if it is time for one. Of a quiet member nothing is known any more."""
        if self.curves.is_due(now):
            rows = [self._row(member, now) for member in self.federation().members]
            told = [{} if row.quiet or row.lost else {name: getattr(row, name) for name in FIGURES} for row in rows]
            self._point = self.curves.add(now, told)

    @property
    def quiet_after_s(self) -> float:
        return QUIET_PERIODS * period_s(len(self.federation().members)) + QUIET_EXTRA_S

    def is_quiet(self, row: VitalsRow, now: float) -> bool:
        return row.source is not None and row.vitals.phase not in OVER and now - row.said_at > self.quiet_after_s

    def _is_lost(self, index: int, now: float) -> bool:
        """Whether a member has neighbors whose word counts, and none of them hears it. The own node is never lost."""
        row = self.rows.get(index)
        if index == self.own or row is None or row.vitals.phase in OVER:
            return False
        told = [self._own if peer == self.own else self.rows.get(peer) for peer in self._neighbors().get(index, ())]
        words = [one.vitals for one in told if one is not None and self._counts(one, now)]
        return bool(words) and not any(_hears(vitals, index) for vitals in words)

    def _neighbors(self) -> dict[int, list[int]]:
        """Of each member, made anew when the edges change."""
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

    def is_gone(self, row: VitalsRow, now: float) -> bool:
        """Whether nothing more is to be expected of a member: it is quiet, or no neighbor hears it."""
        return self.is_quiet(row, now) or self._is_lost(row.vitals.member, now)

    def missing(self, now: float) -> int:
        """How many members that have not ended are not heard of now."""
        return sum(self.is_gone(row, now) for row in self.rows.values())

    def _row(self, member: Member, now: float) -> MemberRow:
        """The same object for as long as nothing has changed."""
        row = self._own if member.index == self.own else self.rows.get(member.index)
        quiet = row is not None and self.is_quiet(row, now)
        made_of = (member, row, quiet, self._is_lost(member.index, now), *self.measures())
        shown = self._shown.get(member.index)
        if shown is None or shown[0] != made_of:
            shown = self._shown[member.index] = made_of, self._made(member, row, now)
        return shown[1]

    def _made(self, member: Member, row: VitalsRow | None, now: float) -> MemberRow:
        if row is None:
            return MemberRow(index=member.index, name=member.name)
        said = msgspec.structs.asdict(row.vitals)
        for name in ("member", "counter", "live", "unheard", "standing", "metrics", "budget", "begun", "paid"):
            del said[name]
        found = scores(row.vitals, self.measures())
        rate, source = self._rates.get(member.index), row.source
        return MemberRow(
            index=member.index,
            name=member.name,
            at=round(row.said_at, 1),
            source=None if source is None or source == member.index else self._name_of(source),
            quiet=self.is_quiet(row, now),
            lost=self._is_lost(member.index, now),
            live=members_of(row.vitals.live),
            unheard=members_of(row.vitals.unheard),
            standing=list(row.vitals.standing),
            bytes_per_s=None if rate is None or row.vitals.phase in OVER else round(rate, 1),
            scores=found,
            main=next(iter(found.values())),
            intervals=self._intervals if member.index == self.own else {},
            **said,
        )

    def _name_of(self, index: int) -> str:
        return self.federation().members[index].name

    def whole(self) -> bytes:
        """All that is known, as of the latest step. JSON of a `FederationStatus`."""
        federation, now = self.federation(), time.monotonic()
        found = FederationStatus(
            federation=federation.name,
            node=self._name_of(self.own),
            number=self._number,
            now=round(now, 1),
            vitals=federation.gossip.vitals,
            period_s=period_s(len(federation.members)),
            quiet_after_s=self.quiet_after_s,
            measures=list(self.measures()),
            privacy=self.privacy(),
            rounds_to_do=federation.training.rounds,
            topology=federation.topology,
            charter=federation.charter_version,
            software=word(software()),
            edges=federation.edges,
            members=[self._row(member, now) for member in federation.present],
            alarms=self.feed.standing(),
            events=list(self.feed.events),
        )
        return msgspec.json.encode(found)

    def step(self) -> tuple[int, bytes | None]:
        """What has changed since the step before, and its number; None where the change is told by `whole` only."""
        now, before = time.monotonic(), self._told
        members = self.federation().present
        self._told = {member.index: self._row(member, now) for member in members}
        self._number += 1
        shape = (members, self.federation().edges, self.federation().training.rounds, *self.measures())
        is_new, self._shape = shape != self._shape, shape
        found = FederationStep(
            number=self._number,
            now=round(now, 1),
            members=[row for row in self._told.values() if before.get(row.index) is not row],
            events=[event for event in self.feed.events if event.number > self._events_shown],
            alarms=self.feed.standing() if self.feed.changes != self._alarms_shown else None,
            privacy=self.privacy(),
            point=self._point,
        )
        self._events_shown, self._alarms_shown, self._point = self.feed.told, self.feed.changes, None
        return self._number, None if is_new else msgspec.json.encode(found)

    def history(self, member: int | None) -> bytes:
        """The curves since the node has started, of all members or of one."""
        found: dict[str, Any] = self.curves.told() if member is None else self.curves.of(member)
        return msgspec.json.encode(found)


def _sessions(vitals: Vitals) -> tuple[bytes, bytes, str]:
    return vitals.live, vitals.unheard, vitals.phase


def _hears(vitals: Vitals, index: int) -> bool:
    return is_among(index, vitals.live) and not is_among(index, vitals.unheard)
