"""What systemd hears of a node: ready, a pat only while loop and engine work, the end. And its log in a day."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import select
import socket
import sys
import threading
from pathlib import Path

import pytest

from p2pfl.cli import BURST, LATER_S, MOST_CHARACTERS, LogBound
from p2pfl.node import STARTING, Look, notify, watched

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from real_field import Field, processes

USEC = 30_000
PERIOD_S = USEC / 3e6
DEADLINE_S = 30.0
ROUND_S = 1.0


class Systemd:
    """The end of $NOTIFY_SOCKET at which systemd listens."""

    def __init__(self, address):
        self.end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.end.bind(address)

    def heard(self, wait_s=0.0):
        """Return all messages that have come, or come within `wait_s`."""
        messages = []
        while select.select([self.end], [], [], 0.0 if messages else wait_s)[0]:
            messages.append(self.end.recv(4096).decode().split("\n"))
        return messages

    async def hears(self, line):
        """Wait for a message with that line, and return it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for message in self.heard():
                    if line in message:
                        return message
                await asyncio.sleep(PERIOD_S)


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    heard = Systemd(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", str(USEC))
    with contextlib.closing(heard.end):
        yield heard


class Engine(threading.Thread):
    """A thread that does jobs like the engine's, and stands still in one until it may go on."""

    def __init__(self):
        super().__init__(daemon=True)
        self.jobs, self.stands, self.goes_on = queue.SimpleQueue(), threading.Event(), threading.Event()
        self.start()

    def run(self):
        while (job := self.jobs.get()) is not None:
            job.use(None)

    def stick(self, _):
        self.stands.set()
        self.goes_on.wait(DEADLINE_S)


async def test_it_is_ready_once_it_no_longer_starts_and_then_says_what_it_does(systemd):
    says = [STARTING]
    work = asyncio.create_task(watched(asyncio.sleep(DEADLINE_S), lambda: says[0]))
    assert "READY=1" not in await systemd.hears("WATCHDOG=1")
    says[0] = "training, round 3"
    assert await systemd.hears("READY=1") == ["READY=1", "WATCHDOG=1", "STATUS=training, round 3"]
    work.cancel()


async def test_an_engine_that_stands_still_gets_no_pat_until_it_goes_on(systemd):
    engine = Engine()
    work = asyncio.create_task(watched(asyncio.sleep(DEADLINE_S), lambda: "", lambda: engine))
    await systemd.hears("WATCHDOG=1")
    engine.jobs.put(Look(engine.stick))
    await asyncio.to_thread(engine.stands.wait, DEADLINE_S)
    systemd.heard()
    await asyncio.sleep(30 * PERIOD_S)  # the loop works, and would have patted as many times
    assert len(systemd.heard()) <= 1, "what was under way when it stood still"
    engine.goes_on.set()
    await systemd.hears("WATCHDOG=1")
    engine.jobs.put(None)  # its node has ended: only the loop must answer now
    await asyncio.to_thread(engine.join)
    systemd.heard()
    await systemd.hears("WATCHDOG=1")
    work.cancel()


async def test_a_loop_that_stands_still_gets_no_pat(systemd):
    engine = Engine()
    work = asyncio.create_task(watched(asyncio.sleep(DEADLINE_S), lambda: "", lambda: engine))
    await systemd.hears("WATCHDOG=1")
    systemd.heard()
    assert not systemd.heard(wait_s=30 * PERIOD_S), "this very call blocks the loop"
    work.cancel()


async def test_without_systemd_nothing_is_done(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    before = asyncio.all_tasks()

    async def work():
        return asyncio.all_tasks() - before

    assert await watched(work(), lambda: pytest.fail("nobody asks")) == set()
    notify("READY=1")


@pytest.mark.parametrize("address", ["/no/such/socket", "@no-such-socket", "vsock:2:1234", "x" * 200])
def test_a_socket_that_nobody_reads_does_no_harm(address, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")


def test_an_abstract_socket_is_written_to(monkeypatch):
    heard = Systemd("\0p2pfl-test-notify")
    monkeypatch.setenv("NOTIFY_SOCKET", "@p2pfl-test-notify")
    with contextlib.closing(heard.end):
        notify("READY=1", "STATUS=x")
        assert heard.heard(DEADLINE_S) == [["READY=1", "STATUS=x"]]


@pytest.mark.long
def test_a_node_is_ready_when_it_listens_and_patted_through_rounds_longer_than_the_watchdog(
    systemd, tmp_path, monkeypatch
):
    field = Field(tmp_path / "field", 2, task='name = "task.py:Slow"', rounds=2, closing_rounds=0, linger_s=0.5)
    (field.folder / "task.py").write_text(SLOW)
    heard = []

    def hear():
        heard.extend(systemd.heard())
        return heard

    with processes(field) as run:
        one = run("node0")
        one.until(lambda: "READY=1" in (hear() or [[""]])[-1], "READY")
        assert "listening on port" in one.log
        assert heard[-1] == ["READY=1", "WATCHDOG=1", "STATUS=waiting, round 0, 0 neighbors connected"]
        monkeypatch.delenv("NOTIFY_SOCKET")
        two = run("node1")
        one.until(lambda: hear() and one.rounds >= 1, "a round")
        assert sum("STATUS=training, round 0" in message[-1] for message in heard) >= ROUND_S / PERIOD_S / 5
        one.until(lambda: ["STOPPING=1", "STATUS=ended"] in hear(), "the end")
        assert [one.end(), two.end()] == [0, 0]


SLOW = f"""
import time
from p2pfl.learn.task import QuadraticTask


class Slow(QuadraticTask):
    def learner(self, context, training):
        learner = super().learner(context, training)
        train = learner.train

        def slowly(start, index):
            time.sleep({ROUND_S})
            return train(start, index)

        learner.train = slowly
        return learner
"""


@pytest.fixture
def journal():
    """A log with the bound, a clock that stands, and what has come through."""
    log, lines = logging.getLogger("storm"), []
    log.setLevel(logging.INFO)
    log.propagate = False
    log.now = 0.0
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    handler.addFilter(LogBound(lambda: log.now))
    log.addHandler(handler)
    log.lines = lines
    yield log
    log.removeHandler(handler)


def test_a_day_of_storms_is_bounded_says_what_was_left_out_and_hides_no_other_line(journal):
    """A neighbor that flaps, a flood of garbage and a disk that refuses, each many times a minute for a day."""
    day_s, step_s = 86_400, 60
    for journal.now in range(0, day_s, step_s):
        for _ in range(10):
            journal.info("session with %s ended: %s", "pi2", "x" * 10_000)
            journal.warning("garbage from 10.0.0.7")
        journal.error("cannot write") if journal.now == day_s - step_s else None
    most = BURST + day_s / LATER_S
    flaps = [line for line in journal.lines if line.startswith("session")]
    assert flaps[0] == f"session with pi2 ended: {'x' * 10_000}"[:MOST_CHARACTERS]
    assert BURST < len(flaps) <= most
    assert len(journal.lines) <= 2 * most + 1
    assert max(map(len, journal.lines)) < MOST_CHARACTERS + 100
    assert "such lines left out before)" in flaps[-1]
    left_out = sum(int(line.rpartition("(")[2].split()[0].replace(",", "")) for line in flaps if "left out" in line)
    assert left_out + len(flaps) == pytest.approx(10 * day_s / step_s, abs=10 * LATER_S / step_s)
    assert journal.lines[-1] == "cannot write"
