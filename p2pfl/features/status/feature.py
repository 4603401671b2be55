"""The display of one node: vitals for the other members, the page for people, its address for commands on this
machine.

This is only for people: the core sees none of it. `tick` is called once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import msgspec

from p2pfl.config.model import NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.features.privacy.budget import BudgetGuard, LostAccount, PrivacyFeature, Private
from p2pfl.features.status.board import Board
from p2pfl.features.status.overview import Overview
from p2pfl.features.status.page import StatusPage
from p2pfl.features.status.running import address_at, keep_file, page_token
from p2pfl.features.status.spread import CHANNEL, Roster, VitalsRow, VitalsSpread, VitalsTold
from p2pfl.features.status.watchdog import ALARMS, STARTING_S, Hearing, MemberNews, Watchdog
from p2pfl.learn.metrics import Measure
from p2pfl.learn.privacy.accounting import Signed
from p2pfl.net.extensions import HandledChannel
from p2pfl.node.assembly import Setup
from p2pfl.node.engine_thread import Correct, EngineThread, needs_of
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.node.status import Feed, Status
from p2pfl.plugins import software
from p2pfl.reporting.measures import value_of
from p2pfl.reporting.status import NodeLine, NodeResult
from p2pfl.reporting.vitals import MOST_WORDS, Vitals, bitmap, figure, in_row, realm_of, word
from p2pfl.storage.disk import free_bytes
from p2pfl.system import written_bytes

LEAST_BETWEEN_S = 0.9
"""The minimum time between two of this node's rows, whatever happens."""
LAST_EVERY_S = 0.25
"""The period in which a node that is about to end retries to send its last rows."""
LAST_WORDS_S, LAST_WORD_S, MOST_LAST_WORDS_S = 1.0, 0.5, 10.0
"""The longest time that a finished node waits for the others' last rows: a base, an increment per member, and an upper
limit.

Each row shows how its node ended. An edge carries three rows per second, and all nodes end at the same time.
"""
NOTHING = Signed(0, 0, 0)

log = logging.getLogger("p2pfl")
notice = logging.getLogger("p2pfl.notice")


class SpendEvidence:
    """Connects the ledger with the rows of vitals, on the event loop: the account in the node's own rows, and its
    neighbors' memory of it.
    """

    def __init__(self, budget: BudgetGuard, thread: EngineThread) -> None:
        self.budget, self.thread = budget, thread

    def account(self) -> Signed:
        """Return the account that this node signs now. All of it is in the ledger file next to the key before it is
        paid for.
        """
        return self.budget.evidence.account(self.thread.engine.state.ledger) or NOTHING

    def hear_own(self, vitals: Vitals) -> None:
        """Compare the ledger with a row that this node signed in an earlier process and a neighbor now sends."""
        if not vitals.budget:
            return
        evidence, before = self.budget.evidence, self.thread.engine.state.ledger
        seen = LostAccount(Signed(vitals.begun, vitals.budget, vitals.paid), vitals.epsilon)
        after = evidence.hear(before, seen)
        if after is None or (after is not before and not after.is_whole):
            self.budget.doubt()
        self.thread.jobs.put(Correct(lambda ledger: evidence.hear(ledger, seen)))


def account_alone(own: Vitals) -> Vitals:
    """Return a row with nothing but the budget's account, for a federation without vitals."""
    unknown = dict.fromkeys(("accuracy", "loss", "distance", "staleness", "tested_round"))
    zero = dict.fromkeys(("rounds", "bytes_sent", "bytes_received", "exchanges", "alarms", "charter"), 0)
    empty = {"phase": "", "software": "", "live": b"", "unheard": b"", "standing": (), "metrics": ()}
    return msgspec.structs.replace(own, **unknown, **zero, **empty)


def without_own_rows(own: Vitals) -> Vitals:
    """Return a row without what was computed on the node's own rows, or its own change: where models are hidden, such
    figures would tell of one node alone. A member that steers the common model reads labels in others' losses.
    """
    standing = tuple(kind for kind in own.standing if kind != "change-clipped")
    return msgspec.structs.replace(own, accuracy=None, loss=None, metrics=(), standing=standing)


