"""Strangers spend no more of the loop's time than their purses hold: beyond that nothing of theirs is parsed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from nodes import UPGRADE

from p2pfl.core import Ready
from p2pfl.features.status import Guard, StatusPage
from p2pfl.limits import ADDRESS_SHARE, QUOTA_BURST_S, STRANGERS_SHARE
from p2pfl.net import (
    EVENT_S,
    LEAST_SHARE,
    MOST_UNPROVEN,
    SLICE_BYTES,
    ConnectionGate,
    CoreShare,
    CpuQuota,
    Limits,
    PendingConnections,
    Stopwatch,
    TimeBudget,
    count_threads,
    measure,
)

PINGS = UPGRADE + b"\x89\x80\0\0\0\0" * 2600
JUNK = UPGRADE + b"\x82\xb0" + bytes(52)
CHUNKS = b"POST /status HTTP/1.1\r\nHost: 192.0.2.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000
ONE = ["127.0.9.9"]
MANY = [f"127.0.1.{number}" for number in range(1, 201)]
DEAR_S = 0.005
"""What each event costs in these tests."""
TOKEN = "a-token-of-a-test"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_an_overdrawn_purse_is_empty_until_time_has_filled_it():
    purse = TimeBudget(share=0.1, burst_s=1.0)
    purse.spend(3.0, now=10.0)
    assert purse.wait_s(10.0) == pytest.approx(20.0)
    assert purse.wait_s(30.0) == pytest.approx(0.0)
    assert purse.fill(1000.0) == 1.0, "it holds no more than a burst"


def spend_all(time, groups, each_s=0.01):
    """How much strangers could spend who come in turns, as long as anybody may enter."""
    spent = 0.0
    while entering := [group for group in groups if time.may_enter(group)]:
        time.spend(entering[0], each_s)
        spent += each_s
    return spent


class Machine:
    """A wall clock, and what Linux counts for each thread: how long it ran, and was ready and waited."""

    def __init__(self):
        self.now, self.threads = 0.0, {}

    def passes(self, wall_s, core, *threads):
        """Each of the threads is ready all the time, and gets that share of a core."""
        self.now += wall_s
        for thread in threads:
            ran, waited = self.threads.get(thread, (0, 0))
            self.threads[thread] = ran + int(wall_s * core * 1e9), waited + int(wall_s * (1 - core) * 1e9)

    def share(self):
        return CoreShare(lambda: self.now, lambda: dict(self.threads))


@pytest.mark.parametrize("core", [1.0, 0.3, 0.2])
@pytest.mark.parametrize(("groups", "share"), [(["a"], ADDRESS_SHARE), ([str(n) for n in range(200)], STRANGERS_SHARE)])
def test_strangers_spend_their_share_of_the_core_that_the_node_gets(core, groups, share):
    """Its loop sleeps half the time, and another thread learns."""
    machine = Machine()
    price, spent = machine.share(), 0.0
    time = CpuQuota(clock=lambda: machine.now)
    for _ in range(100):
        machine.passes(0.25, core, "learns")
        machine.passes(0.25, core, "learns", "loop")
        spent += spend_all(time, groups, each_s=0.01 / price()) * price()
    assert spent == pytest.approx((QUOTA_BURST_S + 50 * share) * core, rel=0.02, abs=0.02)


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1), st.sets(st.sampled_from("abc"))), max_size=30))
def test_the_share_of_a_core_is_never_more_than_one_nor_less_than_the_least(pieces):
    machine = Machine()
    share = machine.share()
    for wall_s, core, threads in pieces:
        if core < 0.5:
            machine.threads.pop("a", None)  # it has ended, and another one may get its number
        machine.passes(wall_s, core, *sorted(threads))
        assert LEAST_SHARE <= share() <= 1.0


def test_where_nothing_is_counted_the_share_is_a_whole_core():
    machine = Machine()
    share = machine.share()
    machine.passes(7.0, 0.1)
    assert share() == 1.0
    assert count_threads(), "on this system it is"


def test_work_is_charged_at_the_price_of_a_core(monkeypatch):
    monkeypatch.setattr("p2pfl.net.limits.core_share", lambda: lambda: 0.25)
    monkeypatch.setattr("p2pfl.net.limits.time.thread_time", iter([7.0, 7.5]).__next__)
    costs = []
    with Stopwatch(costs.append):
        pass
    assert costs == [pytest.approx(4 * (0.5 + EVENT_S))]


def test_a_flood_takes_nothing_of_those_at_members_addresses():
    time = CpuQuota(clock=Clock())
    time.know("member")
    spend_all(time, [str(number) for number in range(200)])
    assert not time.may_enter("stranger")
    assert time.may_enter("member")


def test_who_was_let_in_is_not_dropped_for_those_that_came_later():
    time = CpuQuota(clock=Clock())
    spend_all(time, ["a"])
    assert time.may_go_on("a")
    time.spend("a", QUOTA_BURST_S)
    assert not time.may_go_on("a")


def test_many_neighbors_may_start_at_once_behind_one_address():
    time = CpuQuota(100, clock=Clock())
    for _ in range(100):
        assert time.may_enter("a")
        time.spend("a", 0.02)


async def test_measured_work_returns_raises_and_is_cancelled_as_it_would_be_alone():
    costs = []

    async def work(outcome):
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.0):
                await asyncio.Event().wait()
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is None:
            await asyncio.Event().wait()
        return outcome

    watch = Stopwatch(costs.append)
    assert await measure(work(7), watch) == 7
    assert len(costs) == 3, "one for each step"
    with pytest.raises(ValueError, match="x"):
        await measure(work(ValueError("x")), watch)

    async def outer():
        await measure(work(None), watch)

    task = asyncio.create_task(outer())
    while len(costs) < 8:  # noqa: ASYNC110 - it is looked at from outside
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- real sockets ---------------------------------------------------------------------------------------------------


@pytest.fixture
def dear(monkeypatch):
    """Each event costs much, and purses do not fill: so what is parsed can be counted."""
    monkeypatch.setattr("p2pfl.net.limits.EVENT_S", DEAR_S)
    monkeypatch.setattr("p2pfl.net.limits.ADDRESS_SHARE", 1e-9)
    monkeypatch.setattr("p2pfl.net.limits.STRANGERS_SHARE", 1e-9)
    # Nobody is refused because accepting has cost too much.
    monkeypatch.setattr("p2pfl.net.acceptor.ACCEPTING_SHARE", 1e9)


@pytest.fixture
def parsed(monkeypatch):
    """The sizes of what aiohttp's server has parsed."""
    sizes, parse = [], web.RequestHandler.data_received

    def counted(handler, data):
        sizes.append(len(data))
        parse(handler, data)

    monkeypatch.setattr(web.RequestHandler, "data_received", counted)
    return sizes


