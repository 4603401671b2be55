"""What nodes of earlier versions say is understood and answered as it was; what is not known is dropped or refused.

The bytes in the JSON files beside this one were written by the code of those versions (`make_golden.py`).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from memory_kit import MemoryNetwork, MemoryTransport
from message_kit import ASIDE, PAUSE
from nacl.public import PrivateKey

from p2pfl import wire
from p2pfl.core.messages import LEAST_VERSION, PROTOCOL_VERSION, Ready
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding, Initiator, Responder, Session
from p2pfl.errors import PeerFault
from p2pfl.features.relay import frames as relay
from p2pfl.features.relay.tickets import register
from p2pfl.limits import Limits
from p2pfl.net import link
from p2pfl.net.address import Address
from p2pfl.net.greeting import Notice, Word, unpack_notice
from p2pfl.net.link import MALFORMED
from p2pfl.wire import LAYOUT, PREFIX_BYTES, Offer, Side, Unknown, decode, decode_prefix, encode

OLD = {path.stem: json.loads(path.read_text(encoding="ascii")) for path in sorted(Path(__file__).parent.glob("*.json"))}
NAMES = list(OLD)
CHANNELS = {channel.name: channel for channel, *_ in ASIDE}
BOOT = bytes([5]) * 16


def message_in(raw):
    prefix = decode_prefix(raw[:PREFIX_BYTES], max_body_bytes=1000)
    body_at = PREFIX_BYTES + prefix.header_bytes
    return decode(prefix, raw[PREFIX_BYTES:body_at], raw[body_at:])


def test_there_are_bytes_of_each_version_that_is_spoken():
    assert {version for name in NAMES for version in OLD[name]["versions"]} >= set(
        range(LEAST_VERSION, PROTOCOL_VERSION)
    ) | {9}


def values_of(message):
    """Return a message's fields as JSON has them, without a request's digest, which is not sent."""
    found = json.loads(msgspec.json.encode(message))
    return {key: value for key, value in found.items() if key != "digest"} if isinstance(found, dict) else found


@pytest.mark.parametrize("name", NAMES)
def test_frames_of_earlier_versions_mean_the_same_and_are_said_in_the_same_way(name):
    version = OLD[name]["versions"][1]
    for kind, fields, raw in OLD[name]["frames"]:
        message = message_in(bytes.fromhex(raw))
        assert type(message).__name__ == kind
        assert values_of(message) == {key: value for key, value in fields.items() if key != "digest"}
        assert b"".join(encode(message, version)).hex() == raw


@pytest.mark.parametrize("name", NAMES)
def test_messages_of_side_channels_mean_the_same(name):
    """Whoever sends on a channel that is no longer offered is dropped and counted."""
    for channel, kind, fields, raw in OLD[name]["sides"]:
        if channel in CHANNELS:
            message = CHANNELS[channel].unpack(bytes.fromhex(raw))
            assert type(message).__name__ == kind
            assert values_of(message) == fields
            assert CHANNELS[channel].pack(message).body.hex() == raw


@pytest.mark.parametrize("name", NAMES)
def test_a_handshake_of_earlier_versions_has_the_same_bytes_and_its_session_opens(name):
    old = OLD[name]
    binding = FederationBinding(federation_id=bytes([1]) * 32, sections=(("topology", bytes(32)),))
    one, other = (Identity(bytes([number]) * 32) for number in (1, 2))
    dialer = Initiator(one, other.public, binding, ephemeral=PrivateKey(bytes([3]) * 32))
    listener = Responder(other, frozenset({one.public}).__contains__, binding, ephemeral=PrivateKey(bytes([4]) * 32))
    first, second, third = (bytes.fromhex(raw) for raw in old["handshake"])
    assert dialer.first() == first
    assert listener.first(first) == second
    assert dialer.second(second) == third
    session = Session(listener.third(third))
    opened = [session.open(bytes.fromhex(raw)) for raw in old["sealed"]]
    assert [bytes(data).hex() for data, _ in opened] == [*old["plain"], ""]
    assert [final for _, final in opened] == [False] * len(old["plain"]) + [True]
    assert unpack_notice(bytes(opened[0][0])).word is Word.GREETING


@pytest.mark.parametrize("name", [name for name in NAMES if OLD[name]["relay"]])
def test_a_relay_and_a_member_of_earlier_versions_understand_each_other(name):
    frames = [relay.unpack(bytes.fromhex(raw)) for raw in OLD[name]["relay"]]
    assert [one.kind for one in frames] == list(range(1, 12))
    challenge = relay.struct_in(frames[0], relay.FrameKind.CHALLENGE, relay.Challenge)
    assert (challenge.nonce, challenge.seen) == (bytes([6]) * 32, "")
    answer = register(Identity(bytes([1]) * 32), challenge, relay="relay:1", token=b"t" * 32)
    said = msgspec.msgpack.decode(frames[1].payload)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answer))[: len(said)] == said, "what comes after is left out"
    assert relay.struct_in(frames[1], relay.FrameKind.REGISTER, relay.Registration) == answer
    assert relay.number_in(frames[2]) == relay.WINDOW_BYTES
    assert relay.refusal_in(frames[3]) is relay.Refusal.EXPIRED
    assert relay.closing_in(frames[8]) is relay.Closing.NOT_HERE
    # A relay of today tells more, which a member of that version leaves out.
    more = msgspec.msgpack.encode(relay.Challenge(version=1, nonce=bytes(32), clock_s=5, seen="192.0.2.7"))
    assert msgspec.msgpack.decode(more, type=OldChallenge) == OldChallenge(1, bytes(32), 5)


class OldChallenge(msgspec.Struct, array_like=True, frozen=True):
    """As it was in the first version with relays."""

    version: int
    nonce: bytes
    clock_s: int


class Neighbor:
    """A node of another version: it has the lower index, dials, and says exactly the bytes that a test gives it."""

    def __init__(self, federation, binding):
        self.identity, self.binding = federation.identities[0], binding
        self.key = federation.identities[1].public

    async def dial(self, network, address):
        host, _, port = address.partition(":")
        self.line = await MemoryTransport(network, Limits()).dial(Address(host, int(port)))
        initiator = Initiator(self.identity, self.key, self.binding)
        await self.line.send(initiator.first())
        await self.line.send(initiator.second(await self.line.receive()))
        self.session = Session(initiator.keys)
        await self.say(Notice(Word.GREETING, BOOT).pack())
        greeting = unpack_notice(bytes((await self.hear())[0]))
        assert greeting.word is Word.GREETING
        await self.say(Notice(Word.OPEN, BOOT, 1).pack())

    async def say(self, *plain):
        for raw in plain:
            await self.line.send(self.session.seal(raw))

    async def hear(self):
        async with asyncio.timeout(5.0):
            return self.session.open(await self.line.receive())

    async def frame(self):
        """Return the next frame, but for heartbeats."""
        while not (found := bytes((await self.hear())[0])):
            pass
        return found


@pytest.fixture
async def meet(federation, binding_of_tests):
    """A node of today, index 1, and a neighbor of another version with a session."""
    network = MemoryNetwork()
    node = federation.new(
        1, listen="10.0.0.2:4001", neighbors=frozenset({0}), transport=network.transport, max_body_bytes=1000
    )
    async with node.links:
        old = Neighbor(federation, binding_of_tests)
        await old.dial(network, "10.0.0.2:4001")
        yield SimpleNamespace(node=node, old=old)


def plain_of(name, kind):
    return next(bytes.fromhex(raw) for each, _, raw in OLD[name]["frames"] if each == kind)


@pytest.mark.parametrize("name", NAMES)
async def test_a_session_with_an_earlier_version_begins_and_goes_on_in_its_version(meet, name):
    """All that its kit can say is taken, and it is answered in frames of its version, which it can read."""
    first = await meet.old.frame()
    assert first[2] == LEAST_VERSION
    assert first[3] == 11
    least, most, channels = msgspec.msgpack.decode(first[PREFIX_BYTES:])
    assert least <= OLD[name]["versions"][1] <= most
    assert all(isinstance(one, str) and len(one) <= 32 for one in channels)
    offer = plain_of(name, "Offer")
    rest = [bytes.fromhex(raw) for kind, _, raw in OLD[name]["frames"] if kind not in ("Offer", "Side")]
    await meet.old.say(offer, *rest)
    await meet.node.until(lambda: len(meet.node.messages()) == len(rest))
    assert [type(one).__name__ for one in meet.node.messages()] == [
        kind for kind, *_ in OLD[name]["frames"] if kind not in ("Offer", "Side")
    ]
    meet.node.send(0, Ready(version=128))
    assert (await meet.old.frame())[:4] == bytes([*b"p2", OLD[name]["versions"][1], 4])
    assert not meet.node.reasons()


async def test_of_a_neighbor_of_tomorrow_what_is_not_known_is_dropped(meet):
    """It speaks one version more, has channels that nobody here has, and a type of message as well."""
    tomorrow = Offer(least=LEAST_VERSION, most=PROTOCOL_VERSION + 1, channels=("quantum/1", "vitals/7"))
    unknown = LAYOUT.pack(b"p2", PROTOCOL_VERSION, 77, 0, 3, 0) + b"\x92\x01\x02"
    side = b"".join(encode(Side(channel="quantum/1", body=b"\x91\x01")))
    await meet.old.say(b"".join(encode(tomorrow, LEAST_VERSION)), unknown, side)
    await meet.old.say(b"".join(encode(Ready(version=3))))
    await meet.node.until(meet.node.messages)
    assert meet.node.links.extensions.dropped == {"type 77": 1, "quantum/1": 1}
    assert not meet.node.reasons()
    assert isinstance(message_in(unknown), Unknown)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (LAYOUT.pack(b"p2", LEAST_VERSION - 1, 4, 0, 0, 0), "the peer speaks protocol version 8"),
        (LAYOUT.pack(b"p2", PROTOCOL_VERSION + 1, 4, 0, 0, 0), f"protocol version {PROTOCOL_VERSION + 1}"),
        (
            LAYOUT.pack(b"p2", PROTOCOL_VERSION, 77, 0, 0, 3) + bytes(3),
            "unknown type 77 with 0 bytes of header and 3 of body",
        ),
        (LAYOUT.pack(b"p2", PROTOCOL_VERSION, 4, 1, 0, 0), "unknown flags"),
        (LAYOUT.pack(b"p2", PROTOCOL_VERSION, 8, 0, 3, 0) + b"\x92\x09\x01", "malformed header"),
    ],
    ids=["the version before the oldest", "a version not agreed on", "unknown with a body", "flags", "one field more"],
)
async def test_what_is_refused_of_other_versions_ends_the_session_with_a_reason(meet, raw, why):
    await meet.old.say(plain_of("first-of-9", "Offer"), raw)
    await meet.node.until(meet.node.reasons)
    assert why in meet.node.reasons()[0]
    if "version" in why:
        assert not meet.node.reasons()[0].startswith(MALFORMED), "another version is no fault"


async def test_a_node_of_the_next_version_begins_in_this_one_and_stays_in_it(federation, binding_of_tests, monkeypatch):
    """As `PROTOCOL_VERSION` will be raised: this version is then the one before, and its nodes are met in it."""
    for module in (link, wire):
        monkeypatch.setattr(module, "PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
        monkeypatch.setattr(module, "LEAST_VERSION", PROTOCOL_VERSION)
    network = MemoryNetwork()
    node = federation.new(1, listen="10.0.0.2:4001", neighbors=frozenset({0}), transport=network.transport)
    async with node.links:
        old = Neighbor(federation, binding_of_tests)
        await old.dial(network, "10.0.0.2:4001")
        first = await old.frame()
        assert first[2] == PROTOCOL_VERSION
        assert msgspec.msgpack.decode(first[PREFIX_BYTES:])[:2] == [PROTOCOL_VERSION, PROTOCOL_VERSION + 1]
        await old.say(
            b"".join(encode(Offer(least=PROTOCOL_VERSION, most=PROTOCOL_VERSION, channels=()), PROTOCOL_VERSION))
        )
        await old.say(b"".join(encode(Ready(version=3), PROTOCOL_VERSION)))
        await node.until(node.messages)
        node.send(0, Ready(version=4))
        assert (await old.frame())[2] == PROTOCOL_VERSION
    assert isinstance(node.messages()[0], Ready)


@pytest.mark.parametrize("channel", sorted(CHANNELS.keys() - {PAUSE.name}))
def test_a_message_with_a_field_more_is_refused_so_a_channel_that_changes_needs_another_version(channel):
    for own, message, _ in ASIDE:
        if own.name == channel:
            values = msgspec.msgpack.decode(own.pack(message).body)
            with pytest.raises(PeerFault, match="malformed"):
                own.unpack(msgspec.msgpack.encode([*values, 7]))
