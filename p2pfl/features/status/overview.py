"""The view of a federation for readers: everything one node knows, the changes since the last step, and the past.

`roster` has the knowledge of the members. A step is an update that all open pages get once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from p2pfl.config.model import Member
from p2pfl.features.status.curves import FIGURES, Curves
from p2pfl.features.status.roster import Roster
from p2pfl.features.status.spread import OVER, VitalsRow
from p2pfl.learn.metrics import Measure
from p2pfl.node.feed import Feed
from p2pfl.reporting.overview import FederationStatus, FederationStep, MemberRow
from p2pfl.reporting.status import PrivacyStatus
from p2pfl.reporting.vitals import members_of, scores, word
from p2pfl.software import software


class Overview:
    """The view for readers. `measures` are those of the node's own task, the main one first; empty while unknown."""

    def __init__(
        self,
        *,
        roster: Roster,
        feed: Feed,
        measures: Callable[[], Sequence[Measure]],
        privacy: Callable[[], PrivacyStatus | None] = lambda: None,
    ) -> None:
        self.roster, self.feed, self.measures, self.privacy = roster, feed, measures, privacy
        self.curves = Curves()
        self._shown: dict[int, tuple[object, MemberRow]] = {}
        """The latest row of each member for readers, and the data from which it was made."""
        self._step_rows: dict[int, MemberRow] = {}
        """The rows of the latest step."""
        self._shape: object = None
        """The members, edges, rounds and measures as of the latest step."""
        self._point: dict[str, list[float | None]] | None = None
        self._number = self._events_shown = 0
        self._alarms_shown = -1

    def keep_point(self, now: float) -> None:
        """Add a point to the curves, if it is due. A silent member's figures count as unknown."""
        if self.curves.is_due(now):
            rows = [self._row(member, now) for member in self.roster.federation().members]
            told = [{} if row.quiet or row.lost else {name: getattr(row, name) for name in FIGURES} for row in rows]
            self._point = self.curves.add(now, told)

    def _row(self, member: Member, now: float) -> MemberRow:
        """Return a member's row; it is the same object for as long as nothing has changed."""
        row = self.roster.rows.get(member.index)
        quiet = row is not None and self.roster.is_quiet(row, now)
        made_of = (member, row, quiet, self.roster.is_lost(member.index, now), *self.measures())
        shown = self._shown.get(member.index)
        if shown is None or shown[0] != made_of:
            shown = self._shown[member.index] = made_of, self._make_row(member, row, now)
        return shown[1]

    def _make_row(self, member: Member, row: VitalsRow | None, now: float) -> MemberRow:
        if row is None:
            return MemberRow(index=member.index, name=member.name)
        said = msgspec.structs.asdict(row.vitals)
        for name in ("member", "counter", "live", "unheard", "standing", "metrics", "budget", "begun", "paid"):
            del said[name]
        found = scores(row.vitals, self.measures())
        rate, source = self.roster.bytes_per_s.get(member.index), row.source
        return MemberRow(
            index=member.index,
            name=member.name,
            at=round(row.said_at, 1),
            source=None if source is None or source == member.index else self.roster.name_of(source),
            quiet=self.roster.is_quiet(row, now),
            lost=self.roster.is_lost(member.index, now),
            live=members_of(row.vitals.live),
            unheard=members_of(row.vitals.unheard),
            standing=list(row.vitals.standing),
            bytes_per_s=None if rate is None or row.vitals.phase in OVER else round(rate, 1),
            scores=found,
            main=next(iter(found.values())),
            intervals=self.roster.intervals if member.index == self.roster.own else {},
            **said,
        )

    def whole(self) -> bytes:
        """Return the whole view, as of the latest step: JSON of a `FederationStatus`."""
        federation, now = self.roster.federation(), time.monotonic()
        found = FederationStatus(
            federation=federation.name,
            node=self.roster.name_of(self.roster.own),
            number=self._number,
            now=round(now, 1),
            vitals=federation.gossip.vitals,
            period_s=self.roster.period_s,
            quiet_after_s=self.roster.quiet_after_s,
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
        """Return the number of a new step and the changes since the last one; None if only `whole` has the change."""
        now, before = time.monotonic(), self._step_rows
        members = self.roster.federation().present
        self._step_rows = {member.index: self._row(member, now) for member in members}
        self._number += 1
        shape = (members, self.roster.federation().edges, self.roster.federation().training.rounds, *self.measures())
        has_new_shape, self._shape = shape != self._shape, shape
        found = FederationStep(
            number=self._number,
            now=round(now, 1),
            members=[row for row in self._step_rows.values() if before.get(row.index) is not row],
            events=[event for event in self.feed.events if event.number > self._events_shown],
            alarms=self.feed.standing() if self.feed.changes != self._alarms_shown else None,
            privacy=self.privacy(),
            point=self._point,
        )
        self._events_shown, self._alarms_shown, self._point = self.feed.event_count, self.feed.changes, None
        return self._number, None if has_new_shape else msgspec.json.encode(found)

    def history(self, member: int | None) -> bytes:
        """Return the curves since the node has started, of all members or of one."""
        found: dict[str, Any] = self.curves.as_dict() if member is None else self.curves.of_member(member)
        return msgspec.json.encode(found)
