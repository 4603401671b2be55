"""TrafficBounds on a node's traffic: its rate, its hours, its month, and what its neighbors are told."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace

import msgspec
import pytest
from line_kit import Sites
from message_kit import REQUEST
from msgspec import structs
from nodes import QUICK

from p2pfl.config import OwnNetwork
from p2pfl.errors import PeerFault
from p2pfl.features.bounds.traffic import (
    BACK_S,
    CHANNEL,
    FAREWELL_S,
    GB,
    LONGEST_S,
    MonthCount,
    Pausing,
    PausingNode,
    TrafficBounds,
    closed_until,
    next_month,
)
from p2pfl.net import Counters, SendingRate
from p2pfl.node import Feed

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
    found = closed_until(hours, NOON.replace(hour=hour, minute=minute))
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


def test_a_clock_that_is_wrong_for_a_while_does_not_forget_the_month(tmp_path):
    """A machine without a battery starts in 1970, or in a year to come."""
    clock_s = 100.0
    MonthCount(tmp_path, 1000.0, NOON).add(900, NOON, 0.0)
    for year in (1970, 2099):
        wrong = NOON.replace(year=year)
        count = MonthCount(tmp_path, 1000.0, wrong)
        count.add(30, wrong, clock_s)
        count.add(40, NOON, 2 * clock_s)
        count.write(clock_s)
    assert count.used == 920
    for month in range(1, 13):
        count.add(50, NOON.replace(year=2001, month=month), 1e6 * month)
        count.add(50, NOON, 1e6 * month + 1e3)
    count.write(0.0)
    assert len(msgspec.json.decode((tmp_path / "traffic.json").read_bytes())) == 12
    assert MonthCount(tmp_path, 1000.0, NOON).used == count.used == 920


@pytest.mark.parametrize(
    "text", ["[1", '{"2026-11": {"*": -5}}', '{"2026-11": {"*": 1e999}}', '{"2026-11": 3}', "\xff"]
)
def test_a_damaged_count_begins_anew_and_says_so(tmp_path, text, caplog):
    (tmp_path / "traffic.json").write_text(text, encoding="latin-1")
    assert MonthCount(tmp_path, 1000.0, NOON).used == 0
    assert "the bytes of this month are counted anew" in caplog.text


class NodeOfTests:
    """What `TrafficBounds` gets from a node, and what it has done to it."""

    def __init__(self, folder, **bounds):
        self.time, self.wall = 0.0, NOON
        self.said, self.paused, self.spared = [], [], []
        self.status = SimpleNamespace(counters=Counters.of([1, 2]), waits_for="")
        self.presence = SimpleNamespace()
        self.feed = Feed("node {}".format)
        self.core = SimpleNamespace(peers=[1, 2])
        self.network = SimpleNamespace(
            pause=lambda pause_s, why: self.paused.append((pause_s, why)),
            spare=lambda peer, rest_s: self.spared.append((peer, rest_s)),
        )
        node = SimpleNamespace(network=OwnNetwork(**bounds), state_dir=folder)
        members = [SimpleNamespace(name=name, index=index) for index, name in enumerate(["own", "lab", "ward"])]
        self.setup = lambda: SimpleNamespace(node=node, federation=SimpleNamespace(present=members, members=members))

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
    bounds = PausingNode(node, lambda: node.wall)
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
    assert "paused_until" not in bounds.status()
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
    assert bounds.status()["by_neighbor"]["lab"]["says_paused_until"][:2] == "20"
    node.pass_(4000)
    assert not node.presence.is_excused(1)
    node.core.peers = [2]
    bounds.look()
    assert "by_neighbor" not in bounds.status(), "it is no neighbor any more"


def test_a_neighbor_that_paused_is_back_when_its_session_lasts(tmp_path):
    """It refuses a session that comes too early, which the lower index of the two has opened by then."""
    node = NodeOfTests(tmp_path)
    bounds = TrafficBounds(node)
    bounds.meet(1)
    bounds.hear(1, Pausing(for_s=3600.0))
    node.pass_(60)
    bounds.look()
    assert node.presence.is_excused(1), "it still has to end the session in which it said so"
    bounds.miss(1)
    bounds.meet(1)
    bounds.look()
    bounds.miss(1)
    assert node.presence.is_excused(1)
    bounds.meet(1)
    node.pass_(BACK_S)
    bounds.look()
    assert not node.presence.is_excused(1)
    assert node.spared[-1] == (1, 0.0)
    assert bounds.status() == {}


def test_a_neighbor_that_pauses_for_ever_is_missed_in_the_end_and_fills_no_log(tmp_path):
    node = NodeOfTests(tmp_path)
    bounds = TrafficBounds(node)
    for _ in range(40):
        for _ in range(5):
            bounds.meet(1)
            bounds.hear(1, Pausing(for_s=LONGEST_S))
            bounds.miss(1)
        assert node.presence.is_excused(1) == (node.time < LONGEST_S)
        node.pass_(86400)
    assert node.time > LONGEST_S
    assert node.feed.event_count == 40


@pytest.mark.parametrize("for_s", [float("nan"), float("inf"), -1.0, 1e9])
def test_no_pause_is_longer_than_a_month(for_s):
    with pytest.raises(PeerFault):
        CHANNEL.unpack(msgspec.msgpack.encode([1, for_s]))


def test_a_pause_over_a_change_of_summer_time_is_told_in_real_seconds(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        node = NodeOfTests(tmp_path, hours="06:00-23:00")
        for month, day, hours in ((3, 28, 6), (3, 29, 7), (10, 24, 8)):
            bounds = TrafficBounds(node, lambda: datetime(2026, month, day, 23))  # noqa: B023, DTZ001
            bounds.meet(1)
            bounds.look()
            assert node.said.pop() == (1, hours * 3600.0)
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_sessions_share_the_rate_and_live_on_while_they_wait(federation, monkeypatch):
    monkeypatch.setattr("p2pfl.net.outbox.BYTES_PER_KBIT", 50_000.0)
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
    rate = SendingRate(8.0)
    assert rate.wait_s(5.0) <= 0.0
    rate.book(500, 5.0)
    assert rate.wait_s(5.0) == pytest.approx(0.5)
    rate.book(500, 5.2)
    assert rate.wait_s(5.5) == pytest.approx(0.5)
    assert rate.wait_s(9.0) <= 0.0


async def test_a_short_message_waits_for_no_long_one():
    rate, said = SendingRate(0.008), []

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


async def test_nobody_waits_for_a_neighbor_that_reads_slowly():
    """A neighbor that took 29 s for each chunk held up what was sent to all others."""
    rate, said, read = SendingRate(1e6), [], asyncio.Event()

    async def slow(chunk):
        await read.wait()
        said.append(bytes(chunk))

    async def quick(chunk):
        said.append(bytes(chunk))

    long = asyncio.create_task(rate.carry([b"head", b"body"], slow, 60.0, is_over=lambda: False))
    await asyncio.sleep(0)
    await asyncio.wait_for(rate.carry([b"one", b"two"], quick, 60.0, is_over=lambda: False), 5.0)
    assert said == [b"one", b"two"]
    read.set()
    await asyncio.wait_for(long, 5.0)
    assert said == [b"one", b"two", b"head", b"body"]
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


async def test_a_neighbor_that_is_spared_and_cannot_dial_is_tried_from_time_to_time(federation, monkeypatch):
    """It may have been restarted with other bounds, and have no address of this node."""
    monkeypatch.setattr("p2pfl.net.session_table.MOST_SLEEP_S", 0.02)
    monkeypatch.setattr("p2pfl.net.session_table.SPARED_TRY_S", 0.1)
    monkeypatch.setattr("p2pfl.net.links.SPARED_TRY_S", 0.1)
    async with federation.node(1) as b:
        a = federation.new(0, {1: b.address()})
        a.links.spare(1, 1e6)
        async with a.links:
            await a.until(lambda: a.open and b.open)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_real_node_whose_month_is_used_up_tells_its_neighbor_and_pauses(tmp_path):
    sites = Sites(tmp_path)
    sites.own(0, "[network]\nmonth_gb = 5e-6\nmax_kbit_s = 1000\n")
    sites.change("federation.toml", "rounds = 4  ", "rounds = 4000  ")
    logs, processes = [tmp_path / f"log{number}" for number in range(2)], []
    for number, log in enumerate(logs):
        command = [sys.executable, "-m", "p2pfl.cli.main", "run", sites.path, "--node", f"node{number}", "-v"]
        with log.open("w") as file:
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file))
    try:
        used_up, end = "5e-06 GB of this month are used up", time.monotonic() + 120.0
        while used_up not in logs[0].read_text() or "neighbor-pauses (node0): until " not in logs[1].read_text():
            assert time.monotonic() < end, logs[0].read_text() + logs[1].read_text()
            time.sleep(0.1)
        assert '"phase": "paused"' in sites.say("status", sites.path, "--format", "json")
    finally:
        for process in processes:
            process.terminate()
            process.wait(60)
    assert "neighbor-lost" not in logs[0].read_text() + logs[1].read_text()
    counts = msgspec.json.decode((sites.path / "node0/state/traffic.json").read_bytes())
    ((_, of_month),) = counts.items()
    assert 5000 <= of_month["*"] < 5_000_000, "what goes in a look and the farewell comes on top"
