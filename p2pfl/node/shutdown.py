"""A request to end a node, and the waits before it ends.

A process stops its node on a signal or, if it was launched, at the end of its stdin, which ends when the launcher
closes it or dies. Each line on it names a member that has ended for good.

At its end a node waits for the last test of its model, and for a disk that refuses writes. The learned model stays in
memory as long as the process lives, so the node waits for a full disk; only a person gives up. Once asked to end, it
does not wait for a folder that is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from p2pfl.errors import StorageError
from p2pfl.node.driver import Driver
from p2pfl.reporting.status import WAITING_FOR_DISK

log = logging.getLogger("p2pfl")

RETRY_S = 3.0
POLL_S = 0.02
SAID_AFTER_S = 0.5
"""A wait longer than this is shown."""
SAID_AGAIN_S = 300.0
"""The time between two log lines about waiting for the disk, in seconds."""
TESTING = "testing"

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@asynccontextmanager
async def shutdown_on_request(
    stop: Callable[[], None], *, launched: bool, on_ended: Callable[[str], None] = lambda _: None
) -> AsyncIterator[None]:
    """Call `stop` on SIGINT, SIGTERM and, if `launched`, at the end of stdin, which is left open; call `on_ended` with
    the name of each member that has ended for good.
    """
    loop = asyncio.get_running_loop()
    stdin = None
    if launched:
        pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
        stdin, _ = await loop.connect_read_pipe(lambda: _Stdin(stop, on_ended), pipe)
    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        if stdin is not None:
            stdin.close()


class _Stdin(asyncio.Protocol):
    def __init__(self, stop: Callable[[], None], on_ended: Callable[[str], None]) -> None:
        self.stop, self.on_ended = stop, on_ended
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.on_ended(line.decode())

    def eof_received(self) -> None:
        self.stop()


class Stopping:
    """The request to stop.

    `show` is called with what the node is waiting for, then with an empty text; `is_requested` says that the node was
    asked to stop.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.is_requested = False
        self.hurried = asyncio.Event()
        """Set to end a wait early."""
        self.for_disk = False
        """True while the node waits for a disk."""
        self._show = show
        self._driver: Driver | None = None
        self._testing = False
        self._asked_again = False
        """True if the node was asked again after the core had ended."""
        self.is_gone = False
        """True if the folder that does not take the state is not there any more."""

    @property
    def hurries(self) -> bool:
        """True if the remaining work must be short."""
        return self.is_requested or self._asked_again

    def begin(self, driver: Driver) -> None:
        """Record that the node now has a state, which is kept when it ends."""
        self.hurried.clear()
        self._driver = driver

    def test(self) -> None:
        """Record that the last test begins; it may be abandoned at once."""
        self._testing = True

    def stop(self) -> None:
        """End cleanly, keeping a snapshot. Before the node has begun, the request is only remembered.

        Once the core has finished, do not wait for the last test; on a second request, do not wait for a failing disk
        either.
        """
        if self._driver is not None and self._driver.finished.is_set():
            self._hurry()
            return
        self.is_requested = True
        if self._driver is not None:
            self._driver.stop()
        else:
            self.hurried.set()

    def _hurry(self) -> None:
        """End the current wait.

        A wait for the disk ends only on a second request, because ending it discards unsaved rounds; for a folder that
        is gone on the first.
        """
        if self._testing or (self.for_disk and (self.hurries or self.is_gone)):
            self.hurried.set()
        elif self.for_disk:
            log.warning("the last rounds are not on disk yet: stop again to discard them")
        self._asked_again = True

    async def is_written(self, write: Callable[[], None], folder: Path) -> bool:
        """Call `write` in a thread until the disk accepts the state; return False if the wait was cut short."""
        said_at = float("-inf")
        while True:
            try:
                await asyncio.to_thread(write)
            except StorageError as error:
                reason = str(error)
            else:
                break
            now = time.monotonic()
            if now - said_at >= SAID_AGAIN_S:
                said_at = now
                log.warning("%s: waiting for the disk, tried again every %g s: %s", folder, RETRY_S, reason)
            self.for_disk, self.is_gone = True, not await asyncio.to_thread(folder.exists)
            if self.is_gone and self.hurries:
                return False
            self._show(WAITING_FOR_DISK)
            if await self._hurried_within(RETRY_S):
                return False
        if self.for_disk:
            self.for_disk = False
            log.warning("%s: the disk takes the state again", folder)
            self._show("")
        return True

    async def until(self, done: Callable[[], bool], *, limit_s: float | None) -> bool:
        """Wait until `done` is true; return False if `limit_s` passes (None: no limit) or `hurried` is set first."""
        began, shown = time.monotonic(), False
        while not done():
            waited_s = time.monotonic() - began
            if limit_s is not None and waited_s >= limit_s:
                break
            if waited_s >= SAID_AFTER_S and not shown:
                shown = True
                self._show(TESTING)
            if await self._hurried_within(POLL_S):
                break
        if shown:
            self._show("")
        return done()

    async def _hurried_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.hurried.wait(), seconds)
        return self.hurried.is_set()
