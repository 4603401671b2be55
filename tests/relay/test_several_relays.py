"""Of several relays each edge uses the one that is fastest for it, and moves when that lastingly changes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from relay_kit import QUICK, RelayHere, by_relay, nobody, parts, until

from p2pfl.core.messages import Resync
from p2pfl.features.relay import by_relay as by_relay_module
from p2pfl.features.relay.by_relay import LASTING_LOOKS, ByRelayTransport
from p2pfl.features.relay.feature import Relays
from p2pfl.features.relay.relay_link import RelayLink
from p2pfl.net.in_memory import MemoryNetwork
from p2pfl.net.line import Line


class SlowLine(Line):
    """The relay's end of a connection, on which all that it says takes `relay.delay_s`."""

    def __init__(self, inner, relay):
        super().__init__()
        self.inner, self.slow = inner, relay

    own_address = property(lambda self: self.inner.own_address)
    peer_address = property(lambda self: self.inner.peer_address)
    bytes_came = property(lambda self: self.inner.bytes_came)

    async def _push(self, data):
        await asyncio.sleep(self.slow.delay_s)
        await self.inner.send(data)

    async def _pull(self):
        return await self.inner.receive()

    async def close(self, within_s):
        await self.inner.close(within_s)


def slow_relay(network, name, delay_s):
    relay = RelayHere(network, name)
    relay.delay_s = delay_s
    relay.wrap = lambda line: SlowLine(line, relay)
    return relay


def relay_of(node, peer):
    link = node.links._table.places[peer].link
    return None if link is None else link.connection.line.relay


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_an_edge_moves_to_a_relay_that_stays_faster_and_delivers_all_once(federation, order, monkeypatch):
    monkeypatch.setattr(by_relay_module, "LASTING_LOOKS", 2)
    network = MemoryNetwork()
    first, second = slow_relay(network, "relay:1", 0.0), slow_relay(network, "relay:2", 0.02)
    async with first, second:
        nodes = {
            index: federation.new(
                index,
                limits=QUICK,
                neighbors=frozenset({1 - index}),
                transport=by_relay(network, federation.identities[index], first.url, second.url),
            )
            for index in order
        }
        a, b = nodes[0], nodes[1]
        async with nodes[order[0]].links, nodes[order[1]].links:
            await a.until(lambda: relay_of(a, 1) == relay_of(b, 0) == first.url)
            a.send(1, Resync(incarnation=1))
            await b.until(b.messages)
            first.delay_s, second.delay_s = 0.05, 0.0
            await a.until(lambda: relay_of(a, 1) == relay_of(b, 0) == second.url)
            a.send(1, Resync(incarnation=2))
            await b.until(lambda: len(b.messages()) == 2)
    assert [message.incarnation for message in b.messages()] == [1, 2]
    assert a.reasons()[0] == b.reasons()[0] == "replaced by a newer session"
    for node in (a, b):
        assert not node.alarms
        assert node.links.counters.total.faults == node.links.counters.total.refusals == 0


class FakeRelay:
    """A relay with a round trip for the edge that the test sets; None: nobody is there."""

    def __init__(self, url, trip_s):
        self.url, self.trip_s, self.is_registered, self.round_trip_s = url, trip_s, True, 0.0

    def doubts(self, key):
        return 0


class Measured(ByRelayTransport):
    """Knows the round trips without measuring them."""

    async def _measure(self, relay, key):
        self._trips[relay.url, key] = relay.trip_s


async def test_only_what_is_clearly_and_lastingly_better_moves_an_edge():
    here, other = FakeRelay("ws://here/p2pfl", 0.050), FakeRelay("ws://other/p2pfl", 0.045)
    transport, key = Measured(SimpleNamespace(), [here, other]), b"k" * 32
    transport._tasks = [None]

    async def look(trip_s):
        other.trip_s = trip_s
        return await transport.faster_way(key, here.url)

    assert [await look(0.045) for _ in range(9)] == [None] * 9
    assert [await look(0.010) for _ in range(LASTING_LOOKS - 1)] == [None] * (LASTING_LOOKS - 1)
    assert await look(0.060) is None
    found = [await look(0.010) for _ in range(LASTING_LOOKS)]
    assert found[:-1] == [None] * (LASTING_LOOKS - 1)
    assert found[-1].relay == other.url
    here.trip_s, other.trip_s = 0.012, 0.004
    assert [await transport.faster_way(key, here.url) for _ in range(9)] == [None] * 9


async def test_with_one_relay_nothing_is_measured():
    transport = ByRelayTransport(SimpleNamespace(), [FakeRelay("ws://here/p2pfl", 1.0)])
    transport._tasks = [None]
    assert await transport.faster_way(b"k" * 32, "ws://here/p2pfl") is None


@pytest.mark.parametrize("steps", range(6))
async def test_a_node_that_stops_in_the_moment_when_a_relay_dies_stops(federation, steps):
    network = MemoryNetwork()
    async with RelayHere(network) as relay:
        link = RelayLink(relay.url, parts(network, federation.identities[0]))
        keeping = asyncio.create_task(link.keep(nobody))
        await until(lambda: link.is_registered)
        await relay.lines[0].close(0.1)
        for _ in range(steps):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait({keeping}, timeout=0.5)
        assert keeping.done()


class Lost:
    """The node of a member that is lost, with the relay through which its session goes now; None without a session."""

    def __init__(self, key):
        self.now, self.relay, self.alarms = 0.0, None, []
        self.network = self
        self.feed = SimpleNamespace(stands=lambda kind, peer: (kind, peer) == ("neighbor-lost", 0))
        member = SimpleNamespace(name="clinic", key=key)
        config = SimpleNamespace(relay_token=b"", state_dir=None)
        identity = SimpleNamespace(public=bytes(32))
        self.made = SimpleNamespace(federation=SimpleNamespace(members=[member]), node=config, identity=identity)

    def setup(self):
        return self.made

    def clock(self):
        return self.now

    def session(self, peer):
        return None if self.relay is None else (1, SimpleNamespace(relay=self.relay))

    def alarm(self, kind, peer, text):
        self.alarms.append(kind)


@pytest.mark.parametrize(
    ("back", "at", "alarms"),
    [("ws://other/p2pfl", 2.0, ["relay-spoiled"]), ("ws://here/p2pfl", 2.0, []), ("ws://other/p2pfl", 60.0, [])],
)
async def test_silence_of_a_lost_member_is_the_relays_fault_only_if_it_is_soon_back_another_way(back, at, alarms):
    key, here = b"k" * 32, FakeRelay("ws://here/p2pfl", 0.01)
    here.away_s = lambda: 0.0
    node, transport = Lost(key), ByRelayTransport(SimpleNamespace(), [here])
    relays = Relays(node, transport)
    here.on_doubt(here, key, "no sealed chunk has come for 40 s")
    for node.now, node.relay in ((1.0, None), (at, None), (at, back)):
        relays.look()
    assert node.alarms == alarms
