"""One session for each pair of nodes, whoever dials, and both ends agree which."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
from memory_kit import MemoryNetwork
from nodes import binding
from ports import free_ports

from p2pfl.core import LEAST_VERSION, PROTOCOL_VERSION, Ready
from p2pfl.crypto.session import Initiator, Session
from p2pfl.net import BOOT_BYTES, INLINE_BYTES, MALFORMED, Admission, Notice, Word, decide, expire, parse_address
from p2pfl.wire import Offer, split


@dataclass(frozen=True)
class Claim:
    dialer: int
    boot: bytes = b"one"
    ticket: int = 2


LOW, HIGH = 0, 1


@pytest.mark.parametrize(
    ("newcomer", "current", "own_dial", "overdue", "verdict"),
    [
        (Claim(HIGH), None, False, False, Admission.OPEN),
        (Claim(LOW), None, True, False, Admission.OPEN),
        (Claim(HIGH), None, True, False, Admission.WAIT),
        (Claim(HIGH), None, True, True, Admission.OPEN),
        (Claim(HIGH), Claim(HIGH, ticket=1), False, False, Admission.OPEN),
        (Claim(HIGH), Claim(HIGH, ticket=3), False, False, Admission.REFUSE),
        (Claim(LOW), Claim(HIGH, ticket=1), True, False, Admission.REFUSE),
        (Claim(HIGH), Claim(LOW, ticket=3), False, False, Admission.REFUSE),
        (Claim(HIGH), Claim(LOW, ticket=1), False, False, Admission.WAIT),
        (Claim(HIGH), Claim(LOW, ticket=1), False, True, Admission.OPEN),
        (Claim(HIGH), Claim(LOW, boot=b"two", ticket=1), False, False, Admission.OPEN),
        (Claim(LOW), Claim(HIGH, boot=b"two", ticket=1), True, False, Admission.OPEN),
        (Claim(HIGH), Claim(HIGH, boot=b"two", ticket=3), False, False, Admission.REFUSE),
    ],
)
def test_the_verdict_of_the_lower_index(newcomer, current, own_dial, overdue, verdict):
    assert decide(newcomer, current, own=LOW, own_dial=own_dial, overdue=overdue) is verdict


async def agree(a, b) -> None:
    """A word each way arrives in the session that both hold open."""
    await a.until(lambda: b.index in a.open and a.index in b.open)
    a.send(b.index, Ready(version=1))
    b.send(a.index, Ready(version=2))
    await a.until(lambda: a.messages() and b.messages())


@pytest.mark.parametrize("repetition", range(25))
async def test_nodes_that_dial_each_other_at_once_agree_on_one_session(federation, quick, repetition):
    patient = replace(quick, contest_s=15.0)
    ports = [f"127.0.0.1:{port}" for port in free_ports(2)]
    a = federation.new(0, {1: ports[1]}, listen=ports[0], limits=patient)
    b = federation.new(1, {0: ports[0]}, listen=ports[1], limits=patient)
    async with a.links, b.links:
        await agree(a, b)
        assert a.kinds() == ["open", "message"]
        assert b.kinds() == ["open", "message"]
        tables = a.links._table, b.links._table
        assert tables[0].places[1].link.connection.dialer == tables[1].places[0].link.connection.dialer


async def test_a_restarted_peer_replaces_the_session_that_died_with_it(federation, relay):
    """The old connection is silent, not closed: nothing but the new process tells that it is dead."""
    async with federation.node(0) as a, relay(a.address()) as wire:
        async with federation.node(1, {0: wire.address}) as old:
            await old.until(lambda: old.open and a.open)
            wire.pull_cable()
        assert a.kinds() == ["open"]
        async with federation.node(1, {0: a.address()}) as new:
            await agree(a, new)
        assert a.kinds()[:4] == ["open", "close", "open", "message"]
        assert a.reasons()[0] == "replaced by a newer session"
        first, second = (event[2] for event in a.events if event[0] == "open")
        assert second > first


async def test_a_peer_that_restarts_replaces_the_session_that_we_had_dialed(federation, relay):
    async with federation.node(1) as old, relay(old.address()) as wire, federation.node(0, {1: wire.address}) as a:
        await old.until(lambda: old.open and a.open)
        wire.pull_cable()
        wire.stop_accepting()
        async with federation.node(1, {0: a.address()}) as new:
            await agree(a, new)
        assert a.kinds()[:4] == ["open", "close", "open", "message"]


@pytest.mark.parametrize(("dialer", "other"), [(0, 1), (1, 0)])
async def test_a_session_that_died_at_the_dialers_end_only_is_replaced(federation, relay, dialer, other):
    async with (
        federation.node(other) as b,
        relay(b.address()) as wire,
        federation.node(dialer, {other: wire.address}) as a,
    ):
        await a.until(lambda: a.open and b.open)
        wire.pull_cable()
        for writer in wire.near:
            writer.transport.abort()
        await b.until(b.reasons)
        await agree(a, b)
        assert b.reasons() == ["replaced by a newer session"]


@pytest.mark.parametrize(("dialer", "other"), [(0, 1), (1, 0)])
async def test_a_session_that_died_at_the_listeners_end_only_is_replaced(federation, relay, dialer, other):
    """The end that still believes in it dialed it; the end that knows better dials now."""
    nowhere = "127.0.0.1:1"
    async with (
        federation.node(other, {dialer: nowhere}) as b,
        relay(b.address()) as wire,
        federation.node(dialer, {other: wire.address}) as a,
    ):
        await a.until(lambda: a.open and b.open)
        b.links._dialer.configure({dialer: parse_address(a.address(), "")})
        wire.pull_cable()
        wire.stop_accepting()
        for writer in wire.far:
            writer.transport.abort()
        await a.until(a.reasons)
        await agree(a, b)
        assert a.reasons() == ["replaced by a newer session"]


async def test_a_session_that_lives_outlasts_a_crossing_dial(federation, quick):
    """The newcomer is held back, and forgotten when its dialer, who has heard of the session, drops it."""
    patient = replace(quick, contest_s=15.0)
    nowhere = "127.0.0.1:1"
    async with (
        federation.node(1, {0: nowhere}) as b,
        federation.node(0, {1: b.address()}, limits=patient) as a,
    ):
        await a.until(lambda: a.open and b.open)
        address = parse_address(a.address(), "")
        place = b.links._table.places[0]
        crossing = asyncio.create_task(b.links._dialer._attempt(0, place, address))
        held_back = a.links._table.places[1].held_back
        await a.until(lambda: held_back)
        expire(place.dial.scope)
        await crossing
        await a.until(lambda: not held_back)
        await agree(a, b)
        assert a.kinds() == b.kinds() == ["open", "message"]


async def test_another_process_of_the_decider_may_count_from_one_again(federation):
    """Its numbers say nothing about those of the process before it, whose session may be dead."""
    async with federation.node(1) as b, federation.node(0, {1: b.address()}) as first:
        await b.until(lambda: b.open and first.open)
        place = b.links._table.places[0]
        place.link.remote_number = 100
        async with federation.node(0, {1: b.address()}) as second:
            boot = second.links._table.boot
            await b.until(lambda: place.link is not None and place.link.connection.boot == boot)


async def test_a_node_that_is_stopping_opens_no_session(federation):
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: b.open and a.open)
        table, verdicts = a.links._table, []
        admit = table.admit

        async def noted(candidate):
            verdicts.append(await admit(candidate))
            return verdicts[-1]

        table.admit = noted
        table.close("the node stopped")
        await a.until(lambda: len(verdicts) >= 2)
        assert verdicts[:2] == [None, None]
        assert a.kinds() == ["open", "close"]


class Malformer:
    """Member `own`, which dials a node in memory, and seals something malformed in the session."""

    def __init__(self, federation, node, own):
        self.federation, self.node, self.own = federation, node, own

    async def dial(self):
        self.line = await self.node.links.transport.dial(parse_address(self.node.address(), ""))
        keys = self.federation.identities
        initiator = Initiator(keys[self.own], keys[self.node.index].public, binding())
        await self.line.send(initiator.first())
        await self.line.send(initiator.second(await self.line.receive()))
        self.session = Session(initiator.keys)

    async def begin(self, number):
        await self._say(Notice(Word.GREETING, bytes(BOOT_BYTES)).pack())
        if self.own < self.node.index:
            await self._say(Notice(Word.OPEN, bytes(BOOT_BYTES), number).pack())

    async def lie(self, size=7):
        offer = split(Offer(least=LEAST_VERSION, most=PROTOCOL_VERSION, channels=()), LEAST_VERSION)
        for chunk in (*offer, bytes(size)):
            await self._say(chunk)

    async def _say(self, chunk):
        await self.line.send(self.session.seal(chunk))


@pytest.mark.parametrize(("index", "other"), [(0, 1), (1, 0)])
async def test_a_sealed_fault_counts_although_a_newer_session_replaces_that_in_which_it_came(federation, index, other):
    async with federation.node(index, listen="127.0.0.1:1", transport=MemoryNetwork().transport) as a:
        malformers = [Malformer(federation, a, other) for _ in range(6)]
        for each in malformers:
            await each.dial()
        for number, each in enumerate(malformers, 1):
            await each.begin(number)
            await each.lie()
        await a.until(lambda: len(a.reasons()) == 6)
    assert [reason.startswith(MALFORMED) for reason in a.reasons()] == [True] * 6
    assert a.links.counters.peers[other].faults == 6


async def test_a_sealed_fault_counts_although_the_connection_is_lost_at_once(federation):
    async with federation.node(0, listen="127.0.0.1:1", transport=MemoryNetwork().transport) as a:
        malformer = Malformer(federation, a, 1)
        await malformer.dial()
        await malformer.begin(1)
        await malformer.line.receive()
        await malformer.lie(2 * INLINE_BYTES)
        await malformer.line.close(0.1)
        await a.until(a.reasons)
    assert a.reasons()[0].startswith(MALFORMED)
