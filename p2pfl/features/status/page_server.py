"""The node's HTTP pages for its operator: a page at `/`, `/status` as JSON, `/metrics` for Prometheus.

`page_guard` decides which requests may read them. GET changes nothing. The page's files are read once. They request
nothing from other hosts, which a strict content security policy would prevent anyway.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web
from aiohttp.http import HttpProcessingError

from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.features.status.page_guard import Guard, new_token
from p2pfl.features.status.page_stream import PageStream, Site
from p2pfl.features.status.prometheus import exposition
from p2pfl.net.address import cannot_listen, is_loopback, own_address, parse_address
from p2pfl.net.doorway import ConnectionGate, Doorway
from p2pfl.net.entrance import Entrance
from p2pfl.net.limits import Limits
from p2pfl.net.line import Counters
from p2pfl.net.refusals import Refusals
from p2pfl.net.terse import TerseHandler
from p2pfl.reporting.alarms import ALARMS

log = logging.getLogger("p2pfl.page")

KEY = "status_listen"
CONNECTIONS = 32
"""The most connections without the token that are not streams; the same number of connections may have the token."""
CONNECTION_BYTES = 2**17
"""The most bytes that requests may send on one connection in the 10 s that it has without the token."""
LOOPBACKS = ("127.0.0.1", "::1")
MOST_BODY_BYTES = 4096
WEB = Path(__file__).parent / "web"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/graph.js": ("graph.js", "text/javascript; charset=utf-8"),
    "/curves.js": ("curves.js", "text/javascript; charset=utf-8"),
    "/uplot.js": ("uplot/uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "/uplot.css": ("uplot/uPlot.min.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/icon-wrong.svg": ("icon-wrong.svg", "image/svg+xml"),
}
ENTER = "/enter"
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - what a user may have written
HEADERS = {
    "Server": "p2pfl",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class PageFile(NamedTuple):
    body: bytes
    kind: str
    tag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Return the files of the page, by path."""
    bodies = {path: (WEB / name).read_bytes() for path, (name, _) in FILES.items()}
    return {
        path: PageFile(body, FILES[path][1], f'"{hashlib.blake2b(body, digest_size=8).hexdigest()}"')
        for path, body in bodies.items()
    }


class Rarely(logging.Filter):
    """Lets twenty lines pass, then one every three minutes, because anyone who can reach the port can trigger
    errors.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bucket = TokenBucket(1 / 180, tokens=20.0, burst=20.0)

    def filter(self, record: logging.LogRecord) -> bool:
        del record
        return self._bucket.take(time.monotonic()) == 0.0


def _rarely() -> logging.Logger:
    found = logging.getLogger("p2pfl.page.faults")
    if not found.filters:
        found.addFilter(Rarely())
    return found


class PageHandler(TerseHandler):
    """Logs malformed requests once an hour; only our own errors get a traceback."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if exc is None or isinstance(exc, HttpProcessingError | web.RequestPayloadError):
            return super().handle_error(request, status, exc, message)
        self.logger.error("cannot answer %s", request.path, exc_info=exc)
        return web.Response(status=500, text="an error of this node: see its log\n")

    def drop_broken(self, error: BaseException | None) -> None:
        self._refusals.note(None, f"{self._gate.address} ({type(error).__name__})", PeerFault("a broken request"))
        self._gate.abort()


