"""The view of a federation for readers: everything one node knows, and the history.

The history has a few figures per member in bounded memory: at MOST_POINTS points, every second one is dropped, and from
then on points are added half as often. If there are many members, a reader gets only the minimum, median and maximum of
each figure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import Member
from p2pfl.features.status.spread import OVER, Roster, VitalsRow
from p2pfl.learn.metrics import Measure
from p2pfl.limits import MOST_POINTS
from p2pfl.node.status import Feed
from p2pfl.plugins import software
from p2pfl.reporting.status import PrivacyStatus
from p2pfl.reporting.vitals import FederationStatus, MemberRow, members_of, scores, word

FIGURES = ("accuracy", "main", "distance", "staleness", "bytes_per_s")
FIRST_STEP_S = 2.0
MOST_LINES = 12
"""The most members for which each gets its own line."""

CurvePoint = dict[str, list[float | None]]


class Curves:
    """The curves of all members. They take 240 points x 5 figures x members floats of memory.

    `add` takes the current figures; times are seconds on one clock. `values` is indexed by point, figure (FIGURES) and
    member; an unknown value is NaN.
    """

    def __init__(self) -> None:
        self.step_s = FIRST_STEP_S
        self.times: list[float] = []
        self.values: NDArray[np.float32] = np.empty((0, len(FIGURES), 0), np.float32)

    def is_due(self, now: float) -> bool:
        return not self.times or now >= self.times[-1] + self.step_s

    def add(self, now: float, members: Sequence[Mapping[str, float | None]]) -> CurvePoint:
        """Store a point, and return it for readers. `members` has the figures of each member, by name."""
        if len(self.times) >= MOST_POINTS:
            self.times, self.values, self.step_s = self.times[::2], self.values[::2], 2 * self.step_s
        figures = [[member.get(figure) for member in members] for figure in FIGURES]
        row = np.array(figures, np.float32).reshape(1, len(FIGURES), len(members))
        count = max(len(members), self.values.shape[2])
        self.values = np.concatenate([_widen(self.values, count), _widen(row, count)])
        self.times.append(now)
        point: CurvePoint = {"time": [round(now, 1)]}
        return point | {figure: lines[-1] for figure, lines in self._lines(self.values[-1:]).items()}

    def as_dict(self) -> dict[str, Any]:
        """Return all curves for readers: for each figure a list of points, each a list with one value per line."""
        return {
            "step_s": self.step_s,
            "times": [round(at, 1) for at in self.times],
            "members": self.has_a_line_each,
            "figures": self._lines(self.values),
        }

    @property
    def has_a_line_each(self) -> bool:
        """Return True if each member has a line; otherwise there are three lines, for minimum, median and maximum."""
        return int(self.values.shape[2]) <= MOST_LINES

    def _lines(self, values: NDArray[np.float32]) -> dict[str, list[list[float | None]]]:
        if not self.has_a_line_each:
            values = _spread(values)
        return {figure: _plain(values[:, place]) for place, figure in enumerate(FIGURES)}


def _widen(values: NDArray[np.float32], members: int) -> NDArray[np.float32]:
    """Widen the history to this number of members."""
    return np.pad(values, ((0, 0), (0, 0), (0, members - values.shape[2])), constant_values=np.nan)


def _spread(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the minimum, median and maximum over the members (last axis); NaN if no member has a value."""
    ordered = np.sort(values, axis=2)  # NaN sorts last
    known = (~np.isnan(values)).sum(axis=2, keepdims=True)
    places = np.concatenate([np.zeros_like(known), known // 2, known - 1], axis=2)
    return np.take_along_axis(ordered, np.clip(places, 0, values.shape[2] - 1), axis=2)


def _plain(values: NDArray[np.float32]) -> list[list[float | None]]:
    """Return nested lists of shape (points, lines), rounded to four digits."""
    return [[None if math.isnan(value) else float(f"{value:.4g}") for value in line] for line in values.tolist()]


class Overview:
    """The view for readers. `measures` are the measures of the node's task, the main one first; empty while unknown."""

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
        self._point: CurvePoint | None = None
        """The latest point of the curves."""

    def keep_point(self, now: float) -> None:
        """Add a point to the curves, if it is due. A silent member's figures count as unknown."""
        if self.curves.is_due(now):
            rows = [self._row(member, now) for member in self.roster.federation().members]
            figures = [{} if row.quiet or row.lost else {name: getattr(row, name) for name in FIGURES} for row in rows]
            self._point = self.curves.add(now, figures)

    def _row(self, member: Member, now: float) -> MemberRow:
        """Return a member's row. It is the same object as long as nothing has changed."""
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
        vitals, by_name = row.vitals, scores(row.vitals, self.measures())
        said = msgspec.structs.asdict(vitals) | {"standing": list(vitals.standing)}
        said |= {"live": members_of(vitals.live), "unheard": members_of(vitals.unheard)}
        rate, source = self.roster.bytes_per_s.get(member.index), row.source
        return MemberRow(
            index=member.index,
            name=member.name,
            at=round(row.said_at, 1),
            source=None if source is None or source == member.index else self.roster.name_of(source),
            quiet=self.roster.is_quiet(row, now),
            lost=self.roster.is_lost(member.index, now),
            bytes_per_s=None if rate is None or vitals.phase in OVER else round(rate, 1),
            scores=by_name,
            main=next(iter(by_name.values())),
            intervals=self.roster.intervals if member.index == self.roster.own else {},
            **{name: said[name] for name in said if name in MemberRow.__struct_fields__},
        )

    def whole(self) -> bytes:
        """Return the whole view: JSON of a `FederationStatus`."""
        federation, now = self.roster.federation(), time.monotonic()
        status = FederationStatus(
            federation=federation.name,
            node=self.roster.name_of(self.roster.own),
            now=round(now, 1),
            vitals=federation.gossip.vitals,
            period_s=self.roster.period_s,
            quiet_after_s=self.roster.quiet_after_s,
            measures=list(self.measures()),
            privacy=self.privacy(),
            rounds_to_do=federation.training.trained_rounds,
            topology=federation.topology,
            charter=federation.charter_version,
            software=word(software()),
            edges=federation.edges,
            members=[self._row(member, now) for member in federation.present],
            alarms=self.feed.standing(),
            events=list(self.feed.events),
            point=self._point,
        )
        return msgspec.json.encode(status)

    def history(self) -> bytes:
        """Return the curves since the node started."""
        return msgspec.json.encode(self.curves.as_dict())
