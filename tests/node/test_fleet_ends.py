"""How a launcher ends its nodes: whoever holds what is nowhere else is let be, until somebody asks twice."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import fields

from p2pfl.fleet import Child, Fleet, Starter
from p2pfl.reporting import NodeLine


class Process:
    """Notes what it is sent; its stdin is the leash."""

    def __init__(self):
        self.heard = []
        self.stdin = SimpleNamespace(close=lambda: self.heard.append("let go"), write=self.heard.append)

    def send_signal(self, number):
        self.heard.append(signal.Signals(number).name)

    async def wait(self):
        return self.exit_code


FIGURES = {one.name: 0 if one.type in (int, float) else None for one in fields(NodeLine) if one.required}
LINE = msgspec.json.encode(FIGURES | {"node": "pi", "phase": "waiting", "test_is_stale": False}) + b"\n"


def line(phase):
    return SimpleNamespace(phase=phase)


def child(phase, **more):
    made = Child(name=phase, node=None, lines=[line(phase)], **more)
    made.process = Process()
    return made


@pytest.fixture
def stopping(monkeypatch):
    monkeypatch.setattr("p2pfl.fleet.fleet.PATIENCE_S", 0.01)
    launcher = Fleet.__new__(Fleet)
    launcher.stopping, launcher._starter = False, Starter([])
    launcher.children = [child("training"), child("waiting for disk"), child("waiting for disk", byzantine=True)]
    return launcher


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells when that is
            await asyncio.sleep(0.005)


async def test_a_node_that_waits_for_its_disk_is_not_killed_and_the_others_are(stopping):
    stuck, waiting, liar = stopping.children
    stopping.stop()
    await until(lambda: "SIGKILL" in stuck.process.heard)
    assert (waiting.process.heard, liar.process.heard[:2]) == (["let go"], ["let go", "SIGKILL"])
    stuck.exit_code = liar.exit_code = -9
    waiting.lines.append(line("training"))
    await until(lambda: "SIGKILL" in waiting.process.heard)
    waiting.exit_code = -9


async def test_asked_again_it_has_those_give_up_that_wait(stopping):
    stuck, waiting, liar = stopping.children
    stopping.stop()
    stopping.stop()
    assert waiting.process.heard == ["let go", "SIGTERM"]
    assert "SIGTERM" not in stuck.process.heard + liar.process.heard
    for one in stopping.children:
        one.exit_code = 0


def test_a_node_that_waits_is_shown_so_and_one_that_has_said_nothing_as_starting():
    assert child("waiting for disk").state == "waiting for disk"
    silent = Child(name="silent", node=None)
    assert (silent.last, silent.state, silent.waits_alone, silent.waits_for_disk) == (None, "starting", False, False)


@pytest.mark.parametrize(("code", "told"), [(2, [b"training\n"]), (-9, [b"training\n"]), (0, []), (130, [])])
async def test_the_others_are_told_of_a_node_that_has_ended_for_good(stopping, code, told):
    ended, waiting, _ = stopping.children
    ended.process.stdout = asyncio.StreamReader()
    ended.process.stdout.feed_eof()
    ended.process.exit_code = code
    await stopping._follow(ended, ended.process)
    assert waiting.process.heard == told
    assert ended.process.heard == []


async def test_a_node_is_told_again_with_its_first_line_for_before_it_could_not_hear(stopping):
    ended, waiting, _ = stopping.children
    ended.exit_code = 2
    waiting.process.stdout = asyncio.StreamReader()
    waiting.process.stdout.feed_data(b'{"node":1}\n')
    waiting.process.stdout.feed_data(LINE + LINE)
    waiting.process.stdout.feed_eof()
    await stopping._listen(waiting, waiting.process)
    assert waiting.process.heard == [b"training\n"]
