"""Extension channels: what both ends have is carried, what one has is dropped and counted; a failure stays in it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from message_kit import ASIDE, REQUEST
from msgspec.structs import replace

from p2pfl.core import PROTOCOL_VERSION, Ready, Request
from p2pfl.errors import PeerFault
from p2pfl.net import DROPPED_AT_ONCE, FAILED, MALFORMED, ExtensionChannel, ExtensionChannels, HandledChannel, PeerLink
from p2pfl.wire import Offer, Side, Unknown


class Word(msgspec.Struct, frozen=True, array_like=True, tag=1):
    text: str


class Number(msgspec.Struct, frozen=True, array_like=True, tag=2):
    value: int


def channel(name="words", **changes):
    return ExtensionChannel(name, Word, Number, **({"most_bytes": 4000, "per_s": 10.0, "at_once": 100.0} | changes))


class Recorder:
    def __init__(self, fails_at=""):
        self.saw, self.fails_at = [], fails_at

    def _see(self, *what):
        self.saw.append(what)
        if what[0] == self.fails_at:
            raise RuntimeError("a mistake of ours")

    def opened(self, peer):
        self._see("opened", peer)

    def closed(self, peer):
        self._see("closed", peer)

    def hear(self, peer, message):
        self._see("hear", peer, message)

    def heard(self):
        return [message for kind, *rest in self.saw if kind == "hear" for message in rest[1:]]


def feed(node, handled=None, **changes):
    recorder = Recorder(**changes)
    node.links.extensions.add(handled or HandledChannel(channel=channel(), handler=recorder))
    return recorder


@asynccontextmanager
async def two(federation, handled=None):
    """Nodes 0, with this channel, and 1, which have a session and its channels; what node 1 has heard."""
    a = federation.new(0)
    feed(a, handled)
    async with a.links:
        b = federation.new(1, {0: a.address()})
        heard = feed(b)
        async with b.links:
            await b.until(lambda: ("opened", 0) in heard.saw)
            yield a, b, heard


async def test_neighbors_talk_on_what_both_have_and_the_core_hears_nothing_of_it(federation):
    a, b = federation.new(0), None
    heard_a = feed(a)
    async with a.links:
        b = federation.new(1, {0: a.address()})
        heard_b = feed(b)
        async with b.links:
            await b.until(lambda: heard_a.saw and heard_b.saw)
            assert a.links.extensions.say(1, channel(), Word("hello"))
            assert b.links.extensions.say(0, channel(), Number(7))
            assert not a.links.extensions.say(5, channel(), Word("to nobody"))
            await b.until(lambda: heard_a.heard() and heard_b.heard())
        await a.until(lambda: heard_a.saw[-1] == ("closed", 1))
    assert heard_a.saw == [("opened", 1), ("hear", 1, Number(7)), ("closed", 1)]
    assert heard_b.saw == [("opened", 0), ("hear", 0, Word("hello")), ("closed", 0)]
    assert a.messages() == b.messages() == []


@pytest.mark.parametrize("theirs", [None, "others", "newer"])
async def test_who_has_it_not_or_in_another_version_is_told_nothing_and_both_learn_on(federation, theirs):
    a = federation.new(0)
    ours = feed(a)
    async with a.links:
        b = federation.new(1, {0: a.address()})
        if theirs is not None:
            feed(
                b,
                HandledChannel(
                    channel=channel("others") if theirs == "others" else channel(version=2), handler=Recorder()
                ),
            )
        async with b.links:
            await b.until(lambda: b.open and a.open)
            b.send(0, Ready(version=1))
            await a.until(a.messages)
            assert not a.links.extensions.say(1, channel(), Word("hello"))
            # as software would that does not wait for the other end's offer
            b.links._table.current(0)._outbox.put_extension(channel("unknown").pack(Word("x")), 9)
            b.send(0, Ready(version=2))
            b.links._table.current(0)._outbox.put_extension(channel("unknown").pack(Word("y")), 9)
            await a.until(lambda: a.links.extensions.dropped["unknown/1"] == 2)
            a.send(1, Ready(version=3))
            await b.until(b.messages)
    assert ours.saw == []
    assert [message.version for message in a.messages()] == [1, 2]


async def test_they_go_when_no_gossip_waits_and_whoever_asks_for_that_only_on_a_free_line(federation):
    async with two(federation) as (a, b, heard):
        await a.until(lambda: a.links.extensions.say(1, channel(), Word("first"), if_free=True))
        await b.until(heard.heard)
        a.send(1, replace(REQUEST, body=bytes(3_000_000)))
        assert not a.links.extensions.say(1, channel(), Word("dropped"), if_free=True)
        assert a.links.extensions.say(1, channel(), Word("waits"))
        a.send(1, Ready(version=9))
        await b.until(lambda: len(heard.heard()) == 2)
        assert [type(message) for message in b.messages()] == [Request, Ready], "before what is aside"
    assert heard.heard() == [Word("first"), Word("waits")]


async def test_so_many_wait_and_no_more(federation):
    few = channel(most_waiting=3)
    async with two(federation, HandledChannel(channel=few, handler=Recorder())) as (a, _, _):
        await a.until(lambda: a.links.extensions.say(1, few, Number(0)))
        said = [a.links.extensions.say(1, few, Number(number)) for number in range(1, 9)]
        assert said == sorted(said, reverse=True), "those that wait are not sent while nothing is awaited"
        assert said.count(True) in (2, 3), "the first one may still wait too"


@pytest.mark.parametrize("at", ["opened", "hear", "closed"])
async def test_a_handler_that_fails_costs_its_channel_on_that_edge_and_nothing_else(federation, at):
    a, failing, other = federation.new(0), Recorder(at), Recorder()
    a.links.extensions.add(HandledChannel(channel=channel(), handler=failing))
    a.links.extensions.add(HandledChannel(channel=channel("other"), handler=other))
    async with a.links:
        b = federation.new(1, {0: a.address()})
        heard = feed(b)
        b.links.extensions.add(HandledChannel(channel=channel("other"), handler=Recorder()))
        async with b.links:
            await b.until(lambda: ("opened", 0) in heard.saw)
            b.links.extensions.say(0, channel(), Number(1))
            b.links.extensions.say(0, channel(), Number(2))
            await a.until(lambda: other.saw)
            b.links.extensions.say(0, channel("other"), Number(3))
            b.send(0, Ready(version=1))
            await a.until(lambda: a.messages() and other.heard())
        await a.until(lambda: ("closed", 1) in other.saw)
    assert [(kind, peer) for kind, peer, _ in a.alarms if kind == FAILED] == [(FAILED, 1)]
    assert "RuntimeError: a mistake of ours" in next(text for kind, _, text in a.alarms if kind == FAILED)
    assert len(failing.heard()) == {"opened": 0, "hear": 1, "closed": 2}[at], "it is not asked again"
    assert "closed" in [kind for kind, *_ in failing.saw], "but to forget the neighbor"


async def test_a_channel_whose_feature_went_off_is_closed_with_all_and_offered_to_nobody(federation):
    handled = HandledChannel(channel=channel(), handler=Recorder())
    async with two(federation, handled) as (a, b, _):
        await a.until(lambda: handled.handler.saw)
        a.links.extensions.drop(handled)
        assert handled.handler.saw[-1] == ("closed", 1)
        assert not a.links.extensions.say(1, channel(), Word("hello"))
        assert a.links.extensions.names == ()
        b.links.extensions.say(0, channel(), Number(1))
        await a.until(lambda: a.links.extensions.dropped["words/1"])
    assert not handled.handler.heard()
    assert a.alarms == []


async def test_a_guard_that_fails_ends_the_node(federation):
    async def runs():
        async with two(federation, HandledChannel(channel=channel(), handler=Recorder("hear"), guards=True)) as found:
            found[1].links.extensions.say(0, channel(), Number(1))
            await asyncio.sleep(5)

    with pytest.raises(ExceptionGroup) as failure:
        await runs()
    assert "a mistake of ours" in str(failure.value.exceptions)


@pytest.mark.parametrize(
    "sent",
    [
        [Side(channel="words/1", body=b"\xc1")],
        [Side(channel="words/1", body=bytes(4001))],
        [Side(channel="words/1", body=msgspec.msgpack.encode([9, "unknown"]))],
        [channel().pack(Number(each)) for each in range(200)],
        [Side(channel="none/1", body=b"")] * (int(DROPPED_AT_ONCE) + 100),
        [Offer(least=9, most=9, channels=())],
    ],
    ids=["no msgpack", "too long", "no message of it", "too many", "too many in vain", "a second offer"],
)
async def test_what_no_honest_node_sends_ends_the_session_and_says_why(federation, sent):
    async with two(federation) as (a, b, _):
        for message in sent:
            b.links._table.current(0)._outbox.put_extension(message, 10_000)
        await a.until(lambda: "close" in a.kinds())
    assert a.reasons()[0].startswith(MALFORMED)


def test_a_name_stands_for_one_channel_and_bounds_are_checked():
    extensions = ExtensionChannels(name_of=str, on_alarm=print)
    extensions.add(HandledChannel(channel=channel(), handler=Recorder()))
    with pytest.raises(ValueError, match="two features have an extension channel named words/1"):
        extensions.add(HandledChannel(channel=channel(), handler=Recorder()))
    for name in ("", "Words", "a b", "9", "x" * 40):
        with pytest.raises(ValueError, match="not a valid name of an extension channel"):
            channel(name)
    with pytest.raises(ValueError, match="at most 61440"):
        channel(most_bytes=10**6)
    with pytest.raises(ValueError, match="cannot be sent"):
        channel().pack(Word("x" * 5000))


async def test_types_that_are_not_known_are_counted_and_stop_nobody():
    extensions = ExtensionChannels(name_of=str, on_alarm=print)

    class Link:
        peer = 3

    extensions.handle_offer(Link, Offer(least=9, most=9, channels=()))
    for _ in range(3):
        extensions.handle_message(Link, Unknown(code=77))
    assert extensions.dropped == {"type 77": 3}
    with pytest.raises(PeerFault, match="before any was offered"):
        extensions.handle_message(object.__new__(Link), Unknown(code=77))


def test_every_channel_of_the_kit_has_every_message_of_it():
    for name in {one for one, *_ in ASIDE}:
        kinds = {type(message) for one, message, _ in ASIDE if one is name}
        assert kinds == set(name.kinds)


@pytest.mark.parametrize(("of", "message"), [(of, message) for of, message, _ in ASIDE])
def test_a_message_with_one_field_more_is_refused_on_every_channel(of, message):
    fields = msgspec.msgpack.decode(of.pack(message).body)
    with pytest.raises(PeerFault):
        of.unpack(msgspec.msgpack.encode([*fields, 0]))


async def test_a_neighbor_of_another_version_is_named_once_however_often_it_dials(federation, monkeypatch, caplog):
    newer = Offer(least=PROTOCOL_VERSION + 3, most=PROTOCOL_VERSION + 4, channels=())
    monkeypatch.setattr(PeerLink, "_offer", newer)
    a = federation.new(0)
    async with a.links:
        b = federation.new(1, {0: a.address()})
        async with b.links:
            await a.until(lambda: a.kinds().count("close") >= 3)
    said = [record.getMessage() for record in caplog.records if "protocol version" in record.getMessage()]
    assert len([line for line in said if line.startswith("node 1")]) == 1
    assert f"the peer speaks protocol versions {newer.least} to {newer.most}" in said[0]
    assert a.messages() == []
