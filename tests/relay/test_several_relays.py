"""Of several relays each edge uses the one that is fastest for it, and leaves one through which exchanges are slow."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_kit import MemoryNetwork
from message_kit import REPLY, REQUEST
from msgspec.structs import replace
from relay_kit import QUICK, RelayHere, WrappedLine, by_relay, nobody, parts, until

from p2pfl.features.relay import LASTING_LOOKS, ByRelayTransport, FrameKind, RelayLink, unpack
from p2pfl.features.relay import transport as by_relay_module
from p2pfl.net import FOLLOWS_S, Limits, PeerLink


async def test_the_relay_that_is_nearest_comes_first_unless_it_has_spoiled_a_line_or_is_away():
    near, far, away = (
        SimpleNamespace(url=f"ws://{name}/p2pfl", round_trip_s=trip_s, is_registered=name != "away", doubts=lambda _: 0)
        for name, trip_s in (("near", 0.001), ("far", 0.1), ("away", 0.0))
    )
    transport = ByRelayTransport(SimpleNamespace(), [far, away, near])
    assert [way.relay for way in transport.relay_paths(b"k" * 32)] == [near.url, far.url, away.url]
    near.doubts = lambda _: 1
    assert transport.relay_paths(b"k" * 32)[0].relay == far.url


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


# -- a relay that holds back what is sealed ---------------------------------------------------------------------------


class SlowLine(WrappedLine):
    """The relay's end of a connection: a frame waits for `relay.answers_s`, sealed bytes for `relay.holds_s` more."""

    def __init__(self, inner, relay):
        super().__init__(inner)
        self.slow = relay

    async def _push(self, data):
        await asyncio.sleep(self.slow.answers_s + (unpack(data).kind is FrameKind.DATA) * self.slow.holds_s)
        await self.inner.send(data)


def slow_relay(network, name, answers_s):
    relay = RelayHere(network, name)
    relay.answers_s, relay.holds_s = answers_s, 0.0
    relay.wrap = lambda line: SlowLine(line, relay)
    return relay


def link_of(node, peer):
    return node.links._table.places[peer].link


def relay_of(node, peer):
    link = link_of(node, peer)
    return None if link is None else link.connection.line.relay


async def deliver(sender, receiver, message):
    """Send a message; again if another session takes the place of the one in which it was sent, as the core does."""
    sent_in = None
    while message.seq not in [one.seq for one in receiver.messages()]:
        if (session := sender.open[receiver.index]) != sent_in:
            sender.send(receiver.index, message)
            sent_in = session
        await asyncio.sleep(0.01)


async def exchange(a, b, seq):
    """The initiator asks, and the other end answers."""
    request = replace(REQUEST, seq=seq, digest=seq.to_bytes(16))
    await deliver(a, b, request)
    await deliver(b, a, replace(REPLY, seq=seq, request_digest=seq.to_bytes(16)))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_an_edge_leaves_a_relay_that_holds_back_what_is_sealed_and_delivers_all_once(
    federation, order, monkeypatch
):
    monkeypatch.setattr(by_relay_module, "LASTING_LOOKS", 2)
    network = MemoryNetwork()
    holds, honest = slow_relay(network, "relay:1", 0.0), slow_relay(network, "relay:2", 0.005)
    async with holds, honest:
        nodes = {
            index: federation.new(
                index,
                limits=QUICK,
                neighbors=frozenset({1 - index}),
                transport=by_relay(network, federation.identities[index], holds.url, honest.url),
            )
            for index in order
        }
        a, b = nodes[0], nodes[1]
        slow = []
        a.links.transport.on_slow = lambda url, *_: slow.append(url)
        async with nodes[order[0]].links, nodes[order[1]].links:
            await a.until(lambda: relay_of(a, 1) == relay_of(b, 0) == holds.url)
            holds.holds_s, seq = 0.2, 0
            while not (relay_of(a, 1) == relay_of(b, 0) == honest.url):
                await exchange(a, b, seq := seq + 1)
            while not slow:
                await exchange(a, b, seq := seq + 1)
    assert [one.seq for one in b.messages()] == [one.seq for one in a.messages()] == [*range(1, seq + 1)]
    assert slow == [holds.url]
    assert a.reasons()[0] == b.reasons()[0] == "replaced by a newer session"
    for node in (a, b):
        assert not node.alarms
        assert node.links.counters.total.faults == node.links.counters.total.refusals == 0


class FakeRelay:
    def __init__(self, url, trip_s):
        self.url, self.is_registered, self.round_trip_s = url, True, trip_s

    def doubts(self, key):
        return 0


