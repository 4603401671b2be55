"""A member that opens one session after another costs little, is told of once, and disturbs nobody else."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import suppress
from dataclasses import replace
from random import Random

import aiohttp
import pytest
from aiohttp.web import WebSocketResponse
from nodes import most_bytes_an_hour

from p2pfl.core import Ready
from p2pfl.crypto.session import Initiator, Responder, Session
from p2pfl.net import BOOT_BYTES, PATH, Backoff, Limits, Notice, Word

PER_S = 100


class Churner:
    """Member 1, of which many sessions with node 0 begin at a rate, and stay until they are replaced."""

    def __init__(self, federation, node):
        self.federation, self.node = federation, node
        self.tried = 0
        self._under_way = set()

    async def run(self, duration_s):
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with aiohttp.ClientSession() as http:
            while (elapsed_s := loop.time() - began) < duration_s:
                while self.tried < elapsed_s * PER_S:
                    self.tried += 1
                    task = asyncio.create_task(self._churn(http))
                    self._under_way.add(task)
                    task.add_done_callback(self._under_way.discard)
                await asyncio.sleep(0.005)
            for task in self._under_way:
                task.cancel()
            await asyncio.wait([*self._under_way, asyncio.create_task(asyncio.sleep(0))])

    async def _churn(self, http):
        binding = self.node.links._greeter.binding
        initiator = Initiator(self.federation.identities[1], self.federation.identities[0].public, binding)
        with suppress(aiohttp.ClientError, ConnectionError, TypeError):
            async with http.ws_connect(f"ws://{self.node.address()}{PATH}", timeout=WAIT) as web_socket:
                await web_socket.send_bytes(initiator.first())
                await web_socket.send_bytes(initiator.second(await web_socket.receive_bytes()))
                session = Session(initiator.keys)
                await web_socket.send_bytes(session.seal(Notice(Word.GREETING, bytes(BOOT_BYTES)).pack()))
                for _ in ("greeting", "verdict"):
                    session.open(await web_socket.receive_bytes())


WAIT = aiohttp.ClientWSTimeout(ws_close=0.1)


@pytest.fixture
def handshakes(monkeypatch):
    """One entry for each handshake that a node has answered."""
    answered = []
    first = Responder.first

    def counted(responder, m1):
        answered.append(asyncio.get_running_loop().time())
        return first(responder, m1)

    monkeypatch.setattr(Responder, "first", counted)
    return answered


@pytest.mark.long
@pytest.mark.slow
async def test_a_hundred_sessions_a_second_are_few(federation, quick, handshakes, caplog):
    caplog.set_level(logging.DEBUG)
    limits = replace(quick, handshakes_per_s=20.0, handshake_burst=64.0)
    async with federation.node(0, limits=limits) as a, federation.node(2, {0: a.address()}) as other:
        await other.until(lambda: other.open and a.open)
        churner = Churner(federation, a)
        siege = asyncio.create_task(churner.run(4.0))
        versions = range(1, 101)
        for version in versions:
            other.send(0, Ready(version=version))
            await asyncio.sleep(0.04)
        await siege
        await a.until(lambda: len([event for event in a.events if event[:2] == ("message", 2)]) == len(versions))
        assert churner.tried > 3 * PER_S
        assert a.links.counters.peers[1].sessions <= quick.session_burst + 5 * quick.sessions_per_s
        assert len(handshakes) <= limits.handshake_burst + 6 * limits.handshakes_per_s + 1
        assert [(kind, peer) for kind, peer, _ in a.alarms] == [("session-churn", 1)]
        assert [event for event in a.events if event[:2] == ("close", 2)] == [], "the other session stays"
        assert a.links.counters.peers[2].sessions == 1
    ours = [record for record in caplog.records if record.name == "tests.net"]
    assert sum(len(record.getMessage()) for record in ours) < most_bytes_an_hour(members=7)
    assert len(ours) < 100


async def test_after_the_rest_it_is_let_in_and_told_of_no_more(federation, quick):
    limits = replace(quick, session_burst=2.0, sessions_per_s=5.0, churn_rest_s=0.4)
    async with federation.node(0, limits=limits) as a:
        churner = Churner(federation, a)
        for _ in range(3):
            opened = a.links.counters.peers[1].sessions
            rested = a.links._table.places[1].rests_until
            async with asyncio.timeout(30):
                while a.links._table.places[1].rests_until == rested:
                    await churner.run(0.3)
                    churner.tried = 0
            assert a.links.counters.peers[1].sessions > opened
            await a.until(lambda: not a.links._table.places[1].rest_s)
        assert [kind for kind, _, _ in a.alarms] == ["session-churn"]
        async with federation.node(1, {0: a.address()}) as b:
            await b.until(lambda: b.open)


def sockets_alive():
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is WebSocketResponse]  # isinstance would ask torch, too


async def test_nothing_is_kept_of_a_connection_that_has_been_closed(federation):
    """Neither its socket nor a timer, though the peer answers the goodbye."""
    before = {id(one) for one in sockets_alive()}
    async with federation.node(0) as a:
        await Churner(federation, a).run(0.5)
        await a.until(lambda: not a.links._tasks.arrivals)
        await a.until(lambda: {id(one) for one in sockets_alive()} <= before)


async def test_an_honest_node_that_is_restarted_again_and_again_gets_in_each_time(federation, quick):
    limits = replace(quick, churn_rest_s=60.0)
    async with federation.node(0, limits=limits) as a:
        for _ in range(15):
            async with federation.node(1, {0: a.address()}) as b:
                await b.until(lambda b=b: b.open and a.open)
        assert a.alarms == []


def honest_dials(limits, lifetimes_s):
    """When the sessions of a dialer begin, as soon as may be, of which each lasts so long."""
    backoff, now = Backoff(limits, Random(1)), 0.0
    for lifetime_s in lifetimes_s:
        yield now
        now += lifetime_s
        if lifetime_s >= limits.settled_s:
            backoff.reset()
        else:
            now += backoff.next_s()


@pytest.mark.parametrize("lifetime_s", [0.0, 1.0, 2.0, 5.0, 3600.0])
async def test_a_link_that_flaps_is_no_churn(federation, lifetime_s):
    limits = Limits()
    sessions = federation.new(0, limits=limits).links._table.places[1].sessions
    both_ends = sorted([*honest_dials(limits, [lifetime_s] * 1000)] * 2)
    assert [sessions.take(now) for now in both_ends] == [0.0] * 2000


async def test_a_neighbor_whose_node_is_restarted_every_few_seconds_is_no_churn(federation):
    limits = Limits()
    sessions = federation.new(0, limits=limits).links._table.places[1].sessions
    for start in range(1000):
        for dialed_at in honest_dials(limits, [0.1] * 4):
            assert sessions.take(5.0 * start + dialed_at) == 0.0
