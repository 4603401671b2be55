"""A federation behind two relays, one of which lies: nothing is lost or applied twice, and nobody else is blamed."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import shutil
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from ports import free_ports
from pushes_kit import PUSHES, check_edges, check_nothing_lost
from relay_kit import nothing_listed

from p2pfl.core import limits as core_limits
from p2pfl.features.relay import link as relay_link
from p2pfl.features.relay.frames import HEAD, Closing, FrameKind, pack, pack_number, unpack
from p2pfl.features.relay.server import Admissions, ListedFederation, RelayServer
from p2pfl.features.relay.switchboard import Switchboard
from p2pfl.features.relay.tickets import make_token, read_token
from p2pfl.net.address import Address
from p2pfl.net.limits import Limits
from p2pfl.net.line import GoneError, Line
from p2pfl.net.websocket import WebSocketTransport
from p2pfl.node import application

DEADLINE_S = 90.0
QUIET = {"takes-no-part", "relay-lost", "relay-spoiled"}
"""The alarms that may be raised: on a busy machine a start takes seconds."""
IMPATIENT = {
    "retry_first_s": 0.05,
    "retry_ceiling_s": 0.5,
    "settled_s": 0.2,
    "silence_s": 4.0,
    "beat_s": 1.2,
    "drain_s": 1.0,
    "connect_s": 1.0,
    "handshake_s": 2.0,
}


class Lying(Line):
    """The relay's end of a member's connection. From `lies` on it says what `lie` makes of each frame to the member."""

    def __init__(self, inner: Line, liar: Relay) -> None:
        super().__init__()
        self.inner, self.liar, self.count, self.held = inner, liar, 0, None

    own_address = property(lambda self: self.inner.own_address)
    peer_address = property(lambda self: self.inner.peer_address)
    bytes_came = property(lambda self: self.inner.bytes_came)

    async def _push(self, data: bytes) -> None:
        self.count += 1
        frame = unpack(data)
        frames = [data]
        if self.liar.lies and frame.kind not in (FrameKind.CHALLENGE, FrameKind.WELCOME, FrameKind.PONG):
            frames = await self.liar.lie(self, frame, data)
        for each in frames:
            await self.inner.send(each)

    async def _pull(self) -> bytes:
        return await self.inner.receive()

    async def close(self, within_s: float) -> None:
        await self.inner.close(within_s)


async def is_silent(line, frame, data):
    return []


async def drops(line, frame, data):
    return [] if frame.kind is FrameKind.DATA and line.count % 5 == 0 else [data]


async def delays(line, frame, data):
    await asyncio.sleep(0.02)
    return [data]


async def reorders(line, frame, data):
    if frame.kind is not FrameKind.DATA:
        return [data]
    held, line.held = line.held, None if line.held else data
    return [data, held] if held else []


async def flips(line, frame, data):
    return [data[:-1] + bytes([data[-1] ^ 1])] if frame.kind is FrameKind.DATA and line.count % 5 == 0 else [data]


async def repeats(line, frame, data):
    return [data, data] if frame.kind is FrameKind.DATA else [data]


async def cuts_lines(line, frame, data):
    cut = frame.kind is FrameKind.DATA and line.count % 7 == 0
    return [data, pack_number(FrameKind.CLOSE, frame.line, Closing.GONE)] if cut else [data]


async def cuts_connections(line, frame, data):
    if line.count % 11 == 0:
        await line.inner.close(0.1)
        raise GoneError("cut")
    return [data]


async def gives_no_credit(line, frame, data):
    return [] if frame.kind is FrameKind.CREDIT else [data]


async def makes_up(line, frame, data):
    more = pack(FrameKind.DATA, frame.line, bytes(80)) if frame.kind is FrameKind.DATA else data
    return [more if line.count % 5 == 0 else data]


async def sends_to_others(line, frame, data):
    """What is for one line goes to another one of the same member."""
    if frame.kind is not FrameKind.DATA or line.count % 3:
        return [data]
    return [HEAD.pack(FrameKind.DATA, frame.line ^ 1) + frame.payload]


async def lies_about_who_opens(line, frame, data):
    return (
        [pack(FrameKind.OPEN, frame.line, bytes(32))]
        if frame.kind is FrameKind.OPEN
        else await cuts_lines(line, frame, data)
    )


async def denies_that_others_are_there(line, frame, data):
    if frame.kind is FrameKind.ACCEPT:
        return [pack_number(FrameKind.CLOSE, frame.line, Closing.NOT_HERE)]
    return await cuts_lines(line, frame, data)


async def does_it_all(line, frame, data):
    lie = line.liar.chance.choice([*LIES[:-1], *[honest] * 20])
    return await lie(line, frame, data)


async def honest(line, frame, data):
    return [data]


LIES = [
    is_silent,
    drops,
    delays,
    reorders,
    flips,
    repeats,
    cuts_lines,
    cuts_connections,
    gives_no_credit,
    makes_up,
    sends_to_others,
    lies_about_who_opens,
    denies_that_others_are_there,
    does_it_all,
]


class Relay:
    """A relay on a real socket that serves whoever knows the token, and lies while `lies` is set."""

    def __init__(self, port: int, token: bytes, lie=honest) -> None:
        self.port, self.lie, self.lies, self.chance = port, lie, False, random.Random(port)
        self.server = RelayServer(
            Admissions([ListedFederation(name="ward", token=token)]), Switchboard(), nothing_listed()
        )
        self.lines: list[Lying] = []

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/p2pfl"

    @asynccontextmanager
    async def running(self):
        transport = WebSocketTransport(Limits(), nothing_listed(), logging.getLogger("tests.relay"))
        transport.expect(16)

        def meet(line, visit):
            self.lines.append(Lying(line, self))
            return self.server.meet(self.lines[-1], visit)

        await transport.open(Address("127.0.0.1", self.port), meet)
        running = asyncio.create_task(self.server.run())
        try:
            yield
        finally:
            running.cancel()
            await transport.close()


@pytest.fixture
def behind(ward, tmp_path, monkeypatch):
    """Make a federation whose nodes have no address and list two relays, the first of which may lie."""
    monkeypatch.setattr(application, "Limits", partial(Limits, **IMPATIENT))
    monkeypatch.setattr(relay_link, "WINDOW_BYTES", 5_000)
    monkeypatch.setattr(relay_link, "CREDIT_BYTES", 1_000)

    def behind(nodes: int, lie=honest, **tables):
        make_token(tmp_path / "relay.token")
        token = read_token(tmp_path / "relay.token")
        liar, good = (Relay(port, token, which) for port, which in zip(free_ports(2), (lie, honest), strict=True))
        task, training = {"name": "pushes.py:task"}, {"rounds": 30, "method": "plain"}
        field = ward(nodes, task=task, training=training, **tables)
        field.tables["network"] = {"relays": [liar.url, good.url]}
        text = re.sub(r"(?m)^address = .*\n", "", field.write().read_text(encoding="utf-8"))
        (field.folder / "federation.toml").write_text(text, encoding="utf-8")
        (field.folder / "pushes.py").write_text(PUSHES, encoding="utf-8")
        for name in field.names:
            network = f"[network]\nrelay_token = {json.dumps(str(tmp_path / 'relay.token'))}\n"
            (field.folder / name / "node.toml").write_text(f'[node]\nlisten = "127.0.0.1:0"\n{network}', "utf-8")
        return field, liar, good

    return behind


def relays_of(nodes) -> set[str | None]:
    """The relays of all sessions; None for an edge without one."""
    found = set()
    for node in nodes:
        places = node.application.driver.links._table.places.values()
        found |= {None if place.link is None else place.link.connection.line.relay for place in places}
    return found


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("lie", LIES)
async def test_whatever_one_relay_does_nothing_is_lost_or_done_twice_and_only_it_is_blamed(behind, start, lie):
    field, liar, good = behind(4, lie)
    async with liar.running():
        nodes = start(field)
        await nodes[0].until(lambda: min(node.rounds for node in nodes) >= 4, DEADLINE_S)
        liar.lies = True
        async with good.running():
            if lie is not delays:
                await nodes[0].until(lambda: relays_of(nodes) == {good.url}, DEADLINE_S)
            await nodes[0].until(lambda: min(node.rounds for node in nodes) >= 22, DEADLINE_S)
            (field.folder / "go").touch()
            async with asyncio.timeout(DEADLINE_S):
                results = await asyncio.gather(*(asyncio.shield(node.task) for node in nodes))
    for result in results:
        assert result.finished
        assert result.alarms.keys() <= QUIET
        assert [neighbor.faults for neighbor in result.neighbors] == [{}, {}]
        assert [neighbor.resyncs for neighbor in result.neighbors] == [0, 0]
    check_nothing_lost(field.folder)


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_of_two_copies_of_one_key_at_two_relays_one_ends_and_the_edges_agree(behind, start, monkeypatch):
    """The copy is alone at the second relay; its neighbors are at both."""
    monkeypatch.setattr(core_limits, "HOLD_S", 2.0)
    field, first, second = behind(3)
    copy = field.folder.with_name("copy")
    shutil.copytree(field.folder, copy, ignore=shutil.ignore_patterns("state"))
    for folder, url in ((field.folder / "node1", first.url), (copy / "node1", second.url)):
        text = (folder.parent / "federation.toml").read_text(encoding="utf-8")
        (folder.parent / "one.toml").write_text(re.sub(r"relays = .*", f'relays = ["{url}"]', text), encoding="utf-8")
    async with first.running(), second.running():
        nodes = start(field, 0, 2)
        (original,) = start(field, 1, file="one.toml")
        await nodes[0].until(lambda: min(node.rounds for node in (*nodes, original)) >= 4, DEADLINE_S)
        place = field.folder
        field.folder = copy
        (double,) = start(field, 1, file="one.toml")
        field.folder = place
        async with asyncio.timeout(DEADLINE_S):
            ended, _ = await asyncio.wait([double.task, original.task], return_when=asyncio.FIRST_COMPLETED)
        (task,) = ended
        assert task.result().resigned
        last = original if task is double.task else double
        assert "two-places" in task.result().alarms
        (field.folder / "go").touch()
        (copy / "go").touch()
        async with asyncio.timeout(DEADLINE_S):
            results = await asyncio.gather(*(asyncio.shield(node.task) for node in (*nodes, last)))
    assert all(result.finished for result in results)
    if last is double:
        shutil.rmtree(field.folder / "node1" / "state")
        shutil.copytree(copy / "node1" / "state", field.folder / "node1" / "state")
    check_edges(field.folder)
