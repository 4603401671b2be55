"""What systemd is told of a node that it runs: that it is ready, what it does, and that it still works.

Each message is a datagram to `$NOTIFY_SOCKET` (sd_notify(3)); without that variable nothing is sent. A pat for its
watchdog leaves only once the event loop has turned and the engine's thread has done a job that the loop gave it. The
thread that trains is not asked: a local round or a test may take minutes.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from p2pfl.engine.engine import Engine
from p2pfl.node.engine_thread import EngineThread, Look

PAT_S = 10.0
"""The time between two pats, in seconds, unless systemd waits for less than three of them."""
LOOK_S = 0.5
STARTING, READY = "starting", "READY=1"

T = TypeVar("T")


def notify(*lines: str) -> None:
    """Tell systemd; what cannot be told at once is left out."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if sys.platform != "win32" and address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.settimeout(0.0)
            end.sendto("\n".join(lines).encode(), "\0" + address[1:] if address[0] == "@" else address)


async def watched(
    work: Awaitable[T], says: Callable[[], str], engine: Callable[[], EngineThread | None] = lambda: None
) -> T:
    """Return what `work` returns; meanwhile tell systemd what the node `says` that it does. Once that is no longer
    `STARTING`, the node is ready: it listens, or waits for somebody.
    """
    if not os.environ.get("NOTIFY_SOCKET"):
        return await work
    if not faulthandler.is_enabled():
        faulthandler.enable(all_threads=True)  # systemd ends a node that hangs with SIGABRT: the journal says where
    patting = asyncio.create_task(_pat(says, engine))
    try:
        return await work
    finally:
        patting.cancel()


async def _pat(says: Callable[[], str], engine: Callable[[], EngineThread | None]) -> None:
    usual_s = min(PAT_S, float(os.environ.get("WATCHDOG_USEC") or "inf") / 3e6)
    while True:
        await _answered(engine())
        now = says()
        notify(*() if now == STARTING else (READY,), "WATCHDOG=1", f"STATUS={now}")
        await asyncio.sleep(min(LOOK_S, usual_s) if now == STARTING else usual_s)


async def _answered(engine: EngineThread | None) -> None:
    """Return once the engine's thread, as long as there is one, has done a job."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    if engine is not None and engine.is_alive():

        def answer(_: Engine) -> None:
            loop.call_soon_threadsafe(done.set)

        engine.jobs.put(Look(answer))
        while engine.is_alive() and not done.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), LOOK_S)
