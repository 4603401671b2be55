"""Relays that lie: nothing is lost or applied twice, nobody is blamed but the relay, and another relay takes over."""

from __future__ import annotations

import asyncio

import pytest
from memory_kit import MemoryNetwork
from relay_kit import RelayHere, WrappedLine, by_relay, pair

from p2pfl.core import Resync
from p2pfl.features.relay import HEAD, Closing, FrameKind, pack, pack_number, unpack
from p2pfl.net import Limits

HONEST_FRAMES = 12
"""Frames with data that a lying relay passes on first: the handshake and some messages."""


class LyingLine(WrappedLine):
    """The relay's end of a member's connection; `lie` returns the frames to send in place of one with data."""

    def __init__(self, inner, lie):
        super().__init__(inner)
        self.lie, self.passed = lie, 0

    async def _push(self, data):
        frames = [data]
        if unpack(data).kind is FrameKind.DATA:
            self.passed += 1
            if self.passed > HONEST_FRAMES:
                frames = self.lie(self, data)
        for frame in frames:
            await self.inner.send(frame)


def reorder(line, data):
    held, line.held = getattr(line, "held", None), None if getattr(line, "held", None) else data
    return [data, held] if held else []


LIES = {
    "flip": lambda _, data: [data[:-1] + bytes([data[-1] ^ 1])],
    "repeat": lambda _, data: [data, data],
    "reorder": reorder,
    "make up": lambda _, data: [pack(FrameKind.DATA, unpack(data).line, bytes(64))],
}
RARER = {
    "drop": lambda line, data: [] if line.passed % 3 else [data],
    "swallow": lambda *_: [],
    "cut": lambda _, data: [pack_number(FrameKind.CLOSE, unpack(data).line, Closing.DONE)],
    "grow": lambda _, data: [data[: HEAD.size] + bytes(300_000)] * 4,
}
IMPATIENT = Limits(
    retry_first_s=0.02,
    retry_ceiling_s=0.1,
    contest_s=0.2,
    close_s=0.2,
    settled_s=0.0,
    silence_s=0.9,
    beat_s=0.2,
    connect_s=0.5,
    handshake_s=0.5,
    sessions_per_s=50.0,
)


@pytest.mark.parametrize("lie", [*LIES, *(pytest.param(lie, marks=pytest.mark.long) for lie in RARER)])
async def test_whatever_a_relay_does_the_messages_arrive_once_through_another(federation, lie):
    network = MemoryNetwork()
    liar, honest = RelayHere(network, "liar:1"), RelayHere(network, "honest:1")
    liar.wrap = lambda line: LyingLine(line, (LIES | RARER)[lie])
    async with liar:
        a, b = pair(federation, network, liar, honest, limits=IMPATIENT)
        doubted = []
        for node in (a, b):
            node.links.transport.listen_for_doubts(lambda relay, *_: doubted.append(relay.url))
        async with a.links, b.links:
            await a.until(lambda: a.open and b.open)
            await a.until(lambda: a.reasons() or b.reasons())
            async with honest:
                await a.until(lambda: is_honest(a, honest) and is_honest(b, honest))
                for number in range(20):
                    a.send(1, Resync(incarnation=number))
                    b.send(0, Resync(incarnation=number))
                await a.until(lambda: len(a.messages()) >= 20 and len(b.messages()) >= 20)
    for node in (a, b):
        assert [message.incarnation for message in node.messages()] == list(range(20))
        total = node.links.counters.total
        assert total.faults == total.refusals == 0
        assert not node.alarms
        assert not any(reason.startswith("protocol fault") for reason in node.reasons())
    assert set(doubted) <= {liar.url}
    assert doubted or lie in ("cut", "grow")


async def test_a_relay_that_delays_everything_is_only_slow(federation):
    network = MemoryNetwork()
    slow = RelayHere(network, "slow:1")

    class Delaying(LyingLine):
        async def _push(self, data):
            await asyncio.sleep(0.01)
            await self.inner.send(data)

    slow.wrap = lambda line: Delaying(line, LIES["flip"])
    async with slow:
        a, b = pair(federation, network, slow, limits=IMPATIENT)
        async with a.links, b.links:
            await a.until(lambda: a.open and b.open)
            for number in range(10):
                a.send(1, Resync(incarnation=number))
            await b.until(lambda: len(b.messages()) == 10)
            assert not a.reasons()
            assert not b.reasons()
    assert [message.incarnation for message in b.messages()] == list(range(10))


def is_honest(node, honest) -> bool:
    link = node.links._table.places[1 - node.index].link
    return link is not None and link.connection.line.relay == honest.url


@pytest.mark.parametrize("who", ["nobody", "another member"])
async def test_a_relay_that_lies_about_who_is_there_only_costs_time(federation, who):
    network = MemoryNetwork()
    liar, honest = RelayHere(network, "liar:1"), RelayHere(network, "honest:1")
    third = federation.identities[2].public

    class Misleading(LyingLine):
        async def _pull(self):
            raw = await self.inner.receive()
            frame = unpack(raw)
            if frame.kind is not FrameKind.OPEN:
                return raw
            return pack(FrameKind.OPEN, frame.line, third if who == "another member" else bytes(32))

    liar.wrap = lambda line: Misleading(line, lambda _, data: [data])
    async with liar, honest:
        nodes = [
            federation.new(
                index,
                limits=IMPATIENT,
                neighbors=frozenset({1 - index}) if index < 2 else frozenset(),
                transport=by_relay(network, federation.identities[index], *urls),
            )
            for index, urls in enumerate([(liar.url, honest.url), (liar.url, honest.url), (liar.url,)])
        ]
        a, b, c = nodes
        async with c.links, a.links, b.links:
            await a.until(lambda: is_honest(a, honest) and is_honest(b, honest))
        for node in nodes:
            assert node.links.counters.total.refusals == node.links.counters.total.faults == 0
            assert not node.alarms


async def test_a_relay_that_never_answers_does_not_hold_up_another(federation):
    network = MemoryNetwork()
    silent, honest = RelayHere(network, "silent:1"), RelayHere(network, "honest:1")
    silent.server.meet = lambda *_: asyncio.create_task(asyncio.sleep(30))
    async with silent, honest:
        a, b = pair(federation, network, silent, honest, limits=IMPATIENT)
        async with a.links, b.links:
            await a.until(lambda: is_honest(a, honest) and is_honest(b, honest))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
