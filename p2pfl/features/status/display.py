"""A node tells how it is, hears how the others are, and has it all at hand for whoever looks.

For eyes only: the core never hears of any of it. `tick` is called once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from p2pfl.config.model import FederationConfig
from p2pfl.crypto.identity import Identity
from p2pfl.features.status.hearing import Hearing
from p2pfl.features.status.lookout import STARTING_S, Lookout
from p2pfl.features.status.overview import Overview
from p2pfl.features.status.roster import Roster
from p2pfl.features.status.spread import Send, VitalsRow, VitalsSpread, VitalsTold
from p2pfl.features.status.witness import NOTHING, Witness
from p2pfl.node.status import Status
from p2pfl.reporting.measures import value_of
from p2pfl.reporting.status import NodeLine
from p2pfl.reporting.vitals import MOST_WORDS, Vitals, bitmap, figure, in_row, realm_of, word
from p2pfl.software import software

LEAST_BETWEEN_S = 0.9
"""The least time between two own rows, whatever happens."""
LAST_EVERY_S = 0.25
"""How often a node that is about to end tries again to tell what is still to be told."""


class Display:
    """`federation` gives the one that the node holds now. `line` is the node's own short status.

    `send` passes vitals to a neighbor, and says False where its line is not free. `witness` is there with a privacy
    budget: then a row is told even where vitals are off, with the account of the budget alone.
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
        hearing: Hearing,
        send: Send,
        witness: Witness | None = None,
    ) -> None:
        self.federation, self.own = federation, own
        self.status, self.watch, self.feed, self.hearing = status, watch, watch.feed, hearing
        self.spread = VitalsSpread(
            own=own,
            identity=identity,
            realm=realm_of(federation()),
            key_of=self._key_of,
            send=send,
            on_row=self._note_row,
            on_own=self._hear_own,
        )
        self.roster = Roster(federation, own)
        self.overview = Overview(roster=self.roster, feed=self.feed, measures=watch.measures, privacy=status.privacy)
        watch.missing = lambda: self.roster.missing(time.monotonic())
        self._line = line
        self._witness = witness
        self._published_at = float("-inf")
        self._urgent: object = None
        self._news = asyncio.Event()
        """Set when something has come from another member."""

    @property
    def tells(self) -> bool:
        """Whether members tell each other how they are."""
        return self.federation().gossip.vitals

    @property
    def _spreads(self) -> bool:
        return self.tells or self._witness is not None

    def opened(self, peer: int) -> None:
        if self._witness is not None:
            self._witness.opened(peer)
        if self._spreads:
            self.spread.opened(peer, time.monotonic())

    def closed(self, peer: int) -> None:
        if self._witness is not None:
            self._witness.heard(peer)
        self.spread.closed(peer)

    def hear(self, peer: int, message: VitalsTold) -> None:
        now = time.monotonic()
        if self._spreads:
            self.spread.hear(peer, message, now)
            self._news.set()
            if self.spread.hurries:
                self.spread.tick(now)
        if self._witness is not None:
            self._witness.heard(peer)

    def _hear_own(self, vitals: Vitals) -> None:
        if self._witness is not None:
            self._witness.hear_own(vitals)

    def tick(self) -> None:
        now = time.monotonic()
        self.watch.look(now)
        self.hearing.look(self.status.core.edges)
        self._forget_strangers()
        self._publish(now)
        self.spread.tick(now)
        for member, row in self.roster.rows.items():
            if self.roster.is_gone(row, now):
                self.watch.miss(member, now - row.said_at, now)
        self.overview.keep_point(now)

    async def farewell(self, wait_s: float = 0.0) -> None:
        """Say the last word before the doors close, and pass on those of the others: wait as long for them, at most."""
        now = time.monotonic()
        own = self._own()
        self._say(own if self.tells else _account_alone(own), now)
        self.spread.tick(now, last=True)
        until = asyncio.get_running_loop().time() + wait_s
        while self.tells and (self.roster.somebody_goes_on(time.monotonic()) or self.spread.owes):
            self._news.clear()
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0.0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LAST_EVERY_S)):
                    await self._news.wait()
            self.spread.tick(time.monotonic(), last=True)  # to some neighbors nobody else will bring what has come

    def see_end(self) -> None:
        """The own row as it is when all is over, for pages that are open."""
        self.roster.note_own(self._own(), time.monotonic(), last=True, intervals=self._line().intervals)

    def _publish(self, now: float) -> None:
        """Regularly, and soon after something notable."""
        own = self._own()
        self.roster.note_own(own, now, intervals=self._line().intervals)
        urgent: object = (own.phase, own.standing, own.live, own.unheard)
        if not self.tells:
            own, urgent = _account_alone(own), own.paid
            if urgent == self._urgent and not self.spread.is_behind:
                return
        is_due = now >= self._published_at + self.roster.period_s
        hurries = urgent != self._urgent or self.spread.is_behind
        if is_due or (hurries and now >= self._published_at + LEAST_BETWEEN_S):
            self._published_at, self._urgent = now, urgent
            self._say(own, now)

    def _say(self, own: Vitals, now: float) -> None:
        with suppress(ValueError):  # a figure that no row can hold: the others keep the row before
            self.spread.publish(own, now)

    def _own(self) -> Vitals:
        line, core = self._line(), self.status.core
        account = NOTHING if self._witness is None else self._witness.account()
        return Vitals(
            member=self.own,
            counter=0,
            life=core.life.name,
            phase=word(line.phase),
            rounds=line.rounds,
            accuracy=figure(line.accuracy),
            loss=figure(line.loss),
            distance=figure(line.neighbor_distance),
            staleness=figure(float(line.staleness.mean)),
            bytes_sent=line.bytes_sent,
            bytes_received=line.bytes_received,
            exchanges=line.exchanges,
            live=bitmap(self.hearing.live),
            unheard=bitmap(self.hearing.unheard),
            alarms=sum(self.status.alarms.values()),
            standing=tuple(word(kind) for kind in self.feed.kinds[:MOST_WORDS]),
            charter=self.federation().charter_version,
            software=word(software()),
            metrics=tuple(figure(value_of(line, one)) for one in in_row(self.watch.measures())),
            epsilon=None if line.privacy is None else figure(line.privacy.epsilon),
            budget=account.name,
            begun=account.order,
            paid=account.steps,
        )

    def _key_of(self, index: int) -> bytes | None:
        members = self.federation().members
        if index >= len(members) or members[index].retired:
            return None
        return members[index].key

    def _forget_strangers(self) -> None:
        for member in [member for member in self.spread.rows if self._key_of(member) is None]:
            self.spread.forget(member)
            self.roster.forget(member)
            self.watch.forget(member)

    def _note_row(self, row: VitalsRow, before: VitalsRow | None) -> None:
        if not self.tells:
            return
        if row.source is not None:
            self.roster.note(row)
        starting_s = max(STARTING_S, self.roster.quiet_after_s)
        self.watch.hear(row, before, time.monotonic(), starting_s=starting_s)


def _account_alone(own: Vitals) -> Vitals:
    """The row where vitals are off: it says nothing of how the node is."""
    return Vitals(
        member=own.member,
        counter=own.counter,
        life=own.life,
        phase="",
        rounds=0,
        accuracy=None,
        loss=None,
        distance=None,
        staleness=None,
        bytes_sent=0,
        bytes_received=0,
        exchanges=0,
        live=b"",
        alarms=0,
        standing=(),
        charter=0,
        software="",
        epsilon=own.epsilon,
        budget=own.budget,
        begun=own.begun,
        paid=own.paid,
    )
