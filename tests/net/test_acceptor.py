"""Who waits at the door, who has to go, and that idlers keep no neighbor out."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from nodes import UPGRADE, Relay

from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import Initiator
from p2pfl.errors import PeerFault
from p2pfl.net import MOST_GROUPS, ConnectionGate, ConnectionStage, Limits, PendingConnections, group_of

PER_S = 100
TRIES = 20
ABREAST = 5


class Waiter:
    def __init__(self, group):
        self.group = group
        self.aborted = False

    def abort(self):
        self.aborted = True


def enter(pending, groups, stage=ConnectionStage.CONNECTED):
    waiters = [Waiter(group) for group in groups]
    for waiter in waiters:
        pending.enter(waiter)
        if stage:
            pending.advance(waiter, stage)
    return waiters


def left_of(waiters):
    return "".join(waiter.group for waiter in waiters if not waiter.aborted)


def test_of_one_stage_the_one_that_has_waited_longest_goes():
    """Of the newcomer's own group if that has too many, else of the most crowded one."""
    pending = PendingConnections(Limits(pending=4, pending_per_address=2))
    waiters = enter(pending, "aaabbcd")
    assert left_of(waiters) == "abcd"
    assert [w.aborted for w in waiters] == [True, True, False, True, False, False, False]
    assert (pending.waiting, pending.turned_away) == (4, 3)
    pending.leave(waiters[-1])
    assert pending.waiting == 3


async def test_whoever_has_come_further_never_goes_for_those_behind():
    pending = PendingConnections(Limits(pending=4, pending_per_address=2))
    ahead = {stage: enter(pending, "ab", stage) for stage in ConnectionStage if stage}
    enter(pending, "abcdabcd" * 5)
    assert [left_of(waiters) for waiters in ahead.values()] == ["ab"] * len(ahead)
    enter(pending, "abcdabcd" * 5, ConnectionStage.UPGRADED)
    assert left_of(ahead[ConnectionStage.ADDRESSED]) == left_of(ahead[ConnectionStage.PROVEN]) == "ab"
    enter(pending, "abcdabcd" * 5, ConnectionStage.ADDRESSED)
    assert left_of(ahead[ConnectionStage.PROVEN]) == "ab"
    assert pending.waiting <= 4 * len(ConnectionStage)


async def test_the_number_of_those_that_know_our_key_is_bounded_too():
    pending = PendingConnections(Limits(pending=4, pending_per_address=2))
    waiters = enter(pending, "abcdefgh" * 5, ConnectionStage.ADDRESSED)
    assert pending.waiting == len(left_of(waiters)) == 4


async def test_whoever_was_turned_away_does_not_come_back():
    pending = PendingConnections(Limits(pending=4, pending_per_address=1))
    first, _ = enter(pending, "aa")
    pending.advance(first, ConnectionStage.UPGRADED)
    assert (pending.waiting, pending.turned_away) == (1, 1)


async def test_handshakes_are_limited_by_address():
    pending = PendingConnections(Limits(handshakes_per_s=0.001, handshake_burst=5))
    enter(pending, "aaaaab", ConnectionStage.ADDRESSED)
    with pytest.raises(PeerFault, match="more handshakes"):
        enter(pending, "a", ConnectionStage.ADDRESSED)
    enter(pending, "b", ConnectionStage.ADDRESSED)


async def test_all_neighbors_may_start_at_once_behind_one_address():
    pending = PendingConnections(Limits(handshakes_per_s=0.001, handshake_burst=5), neighbors=100)
    enter(pending, "a" * 200, ConnectionStage.ADDRESSED)
    with pytest.raises(PeerFault, match="more handshakes"):
        enter(pending, "a", ConnectionStage.ADDRESSED)


async def test_counting_handshakes_takes_bounded_memory():
    pending = PendingConnections(Limits())
    enter(pending, [str(number) for number in range(2 * MOST_GROUPS)], ConnectionStage.ADDRESSED)
    assert len(pending._handshakes) == MOST_GROUPS


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
        ("", "10.0.0.1", False),
    ],
)
def test_addresses_that_one_peer_has_as_it_likes_are_one_group(one, other, alike):
    assert (group_of(one) == group_of(other)) is alike


def descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class Crowd:
    """Connections that come at a rate, say no more than `opening`, and stay until they are dropped."""

    def __init__(self, node, opening=b"", addresses=("127.0.0.1",), per_s=PER_S):
        self.node, self.opening, self.addresses, self.per_s = node, opening, addresses, per_s
        self.most_waiting = self.most_open = self.came = 0
        self._held = set()
        self._waits = set()

    async def run(self):
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            while True:
                while self.came < (loop.time() - began) * self.per_s:
                    await self._come()
                self.most_waiting = max(self.most_waiting, self.node.links._transport.pending.waiting)
                self.most_open = max(self.most_open, descriptors())
                await asyncio.sleep(0.005)
        finally:
            for writer in self._held:
                writer.transport.abort()
            if self._waits:
                await asyncio.wait(self._waits)

    async def _come(self):
        source = self.addresses[self.came % len(self.addresses)], 0
        self.came += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self.node.links.port, local_addr=source)
        self._held.add(writer)
        writer.write(self.opening)
        wait = asyncio.create_task(self._wait(reader, writer))
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)

    async def _wait(self, reader, writer):
        with suppress(OSError):
            await reader.read()
        writer.transport.abort()
        self._held.discard(writer)


