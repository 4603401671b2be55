"""Nodes that reach each other through relays: registering, relays that die, and the way back to a direct line."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace

import msgspec
import pytest
from memory_kit import MemoryNetwork
from message_kit import REQUEST
from msgspec import structs
from relay_kit import QUICK, TOKEN, RelayHere, by_relay, dialer, nobody, nothing_listed, pair, parts, until

from p2pfl.core import Resync
from p2pfl.errors import UserError
from p2pfl.features.relay import (
    UNTRIED,
    Admissions,
    ByRelayTransport,
    FrameKind,
    ListedFederation,
    RelayLink,
    RelayServer,
    Switchboard,
    pack,
    unpack,
)
from p2pfl.net import Address, GoneError, Limits, WebSocketTransport, dial_websocket, open_browserless, parse_address


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork()


def line_of(node, peer):
    return node.links._table.places[peer].link.connection.line


async def test_nobody_but_members_that_the_relay_lists_is_served(federation, network, caplog):
    caplog.set_level(logging.INFO)
    async with RelayHere(network) as relay:
        link = RelayLink(relay.url, parts(network, federation.identities[0], token=b"wrong" * 6))
        task = asyncio.create_task(link.keep(nobody))
        await until(lambda: link.why not in ("", UNTRIED))
        with pytest.raises(GoneError, match="does not list this federation"):
            await link.dial(federation.identities[1].public)
        task.cancel()
        assert not any(tenant.seats for tenant in relay.board.tenants.values())


NESTED = b"\x98" + msgspec.msgpack.encode([1, "", bytes(32), bytes(64), b"", b"", b""])[1:] + b"\x91" * 3500


@pytest.mark.parametrize(
    "says",
    [b"", bytes(5), b"\xff" * 400, pack(FrameKind.DATA, 1, b"x"), pack(FrameKind.REGISTER, 0, NESTED), bytes(100_000)],
)
async def test_a_stranger_that_says_anything_else_is_dropped(network, says):
    async with RelayHere(network) as relay:
        line = await dialer(network)(relay.url)
        assert unpack(await line.receive()).kind is FrameKind.CHALLENGE
        await line.send(says)
        with pytest.raises(GoneError):
            await line.receive()


async def test_a_relay_without_room_says_so(federation, network):
    async with RelayHere(network, most_members=1) as relay:
        links = [RelayLink(relay.url, parts(network, identity)) for identity in federation.identities[:2]]
        tasks = []
        for link in links:
            tasks.append(asyncio.create_task(link.keep(nobody)))
            await until(lambda link=link: link.why != UNTRIED)
        assert links[0].is_registered
        assert "as many members as it may" in links[1].why
        for task in tasks:
            task.cancel()


async def test_who_has_neither_ticket_nor_token_says_so_and_tries_again(federation, network):
    def nothing(name, challenge):
        raise UserError("no ticket for pi1")

    async with RelayHere(network) as relay:
        link = RelayLink(relay.url, replace(parts(network, federation.identities[0]), answer=nothing))
        task = asyncio.create_task(link.keep(nobody))
        await until(lambda: "no ticket" in link.why)
        task.cancel()


async def test_when_a_relay_dies_another_takes_over_and_nothing_is_delivered_twice(federation, network):
    first, second = RelayHere(network, "relay:1"), RelayHere(network, "relay:2")
    a, b = pair(federation, network, first, second)
    async with second:
        await first.__aenter__()
        async with a.links, b.links:
            await a.until(lambda: a.open and b.open)
            used = line_of(a, 1).relay
            by = {link.url: link.members for link in a.links.transport.relays}
            assert by == {first.url: set(), second.url: set()} | {used: {federation.identities[1].public}}
            a.send(1, Resync(incarnation=1))
            await b.until(b.messages)
            dead, alive = (first, second) if used == first.url else (second, first)
            if dead is first:
                await first.stop()
            else:
                await second.stop()
            await a.until(lambda: a.open and b.open and line_of(a, 1).relay == alive.url)
            a.send(1, Resync(incarnation=2))
            await b.until(lambda: len(b.messages()) == 2)
        await first.stop()
    assert [message.incarnation for message in b.messages()] == [1, 2]
    for node in (a, b):
        assert any("is gone" in reason or "lost" in reason for reason in node.reasons())
        assert not node.alarms
        assert node.links.counters.total.faults == node.links.counters.total.refusals == 0


async def test_a_body_that_one_relay_has_begun_goes_on_through_another(federation, network):
    relays = [RelayHere(network, "relay:1"), RelayHere(network, "relay:2")]
    a, b = pair(federation, network, *relays, max_body_bytes=8_000_000)
    body = os.urandom(7_000_000)
    large = structs.replace(REQUEST, body=body)
    for relay in relays:
        await relay.__aenter__()

    async def open_with_versions(*urls):
        await a.until(lambda: a.open and b.open and line_of(a, 1).relay in urls)
        link = a.links._table.places[1].link
        await a.until(lambda: link._version is not None)
        return link

    async with a.links, b.links:
        link = await open_with_versions(*(relay.url for relay in relays))
        dead = next(relay for relay in relays if relay.url == link.connection.line.relay)
        a.send(1, large)
        inbox = b.links._table.places[0].link._inbox
        while inbox._assembler.came < 1_000_000:  # noqa: ASYNC110 - it is over sooner than a look from time to time
            await asyncio.sleep(0)
        await dead.stop()
        relays.remove(dead)
        link = await open_with_versions(relays[0].url)
        await a.until(lambda: link._bodies._held is not None)
        held = link._bodies._held.size
        before = a.links.counters.total.bytes_sent
        a.send(1, large)
        await b.until(b.messages)
        assert bytes(b.messages()[0].body) == body
        assert held >= 1_000_000
        assert a.links.counters.total.bytes_sent - before < len(body) - held + 10_000
        assert a.links.counters.total.faults == b.links.counters.total.faults == 0
        await relays[0].stop()


@pytest.mark.parametrize("reachable", [0, 1])
async def test_an_edge_moves_back_to_its_address_when_that_works_again(federation, network, reachable):
    """Either end may be the one that is dialed: the lower index decides, whoever dials."""
    direct, address, dials = MemoryNetwork(), "127.0.0.1:4001", 1 - reachable
    async with RelayHere(network) as relay:
        transports = [by_relay(network, identity, relay.url, direct=direct) for identity in federation.identities[:2]]
        there = federation.new(
            reachable, listen=address, limits=QUICK, neighbors=frozenset({dials}), transport=transports[reachable]
        )
        here = federation.new(
            dials,
            {reachable: address},
            limits=QUICK,
            neighbors=frozenset({reachable}),
            transport=transports[dials],
        )
        async with there.links:
            own = direct.listening.pop(address)
            async with here.links:
                await here.until(lambda: here.open and there.open)
                assert line_of(here, reachable).relay == relay.url
                here.send(reachable, Resync(incarnation=1))
                await there.until(there.messages)
                direct.listening[address] = own
                await here.until(lambda: is_direct(here, reachable) and is_direct(there, dials))
                here.send(reachable, Resync(incarnation=2))
                await there.until(lambda: len(there.messages()) == 2)
    assert there.reasons()[0] == here.reasons()[0] == "replaced by a newer session"
    assert [message.incarnation for message in there.messages()] == [1, 2]


def is_direct(node, peer) -> bool:
    link = node.links._table.places[peer].link
    return link is not None and link.connection.line.relay is None


async def test_over_real_sockets_a_long_body_arrives_whole(federation):
    transport = WebSocketTransport(Limits(), nothing_listed(), logging.getLogger("tests.relay"))
    transport.expect(8)
    server = RelayServer(Admissions([ListedFederation(name="ward", token=TOKEN)]), Switchboard(), nothing_listed())
    await transport.open(Address("127.0.0.1", 0), server.meet)
    running = asyncio.create_task(server.run())
    url, body = f"ws://127.0.0.1:{transport.port}/p2pfl", os.urandom(3_000_000)
    async with open_browserless() as http:
        made, there = [], parse_address(url, "URL")
        for identity in federation.identities[:2]:
            own = replace(parts(MemoryNetwork(), identity), dial=lambda _: dial_websocket(http, there))
            made.append(
                lambda limits, refusals, log, own=own: ByRelayTransport(
                    MemoryNetwork().transport(limits, refusals, log), [RelayLink(url, own)]
                )
            )
        a, b = (federation.new(index, transport=made[index], neighbors=frozenset({1 - index})) for index in range(2))
        async with a.links, b.links:
            await a.until(lambda: a.open and b.open)
            a.send(1, structs.replace(REQUEST, body=body))
            await b.until(b.messages)
            assert bytes(b.messages()[0].body) == body
    running.cancel()
    await transport.close()


async def test_addresses_that_work_are_used_before_relays(federation, network):
    direct = MemoryNetwork()
    async with RelayHere(network) as relay:
        a = federation.new(
            0, listen="127.0.0.1:4001", transport=by_relay(network, federation.identities[0], relay.url, direct=direct)
        )
        async with a.links:
            b = federation.new(
                1,
                {0: "127.0.0.1:4001"},
                neighbors=frozenset({0}),
                transport=by_relay(network, federation.identities[1], direct=direct),
            )
            async with b.links:
                await a.until(lambda: 1 in a.open and 0 in b.open)
                assert line_of(b, 0).relay is None


async def test_a_long_line_through_a_relay_holds_no_more_than_its_window(federation, network):
    async with RelayHere(network) as relay:
        links = [RelayLink(relay.url, parts(network, identity)) for identity in federation.identities[:2]]
        came = asyncio.get_running_loop().create_future()

        def meet(line, visit):
            came.set_result(line)
            return asyncio.create_task(asyncio.sleep(0))

        tasks = [asyncio.create_task(link.keep(meet)) for link in links]
        await until(lambda: all(link.is_registered for link in links))
        line = await links[0].dial(federation.identities[1].public)
        sending = asyncio.create_task(send_all(line, 40))
        other = await came
        await until(lambda: other.bytes_came >= 700_000)
        assert not sending.done()
        assert relay.board.tenant("ward").held_bytes < 1_000_000
        for number in range(40):
            assert (await other.receive())[0] == number
        await sending
        await line.close(1.0)
        with pytest.raises(GoneError, match="closed by the peer"):
            await other.receive()
        for task in tasks:
            task.cancel()


async def send_all(line, count):
    for number in range(count):
        await line.send(bytes([number]) * 100_000)
