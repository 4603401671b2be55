"""A launched node stops when it is told to by a signal, or when its launcher lets go of its stdin."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from p2pfl.node import shutdown_on_request


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
