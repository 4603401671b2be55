"""Two nodes that meet at a relay end on a direct line if both share their addresses, and only then."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from relay_kit import QUICK, TOKEN, RelayHere, by_relay, nothing_listed, until

from p2pfl.core.messages import Resync
from p2pfl.features.relay import feature
from p2pfl.features.relay.feature import DirectWays, RelayFeature
from p2pfl.features.relay.frames import Challenge, FrameKind, struct_in, unpack
from p2pfl.features.relay.server import Admissions, ListedFederation, RelayServer
from p2pfl.features.relay.switchboard import Switchboard
from p2pfl.net.address import Address
from p2pfl.net.limits import Limits
from p2pfl.net.transport import MemoryNetwork
from p2pfl.net.websocket import WebSocketTransport


@pytest.fixture
def network():
    return MemoryNetwork()


class LanHere(MemoryNetwork):
    """The LAN of both nodes, which counts who was dialed."""

    def __init__(self):
        super().__init__()
        self.dialed = []

    def transport(self, limits, refusals, log):
        made = super().transport(limits, refusals, log)
        dial = made.dial

        async def counting(way):
            self.dialed.append(str(way))
            return await dial(way)

        made.dial = counting
        return made


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self):
        return self.now


def attach(federation, node, *, shares=True, clock=None):
    """Attach the feature to one of the nodes of tests/net, as a node would."""
    own = SimpleNamespace(
        relay_token="relay.token",
        listen="0.0.0.0:0",
        interfaces=(),
        forwarded_port=None,
        network=SimpleNamespace(share_addresses=shares),
    )
    members = [SimpleNamespace(key=identity.public, name=str(i)) for i, identity in enumerate(federation.identities)]
    setup = SimpleNamespace(node=own, federation=SimpleNamespace(members=members), identity=SimpleNamespace(public=b""))
    links = node.links
    view = SimpleNamespace(
        network=links,
        say=links.sides.say,
        clock=clock or asyncio.get_running_loop().time,
        setup=lambda: setup,
        status=SimpleNamespace(name_of=str),
    )
    relays = RelayFeature().attach(view)
    for handled in relays.channels():
        links.sides.add(handled)
    return relays.direct


def make(federation, network, lan, relay, index):
    return federation.new(
        index,
        listen=f"10.0.0.{index + 1}:4001",
        limits=QUICK,
        neighbors=frozenset({1 - index}),
        transport=by_relay(network, federation.identities[index], relay.url, direct=lan),
    )


def is_direct(node):
    link = node.links._table.places[1 - node.index].link
    return link is not None and link.connection.line.relay is None


@pytest.fixture
def hosts(monkeypatch):
    """Each node's own addresses: the second in the list is one that nobody else reaches."""
    monkeypatch.setattr(feature, "LOOK_S", 0.02)
    monkeypatch.setattr(DirectWays, "_places", lambda ways: feature.places_of(ways.hosts))


@pytest.mark.parametrize("shares", [(True, True), (True, False), (False, False)])
async def test_two_nodes_at_a_relay_end_on_a_direct_line_if_both_share_their_addresses(
    federation, network, hosts, shares
):
    lan = LanHere()
    async with RelayHere(network) as relay:
        nodes = [make(federation, network, lan, relay, index) for index in range(2)]
        ways = [attach(federation, node, shares=one) for node, one in zip(nodes, shares, strict=True)]
        for node, one in zip(nodes, ways, strict=True):
            if one is not None:
                one.hosts = [("172.17.0.1", 4001), (f"10.0.0.{node.index + 1}", 4001)]
        async with nodes[0].links, nodes[1].links:
            tasks = [asyncio.create_task(one.run()) for one in ways if one is not None]
            a, b = nodes
            await a.until(lambda: a.open and b.open)
            a.send(1, Resync(incarnation=1))
            await b.until(b.messages)
            if all(shares):
                await a.until(lambda: is_direct(a) and is_direct(b) and a.open and b.open)
                a.send(1, Resync(incarnation=2))
                await b.until(lambda: len(b.messages()) == 2)
                assert ways[0].status()["tried"] == ways[1].status()["tried"] == {}, "forgotten with the session"
                routes = [node.links._dialer.route(1 - node.index) for node in nodes]
                assert not any(route.hints for route in routes)
                assert any(route.worked for route in routes), "where it was found stays known"
                assert a.reasons() == b.reasons() == ["replaced by a newer session"]
            else:
                await asyncio.sleep(0.2)
                assert not is_direct(a)
                assert not lan.dialed
            for task in tasks:
                task.cancel()
        for node in nodes:
            assert not node.alarms
            assert node.links.counters.total.faults == 0


async def test_places_are_told_again_when_they_change_and_every_hour(federation, network, hosts):
    lan, clock, said = LanHere(), Clock(), []
    async with RelayHere(network) as relay:
        a = make(federation, network, lan, relay, 0)
        ways = attach(federation, a, clock=clock)
        ways._node.say = lambda *what: said.append(what[2].places)
        ways._is_relayed = lambda _: True
        ways.opened(1)
        for ways._own, after, count in [
            ((), 0.0, 0),
            ((("a", 1),), 0.0, 1),
            ((("a", 1),), 600.0, 1),
            ((("b", 1),), 1.0, 2),
            ((("c", 1),), 59.0, 2),
            ((("c", 1),), 1.0, 3),
            ((("c", 1),), 3599.0, 3),
            ((("c", 1),), 1.0, 4),
        ]:
            clock.now += after
            ways.look_around()
            assert len(said) == count
        ways.closed(1)
        ways.look_around()
        assert len(said) == 4


async def test_a_relay_tells_a_member_from_where_it_sees_it(federation, network):
    async with RelayHere(network) as relay:
        a = make(federation, network, LanHere(), relay, 0)
        async with a.links:
            await until(lambda: a.links.transport.relays[0].seen)
            assert a.links.transport.relays[0].seen == "127.0.0.1"


@pytest.mark.parametrize(
    ("header", "seen"),
    [
        (b"", "127.0.0.1"),
        (b"X-Forwarded-For: 10.0.0.7, 198.51.100.9\r\n", "198.51.100.9"),
        (b"X-Forwarded-For: \r\n", "127.0.0.1"),
        (b"X-Forwarded-For: \xff\xfe\r\n", "127.0.0.1"),
        (b"X-Forwarded-For: " + 4000 * b"x" + b"\r\n", "x" * 64),
    ],
    ids=["none", "two", "empty", "no text", "long"],
)
async def test_behind_a_web_server_a_member_is_told_what_that_says_of_it(header, seen):
    """It is told to nobody else, so whoever lies lies to itself."""
    transport = WebSocketTransport(Limits(), nothing_listed(), logging.getLogger("tests.direct"))
    server = RelayServer(Admissions([ListedFederation(name="ward", token=TOKEN)]), Switchboard(), nothing_listed())
    await transport.open(Address("127.0.0.1", 0), server.meet)
    reader, writer = await asyncio.open_connection("127.0.0.1", transport.port)
    writer.write(ASKS + header + b"\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    _, size = await reader.readexactly(2)
    challenge = struct_in(unpack(await reader.readexactly(size)), FrameKind.CHALLENGE, Challenge)
    assert challenge.seen == seen
    writer.transport.abort()
    await transport.close()


ASKS = (
    b"GET /p2pfl HTTP/1.1\r\nHost: relay\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
