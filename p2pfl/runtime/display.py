"""What a node shows of its whole federation: it tells vitals, hears those of others, and keeps events and curves.

For eyes only: the core never hears of any of it. `tick` is called once a second, `step` at most as often, while
somebody looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from p2pfl.config.model import FederationConfig, Member
from p2pfl.core.messages import Vitals as Told
from p2pfl.crypto.identity import Identity
from p2pfl.net.spread import Row, Spread, period_s
from p2pfl.reporting.curves import FIGURES, Curves
from p2pfl.reporting.overview import FederationStatus, FederationStep, MemberRow
from p2pfl.reporting.status import NodeLine
from p2pfl.reporting.vitals import MOST_WORDS, Vitals, bitmap, figure, members_of, realm_of, word
from p2pfl.runtime.status import Status
from p2pfl.runtime.watch import OVER, Watch

LEAST_BETWEEN_S = 2.0
"""The least time between two own rows, whatever happens."""
QUIET_PERIODS = 3
QUIET_EXTRA_S = 15.0
"""A member is quiet after so many periods, and this for the way."""


@cache
def software() -> str:
    try:
        return word(version("p2pfl-gossip"))
    except PackageNotFoundError:
        return "source"


class Display:
    """`federation` gives the one that the node holds now. `line` is the node's own short status.

    `send` passes vitals to a neighbor, and says False where its line is not free.
    """

    def __init__(
        self,
        *,
        federation: Callable[[], FederationConfig],
        own: int,
        identity: Identity,
        status: Status,
        line: Callable[[], NodeLine],
        watch: Watch,
        send: Callable[[int, Told], bool],
    ) -> None:
        self.federation, self.own = federation, own
        self.status, self.watch, self.feed = status, watch, watch.feed
        self.curves = Curves()
        self.spread = Spread(
            own=own,
            identity=identity,
            realm=realm_of(federation()),
            key_of=self._key_of,
            send=send,
            on_row=self._note_row,
        )
        self._line = line
        self._rates: dict[int, float] = {}
        self._shown: dict[int, tuple[object, MemberRow]] = {}
        """Of each member its latest row for readers, and what that was made of."""
        self._told: dict[int, MemberRow] = {}
        """The rows of the latest step."""
        self._shape: object = None
        """Members, edges and rounds as of the latest step."""
        self._published_at = float("-inf")
        self._urgent: object = None
        self._point: dict[str, list[float | None]] | None = None
        self._number = self._events_shown = 0
        self._alarms_shown = -1

    @property
    def tells(self) -> bool:
        return self.federation().gossip.vitals

    def opened(self, peer: int) -> None:
        if self.tells:
            self.spread.opened(peer)

    def closed(self, peer: int) -> None:
        self.spread.closed(peer)

    def hear(self, peer: int, told: Told) -> None:
        if self.tells:
            self.spread.hear(peer, told, time.monotonic())

    def tick(self) -> None:
        now = time.monotonic()
        self.watch.look(now)
        self._forget_strangers()
        self._publish(now)
        if self.tells:
            self.spread.tick(now)
        for member, row in self.spread.rows.items():
            if self._is_quiet(row, now):
                self.watch.miss(member, now - row.said_at, now)
        if self.curves.is_due(now):
            rows = [self._row(member, now) for member in self.federation().members]
            told = [{} if row.quiet else {name: getattr(row, name) for name in FIGURES} for row in rows]
            self._point = self.curves.add(now, told)

    def farewell(self) -> None:
        """The last word, said before the doors close."""
        now = time.monotonic()
        self.spread.publish(self._own(), now)
        if self.tells:
            self.spread.tick(now, last=True)

    # -- what is said -------------------------------------------------------------------------------------------------

    def _publish(self, now: float) -> None:
        """Regularly, and soon after something notable."""
        own = self._own()
        urgent = (own.phase, own.standing, own.live)
        is_due = now >= self._published_at + period_s(len(self.federation().members))
        hurries = urgent != self._urgent or self.spread.is_behind
        if is_due or (hurries and now >= self._published_at + LEAST_BETWEEN_S):
            self._published_at, self._urgent = now, urgent
            self.spread.publish(own, now)

    def _own(self) -> Vitals:
        line, core = self._line(), self.status.core
        return Vitals(
            member=self.own,
            counter=0,
            life=core.lives.own.name,
            phase=word(line.phase),
            rounds=line.rounds,
            accuracy=figure(line.accuracy),
            loss=figure(line.loss),
            distance=figure(line.neighbor_distance),
            staleness=figure(float(line.staleness.mean)),
            bytes_sent=line.bytes_sent,
            bytes_received=line.bytes_received,
            exchanges=line.exchanges,
            live=bitmap(peer for peer, edge in core.edges.items() if edge.is_open),
            alarms=sum(self.status.alarms.values()),
            standing=tuple(word(kind) for kind in self.feed.kinds[:MOST_WORDS]),
            charter=self._charter,
            software=software(),
        )

    @property
    def _charter(self) -> int:
        edition = self.federation().edition
        return 0 if edition is None else edition.version

    # -- what is known ------------------------------------------------------------------------------------------------

    def _key_of(self, index: int) -> bytes | None:
        members = self.federation().members
        if index >= len(members) or _is_retired(members[index]):
            return None
        return members[index].key

    def _forget_strangers(self) -> None:
        for member in [member for member in self.spread.rows if self._key_of(member) is None]:
            self.spread.forget(member)

    def _note_row(self, row: Row, before: Row | None) -> None:
        """How much it has sent since, and what is notable about it."""
        if before is not None and row.said_at > before.said_at:
            sent = row.vitals.bytes_sent - before.vitals.bytes_sent
            self._rates[row.vitals.member] = max(0.0, sent / (row.said_at - before.said_at))
        self.watch.hear(row, before, time.monotonic())

    @property
    def _quiet_after_s(self) -> float:
        return QUIET_PERIODS * period_s(len(self.federation().members)) + QUIET_EXTRA_S

    def _is_quiet(self, row: Row, now: float) -> bool:
        return row.source is not None and row.vitals.phase not in OVER and now - row.said_at > self._quiet_after_s

    def _row(self, member: Member, now: float) -> MemberRow:
        """The same object for as long as nothing has changed."""
        row = self.spread.rows.get(member.index)
        made_of = (member, None if row is None else row.raw, row is not None and self._is_quiet(row, now))
        shown = self._shown.get(member.index)
        if shown is None or shown[0] != made_of:
            shown = self._shown[member.index] = made_of, self._made(member, row, now)
        return shown[1]

    def _made(self, member: Member, row: Row | None, now: float) -> MemberRow:
        if row is None:
            return MemberRow(index=member.index, name=member.name)
        said = msgspec.structs.asdict(row.vitals)
        for name in ("member", "counter", "live", "standing"):
            del said[name]
        rate, source = self._rates.get(member.index), row.source
        return MemberRow(
            index=member.index,
            name=member.name,
            at=round(row.said_at, 1),
            source=None if source is None or source == member.index else self._name_of(source),
            quiet=self._is_quiet(row, now),
            live=members_of(row.vitals.live),
            standing=list(row.vitals.standing),
            bytes_per_s=None if rate is None else round(rate, 1),
            **said,
        )

    def _name_of(self, index: int) -> str:
        return self.federation().members[index].name

    # -- what is shown ------------------------------------------------------------------------------------------------

    def whole(self) -> bytes:
        """All that is known, as of the latest step. JSON of a `FederationStatus`."""
        federation, now = self.federation(), time.monotonic()
        found = FederationStatus(
            federation=federation.name,
            node=self._name_of(self.own),
            number=self._number,
            now=round(now, 1),
            vitals=self.tells,
            period_s=period_s(len(federation.members)),
            quiet_after_s=self._quiet_after_s,
            rounds_to_do=federation.training.rounds,
            topology=federation.topology,
            charter=self._charter,
            software=software(),
            edges=federation.edges,
            members=[self._row(member, now) for member in federation.members if not _is_retired(member)],
            alarms=self.feed.standing(),
            events=list(self.feed.events),
        )
        return msgspec.json.encode(found)

    def step(self) -> tuple[int, bytes | None]:
        """What has changed since the step before, and its number; None where the change is told by `whole` only."""
        now, before = time.monotonic(), self._told
        members = [member for member in self.federation().members if not _is_retired(member)]
        self._told = {member.index: self._row(member, now) for member in members}
        self._number += 1
        shape = (tuple(members), self.federation().edges, self.federation().training.rounds)
        is_new, self._shape = shape != self._shape, shape
        found = FederationStep(
            number=self._number,
            now=round(now, 1),
            members=[row for row in self._told.values() if before.get(row.index) is not row],
            events=[event for event in self.feed.events if event.number > self._events_shown],
            alarms=self.feed.standing() if self.feed.changes != self._alarms_shown else None,
            point=self._point,
        )
        self._events_shown, self._alarms_shown, self._point = self.feed.told, self.feed.changes, None
        return self._number, None if is_new else msgspec.json.encode(found)

    def history(self, member: int | None) -> bytes:
        """The curves since the node has started, of all members or of one."""
        found: dict[str, Any] = self.curves.told() if member is None else self.curves.of(member)
        return msgspec.json.encode(found)


def _is_retired(member: Member) -> bool:
    return bool(getattr(member, "retired", False))
