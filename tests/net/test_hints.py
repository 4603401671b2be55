"""Where somebody says that a neighbor is, is tried beside what is configured; the handshake decides."""

from __future__ import annotations

import asyncio
import random

import pytest

from p2pfl.limits import MOST_HINTS_KEPT
from p2pfl.net import MOST_HINTS, Address, Route

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
        assert str(a.links._dialer.routes[1].worked) == b.address()


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
        a.links.hint(0, [NOWHERE])
        assert not a.links._dialer.routes


async def test_few_hints_are_dialed_in_one_go_the_newest_first_and_then_the_others_in_turn():
    route = Route()
    for number in range(8):
        route.hint(places([number]))
    assert route.next_go() == places([7, 0, 1, 2])
    assert route.next_go() == places([3, 4, 5, 6])
    assert route.next_go() == places([7, 0, 1, 2])


async def test_between_hints_the_configured_address_and_the_one_that_has_worked_are_dialed_again():
    configured, worked = Address("configured", 1), Address("10.0.0.1", 1)
    route = Route(configured)
    route.hint([worked])
    route.has_worked(worked)
    assert route.next_go() == [configured, worked]
    route.hint(places([2, 3]))
    assert route.next_go() == [configured, worked, *places([2]), configured, worked, *places([3])]


def forged(rng, count, kind):
    """Of machines and ports that nobody listens at."""
    for _ in range(count):
        port = rng.randrange(1, 65536)
        if kind == "v6":
            yield Address(f"fd77::{rng.getrandbits(64):x}", port)
        else:
            yield Address(f"10.0.0.{rng.randrange(2, 32) if kind == 'machines' else 66}", port)


@pytest.mark.parametrize(("kind", "goes"), [("ports", 2), ("machines", 20), ("v6", 20)])
def test_a_flood_of_forged_hints_delays_the_true_one_and_does_not_push_it_out(kind, goes):
    """Whether the flood began before or after it, and while it goes on between dials; in a network of 31 machines, of
    each of which two hints are kept, as of 256 by what is kept in truth.
    """
    rng = random.Random(3)
    true = Address("10.0.0.1", 8470)
    for before, after in ((300, 0), (0, 300), (150, 150)):
        route, dialed = Route(), []
        for count, honest in ((before, [true]), (after, [])):
            for one in forged(rng, count, kind):
                route.hint([one], most=64)
            route.hint(honest, most=64)
        route.latest = []  # the luck to be the last
        while true not in dialed and len(dialed) < MOST_HINTS * goes:
            for one in forged(rng, 3, kind):
                route.hint([one], most=64)
            dialed += route.next_go()
        assert true in dialed
        assert len(route.hints) <= 64


async def test_an_address_that_has_worked_is_kept_however_many_come():
    route = Route()
    route.hint(places([1]))
    route.has_worked(places([1])[0])
    for number in range(2, MOST_HINTS_KEPT):
        route.hint(places([number, number + 3000]))
    assert route.next_go()[0] == places([1])[0]


async def test_a_hint_that_is_known_brings_no_dial_forward():
    route = Route()
    route.hint(places([1]))
    assert await route.rest(5.0)
    route.news.clear()
    route.hint(places([1]))
    route.configure(None)
    assert not await route.rest(0.05)
    route.configure(Address("two", 1))
    assert route.news.is_set()


async def test_made_up_addresses_bring_a_dial_forward_once_in_a_while():
    route = Route()
    route.hint(places([1]))
    assert await route.rest(5.0)
    route.news.clear()
    route.hint(places([2]))
    assert not await route.rest(0.05)
