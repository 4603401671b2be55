"""Where somebody says that a neighbor is, is tried beside what is configured; the handshake decides."""

from __future__ import annotations

import asyncio

from p2pfl.net.address import Address
from p2pfl.net.route import MOST_HINTS, Route

NOWHERE = "127.0.0.1:1"
"""Nobody listens there."""


def places(numbers):
    return [Address("10.0.0.1", number) for number in numbers]


async def test_a_neighbor_without_an_address_is_found_by_a_hint(federation):
    async with federation.node(1) as b, federation.node(0) as a:
        a.links.hint(1, [b.address()])
        await b.until(lambda: b.open and a.open)
        assert a.links.is_complete is False  # the others are nowhere


async def test_hints_are_tried_where_the_configured_address_fails(federation):
    async with federation.node(1) as b, federation.node(0, {1: NOWHERE}) as a:
        a.links.hint(1, [NOWHERE, b.address()])
        await b.until(lambda: b.open and a.open)


async def test_the_configured_address_is_tried_first_and_no_hint_takes_its_place(federation):
    async with federation.node(1) as b, federation.node(0, {1: b.address()}) as a:
        a.links.hint(1, [NOWHERE])
        await b.until(lambda: b.open and a.open)
        assert [str(place) for place in a.links._dialer.route(1).addresses()] == [b.address(), NOWHERE]


async def test_a_neighbor_with_a_session_is_not_dialed_when_a_hint_comes(federation):
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        dialed = asyncio.Event()

        async def dial(*_):
            dialed.set()
            return False

        a.links._dialer._attempt = dial
        a.links.hint(1, [b.address()])
        await asyncio.sleep(0.1)
        assert not dialed.is_set()


async def test_another_node_at_the_place_of_a_hint_is_no_neighbor(federation):
    async with federation.node(2) as c, federation.node(1) as b, federation.node(0) as a:
        a.links.hint(1, [c.address(), b.address()])
        await b.until(lambda: b.open and a.open)
        assert set(a.open) == {1}
        assert not c.open


async def test_a_hint_that_is_no_address_is_passed_over(federation):
    async with federation.node(0) as a:
        a.links.hint(1, ["nonsense", NOWHERE])
        assert [str(place) for place in a.links._dialer.route(1).addresses()] == [NOWHERE]


async def test_a_hint_about_somebody_who_is_no_member_is_forgotten(federation):
    async with federation.node(0) as a:
        a.links.hint(99, [NOWHERE])
        assert 99 not in a.links._dialer.routes


async def test_few_hints_are_kept_the_newest_first():
    route = Route()
    for number in range(10):
        route.hint(places([number]))
    assert route.addresses() == places([9, 8, 7, 6])
    assert len(route.hints) == MOST_HINTS


async def test_an_address_that_has_worked_is_kept_however_many_come():
    route = Route()
    route.hint(places([1]))
    route.has_worked(places([1])[0])
    for number in range(2, 30):
        route.hint(places([number, number + 100]))
    assert route.addresses() == places([1, 29, 129, 28, 128])


async def test_a_hint_that_is_known_brings_no_dial_forward():
    route = Route()
    route.hint(places([1]))
    assert await route.rest(5.0)
    route.news.clear()
    route.hint(places([1]))
    assert not await route.rest(0.05)


async def test_made_up_addresses_bring_a_dial_forward_once_in_a_while():
    route = Route()
    route.hint(places([1]))
    assert await route.rest(5.0)
    route.news.clear()
    route.hint(places([2]))
    assert not await route.rest(0.05)


async def test_sessions_of_an_address_that_is_gone_end_at_once_and_others_stay(federation):
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: a.open and b.open)
        b.links.end_stale(lambda address: address == "127.0.0.1")
        assert b.open
        b.links.end_stale(lambda address: address != "127.0.0.1")
        assert b.reasons() == ["127.0.0.1 is not an address of this machine any more"]
        await b.until(lambda: a.open and b.open)
