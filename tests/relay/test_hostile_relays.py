"""What a relay may say to a member in any state: it costs little, stops nothing, and the member keeps trying."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from memory_kit import MemoryNetwork, MemoryTransport
from relay_kit import QUICK, parts, until

from p2pfl.errors import PeerFault
from p2pfl.features.relay import (
    PASSED_ON,
    VERSION,
    WINDOW_BYTES,
    Challenge,
    Closing,
    FrameKind,
    Registration,
    RelayLink,
    pack,
    pack_number,
    pack_struct,
    struct_in,
    unpack,
)
from p2pfl.features.relay import link as relay_link
from p2pfl.net import Address, GoneError, Limits, Line

URL, KEY = "ws://liar:1/p2pfl", b"k" * 32
CHALLENGE = Challenge(version=VERSION, nonce=bytes(32), clock_s=0)
Script = Callable[[Line], Coroutine[Any, Any, None]]


class Liar:
    """A relay that does what its script says with each connection, once it has registered the member."""

    def __init__(self, federation, script: Script, *, opening: bytes = b"", limits: Limits = QUICK) -> None:
        network, self.script, self.opening = MemoryNetwork(), script, opening
        self.transport, self.came, self.met = MemoryTransport(network, Limits()), 0, 0
        self.link = RelayLink(URL, parts(network, federation.identities[0], limits=limits))

    async def __aenter__(self):
        await self.transport.open(Address("liar", 1), lambda line, _: asyncio.create_task(self._serve(line)))
        self.keeping = asyncio.create_task(self.link.keep(self._meet))
        return self

    async def __aexit__(self, *_):
        self.keeping.cancel()
        await asyncio.wait([self.keeping])
        assert self.keeping.cancelled(), "it never ends by itself"
        await self.transport.close()

    def _meet(self, line, visit):
        self.met += 1
        return asyncio.create_task(asyncio.sleep(0))

    async def _serve(self, line):
        self.came += 1
        try:
            await line.send(self.opening or pack_struct(FrameKind.CHALLENGE, CHALLENGE))
            struct_in(unpack(await line.receive()), FrameKind.REGISTER, Registration)
            await line.send(pack_number(FrameKind.WELCOME, 0, WINDOW_BYTES))
            await self.script(line)
        except GoneError:
            pass
        finally:
            await line.close(0.1)


async def read_on(line):
    while True:
        await line.receive()


def deep(kind: FrameKind) -> bytes:
    """A frame whose last field, which no version knows, is an array in an array, and so on."""
    values = [1, bytes(32), 0] if kind is FrameKind.CHALLENGE else [1, "", bytes(32), bytes(64), b"", b"", b""]
    return pack(kind, 0, bytes([0x91 + len(values)]) + msgspec.msgpack.encode(values)[1:] + b"\x91" * 3500)


@pytest.mark.parametrize(
    "opening",
    [
        deep(FrameKind.CHALLENGE),
        b"?",
        pack(FrameKind.WELCOME),
        pack(FrameKind.CHALLENGE, 0, b"\xff" * 99),
        bytes(10**6),
    ],
)
async def test_whatever_a_relay_says_first_the_member_tries_again(federation, opening):
    async with Liar(federation, read_on, opening=opening) as liar:
        await until(lambda: liar.came >= 3)
        assert not liar.link.is_registered
        assert liar.link.why


LIES = {
    "wrong kind": [pack(FrameKind.CHALLENGE)] * 1000,
    "answers to no ping": [pack_number(FrameKind.PONG, 0, 1)] * 1000,
    "data for no line": [pack(FrameKind.DATA, 77, b"x")] * 1000,
    "a line without a key": [pack(FrameKind.OPEN, PASSED_ON)],
    "a number of the member's": [pack(FrameKind.OPEN, 1, KEY)],
    "one line twice": [pack(FrameKind.OPEN, PASSED_ON, KEY)] * 2,
    "credit for nothing": [pack(FrameKind.OPEN, PASSED_ON, KEY), pack_number(FrameKind.CREDIT, PASSED_ON, 1)],
    "no credit at all": [pack(FrameKind.OPEN, PASSED_ON, KEY), pack_number(FrameKind.CREDIT, PASSED_ON, 0)],
    "endless credit": [pack(FrameKind.OPEN, PASSED_ON, KEY), pack_number(FrameKind.CREDIT, PASSED_ON, 2**64 - 1)],
    "beyond its credit": [pack(FrameKind.OPEN, PASSED_ON, KEY), *[pack(FrameKind.DATA, PASSED_ON, bytes(10**6))]],
    "many small chunks": [pack(FrameKind.OPEN, PASSED_ON, KEY), *[pack(FrameKind.DATA, PASSED_ON, b"x")] * 2**11],
    "no frame": [b"x"],
}


@pytest.mark.parametrize("lie", LIES)
async def test_what_no_relay_says_ends_the_connection_and_the_member_tries_again(federation, lie, monkeypatch):
    monkeypatch.setattr("p2pfl.features.relay.link.MOST_CHUNKS", 2**10)
    monkeypatch.setattr(relay_link, "STRAY_BURST", 100.0)

    async def tell(line):
        for frame in LIES[lie]:
            await line.send(frame)
        await read_on(line)

    async with Liar(federation, tell) as liar:
        await until(lambda: liar.came >= 2)
        assert liar.link.lost not in ("", "no answer yet")


async def test_endless_opening_and_closing_costs_a_bounded_number_of_handshakes(federation):
    async def flood(line):
        reading = asyncio.create_task(read_on(line))
        for number in range(PASSED_ON, PASSED_ON + 2000):
            await line.send(pack(FrameKind.OPEN, number, number.to_bytes(32)))
            await line.send(pack_number(FrameKind.CLOSE, number, Closing.DONE))
        await reading

    limits = Limits(retry_first_s=5.0, handshakes_per_s=1.0, handshake_burst=20.0)
    async with Liar(federation, flood, limits=limits) as liar:
        await until(lambda: liar.met >= 20)
        await asyncio.sleep(0.05)
        assert liar.met <= 22


async def test_a_relay_that_cuts_every_connection_at_once_is_dialed_ever_more_seldom_and_counts_as_away(federation):
    async def cut(line):
        await asyncio.sleep(0.005)

    limits = Limits(retry_first_s=0.02, retry_ceiling_s=60.0, settled_s=5.0)
    async with Liar(federation, cut, limits=limits) as liar:
        await until(lambda: liar.came >= 4)
        began = liar.link.away_s()
        await asyncio.sleep(0.2)
        assert liar.came <= 6
        assert liar.link.away_s() > began + 0.1


async def test_a_ping_cannot_be_answered_before_it_came(federation):
    """So a relay cannot hide its distance from this member, and be preferred."""

    async def hurry(line):
        ping = unpack(await line.receive())
        await line.send(pack_number(FrameKind.PONG, 0, int.from_bytes(ping.payload, "little") + 10**9))
        await asyncio.sleep(0.05)
        await line.send(pack(FrameKind.PONG, 0, ping.payload))
        await read_on(line)

    async with Liar(federation, hurry) as liar:
        await until(lambda: liar.link.round_trip_s < 60.0)
        assert liar.link.round_trip_s >= 0.05


async def test_a_relay_that_answers_no_ping_is_left(federation, monkeypatch):
    monkeypatch.setattr(relay_link, "BEAT_S", 0.01)
    monkeypatch.setattr(relay_link, "RELAY_SILENCE_S", 0.05)

    async def pretend(line):
        while True:
            await line.send(pack_number(FrameKind.CLOSE, 9, Closing.DONE))
            await asyncio.sleep(0.01)

    async with Liar(federation, pretend) as liar:
        await until(lambda: liar.came >= 2)
        assert liar.link.lost == "no answer in time"


@pytest.mark.parametrize("steps", range(5))
async def test_the_node_stops_even_if_the_relay_fails_it_at_that_moment(federation, steps, monkeypatch):
    fails = asyncio.Event()

    async def beat(self, *, shows):
        await fails.wait()
        raise PeerFault("now")

    monkeypatch.setattr(RelayLink, "_beat", beat)
    async with Liar(federation, read_on) as liar:
        await until(lambda: liar.link.is_registered)
        fails.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        liar.keeping.cancel()
        _, goes_on = await asyncio.wait([liar.keeping], timeout=1.0)
        liar.keeping.cancel()
        assert not goes_on


async def test_a_relay_that_swallows_dials_comes_after_others(federation):
    async with Liar(federation, read_on, limits=replace(QUICK, connect_s=0.1)) as liar:
        await until(lambda: liar.link.is_registered)
        for wait_s, doubts in ((0.01, 0), (0.1, 1)):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await liar.link.dial(KEY)
            assert liar.link.doubts(KEY) == doubts


async def test_visits_through_one_relay_are_bounded_in_all_and_for_each_member():
    limits = relay_link.RelayLimits(Limits())

    def visits(key: bytes, times: int) -> int:
        count = 0
        for _ in range(times):
            try:
                limits.count_control(key, 0.0)
            except relay_link.PeerFault:
                continue
            count += 1
        return count

    assert visits(KEY, 100) == 16
    assert visits(b"other", 10) == 10
    assert sum(visits(bytes([number]), 1) for number in range(100)) <= 32 - 26