async def rush(port, said, source):
    """One stranger: says it, and stays until it is dropped."""
    writer = None
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
        writer.write(said)
        async with asyncio.timeout(20):
            while await reader.read(65536):
                pass
    if writer is not None:
        writer.transport.abort()


async def flood(port, said, sources, count=40):
    for number in range(count):
        await rush(port, said, sources[number % len(sources)])


@pytest.mark.parametrize(
    ("said", "count", "sources"),
    [
        pytest.param(PINGS, 40, MANY, id="pings of many"),
        pytest.param(JUNK, 120, ONE, id="junk of one"),
        pytest.param(PINGS, 40, ONE, id="pings of one", marks=pytest.mark.long),
        pytest.param(JUNK, 120, MANY, id="junk of many", marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("dear")
async def test_what_strangers_say_beyond_their_time_is_not_parsed_and_a_member_gets_in(
    federation, parsed, said, count, sources
):
    """Node 1 is known by its address, which is configured."""
    async with federation.node(0, {1: "127.0.0.1:9"}) as a:
        await flood(a.links.port, said, sources, count)
        pending = a.links._transport.pending
        assert pending.turned_away > 0
        most_s = 2 * QUOTA_BURST_S + 0.02 * len(federation.members)
        assert len(parsed) <= most_s / DEAR_S + 1
        assert sum(parsed) <= len(parsed) * SLICE_BYTES < count * len(said)
        await rush(a.links.port, said, sources[0])
        before = len(parsed)
        await rush(a.links.port, said, sources[0])
        assert len(parsed) == before, "nothing is parsed any more"
        async with federation.node(1, {0: a.address()}) as b:
            await b.until(lambda: b.open and a.open)


@pytest.mark.usefixtures("dear")
async def test_a_session_gets_back_what_its_connection_has_paid(federation):
    async with federation.node(0) as a:
        purse = a.links._transport.pending.time._strangers.all
        full = purse.left_s
        async with federation.node(1, {0: a.address()}) as b:
            await b.until(lambda: b.open and a.open)
            await a.until(lambda: purse.left_s == pytest.approx(full))


@pytest.mark.usefixtures("dear")
async def test_one_byte_chunks_to_the_page_are_not_parsed_beyond_their_time(parsed):
    async with StatusPage("127.0.0.1:0", lambda: {"rounds": 7}, token=TOKEN) as page:
        await flood(page.port, CHUNKS, MANY, 20)
        assert sum(parsed) <= 2 * QUOTA_BURST_S / DEAR_S * SLICE_BYTES + SLICE_BYTES < 20 * len(CHUNKS)
        headers = {"Host": "192.0.2.1", "Authorization": f"Bearer {TOKEN}"}
        url = f"http://127.0.0.1:{page.port}/status"
        async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as response:
            assert response.status == 200


@pytest.mark.usefixtures("dear")
async def test_readers_with_the_token_are_served_while_a_flood_from_their_own_address_lasts(parsed):
    """Those without it are not, and take none of their places."""
    async with StatusPage("127.0.0.1:0", lambda: {"rounds": 7}, token=TOKEN) as page, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{page.port}/status"

        async def status(**headers):
            async with http.get(url, headers=headers | {"Connection": "close"}) as response:
                return response.status

        for _ in range(40):
            await rush(page.port, CHUNKS, "127.0.0.1")
        silent = [await asyncio.open_connection("127.0.0.1", page.port) for _ in range(3 * MOST_UNPROVEN)]
        before = len(parsed)
        for wrong in ({}, {"Authorization": "Bearer x"}, {"Cookie": "p2pfl-1=x"}):
            with pytest.raises(aiohttp.ClientError):
                await status(**wrong)
        assert len(parsed) == before, "nothing of strangers is parsed"
        proof = Guard(listen=page._address, token=TOKEN)._proof
        for right in ({"Authorization": f"Bearer {TOKEN}"}, {"Cookie": f"a=b; p2pfl-1=x; p2pfl-{page.port}={proof}"}):
            assert await status(**right) == 200
        assert len(page._acceptor._unproven) <= MOST_UNPROVEN
        for _, writer in silent:
            writer.transport.abort()


async def test_while_nobody_is_accepted_open_sessions_go_on(federation, monkeypatch):
    monkeypatch.setattr("p2pfl.net.acceptor.ACCEPTING_SHARE", 1e-9)
    monkeypatch.setattr("p2pfl.net.acceptor.ACCEPTING_BURST_S", 0.0)
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        strangers = [await asyncio.open_connection("127.0.0.1", a.links.port) for _ in range(20)]
        b.send(0, Ready(version=1))
        await a.until(a.messages)
        pending = a.links._transport.pending
        assert pending.waiting == pending.turned_away == 0
        for _, writer in strangers:
            writer.transport.abort()


async def test_accepting_is_taken_up_again(federation, monkeypatch):
    monkeypatch.setattr("p2pfl.net.acceptor.ACCEPTING_SHARE", 0.01)
    monkeypatch.setattr("p2pfl.net.acceptor.ACCEPTING_BURST_S", 0.0)
    async with federation.node(0) as a:
        strangers = []
        for number in range(3):
            strangers.append(await asyncio.open_connection("127.0.0.1", a.links.port))
            await a.until(lambda number=number: a.links._transport.pending.waiting == number + 1)
        for _, writer in strangers:
            writer.transport.abort()


async def test_nothing_is_made_above_a_connection_that_says_nothing():
    made = []
    gate = ConnectionGate(PendingConnections(Limits()), lambda gate: made.append(gate) or asyncio.Protocol())
    server = await asyncio.get_running_loop().create_server(lambda: gate, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with asyncio.timeout(20):
        while gate._transport is None:  # noqa: ASYNC110 - it is looked at from outside
            await asyncio.sleep(0)
        assert made == []
        writer.write(b"x")
        while not made:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    writer.transport.abort()
    gate.abort()
    server.close()
