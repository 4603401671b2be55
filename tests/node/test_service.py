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
import time
from pathlib import Path

import pytest

from p2pfl.cli import BURST, LATER_S, MOST_CHARACTERS, LogBound
from p2pfl.node import STARTING, Feed, Look, notify, watched

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from real_field import Field, processes

USEC = 30_000
PERIOD_S = USEC / 3e6
DEADLINE_S = 30.0
ROUND_S = 1.0


class Systemd(socket.socket):
    """The end of $NOTIFY_SOCKET at which systemd listens."""

    def heard(self):
        """Return all messages that have come."""
        messages = []
        while select.select([self], [], [], 0.0)[0]:
            messages.append(self.recv(4096).decode().split("\n"))
        return messages

    async def hears(self, line):
        """Wait for a message with that line, and return it."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := [each for each in self.heard() if line in each]):  # noqa: ASYNC110 - a socket
                await asyncio.sleep(PERIOD_S)
        return found[0]


@pytest.fixture(params=["", "@"], ids=["path", "abstract"])
def systemd(request, tmp_path, monkeypatch):
    address = f"{request.param}{tmp_path}/notify"
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", str(USEC))
    with Systemd(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(address.replace("@", "\0"))
        yield end


@contextlib.asynccontextmanager
async def patted(systemd, says=str, engine=lambda: None):
    work = asyncio.create_task(watched(asyncio.sleep(DEADLINE_S), says, engine))
    await systemd.hears("WATCHDOG=1")
    yield
    work.cancel()


async def test_it_is_ready_once_it_no_longer_starts_and_then_says_what_it_does(systemd):
    says = ["training, round 3", STARTING]
    async with patted(systemd, lambda: says[-1]):
        assert not any("READY=1" in message for message in systemd.heard())
        says.pop()
        assert await systemd.hears("READY=1") == ["READY=1", "WATCHDOG=1", "STATUS=training, round 3"]


async def test_an_engine_that_stands_still_gets_no_pat_until_it_goes_on_or_has_ended(systemd):
    jobs, stands, goes_on = queue.SimpleQueue(), threading.Event(), threading.Event()

    def work():
        while (job := jobs.get()) is not None:
            job.use(None)

    engine = threading.Thread(target=work, daemon=True)
    engine.jobs = jobs
    engine.start()
    async with patted(systemd, engine=lambda: engine):
        jobs.put(Look(lambda _: stands.set() or goes_on.wait(DEADLINE_S)))
        await asyncio.to_thread(stands.wait, DEADLINE_S)
        systemd.heard()
        await asyncio.sleep(30 * PERIOD_S)  # the loop works, and would have patted as many times
        assert len(systemd.heard()) <= 1, "what was under way when it stood still"
        goes_on.set()
        await systemd.hears("WATCHDOG=1")
        jobs.put(None)
        await asyncio.to_thread(engine.join)
        systemd.heard()
        await systemd.hears("WATCHDOG=1")


async def test_a_loop_that_stands_still_gets_no_pat(systemd):
    async with patted(systemd):
        systemd.heard()
        time.sleep(30 * PERIOD_S)  # noqa: ASYNC251 - this very call blocks the loop
        assert not systemd.heard()


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


@pytest.mark.long
def test_a_node_is_ready_when_it_listens_and_patted_through_rounds_longer_than_the_watchdog(
    systemd, tmp_path, monkeypatch
):
    task = f'name = "quadratic"\nstep_s = {ROUND_S}'
    field = Field(tmp_path / "field", 2, task=task, rounds=2, closing_rounds=0, linger_s=0.5)
    heard = []

    def said(message):
        heard.extend(systemd.heard())
        return message in heard

    with processes(field) as run:
        one = run("node0")
        ready = ["READY=1", "WATCHDOG=1", "STATUS=waiting, round 0, 0 neighbors connected"]
        one.until(lambda: said(ready), "READY")
        assert "listening on port" in one.log
        assert not any("READY=1" in message for message in heard[: heard.index(ready)])
        monkeypatch.delenv("NOTIFY_SOCKET")
        two = run("node1")
        one.until(lambda: said(ready) and one.rounds >= 1, "a round")
        assert sum("STATUS=training, round 0" in message[-1] for message in heard) >= ROUND_S / PERIOD_S / 5
        one.until(lambda: said(["STOPPING=1", "STATUS=ended"]), "the end")
        assert [one.end(), two.end()] == [0, 0]


def test_a_day_of_storms_is_bounded_says_what_was_left_out_and_hides_no_other_line():
    """A neighbor that flaps, a flood of garbage and a disk that refuses, each many times a minute for a day."""
    day_s, step_s = 86_400, 60
    minutes, lines, handler, log = [], [], logging.Handler(), logging.Logger("storm")  # noqa: LOG001 - gone after it
    handler.emit = lambda record: lines.append(record.getMessage())
    handler.addFilter(LogBound(lambda: step_s * len(minutes)))
    log.addHandler(handler)
    while len(minutes) < day_s // step_s:
        minutes.append(len(lines))
        for _ in range(10):
            log.info("session with %s ended: %s", "pi2", "x" * 10_000)
            log.warning("garbage from 10.0.0.7")
    log.error("cannot write")
    most = BURST + day_s / LATER_S
    flaps = [line for line in lines if line.startswith("session")]
    assert flaps[0] == f"session with pi2 ended: {'x' * 10_000}"[:MOST_CHARACTERS]
    assert BURST < len(flaps) <= most
    assert len(lines) <= 2 * most + 1
    assert max(map(len, lines)) < MOST_CHARACTERS + 100
    left_out = sum(int(line.rpartition("(")[2].split()[0].replace(",", "")) for line in flaps if "left out" in line)
    assert left_out + len(flaps) == pytest.approx(10 * day_s / step_s, abs=10 * LATER_S / step_s)
    assert lines[-1] == "cannot write"


def test_a_wrong_call_of_a_log_in_a_library_raises_nothing_in_it():
    assert LogBound().filter(logging.LogRecord("x", logging.INFO, "x.py", 1, "%d rows", ("many",), None))


def test_a_storm_of_one_alarm_hides_no_other_alarm(monkeypatch):
    """All alarms are logged by one line of the code."""
    lines, handler, log = [], logging.Handler(), logging.Logger("storm")  # noqa: LOG001 - gone after it
    handler.emit = lambda record: lines.append(record.getMessage())
    handler.addFilter(LogBound(lambda: 0.0))
    log.addHandler(handler)
    monkeypatch.setattr("p2pfl.node.status.log", log)
    feed = Feed(str)
    for peer in range(10 * int(BURST)):
        feed.tell("session-churn", peer, "many sessions", wrong=True)
    feed.tell("card-read-only", None, "the card fails", wrong=True)
    assert len(lines) == BURST + 1
    assert lines[-1] == "card-read-only: the card fails"
