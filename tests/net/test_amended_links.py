"""The federation changes while sessions are open; and addresses that others have hinted at."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from p2pfl.errors import UserError
from p2pfl.net import Address, Route

NOWHERE = "127.0.0.1:1"


def amend(federation, node, *neighbors, retired=(), dial=None):
    members = {key: index for key, index in federation.members.items() if index not in retired}
    node.links.amend(members=members, dial=dial or {}, neighbors=frozenset(neighbors))


async def test_sessions_with_those_who_stay_are_not_touched_and_the_others_end(federation):
    async with (
        federation.node(0) as a,
        federation.node(1, {0: a.address()}) as b,
        federation.node(2, {0: a.address()}) as c,
    ):
        await a.until(lambda: len(a.open) == 2 and b.open and c.open)
        amend(federation, a, 1, 3)
        assert list(a.open) == [1]
        await c.until(c.reasons)
        assert a.kinds().count("open") == 2
        assert not b.reasons()


async def test_who_is_no_neighbor_any_more_is_refused_and_who_was_removed_is_a_stranger(federation):
    async with federation.node(0) as a:
        amend(federation, a, 1, retired={3})
        traffic = a.links.counters
        async with federation.node(2, {0: a.address()}) as c:
            await c.until(lambda: traffic.peers[2].refusals)
        async with federation.node(3, {0: a.address()}) as d:
            await d.until(lambda: traffic.unknown.refusals)
            assert not d.open
        assert not a.open
        assert traffic.peers[3].bytes_received == 0


async def test_a_new_neighbor_is_dialed_at_once(federation):
    async with (
        federation.node(1, neighbors=frozenset({0})) as b,
        federation.node(0, neighbors=frozenset({2})) as a,
    ):
        assert not a.open
        amend(federation, a, 1, 2, dial={1: b.address()})
        await a.until(lambda: a.open and b.open)


async def test_a_newcomer_that_was_unknown_at_the_start_is_counted_and_let_in(federation):
    known = {key: index for key, index in federation.members.items() if index < 2}
    async with federation.node(0, members=known, neighbors=frozenset({1})) as a:
        assert 5 not in a.links.counters.peers
        amend(federation, a, 1, 5)
        async with federation.node(5, {0: a.address()}) as newcomer:
            await a.until(lambda: 5 in a.open and newcomer.open)
        assert a.links.counters.peers[5].sessions == 1


@pytest.fixture
def slow(quick):
    """Who is refused for good dials again in a quarter of an hour, and a dial may hang as long."""
    return replace(quick, retry_ceiling_s=2000.0, connect_s=1000.0, handshake_s=1000.0)


async def test_a_neighbor_that_had_not_heard_of_the_edge_yet_is_dialed_again_soon(federation, slow):
    """It is refused with other words than a federation that differs, which stays as it is."""
    async with (
        federation.node(1, neighbors=frozenset({2})) as b,
        federation.node(0, {1: b.address()}, neighbors=frozenset({1}), limits=slow) as a,
    ):
        await b.until(lambda: b.links.counters.peers[0].refusals)
        assert not a.open
        amend(federation, b, 0)
        await a.until(lambda: a.open and b.open)


async def test_a_new_address_is_tried_as_often_as_the_first_one_was(federation, slow):
    """Though the neighbor had refused this node for good at the old one."""
    dialed = asyncio.Queue()

    async def attempt(_peer, _place, address):
        dialed.put_nowait(address.port)
        return address.port == 1

    async with federation.node(0, {1: NOWHERE}, limits=slow) as a:
        a.links._dialer._attempt = attempt
        async with asyncio.timeout(20):
            assert await dialed.get() == 1
            amend(federation, a, 1, dial={1: "127.0.0.1:2"})
            assert [await dialed.get() for _ in range(3)] == [2, 2, 2]


async def test_an_address_that_changed_is_dialed_when_the_session_has_ended(federation, relay):
    async with (
        federation.node(1) as b,
        relay(b.address()) as wire,
        federation.node(0, {1: wire.address}) as a,
    ):
        await a.until(lambda: a.open and b.open)
        amend(federation, a, 1, dial={1: b.address()})
        assert a.kinds() == ["open"]
        wire.stop_accepting()
        for writer in wire.near + wire.far:
            writer.transport.abort()
        await a.until(lambda: a.kinds() == ["open", "close", "open"])


async def test_a_dial_to_an_old_address_is_broken_off_for_the_new_one(federation, slow):
    """Where something takes connections and says nothing."""
    came = asyncio.Event()

    async def hold(reader, writer):
        came.set()
        while await reader.read(1000):
            pass
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as trap, federation.node(1) as b:
        host, port = trap.sockets[0].getsockname()
        async with federation.node(0, {1: f"{host}:{port}"}, limits=slow) as a:
            async with asyncio.timeout(20):
                await came.wait()
            amend(federation, a, 1, dial={1: b.address()})
            await a.until(lambda: a.open and b.open)


async def test_what_is_no_address_changes_nothing(federation):
    async with federation.node(1) as b, federation.node(0, {1: b.address()}) as a:
        await a.until(lambda: a.open and b.open)
        with pytest.raises(UserError, match="not an address"):
            amend(federation, a, 2, dial={2: "nowhere"})
        assert a.open


def test_the_configured_address_comes_first_then_what_worked_then_the_newest_hints():
    route = Route(Address("configured", 1))
    old, worked, new = Address("old", 1), Address("worked", 1), Address("new", 1)
    route.hint([worked, old])
    route.has_worked(worked)
    route.has_worked(Address("configured", 1))
    route.hint([new])
    assert [address.host for address in route.addresses()] == ["configured", "worked", "new", "old"]