class StatusPage:
    """The pages of one node. `async with` binds the port; it raises UserError if that fails.

    `status` is called for each request, on the event loop. `site` provides the whole federation for the page; without
    it there is no page. `names` are host names that may be used besides addresses; a reader on another machine needs
    the `token`.
    """

    def __init__(
        self,
        listen: str,
        status: Callable[[], Mapping[str, Any]],
        *,
        site: Site | None = None,
        names: Iterable[str] = (),
        token: str | None = None,
        kinds: Collection[str] = ALARMS,
    ) -> None:
        self._kinds = kinds
        self._address = parse_address(listen, KEY)
        self._status, self._site = status, site
        self._guard = Guard(
            listen=self._address,
            names=frozenset(name.lower() for name in names),
            open_paths=frozenset([*FILES, ENTER]) if site else frozenset(),
            token=token or new_token(),
        )
        self._live = None if site is None else PageStream(site)
        limits = Limits(pending=CONNECTIONS, pending_per_address=CONNECTIONS)
        self._doorway = Doorway(limits, greeting_bytes=CONNECTION_BYTES)
        for loopback in LOOPBACKS:
            self._doorway.know(loopback)
        self._refusals = Refusals(Counters({}), log, lambda kind, peer, text: None)  # noqa: ARG005 - no peer is known
        self._hours: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._entrance: Entrance | None = None

    @property
    def port(self) -> int:
        """Return the bound port."""
        return 0 if self._entrance is None else self._entrance.port

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._guard.check], client_max_size=MOST_BODY_BYTES)
        application.router.add_get("/status", self._show_status)
        application.router.add_get("/metrics", self._show_metrics)
        if self._site is not None and self._live is not None:
            for path in FILES:
                application.router.add_get(path, self._show_file)
            application.router.add_post(ENTER, self._guard.enter)
            application.router.add_get("/federation", self._show_federation)
            application.router.add_get("/history", self._show_history)
            application.router.add_get("/live", self._live.stream)
        application.on_response_prepare.append(add_headers)
        runner = web.AppRunner(application, shutdown_timeout=0.5)
        await runner.setup()
        http = runner.server
        if http is None:
            raise AssertionError("the runner was not set up")

        def speak(gate: ConnectionGate) -> PageHandler:
            return PageHandler(http, gate, self._refusals, logger=_rarely(), keepalive_timeout=30)

        entrance = Entrance(self._doorway, speak, self._guard.shows_token)
        try:
            await entrance.open(self._address)
        except OSError as error:
            await runner.cleanup()
            raise cannot_listen(self._address, error, KEY) from None
        self._runner, self._entrance = runner, entrance
        self._hours = asyncio.create_task(self._refusals.begin_hours())
        return self

    async def conclude(self, phase: str, limit_s: float) -> None:
        """Tell open pages how the node ended, and wait at most `limit_s` until they have read it."""
        if self._live is not None:
            await self._live.conclude(msgspec.json.encode({"phase": phase}), limit_s)

    def others_hosts(self) -> list[str]:
        """Return the hosts by which other machines may reach the page; empty if only this machine can."""
        if is_loopback(self._address.host):
            return sorted(self._guard.names)
        if self._address.host in EVERYWHERE:
            return sorted(self._guard.names) or [own_address()]
        return sorted(self._guard.names) or [str(self._address).rpartition(":")[0]]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.close()
        if self._hours is not None:
            self._hours.cancel()
        if self._entrance is not None:
            self._entrance.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._doorway.close()

    async def _show_file(self, request: web.Request) -> web.Response:
        file = page_files()[request.path]
        headers = {"Content-Type": file.kind, "ETag": file.tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == file.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers=headers)

    async def _show_status(self, request: web.Request) -> web.Response:
        del request
        return _json(msgspec.json.encode(self._status()))

    async def _show_federation(self, request: web.Request) -> web.Response:
        del request
        if self._live is None:
            raise AssertionError("no site and a route")
        return _json(self._live.whole())

    async def _show_history(self, request: web.Request) -> web.Response:
        if self._site is None:
            raise AssertionError("no site and a route")
        member = request.query.get("member")
        if member is not None and not (member.isascii() and member.isdigit() and len(member) < 7):
            raise web.HTTPBadRequest(text="no member\n")
        return _json(self._site.history(None if member is None else int(member)))

    async def _show_metrics(self, request: web.Request) -> web.Response:
        del request
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=exposition(self._status(), self._kinds).encode(), headers=headers)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": "application/json", "Cache-Control": "no-store"})


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers.update(HEADERS)