class Display:
    """Publishes this node's row, collects the others' rows, and feeds the page.

    `line` returns the node's short status; `measures` are its task's measures, the main one first. `send` passes vitals
    to a neighbor, and returns False if its line is busy. There is `spent` if there is a privacy budget: then a row with
    only the budget's account is sent even if vitals are off.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        roster: Roster,
        status: Status,
        line: Callable[[], NodeLine],
        feed: Feed,
        measures: Callable[[], Sequence[Measure]],
        hearing: Hearing,
        raise_alarm: Callable[[str, int | None, str], None],
        send: Callable[..., bool],
        spent: SpendEvidence | None = None,
    ) -> None:
        self.roster = roster
        self.overview = Overview(roster=roster, feed=feed, measures=measures, privacy=status.privacy)
        self.spread = VitalsSpread(
            own=roster.own,
            identity=identity,
            realm=realm_of(roster.federation()),
            key_of=roster.key_of,
            send=send,
            on_row=self._note_row,
            on_own=self._hear_own,
        )
        self._status, self._line, self._feed, self._measures = status, line, feed, measures
        self._hearing, self._spent = hearing, spent
        self._news = MemberNews(
            core=status.core,
            feed=feed,
            raise_alarm=raise_alarm,
            software=word(software()),
            began_at=time.monotonic(),
            measures=measures,
        )
        self._published_at = float("-inf")
        self._urgent: object = None
        self._told: tuple[object, object] = None, None
        """The latest two published rows without traffic, as heartbeats are no news; for a rate, two say the same."""
        self._has_heard = asyncio.Event()
        """Set when a row from another member has arrived."""

    def vitals(self) -> Vitals:
        """Return this node's current vitals, still without a counter."""
        line, core = self._line(), self._status.core
        account = NOTHING if self._spent is None else self._spent.account()
        row = Vitals(
            member=self.roster.own,
            counter=0,
            life=core.lifetime.name,
            phase=word(line.phase),
            rounds=line.rounds,
            accuracy=figure(line.accuracy),
            loss=figure(line.loss),
            distance=figure(line.neighbor_distance),
            staleness=None if line.staleness is None else figure(float(line.staleness.mean)),
            bytes_sent=line.bytes_sent,
            bytes_received=line.bytes_received,
            exchanges=line.exchanges,
            live=bitmap(self._hearing.live),
            unheard=bitmap(self._hearing.unheard),
            alarms=sum(self._status.alarms.values()),
            standing=tuple(word(kind) for kind in self._feed.kinds[:MOST_WORDS]),
            charter=self.roster.federation().charter_version,
            software=word(software()),
            metrics=tuple(figure(value_of(line, measure)) for measure in in_row(self._measures())),
            epsilon=None if line.privacy is None else figure(line.privacy.epsilon),
            budget=account.name,
            begun=account.order,
            paid=account.steps,
            tested_round=line.tested_round if line.test_is_stale else None,
            period_s=self.roster.own_period_s(time.monotonic()),
        )
        return row if self.roster.federation().hides is None else without_own_rows(row)

    @property
    def tells(self) -> bool:
        """Return True if members send their status to each other."""
        return self.roster.federation().gossip.vitals

    @property
    def _spreads(self) -> bool:
        return self.tells or self._spent is not None

    def opened(self, peer: int) -> None:
        now = time.monotonic()
        if self._spent is not None:
            self._spent.budget.evidence.opened(peer, now)
        if self._spreads:
            self.spread.opened(peer, now)

    def closed(self, peer: int) -> None:
        if self._spent is not None:
            self._spent.budget.evidence.note_rows(peer)
        self.spread.closed(peer)

    def hear(self, peer: int, message: VitalsTold) -> None:
        now = time.monotonic()
        if self._spreads:
            self.spread.hear(peer, message, now)
            self._has_heard.set()
            if self.spread.hurries:
                self.spread.tick(now)
        if self._spent is not None:
            self._spent.budget.evidence.note_rows(peer)

    def _hear_own(self, vitals: Vitals) -> None:
        self._news.hear_own(vitals, self.vitals())
        if self._spent is not None:
            self._spent.hear_own(vitals)

    def tick(self) -> None:
        now = time.monotonic()
        self._forget_strangers()
        self._publish(now)
        self.roster.look(now)
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
        own = self.vitals()
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
        self.roster.note_own(self.vitals(), time.monotonic(), last=True, intervals=self._line().intervals)

    def _publish(self, now: float) -> None:
        """Publish this node's row soon after something notable, regularly while something changes, else seldom."""
        own = self.vitals()
        self.roster.note_own(own, now, intervals=self._line().intervals)
        urgent: object = (own.phase, own.standing, own.live, own.unheard)
        if not self.tells:
            own, urgent = account_alone(own), own.paid
            if urgent == self._urgent and not self.spread.is_behind:
                return
        told = msgspec.structs.replace(own, bytes_sent=0, bytes_received=0)
        is_due = now >= self._published_at + (own.period_s if self._told == (told, told) else self.roster.period_s)
        hurries = urgent != self._urgent or self.spread.is_behind
        if is_due or (hurries and now >= self._published_at + LEAST_BETWEEN_S):
            self._published_at, self._urgent, self._told = now, urgent, (told, self._told[0])
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
        self._news.hear(row, before, time.monotonic(), starting_s=max(STARTING_S, self.roster.quiet_after_s))


