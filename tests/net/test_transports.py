"""Whatever carries the lines, sessions are the same: this suite runs on sockets and through a relay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory_kit import MemoryNetwork
from ports import free_ports
from relay_kit import RelayHere, by_relay

from p2pfl.core import Ready, Resync
from p2pfl.errors import UserError


@pytest.fixture(params=["sockets", "relay"])
async def carried(request, federation):
    """Makes nodes of one federation, all with the same transport; through a relay they dial no address."""
    if request.param == "sockets":
        yield federation.new
        return
    network = MemoryNetwork()
    async with RelayHere(network) as relay:

        def new(index, dial=None, **changes):
            transport = by_relay(network, federation.identities[index], relay.url)
            return federation.new(index, None, **({"transport": transport} | changes))

        yield new


async def test_messages_arrive_in_order_and_both_ends_count_the_same_bytes(carried):
    a = carried(0)
    async with a.links:
        b = carried(1, {0: a.address()})
        async with b.links:
            await b.until(lambda: b.open and a.open)
            for version in range(50):
                a.send(1, Resync(incarnation=version))
                b.send(0, Resync(incarnation=1000 + version))
            await a.until(lambda: len(a.messages()) == len(b.messages()) == 50)
            ours, theirs = a.links.counters.peers[1], b.links.counters.peers[0]
            assert ours.bytes_sent == theirs.bytes_received > 0
            assert (ours.messages_sent, theirs.messages_received) == (50, 50)
    assert [message.incarnation for message in b.messages()] == list(range(50))
    assert [message.incarnation for message in a.messages()] == list(range(1000, 1050))


async def test_two_that_dial_each_other_have_one_session(carried, quick):
    ports = [f"127.0.0.1:{port}" for port in free_ports(2)]
    patient = replace(quick, contest_s=15.0)
    a = carried(0, {1: ports[1]}, listen=ports[0], limits=patient)
    b = carried(1, {0: ports[0]}, listen=ports[1], limits=patient)
    async with a.links, b.links:
        await a.until(lambda: a.open and b.open)
        a.send(1, Ready(version=1))
        b.send(0, Ready(version=2))
        await a.until(lambda: a.messages() and b.messages())
    assert a.kinds().count("open") == b.kinds().count("open") == 1


async def test_who_stops_says_goodbye_and_is_found_again_when_it_is_back(carried):
    port = f"127.0.0.1:{free_ports(1)[0]}"
    b = carried(1, {0: port})
    async with b.links:
        for life in range(1, 3):
            a = carried(0, listen=port)
            async with a.links:
                await b.until(lambda a=a: b.open and a.open)
            await b.until(lambda life=life: b.kinds().count("close") == life)
            assert a.reasons() == ["the node stopped"]
    assert set(b.reasons()) == {"closed by the peer"}


async def test_a_session_that_one_end_closes_ends_at_the_other(carried):
    a = carried(0)
    async with a.links:
        b = carried(1, {0: a.address()})
        async with b.links:
            await b.until(lambda: b.open and a.open)
            a.links.close(1, a.open[1], "enough", 60.0)
            await b.until(lambda: not b.open)
            assert not a.open


@pytest.mark.parametrize("carried", ["sockets"], indirect=True)
async def test_an_address_is_had_once(carried):
    a = carried(0)
    async with a.links:
        b = carried(1, listen=a.address())
        with pytest.raises(UserError, match=a.address()):
            await b.links.__aenter__()
        await b.links._transport.close()
