"""Where somebody says that a neighbor is, is tried beside what is configured; the handshake decides."""

from __future__ import annotations

import asyncio

import pytest

from p2pfl.errors import UserError
from p2pfl.net.address import Address
from p2pfl.net.sockets import MOST_HINTS, Hints

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
        assert [str(place) for place in a.links._dialer.places_of(1)] == [b.address(), NOWHERE]


async def test_a_neighbor_with_a_session_is_not_dialed_when_a_hint_comes(federation):
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        dialed = asyncio.Event()

        async def dial(*_):
            dialed.set()
            return False

        a.links._dialer._try_each = dial
        a.links.hint(1, [b.address()])
        await a.until(lambda: not a.links._dialer._hints[1]._news.is_set())
        await asyncio.sleep(0)  # whatever follows in the same step of the loop
        assert not dialed.is_set()


async def test_another_node_at_the_place_of_a_hint_is_no_neighbor(federation):
    async with federation.node(2) as c, federation.node(1) as b, federation.node(0) as a:
        a.links.hint(1, [c.address(), b.address()])
        await b.until(lambda: b.open and a.open)
        assert set(a.open) == {1}
        assert not c.open


async def test_a_hint_that_is_no_address_is_our_own_mistake(federation):
    async with federation.node(0) as a:
        with pytest.raises(UserError, match="hint: not an address"):
            a.links.hint(1, ["nonsense"])


async def test_a_hint_about_somebody_who_is_no_neighbor_is_forgotten(federation):
    async with federation.node(0, neighbors=frozenset({1})) as a:
        a.links.hint(2, [NOWHERE])
        assert a.links._dialer.places_of(2) == []


async def test_few_hints_are_kept_the_newest_first():
    hints = Hints()
    for number in range(10):
        hints.add(places([number]))
    assert hints.addresses == places([9, 8, 7, 6])
    assert len(hints.addresses) == MOST_HINTS


async def test_an_address_that_has_worked_is_kept_however_many_come():
    hints = Hints()
    hints.add(places([1]))
    hints.worked(places([1])[0])
    for number in range(2, 30):
        hints.add(places([number, number + 100]))
    assert hints.addresses == places([1, 29, 129, 28])


async def test_a_hint_that_is_known_brings_no_dial_forward():
    hints = Hints()
    hints.add(places([1]))
    await hints.news()
    hints.add(places([1]))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(hints.news(), 0.05)


async def test_sessions_of_an_address_that_is_gone_end_at_once_and_others_stay(federation):
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: a.open and b.open)
        b.links.end_stale(lambda address: address == "127.0.0.1")
        assert b.open
        b.links.end_stale(lambda address: address != "127.0.0.1")
        assert b.reasons() == ["127.0.0.1 is not an address of this machine any more"]
        await b.until(lambda: a.open and b.open)