class StatusFeature(Feature):
    name = "status"
    alarms = ALARMS

    def guards(self, setup: Setup) -> bool:
        """Return True if there is a privacy budget: then vitals contain the node's signed accounts, which neighbors
        remember.
        """
        return setup.federation.privacy is not None

    def attach(self, node: NodeView) -> Attached:
        return StatusDisplay(node)


class StatusDisplay(Attached):
    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._page: StatusPage | None = None
        self._until_over: AsyncExitStack
        setup, engine = node.setup(), node.thread.engine
        needs = needs_of(engine.state, setup.durability, engine.codecs, engine.method)
        private = private_of(node)
        roster = Roster(lambda: node.setup().federation, setup.member.index)
        self._hearing = Hearing(self._came)
        node.presence.silent_s = self._hearing.silent_s
        self._watchdog = Watchdog(
            core=node.core,
            feed=node.feed,
            raise_alarm=node.alarm,
            room_bytes=partial(free_bytes, setup.node.state_dir),
            snapshot_bytes=needs.snapshot_bytes,
            missing=roster.missing,
            is_excused=lambda peer: node.presence.is_excused(peer),  # noqa: PLW0108 - set by a later feature
            losses=node.runner.figures.losses,
            board=Board(setup.node.state_dir).look,
        )
        self.display = Display(
            identity=setup.identity,
            roster=roster,
            status=node.status,
            line=node.line,
            feed=node.feed,
            measures=lambda: node.runner.measures,
            hearing=self._hearing,
            raise_alarm=node.alarm,
            send=self._send,
            spent=None if private is None else SpendEvidence(private.budget, node.thread),
        )

    def _came(self, peer: int) -> tuple[int, int] | None:
        session = self._node.network.session(peer)
        return None if session is None else (session[0], session[1].bytes_came)

    def _send(self, peer: int, message: VitalsTold, *, urgent: bool = False) -> bool:
        return self._node.say(peer, CHANNEL, message, if_free=not urgent)

    def channels(self) -> tuple[HandledChannel, ...]:
        guards = private_of(self._node) is not None
        return (HandledChannel(channel=CHANNEL, handler=self.display, guards=guards),)

    def status(self) -> Mapping[str, Any]:
        return {"disk_bytes_written": written_bytes()}

    async def opening(self, until_over: AsyncExitStack) -> None:
        """Open the page before the first snapshot, because the node may have to wait for the disk.

        The link for other machines contains a token; the log shows it.
        """
        self._until_over = until_over
        node, status = self._node.setup().node, self._node.status
        if node.status_listen is None:
            return

        def full() -> dict[str, Any]:
            known: dict[str, Any] = msgspec.to_builtins(status.full())
            return known | {"software": software(), "standing_alarms": self._node.feed.kinds}

        token = page_token(node.state_dir)
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
        there = keep_file(
            setup.node, setup.federation.name, self._node.network.port, page_address(setup.node, self._page)
        )
        self._until_over.enter_context(there)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._watchdog.look(time.monotonic())
            self._hearing.look(self._node.core.peers)
            self.display.tick()

    async def farewell(self, *, hasty: bool) -> None:
        members = len(self._node.setup().federation.present)
        last_words_s = min(MOST_LAST_WORDS_S, LAST_WORDS_S + LAST_WORD_S * members)
        await self.display.farewell(wait_s=0.0 if hasty else last_words_s)

    async def over(self, result: NodeResult) -> None:  # noqa: ARG002 - the node's own row says how it ended
        if self._page is not None:
            self.display.see_end()
            await self._page.conclude()


def private_of(node: NodeView) -> Private | None:
    """Return the feature that pays for the node's rounds, or None if there is none."""
    feature = node.other(PrivacyFeature.name)
    return feature if isinstance(feature, Private) else None


def page_address(node: NodeConfig, page: StatusPage | None) -> str | None:
    """Return the address of the page on this machine, as host:port."""
    if page is None or node.status_listen is None:
        return None
    return address_at(node.status_listen, page.port)
