"""Publish a node's vitals, collect those of the others, and prepare all of them for readers.

This is only for people: the core sees none of it. `tick` is called once a second.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from p2pfl.crypto.identity import Identity
from p2pfl.features.status.member_news import STARTING_S, MemberNews
from p2pfl.features.status.overview import Overview
from p2pfl.features.status.own_row import OwnRow, account_alone
from p2pfl.features.status.roster import Roster
from p2pfl.features.status.spread import SendVitals, VitalsRow, VitalsSpread, VitalsTold
from p2pfl.features.status.witness import Witness
from p2pfl.reporting.vitals import Vitals, realm_of

LEAST_BETWEEN_S = 0.9
"""The minimum time between two of this node's rows, whatever happens."""
LAST_EVERY_S = 0.25
"""The period in which a node that is about to end retries to send its last rows."""


class Display:
    """Publishes this node's row, collects the others' rows, and feeds the page.

    `send` passes vitals to a neighbor, and returns False if its line is busy. There is a `witness` if there is a
    privacy budget: then a row with only the budget's account is sent even if vitals are off.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        own_row: OwnRow,
        roster: Roster,
        overview: Overview,
        news: MemberNews,
        send: SendVitals,
        witness: Witness | None = None,
    ) -> None:
        self.own_row, self.roster, self.overview = own_row, roster, overview
        self.spread = VitalsSpread(
            own=roster.own,
            identity=identity,
            realm=realm_of(roster.federation()),
            key_of=roster.key_of,
            send=send,
            on_row=self._note_row,
            on_own=self._hear_own,
        )
        self._news, self._witness = news, witness
        self._published_at = float("-inf")
        self._urgent: object = None
        self._has_heard = asyncio.Event()
        """Set when a row from another member has arrived."""

    @property
    def tells(self) -> bool:
        """Return True if members send their status to each other."""
        return self.roster.federation().gossip.vitals

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
            self._witness.note_rows(peer)
        self.spread.closed(peer)

    def hear(self, peer: int, message: VitalsTold) -> None:
        now = time.monotonic()
        if self._spreads:
            self.spread.hear(peer, message, now)
            self._has_heard.set()
            if self.spread.hurries:
                self.spread.tick(now)
        if self._witness is not None:
            self._witness.note_rows(peer)

    def _hear_own(self, vitals: Vitals) -> None:
        self._news.hear_own(vitals, self.own_row.vitals())
        if self._witness is not None:
            self._witness.hear_own(vitals)

    def tick(self) -> None:
        now = time.monotonic()
        self._forget_strangers()
        self._publish(now)
        self.spread.tick(now)
        for member, row in self.roster.rows.items():
            if self.roster.is_gone(row, now):
                self._news.miss(member, now - row.said_at, now)
        self.overview.keep_point(now)

    async def farewell(self, wait_s: float = 0.0) -> None:
        """Send the last row before the sockets close, and pass on the others' last rows, waiting for them at most
        `wait_s`.
        """
        now = time.monotonic()
        own = self.own_row.vitals()
        self._say(own if self.tells else account_alone(own), now)
        self.spread.tick(now, last=True)
        until = asyncio.get_running_loop().time() + wait_s
        while self.tells and (self.roster.somebody_goes_on(time.monotonic()) or self.spread.owes):
            self._has_heard.clear()
            left_s = until - asyncio.get_running_loop().time()
            if left_s <= 0.0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LAST_EVERY_S)):
                    await self._has_heard.wait()
            self.spread.tick(time.monotonic(), last=True)  # no other node will pass these rows on to some neighbors

    def see_end(self) -> None:
        """Store this node's final row for open pages."""
        self.roster.note_own(self.own_row.vitals(), time.monotonic(), last=True, intervals=self.own_row.intervals)

    def _publish(self, now: float) -> None:
        """Publish this node's row regularly, and soon after something notable."""
        own = self.own_row.vitals()
        self.roster.note_own(own, now, intervals=self.own_row.intervals)
        urgent: object = (own.phase, own.standing, own.live, own.unheard)
        if not self.tells:
            own, urgent = account_alone(own), own.paid
            if urgent == self._urgent and not self.spread.is_behind:
                return
        is_due = now >= self._published_at + self.roster.period_s
        hurries = urgent != self._urgent or self.spread.is_behind
        if is_due or (hurries and now >= self._published_at + LEAST_BETWEEN_S):
            self._published_at, self._urgent = now, urgent
            self._say(own, now)

    def _say(self, own: Vitals, now: float) -> None:
        with suppress(ValueError):  # a figure that does not fit in a row: the others keep the previous row
            self.spread.publish(own, now)

    def _forget_strangers(self) -> None:
        for member in [member for member in self.spread.rows if self.roster.key_of(member) is None]:
            self.spread.forget(member)
            self.roster.forget(member)
            self._news.forget(member)

    def _note_row(self, row: VitalsRow, before: VitalsRow | None) -> None:
        if not self.tells:
            return
        if row.source is not None:
            self.roster.note(row)
        starting_s = max(STARTING_S, self.roster.quiet_after_s)
        self._news.hear(row, before, time.monotonic(), starting_s=starting_s)
