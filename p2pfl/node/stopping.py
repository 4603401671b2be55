"""The request to end a node, and the waits before it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from p2pfl.node.driver import Driver
from p2pfl.node.workshop import Waiting

log = logging.getLogger("p2pfl")


class Stopping:
    """The request to stop.

    `show` gets what the node waits for, then an empty text; `is_requested`: the node was asked to stop.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.is_requested = False
        self.waiting = Waiting(show)
        self._driver: Driver | None = None
        self._testing = False
        self._asked_again = False
        """True if the node was asked again after the core had ended."""

    @property
    def hurries(self) -> bool:
        """True if the remaining work must be short."""
        return self.is_requested or self._asked_again

    def begin(self, driver: Driver) -> None:
        """Note that the node has a state now, which it keeps when it ends."""
        self.waiting.hurried.clear()
        self._driver = driver

    def test(self) -> None:
        """Note that the last test begins, which may be given up at once."""
        self._testing = True

    def stop(self) -> None:
        """End cleanly, keeping a snapshot. Before the node has begun the request is only remembered.

        Once its core is through, do not wait for the last test; at a second request, nor for a disk that refuses.
        """
        if self._driver is not None and self._driver.finished.is_set():
            self._hurry()
            return
        self.is_requested = True
        if self._driver is not None:
            self._driver.stop()
        else:
            self.waiting.hurried.set()

    def _hurry(self) -> None:
        """End the current wait.

        A wait for the disk ends only at a second request, because it discards unsaved rounds.
        """
        if self._testing or (self.waiting.for_disk and self.hurries):
            self.waiting.hurried.set()
        elif self.waiting.for_disk:
            log.warning("the last rounds are not on disk yet: stop again to discard them")
        self._asked_again = True

    async def is_written(self, write: Callable[[], None], folder: Path) -> bool:
        """Return True if the disk has taken the state in the end, and the wait was not given up."""
        return await self.waiting.until_written(write, folder) is None
