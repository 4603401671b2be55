"""The display of one node: vitals for the other members, the page for people, its address for commands on this
machine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec

from p2pfl.config.model import NodeConfig
from p2pfl.features.privacy.feature import PrivacyFeature, Private
from p2pfl.features.status import whereabouts
from p2pfl.features.status.alarms import ALARMS
from p2pfl.features.status.display import Display
from p2pfl.features.status.hearing import Hearing
from p2pfl.features.status.lookout import Lookout
from p2pfl.features.status.member_news import MemberNews
from p2pfl.features.status.overview import Overview
from p2pfl.features.status.own_row import OwnRow
from p2pfl.features.status.page_server import StatusPage
from p2pfl.features.status.roster import Roster
from p2pfl.features.status.spread import CHANNEL, VitalsTold
from p2pfl.features.status.witness import Witness
from p2pfl.learn.metrics import Measure
from p2pfl.net.side import Feeding
from p2pfl.node.assembly import Setup
from p2pfl.node.engine_thread import needs_of
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.reporting.status import NodeResult
from p2pfl.reporting.vitals import word
from p2pfl.software import software
from p2pfl.storage.disk import free_bytes

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")

LAST_WORDS_S, LAST_WORD_S, MOST_LAST_WORDS_S = 1.0, 0.5, 10.0
"""The longest time that a finished node waits for the others' last rows: a base, an increment per member, and an upper
limit.

Each row shows how its node ended. An edge carries three rows per second, and all nodes end at the same time.
"""
PAGE_LINGERS_S = 2.0
"""The time that an open page has to read how the node ended."""


class StatusFeature(Feature):
    name = "status"
    alarms = ALARMS

    def guards(self, setup: Setup) -> bool:
        """Return True if there is a privacy budget: then vitals contain the node's signed accounts, which neighbors
        remember.
        """
        return setup.federation.privacy is not None

    def attach(self, node: NodeView) -> Attached:
        return Shown(node)


class Shown(Attached):
    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._page: StatusPage | None = None
        self._until_over: AsyncExitStack
        setup, engine = node.setup(), node.thread.engine
        needs = needs_of(engine.state, setup.durability, engine.codecs, engine.method)
        private = private_of(node)
        witness = None if private is None else Witness(private.budget, node.thread)
        roster = Roster(lambda: node.setup().federation, setup.member.index)
        self._hearing = Hearing(self._came)
        node.presence.silent_s = self._hearing.silent_s
        self._lookout = Lookout(
            core=node.core,
            feed=node.feed,
            raise_alarm=node.alarm,
            room_bytes=partial(free_bytes, setup.node.state_dir),
            snapshot_bytes=needs.snapshot_bytes,
            missing=roster.missing,
            is_excused=lambda peer: node.presence.is_excused(peer),  # noqa: PLW0108 - set by a later feature
            losses=node.workshop.figures.losses,
        )
        self.display = Display(
            identity=setup.identity,
            own_row=OwnRow(
                federation=roster.federation,
                own=roster.own,
                status=node.status,
                line=node.line,
                feed=node.feed,
                measures=self._measures,
                hearing=self._hearing,
                witness=witness,
            ),
            roster=roster,
            overview=Overview(roster=roster, feed=node.feed, measures=self._measures, privacy=node.status.privacy),
            news=MemberNews(
                core=node.core,
                feed=node.feed,
                raise_alarm=node.alarm,
                software=word(software()),
                began_at=time.monotonic(),
                measures=self._measures,
            ),
            send=self._send,
            witness=witness,
        )

    def _came(self, peer: int) -> tuple[int, int] | None:
        session = self._node.network.session(peer)
        return None if session is None else (session[0], session[1].bytes_came)

    def _measures(self) -> Sequence[Measure]:
        return self._node.workshop.measures

    def _send(self, peer: int, message: VitalsTold, *, urgent: bool = False) -> bool:
        return self._node.say(peer, CHANNEL, message, if_free=not urgent)

    def feedings(self) -> tuple[Feeding, ...]:
        guards = private_of(self._node) is not None
        return (Feeding(channel=CHANNEL, handler=self.display, guards=guards),)

    async def opening(self, until_over: AsyncExitStack) -> None:
        """Open the page before the first snapshot, because the node may have to wait for the disk.

        The link for other machines contains a token; the log shows it.
        """
        self._until_over = until_over
        node, status = self._node.setup().node, self._node.status
        if node.status_listen is None:
            return

        def full() -> dict[str, Any]:
            found: dict[str, Any] = msgspec.to_builtins(status.full())
            return found | {"software": software(), "standing_alarms": self._node.feed.kinds}

        token = whereabouts.page_token(node.state_dir)
        page = StatusPage(
            node.status_listen,
            full,
            site=self.display.overview,
            names=node.status_names,
            token=token,
            kinds=self._node.feed.texts,
        )
        self._page = await until_over.enter_async_context(page)
        address = page_address(node, page)
        log.info("page: http://%s/", address)
        log.info("status: http://%s/status", address)
        for host in page.others_hosts():
            notice.info("page for others: http://%s:%d/#%s", host, page.port, token)

    async def opened(self, _until_closed: AsyncExitStack) -> None:
        setup = self._node.setup()
        there = whereabouts.keep_file(
            setup.node, setup.federation.name, self._node.network.port, page_address(setup.node, self._page)
        )
        self._until_over.enter_context(there)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._lookout.look(time.monotonic())
            self._hearing.look(self._node.core.peers)
            self.display.tick()

    async def farewell(self, *, hasty: bool) -> None:
        members = len(self._node.setup().federation.present)
        last_words_s = min(MOST_LAST_WORDS_S, LAST_WORDS_S + LAST_WORD_S * members)
        await self.display.farewell(wait_s=0.0 if hasty else last_words_s)

    async def over(self, result: NodeResult) -> None:
        if self._page is not None:
            self.display.see_end()
            await self._page.conclude("finished" if result.finished else "stopped", PAGE_LINGERS_S)


def private_of(node: NodeView) -> Private | None:
    """Return the feature that pays for the node's rounds, or None if there is none."""
    found = node.other(PrivacyFeature.name)
    return found if isinstance(found, Private) else None


def page_address(node: NodeConfig, page: StatusPage | None) -> str | None:
    """Return the address of the page on this machine, as host:port."""
    if page is None or node.status_listen is None:
        return None
    return whereabouts.address_at(node.status_listen, page.port)
