"""The stream of changes to all open pages (server-sent events). A change is computed once for all of them.

A page that reads too slowly misses steps, and gets the whole view again instead: nothing waits for it in memory beyond
the content of its socket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Protocol

from aiohttp import web

from p2pfl.net.doorway import ConnectionGate

log = logging.getLogger("p2pfl.page")

STEP_S = 1.0
MOST_PAGES = 32
MOST_LOCAL_PAGES = 24
"""The most pages without the token: a reader on this machine needs none, and takes no place of those that have it."""
DRAIN_S = 20.0
"""The time that a page may take to read before it is dropped."""


class Site(Protocol):
    """The source of the pages. `step` returns None if only `whole` has the change."""

    def whole(self) -> bytes: ...
    def step(self) -> tuple[int, bytes | None]: ...
    def history(self, member: int | None) -> bytes: ...


class PageStream:
    """The stream to all open pages. Steps are made while a page is open, and before the whole view is read."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._number = 0
        self._step: bytes | None = None
        self._whole: tuple[int, bytes] | None = None
        self._stepped_at = float("-inf")
        self._next = asyncio.Event()
        self._broken: asyncio.Event | None = None
        """The event whose waiters get no more steps, because an update failed."""
        self._pages = 0
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._last_word: bytes | None = None
        self._ticking: asyncio.Task[None] | None = None

    def whole(self) -> bytes:
        """Return the whole view, no older than one step."""
        if time.monotonic() >= self._stepped_at + STEP_S:
            self._make_step()
        if self._whole is None or self._whole[0] != self._number:
            self._whole = self._number, self._site.whole()
        return self._whole[1]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        gate = None if request.transport is None else request.transport.get_protocol()
        has_token = isinstance(gate, ConnectionGate) and not gate.pays
        if self._pages >= (MOST_PAGES if has_token else MOST_LOCAL_PAGES):
            raise web.HTTPServiceUnavailable(text="too many pages are open\n")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        if isinstance(gate, ConnectionGate):
            gate.admit()
        self._pages += 1
        self._nobody.clear()
        self._ticking = self._ticking or asyncio.create_task(self._tick())
        try:
            await self._follow(response)
        except TimeoutError:  # data that wait would keep the socket for as long as the page does not read
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._pages -= 1
            if not self._pages:
                self._nobody.set()
                self.close()
        return response

    async def conclude(self, word: bytes, limit_s: float) -> None:
        """Send every open page the latest step and then a last event, and end its stream: at most `limit_s`."""
        self._last_word = word
        self._make_step()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._nobody.wait()

    def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    async def _follow(self, response: web.StreamResponse) -> None:
        with suppress(ConnectionError):
            seen = -1
            while True:
                # Both are of the same number: no other task runs in between.
                is_next = self._step is not None and self._number == seen + 1
                name, data = (b"step", self._step) if is_next else (b"whole", self.whole())
                seen, following = self._number, self._next
                async with asyncio.timeout(DRAIN_S):
                    await response.write(b"event: %s\ndata: %s\n\n" % (name, data))
                if self._number == seen:
                    if self._last_word is not None:
                        await response.write(b"event: over\ndata: %s\n\n" % self._last_word)
                        return
                    await following.wait()
                    if following is self._broken:
                        return

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._stepped_at + STEP_S - time.monotonic()))
            try:
                self._make_step()
            except Exception:
                log.exception("the page's next update failed: open pages are closed, and ask again")
                self._ticking, self._broken = None, self._next
                self._turn()
                return

    def _make_step(self) -> None:
        self._stepped_at = time.monotonic()
        self._number, self._step = self._site.step()
        self._turn()

    def _turn(self) -> None:
        following, self._next = self._next, asyncio.Event()
        following.set()
