"""Of several relays each edge uses the one that is fastest for it, and moves when that lastingly changes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_kit import QUICK, RelayHere, WrappedLine, by_relay, nobody, parts, until

from p2pfl.core.messages import Resync
from p2pfl.features.relay import transport as by_relay_module
from p2pfl.features.relay.link import RelayLink
from p2pfl.features.relay.transport import LASTING_LOOKS, ByRelayTransport
from p2pfl.net.greeting import ExchangeTimes
from p2pfl.net.transport import MemoryNetwork


class SlowLine(WrappedLine):
    """The relay's end of a connection, on which all that it says takes `relay.delay_s`."""

    def __init__(self, inner, relay):
        super().__init__(inner)
        self.slow = relay

    async def _push(self, data):
        await asyncio.sleep(self.slow.delay_s)
        await self.inner.send(data)


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
        return await transport.faster_path(key, here.url, None)

    assert [await look(0.045) for _ in range(9)] == [None] * 9
    assert [await look(0.010) for _ in range(LASTING_LOOKS - 1)] == [None] * (LASTING_LOOKS - 1)
    assert await look(0.060) is None
    found = [await look(0.010) for _ in range(LASTING_LOOKS)]
    assert found[:-1] == [None] * (LASTING_LOOKS - 1)
    assert found[-1].relay == other.url
    here.trip_s, other.trip_s = 0.012, 0.004
    assert [await transport.faster_path(key, here.url, None) for _ in range(9)] == [None] * 9


class Edge:
    """An edge that can use relays whose round trips and exchanges take what a test says; it looks now and then."""

    def __init__(self, **takes):
        self.takes = takes
        self.relays = {name: FakeRelay(f"ws://{name}/p2pfl", trip_s) for name, (trip_s, _) in takes.items()}
        self.transport, self.key = Measured(SimpleNamespace(), list(self.relays.values())), b"k" * 32
        self.transport._tasks = [None]
        self.here, self.moves, self.slow = next(iter(takes)), 0, []
        self.transport.on_slow = lambda relay, *_: self.slow.append(relay.url)

    async def look(self, times=1):
        for _ in range(times):
            way = await self.transport.faster_path(self.key, self.relays[self.here].url, self.takes[self.here][1])
            if way is not None:
                self.moves += 1
                self.here = way.relay[5:-6]


async def test_a_relay_that_answers_fast_and_holds_back_bodies_loses_the_edge_and_there_is_an_alarm():
    edge = Edge(holds=(0.001, 2.0), honest=(0.004, 0.01))
    await edge.look(LASTING_LOOKS - 1)
    assert edge.here == "holds"
    await edge.look()
    assert (edge.here, edge.slow) == ("honest", [])
    await edge.look(100)
    assert (edge.here, edge.moves, edge.slow) == ("honest", 1, ["ws://holds/p2pfl"])
    assert edge.transport.relay_paths(edge.key)[0].relay == "ws://honest/p2pfl"


async def test_a_relay_that_only_promises_more_is_left_again_and_not_tried_again_for_an_hour(monkeypatch):
    edge = Edge(honest=(0.030, 0.05), holds=(0.001, 2.0))
    await edge.look(100)
    assert (edge.here, edge.moves) == ("honest", 2)
    monkeypatch.setattr(by_relay_module, "REMEMBERED_S", 0.0)
    await edge.look(LASTING_LOOKS)
    assert edge.here == "holds"


async def test_a_neighbor_that_is_slow_itself_makes_an_edge_move_once_and_is_no_alarm():
    edge = Edge(one=(0.002, 3.0), two=(0.003, 3.0), three=(0.004, 3.0))
    await edge.look(100)
    assert (edge.moves, edge.slow) == (2, [])


@given(st.lists(st.tuples(*[st.floats(0.5, 2.0)] * 2), min_size=10, max_size=40), st.floats(0.001, 10.0))
def test_an_edge_does_not_flap_however_exchanges_vary_by_less_than_what_is_clear(noise, usual_s):
    """By a factor between .85 and 1.15 at each look, on two relays that are as good as each other."""
    edge = Edge(one=(0.001, usual_s), two=(0.001, usual_s))

    async def run():
        for looks in noise:
            factors = [0.85 + 0.2 * (each - 0.5) for each in looks]
            edge.takes = {name: (0.001, usual_s * factor) for name, factor in zip(edge.takes, factors, strict=True)}
            await edge.look()

    asyncio.run(run())
    assert edge.moves <= 1


async def test_after_a_loss_the_edge_goes_back_to_the_relay_that_it_had_moved_to():
    """At the end that does not decide nothing is known of exchanges."""
    edge = Edge(holds=(0.001, None), honest=(0.004, None))
    assert edge.transport.relay_paths(edge.key, "ws://honest/p2pfl")[0].relay == "ws://honest/p2pfl"
    assert edge.transport.relay_paths(edge.key)[0].relay == "ws://holds/p2pfl"
    edge.relays["honest"].doubts = lambda _: 1
    assert edge.transport.relay_paths(edge.key, "ws://honest/p2pfl")[0].relay == "ws://holds/p2pfl"


def test_what_an_exchange_takes_is_what_it_takes_for_half_of_the_time():
    times, now = ExchangeTimes(), 0.0
    assert times.typical_s(now) is None
    for seq, took_s in enumerate([0.01] * 2000 + [2.0] * 10, 1):  # 20 s fast, 20 s slow
        times.begin(seq.to_bytes(8), now)
        now += took_s
        times.end(seq.to_bytes(8), now)
    assert times.typical_s(now) == pytest.approx(0.01)
    for seq in range(10_000, 10_008):
        times.begin(seq.to_bytes(8), now)
        times.begin(seq.to_bytes(8), now + 1.0)  # repeated
        now += 2.0
        times.end(b"another", now)
        times.end(seq.to_bytes(8), now)
    assert times.typical_s(now) == pytest.approx(2.0)


def test_an_exchange_that_never_ends_counts_for_as_long_as_it_lasts():
    times = ExchangeTimes()
    times.begin(b"one", 0.0)
    assert times.typical_s(8.0) is None
    assert times.typical_s(40.0) == 40.0
    assert times.typical_s(400.0) == 400.0


async def test_with_one_relay_nothing_is_measured():
    transport = ByRelayTransport(SimpleNamespace(), [FakeRelay("ws://here/p2pfl", 1.0)])
    transport._tasks = [None]
    assert await transport.faster_path(b"k" * 32, "ws://here/p2pfl", None) is None


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
