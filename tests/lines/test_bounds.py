"""TrafficBounds on a node's traffic: its rate, its hours, its month, and what its neighbors are told."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs

from p2pfl.config.model import OwnNetwork
from p2pfl.features.bounds.allowance import GB, Hours, MonthCount, next_month
from p2pfl.features.bounds.feature import CHANNEL, FAREWELL_S, Pausing, TrafficBounds, readable
from p2pfl.net.line import Counters
from p2pfl.net.rate import SendingRate
from p2pfl.node.feed import Feed

sys.path.insert(0, str(Path(__file__).parents[1]))
from message_kit import REQUEST
from nodes import QUICK

NOON = datetime(2026, 11, 26, 12, 0)  # noqa: DTZ001 - the machine's own clock


@pytest.mark.parametrize(
    ("hours", "clock", "opens"),
    [
        ("20:00-06:00", "12:00", "26 20:00"),
        ("20:00-06:00", "21:00", None),
        ("20:00-06:00", "05:59", None),
        ("20:00-06:00", "06:00", "26 20:00"),
        ("08:00-18:00", "12:00", None),
        ("08:00-18:00", "18:00", "27 08:00"),
        ("08:00-18:00", "07:00", "26 08:00"),
    ],
)
def test_hours_may_go_over_midnight(hours, clock, opens):
    hour, minute = map(int, clock.split(":"))
    found = Hours.parse(hours).closed_until(NOON.replace(hour=hour, minute=minute))
    assert (None if found is None else f"{found:%d %H:%M}") == opens


def test_a_month_ends_at_midnight():
    assert next_month(NOON) == datetime(2026, 12, 1)  # noqa: DTZ001 - as above
    assert next_month(datetime(2026, 12, 31, 23, 59)) == datetime(2027, 1, 1)  # noqa: DTZ001 - as above


def test_the_count_of_a_month_survives_a_restart_and_ends_with_the_month(tmp_path):
    count = MonthCount(tmp_path, 1000.0, NOON)
    count.add(600, NOON, 1.0)
    assert count.closed_until(NOON) is None
    again = MonthCount(tmp_path, 1000.0, NOON)
    again.add(400, NOON, 2.0)
    assert again.used == 1000
    assert again.closed_until(NOON) == next_month(NOON)
    later = NOON + timedelta(days=10)
    assert MonthCount(tmp_path, 1000.0, later).used == 0
    again.add(450, later, 3.0)
    assert again.used == 50


def test_a_damaged_count_begins_anew(tmp_path):
    (tmp_path / "traffic.json").write_text("[1")
    assert MonthCount(tmp_path, 1000.0, NOON).used == 0


class NodeOfTests:
    """What `TrafficBounds` gets from a node, and what it has done to it."""

    def __init__(self, folder, **bounds):
        self.time, self.wall = 0.0, NOON
        self.said, self.paused, self.spared = [], [], []
        self.status = SimpleNamespace(counters=Counters.of([1]), waits_for="")
        self.presence = SimpleNamespace()
        self.feed = Feed("node {}".format)
        self.network = SimpleNamespace(
            pause=lambda pause_s, why: self.paused.append((pause_s, why)),
            spare=lambda peer, rest_s: self.spared.append((peer, rest_s)),
        )
        node = SimpleNamespace(network=OwnNetwork(**bounds), state_dir=folder)
        self.setup = lambda: SimpleNamespace(node=node)

    def clock(self):
        return self.time

    def say(self, peer, channel, message):
        assert channel is CHANNEL
        self.said.append((peer, message.for_s))

    def pass_(self, seconds):
        self.time += seconds
        self.wall += timedelta(seconds=seconds)


def test_outside_its_hours_a_node_tells_its_neighbors_then_ends_its_sessions_and_goes_on_in_time(tmp_path):
    node = NodeOfTests(tmp_path, hours="20:00-06:00")
    bounds = TrafficBounds(node, lambda: node.wall)
    bounds.meet(1)
    bounds.look()
    assert node.said == [(1, 8 * 3600.0)]
    assert not node.paused
    assert node.presence.is_excused(2)
    assert bounds.before_round(None) is not None
    assert node.status.waits_for == "paused"
    assert bounds.status()["paused_until"] == "2026-11-26T20:00"
    node.pass_(FAREWELL_S)
    bounds.look()
    assert node.paused[0][0] > 0
    node.pass_(8 * 3600)
    bounds.look()
    assert node.paused[-1][0] == 0.0
    assert bounds.before_round(None) is None
    assert not node.status.waits_for
    assert "paused_until" not in bounds.status()


def test_a_month_that_is_used_up_pauses_until_the_next(tmp_path):
    node = NodeOfTests(tmp_path, month_gb=0.001)
    bounds = TrafficBounds(node, lambda: node.wall)
    bounds.look()
    assert bounds.until is None
    node.status.counters.peers[1].bytes_received = int(0.001 * GB)
    bounds.look()
    assert bounds.status() == {
        "month_gb": 0.001,
        "month_used_gb": 0.001,
        "paused_until": "2026-12-01T00:00",
        "paused_because": "0.001 GB of this month are used up",
    }


def test_a_neighbor_that_pauses_is_excused_and_not_dialed_until_it_is_back(tmp_path):
    node = NodeOfTests(tmp_path)
    bounds = TrafficBounds(node)
    bounds.hear(1, Pausing(for_s=3600.0))
    assert node.presence.is_excused(1)
    assert not node.presence.is_excused(2)
    assert node.spared == [(1, 3600.0)]
    node.pass_(4000)
    assert not node.presence.is_excused(1)
    bounds.hear(1, Pausing(for_s=3600.0))
    bounds.meet(1)
    assert not node.presence.is_excused(1)


def test_a_time_is_said_for_people():
    assert readable(34200.0) == "9 h 30 min"
    assert readable(5.0) == "a moment"


async def test_sessions_share_the_rate_and_live_on_while_they_wait(federation, monkeypatch):
    monkeypatch.setattr(SendingRate, "book", lambda self, size, now: setattr(self, "_free_at", now + 2e-7 * size))
    body = os.urandom(300_000)
    async with federation.node(1) as b, federation.node(2) as c:
        dial = {1: b.address(), 2: c.address()}
        async with federation.node(0, dial, limits=replace(QUICK, max_kbit_s=100.0)) as a:
            await a.until(lambda: len(a.open) == 2 and b.open and c.open)
            began = asyncio.get_running_loop().time()
            for peer in (1, 2):
                a.send(peer, structs.replace(REQUEST, body=body))
            await a.until(lambda: b.messages() and c.messages())
            assert asyncio.get_running_loop().time() - began >= 2e-7 * 500_000
            assert bytes(b.messages()[0].body) == bytes(c.messages()[0].body) == body


def test_the_rate_is_an_average():
    rate = SendingRate(1000.0)
    assert rate.wait_s(5.0) == 0.0
    rate.book(500, 5.0)
    assert rate.wait_s(5.0) == pytest.approx(0.5)
    rate.book(500, 5.2)
    assert rate.wait_s(5.5) == pytest.approx(0.5)
    assert rate.wait_s(9.0) == 0.0


async def test_a_short_message_waits_for_no_long_one():
    rate, said = SendingRate(1.0), []

    async def say(chunk):
        said.append(bytes(chunk))

    rate.book(1000, asyncio.get_running_loop().time())
    long = asyncio.create_task(rate.carry([b"head", b"body"], say, 60.0, is_over=lambda: False))
    await asyncio.sleep(0)
    await rate.carry([b"short"], say, 60.0, is_over=lambda: False)
    assert said == [b"short"]
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    assert not rate._turn.locked()


async def test_a_node_that_pauses_dials_again_when_it_is_over(federation, monkeypatch):
    monkeypatch.setattr("p2pfl.net.session_table.MOST_SLEEP_S", 0.02)
    async with federation.node(1) as b, federation.node(0, {1: b.address()}) as a:
        await a.until(lambda: a.open and b.open)
        a.links.pause(60.0, "a pause")
        await b.until(lambda: not a.open and not b.open)
        assert a.reasons() == ["a pause"]
        a.links._table.rest(1, 0.05)
        a.links.pause(0.0, "")
        assert a.links._table.places[1].rest_s > 0.0, "a pause ended a rest that had another reason"
        await a.until(lambda: a.open and b.open)


async def test_a_neighbor_that_is_spared_may_dial(federation, monkeypatch):
    monkeypatch.setattr("p2pfl.net.session_table.MOST_SLEEP_S", 0.02)
    async with federation.node(1) as b:
        a = federation.new(0, {1: b.address()})
        a.links.spare(1, 60.0)
        async with a.links:
            b.links.amend(members=federation.members, dial={0: a.address()}, neighbors=frozenset({0}))
            await a.until(lambda: a.open and b.open)
            assert a.links._table.places[1].spared_until == 0.0