class Edge:
    """An edge that can use relays whose round trips and exchanges take what a test says; it looks now and then. None:
    the member is not registered there.
    """

    def __init__(self, **takes):
        self.takes, self.key = takes, b"k" * 32
        self.relays = {name: FakeRelay(f"ws://{name}/p2pfl", trip_s) for name, (trip_s, _) in takes.items()}
        self.transport = ByRelayTransport(SimpleNamespace(), list(self.relays.values()))
        self.here, self.moves, self.slow = next(iter(takes)), 0, []
        self.transport.on_slow = lambda url, *_: self.slow.append(url)

    async def look(self, times=1):
        for _ in range(times):
            used = self.relays[self.here].url, self.takes[self.here][1]
            first = self.transport.relay_paths(self.key, used)[0].relay[5:-6]
            self.moves += first != self.here
            if self.takes[first][1] is not None:
                self.here = first


async def test_an_edge_leaves_a_relay_that_makes_exchanges_slow_within_90_s_and_there_is_an_alarm():
    edge = Edge(holds=(0.001, 2.0), honest=(0.004, 0.01))
    await edge.look(LASTING_LOOKS - 1)
    assert edge.here == "holds"
    await edge.look()
    assert (edge.here, edge.slow) == ("honest", [])
    assert LASTING_LOOKS * Limits().direct_again_s <= 90.0
    await edge.look(100)
    assert (edge.here, edge.moves, edge.slow) == ("honest", 1, ["ws://holds/p2pfl"])
    assert edge.transport.relay_paths(edge.key)[0].relay == "ws://honest/p2pfl"


async def test_a_relay_that_only_promises_more_is_left_again_and_not_tried_again_for_an_hour(monkeypatch):
    edge = Edge(honest=(0.030, 0.1), holds=(0.001, 2.0))
    await edge.look(100)
    assert (edge.here, edge.moves) == ("honest", 2)
    now = by_relay_module.monotonic()
    monkeypatch.setattr(by_relay_module, "monotonic", lambda: now + 3601.0)
    await edge.look(LASTING_LOOKS)
    assert edge.here == "holds"


async def test_where_the_member_is_not_does_not_keep_an_edge_from_the_next_relay():
    edge = Edge(holds=(0.003, 2.0), nobody=(0.001, None), honest=(0.004, 0.01))
    await edge.look(2 * LASTING_LOOKS)
    assert (edge.here, edge.moves) == ("honest", 2)


async def test_a_neighbor_that_is_slow_itself_makes_an_edge_try_each_relay_once_and_is_no_alarm():
    edge = Edge(one=(0.002, 3.0), two=(0.003, 3.0), three=(0.004, 3.0))
    await edge.look(100)
    assert (edge.moves, edge.slow) == (2, [])


@given(st.lists(st.tuples(*[st.floats(0.85, 1.15)] * 2), min_size=10, max_size=40), st.floats(0.001, 10.0))
def test_an_edge_does_not_flap_however_exchanges_vary_by_less_than_what_is_clear(noise, usual_s):
    edge = Edge(one=(0.001, usual_s), two=(0.001, usual_s))

    async def run():
        for factors in noise:
            edge.takes = {name: (0.001, usual_s * factor) for name, factor in zip(edge.takes, factors, strict=True)}
            await edge.look()

    asyncio.run(run())
    assert edge.moves <= 1


def test_what_an_exchange_takes_follows_what_holds_most_of_the_time():
    link = SimpleNamespace(_asked_at=0.0, _followed_at=0.0, _exchange_s=0.0)

    def run(took_s, times):
        for _ in range(times):
            PeerLink._end_exchange(link, link._asked_at + took_s)
            link._asked_at += took_s

    run(0.01, 2000)
    run(8.0, 1)
    assert link._exchange_s < 0.02
    run(0.01, 800)
    assert link._exchange_s == pytest.approx(0.01)
    run(2.0, int(6 * FOLLOWS_S / 2.0))
    assert link._exchange_s == pytest.approx(2.0)


async def test_an_exchange_that_is_never_over_counts_once_it_stalls(federation, monkeypatch):
    monkeypatch.setattr("p2pfl.net.link.STALLED_S", 0.05)
    async with federation.node(0) as a, federation.node(1, {0: a.address()}) as b:
        await b.until(lambda: a.open and b.open)
        a.send(1, replace(REQUEST, digest=b"d" * 16))
        await b.until(b.messages)
        assert link_of(a, 1).exchange_s == 0.0
        await a.until(lambda: link_of(a, 1).exchange_s == 0.05)
        assert link_of(b, 0).exchange_s == 0.0
