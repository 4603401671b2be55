"""A launched node stops when it is told to by a signal, or when its launcher lets go of its stdin."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from p2pfl.errors import StorageError
from p2pfl.node import Stopping, shutdown_on_request


@pytest.fixture
def launcher(monkeypatch):
    """The end of this process's stdin that a launcher would hold."""
    stdin, launcher = os.pipe()
    with os.fdopen(stdin) as read, os.fdopen(launcher, "w") as write:
        monkeypatch.setattr(sys, "stdin", read)
        yield write


async def test_the_end_of_stdin_stops_whoever_is_on_the_leash_and_not_who_was_before(launcher):
    before, now = asyncio.Event(), asyncio.Event()
    async with shutdown_on_request(before.set, launched=True):
        pass
    async with shutdown_on_request(now.set, launched=True), asyncio.timeout(20):
        launcher.close()
        await now.wait()
    assert not before.is_set()


@pytest.mark.parametrize("is_late", [False, True], ids=["before it waits", "while it waits"])
async def test_a_node_that_is_asked_to_end_does_not_wait_for_a_folder_that_is_gone(tmp_path, is_late):
    """A full disk may have room again, and is given up at the second request only; nobody brings the folder back."""
    loop, tries = asyncio.get_running_loop(), []
    stopping = Stopping(lambda _: loop.call_soon(stopping.stop) if is_late else None)
    driver = SimpleNamespace(finished=asyncio.Event(), stop=lambda: None)
    stopping.begin(driver)

    def write():
        tries.append(1)
        raise StorageError("no such folder")

    if not is_late:
        stopping.stop()
    driver.finished.set()
    async with asyncio.timeout(20):
        assert not await stopping.is_written(write, tmp_path / "gone")
    assert tries == [1]


async def test_a_signal_stops_it_launched_or_not_and_is_the_callers_again_afterwards(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    by_default = signal.getsignal(signal.SIGTERM)
    stop = asyncio.Event()
    async with shutdown_on_request(stop.set, launched=False), asyncio.timeout(20):
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
    assert signal.getsignal(signal.SIGTERM) is by_default


async def test_each_line_names_a_member_that_has_ended_for_good_however_it_is_cut(launcher):
    stop, ended = asyncio.Event(), []
    async with shutdown_on_request(stop.set, launched=True, on_ended=ended.append), asyncio.timeout(20):
        for part in ("pi1\npi", "2\n", "pi"):
            launcher.write(part)
            launcher.flush()
            await asyncio.sleep(0)
        launcher.close()
        await stop.wait()
    assert ended == ["pi1", "pi2"]
