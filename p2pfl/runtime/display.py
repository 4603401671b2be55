"""A node tells how it is, hears how the others are, and has it all at hand for whoever looks.

For eyes only: the core never hears of any of it. `tick` is called once a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from p2pfl.config.model import FederationConfig
from p2pfl.core.messages import VitalsTold
from p2pfl.crypto.identity import Identity
from p2pfl.net.spread import VitalsRow, VitalsSpread, period_s
from p2pfl.reporting.measures import value_of
from p2pfl.reporting.status import NodeLine
from p2pfl.reporting.vitals import MOST_WORDS, Vitals, bitmap, figure, in_row, realm_of, word
from p2pfl.runtime.overview import Overview, software
from p2pfl.runtime.status import Status
from p2pfl.runtime.watch import STARTING_S, Lookout

LEAST_BETWEEN_S = 2.0
"""The least time between two own rows, whatever happens."""


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
        watch: Lookout,
        send: Callable[[int, VitalsTold], bool],
    ) -> None:
        self.federation, self.own = federation, own
        self.status, self.watch, self.feed = status, watch, watch.feed
        self.spread = VitalsSpread(
            own=own,
            identity=identity,
            realm=realm_of(federation()),
            key_of=self._key_of,
            send=send,
            on_row=self._note_row,
        )
        self.overview = Overview(
            federation=federation,
            own=own,
            rows=self.spread.rows,
            feed=self.feed,
            measures=watch.measures,
            privacy=status.privacy,
        )
        self._line = line
        self._published_at = float("-inf")
        self._urgent: object = None

    @property
    def tells(self) -> bool:
        """Whether anybody is told; who has no listener tells nobody."""
        return self.federation().gossip.vitals

    def opened(self, peer: int) -> None:
        if self.tells:
            self.spread.opened(peer)

    def closed(self, peer: int) -> None:
        self.spread.closed(peer)

    def hear(self, peer: int, told: VitalsTold) -> None:
        if self.tells:
            self.spread.hear(peer, told, time.monotonic())

    def tick(self) -> None:
        now = time.monotonic()
        self.watch.look(now)
        self._forget_strangers()
        self._publish(now)
        self.spread.tick(now)
        for member, row in self.spread.rows.items():
            if self.overview.is_quiet(row, now):
                self.watch.miss(member, now - row.said_at, now)
        self.overview.keep_point(now)

    def farewell(self) -> None:
        """The last word, said before the doors close."""
        now = time.monotonic()
        self._say(self._own(), now)
        self.spread.tick(now, last=True)

    def _publish(self, now: float) -> None:
        """Regularly, and soon after something notable."""
        own = self._own()
        self.overview.note_own(own, now)
        urgent = (own.phase, own.standing, own.live)
        is_due = now >= self._published_at + period_s(len(self.federation().members))
        hurries = urgent != self._urgent or self.spread.is_behind
        if is_due or (hurries and now >= self._published_at + LEAST_BETWEEN_S):
            self._published_at, self._urgent = now, urgent
            self._say(own, now)

    def _say(self, own: Vitals, now: float) -> None:
        with suppress(ValueError):  # a figure that no row can hold: the others keep the row before
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
            charter=self.federation().charter_version,
            software=software(),
            metrics=tuple(figure(value_of(line, one)) for one in in_row(self.watch.measures())),
            epsilon=None if line.privacy is None else figure(line.privacy.epsilon),
        )

    def _key_of(self, index: int) -> bytes | None:
        members = self.federation().members
        if index >= len(members) or members[index].retired:
            return None
        return members[index].key

    def _forget_strangers(self) -> None:
        for member in [member for member in self.spread.rows if self._key_of(member) is None]:
            self.spread.forget(member)
            self.watch.forget(member)

    def _note_row(self, row: VitalsRow, before: VitalsRow | None) -> None:
        if row.source is not None:
            self.overview.note_row(row, before)
        starting_s = max(STARTING_S, self.overview.quiet_after_s)
        self.watch.hear(row, before, time.monotonic(), starting_s=starting_s)