@asynccontextmanager
async def besieged(crowd):
    """Once the places at the door are taken."""
    task = asyncio.create_task(crowd.run())
    try:
        await crowd.node.until(lambda: task.done() or crowd.node.links._transport.pending.turned_away > PER_S // 4)
        yield
        assert not task.done(), "the siege went on"
    finally:
        task.cancel()
        await asyncio.wait({task})


async def neighbors_in(federation, node, limits, delay_s):
    """Of TRIES neighbors, each of which dials once."""
    came_in = 0
    async with Relay(node.address(), delay_s) as slow:
        for _ in range(TRIES // ABREAST):
            async with AsyncExitStack() as stack:
                tries = [
                    await stack.enter_async_context(federation.node(1 + number, {0: slow.address}, limits=limits))
                    for number in range(ABREAST)
                ]
                with suppress(TimeoutError):
                    async with asyncio.timeout(12.0):
                        await asyncio.gather(*(one.until(lambda one=one: one.open) for one in tries))
                came_in += sum(bool(one.open) for one in tries)
            await node.until(lambda: not node.open)
    return came_in


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("opening", "delay_s"),
    [(b"", 0.05), (b"", 0.1), (UPGRADE, 0.05)],
    ids=["idle, 50 ms", "idle, 100 ms", "upgraded and idle, 50 ms"],
)
async def test_idlers_at_the_neighbors_own_address_keep_no_neighbor_out(federation, quick, delay_s, opening):
    once = replace(quick, retry_first_s=60.0, retry_ceiling_s=60.0)
    async with federation.node(0) as a:
        crowd = Crowd(a, opening)
        async with besieged(crowd):
            assert await neighbors_in(federation, a, once, delay_s) == TRIES
        assert crowd.came >= PER_S
        stages = 2  # that the crowd takes; the neighbors come through all
        assert crowd.most_waiting <= stages * quick.pending_per_address + ABREAST
        # Both ends of each connection are of this process, and those just dropped.
        assert crowd.most_open < 2 * crowd.most_waiting + 2 * PER_S
        await a.until(lambda: a.links._transport.pending.waiting == 0)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("delay_s", [0.05, 0.1])
async def test_idlers_with_many_addresses_of_one_network_keep_no_neighbor_out(federation, quick, monkeypatch, delay_s):
    """200 addresses of this machine pass for those of one /64, the neighbor's for one of another."""
    addresses = [f"127.0.1.{number}" for number in range(1, 201)]
    monkeypatch.setattr(
        "p2pfl.net.acceptor.group_of",
        lambda own: group_of(f"2001:db8::{own.rpartition('.')[2]}" if own in addresses else "2001:db8:0:1::1"),
    )
    once = replace(quick, retry_first_s=60.0, retry_ceiling_s=60.0)
    async with federation.node(0) as a:
        crowd = Crowd(a, addresses=addresses, per_s=2 * PER_S)
        async with besieged(crowd):
            assert await neighbors_in(federation, a, once, delay_s) == TRIES
        assert crowd.most_waiting <= quick.pending_per_address + 2 * ABREAST


def test_a_gate_hears_no_more_than_a_greeting_at_first():
    gate = ConnectionGate(PendingConnections(Limits(), greeting_bytes=10), lambda _: asyncio.Protocol())
    gate.data_received(bytes(10))
    assert not gate.overran
    gate.data_received(b"x")
    assert gate.overran


async def test_the_opening_tag_is_checked_before_the_curve(federation, monkeypatch):
    """Nothing but hashes for whoever does not know the key."""
    agreed = []
    monkeypatch.setattr("p2pfl.crypto.session.agree", lambda *_: agreed.append(1))
    binding = federation.new(0).links._greeter.binding
    stages = []

    class Wire:
        async def receive(self):
            other = federation.identities[2].public
            return Initiator(Identity.generate(), other, binding).first()

    with pytest.raises(PeerFault, match="opening tag"):
        await federation.new(0).links._greeter.answer(Wire(), stages.append)
    assert agreed == stages == []


async def test_a_connection_that_comes_when_the_node_has_ended_leaves_nothing_behind(federation):
    """A coroutine that nobody awaits would be a warning in its log."""
    gate = ConnectionGate(PendingConnections(Limits(), greeting_bytes=10), lambda _: asyncio.Protocol())
    assert federation.new(0).links._reception.meet(None, gate) is None
