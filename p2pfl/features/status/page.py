"""The node's HTTP pages for its operator: a page at `/`, `/status` as JSON, `/metrics` for Prometheus.

`Guard` decides which requests may read them. A web page elsewhere may point its own name at this machine (DNS
rebinding). So Host must be a literal address, localhost or a configured name, none of which others can redirect. A
request from another page has that page in Origin. A reader on another machine, or behind a proxy with a name, needs the
token: as a bearer token, or as the cookie for which the page exchanges it.

An open page asks for the whole view about once a second; it is computed once a second for all of them, and only while
somebody asks.

GET changes nothing. The page's files are read once. They request nothing from other hosts, which a strict content
security policy would prevent anyway.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from aiohttp import web
from aiohttp.http import HttpProcessingError

from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.features.status.prometheus import exposition
from p2pfl.features.status.running import new_token
from p2pfl.limits import (
    MOST_TOKEN_CHARACTERS,
    PAGE_BODY_BYTES,
    PAGE_CONNECTION_BYTES,
    PAGE_CONNECTIONS,
    PAGE_FAULTS_BURST,
    PAGE_FAULTS_PER_S,
    Limits,
)
from p2pfl.net.acceptor import Acceptor, ConnectionGate, PendingConnections, StrictHandler
from p2pfl.net.address import Address, cannot_listen, is_loopback, own_address, parse_address
from p2pfl.net.transport import ConnectionStage, Counters, Refusals
from p2pfl.reporting.alarms import ALARMS

if TYPE_CHECKING:
    from p2pfl.features.status.overview import Overview

_BEARER, _COOKIE = re.compile(r"(?i)bearer +([!-~]{1,256})"), re.compile(r"p2pfl-\d+=(\w{1,64})")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(:\d{1,5})?")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PROXIED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via")
"""The headers that proxies add about their clients.

Some proxies replace the requested host name by this machine's.
"""
log = logging.getLogger("p2pfl.page")
FAULTS = logging.getLogger("p2pfl.page.faults")
FAULTS_ALLOWED = TokenBucket(PAGE_FAULTS_PER_S, tokens=PAGE_FAULTS_BURST, burst=PAGE_FAULTS_BURST)
"""Twenty lines about our own errors, then one every three minutes: whoever can reach the port can trigger errors."""
FAULTS.addFilter(lambda _: FAULTS_ALLOWED.take(time.monotonic()) == 0.0)
VIEW_S = 0.5
"""The greatest age of the whole view when it is sent."""
LINGERS_S = 1.5
"""The time for open pages to read how the node ended."""
KEY = "status_listen"
LOOPBACKS = ("127.0.0.1", "::1")
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


@dataclass(slots=True, kw_only=True)
class Guard:
    """The check of requests. `names` are the page's names, besides addresses; `open_paths` need no token."""

    listen: Address
    names: frozenset[str] = frozenset()
    open_paths: frozenset[str] = frozenset()
    token: str = field(default_factory=new_token, repr=False)

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        if not trusted_host(host, self.listen, self.names):
            raise web.HTTPForbidden(text="unknown Host\n")
        origin = request.headers.get("Origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise web.HTTPForbidden(text="requested by another page\n")
        has_token = self._has_token(request)
        may_look = has_token or self._is_here(request, host)
        gate = None if request.transport is None else request.transport.get_protocol()
        if isinstance(gate, ConnectionGate):
            gate.may_ask = may_look
            if has_token:
                gate.vouch()
                gate.advance(ConnectionStage.PROVEN)
        if request.path not in self.open_paths and not may_look:
            headers = {"WWW-Authenticate": "Bearer"}
            raise web.HTTPUnauthorized(text="the link with the token is in the node's log\n", headers=headers)
        return await handler(request)

    async def enter(self, request: web.Request) -> web.Response:
        """Exchange the token in the body, sent by our own page, for a cookie, which outlives the page."""
        if request.headers.get("Origin") is None:  # already checked, if present
            raise web.HTTPForbidden(text="requested by another page\n")
        said = (await request.content.read(MOST_TOKEN_CHARACTERS)).decode(errors="replace").strip()
        if not hmac.compare_digest(said.encode(), self.token.encode()):
            raise web.HTTPForbidden(text="wrong token\n")
        response = web.Response(status=204)
        response.set_cookie(self._cookie(request), self._proof, httponly=True, samesite="Strict", path="/")
        return response

    def shows_token(self, said: bytes) -> bool:
        """Return True if the first bytes of a connection show the token, so that the rest may be read."""
        text = said.decode("latin-1")
        pairs = (_BEARER, self.token), (_COOKIE, self._proof)
        return any(_same(each, meant) for pattern, meant in pairs for each in pattern.findall(text))

    @staticmethod
    def _is_here(request: web.Request, host: str) -> bool:
        """Return True for a request from this machine to this machine, without a proxy.

        A proxy on this machine forwards another name, or identifies itself as a proxy.
        """
        if any(name in request.headers for name in PROXIED):
            return False
        peer = (request.transport.get_extra_info("peername") if request.transport else None) or ("",)
        return is_loopback(str(peer[0])) and is_loopback(_name_in(host) or "")

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, said = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(said.strip(), self.token):
            return True
        cookie = request.cookies.get(self._cookie(request), "")
        return _same(cookie, self._proof)

    @property
    def _proof(self) -> str:
        """Return the content of the cookie, so that the token itself is not stored in the browser."""
        return hashlib.blake2b(self.token.encode(), digest_size=16, person=b"p2pfl-cookie").hexdigest()

    @staticmethod
    def _cookie(request: web.Request) -> str:
        """Return the cookie's name. It contains the port, because cookies do not distinguish ports, and one machine may
        run many nodes.
        """
        own = request.transport.get_extra_info("sockname") if request.transport else None
        return f"p2pfl-{own[1] if own else 0}"


def _same(said: str, meant: str) -> bool:
    """Compare in constant time; `said` may contain bytes that are not text."""
    return hmac.compare_digest(said.encode(errors="surrogateescape"), meant.encode())


def trusted_host(header: str, listen: Address, names: frozenset[str]) -> bool:
    """Return True for a host that others cannot redirect: a literal address, localhost or one of our names."""
    host = _name_in(header)
    if host is None:
        return False
    if host in ("localhost", listen.host.lower()) or host in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _name_in(header: str) -> str | None:
    match = _HOST.fullmatch(header)
    return None if match is None else match[1].strip("[]").rstrip(".").lower()


@cache
def page_files() -> dict[str, bytes]:
    """Return the files of the page, by path."""
    return {path: (WEB / name).read_bytes() for path, (name, _) in FILES.items()}


class PageHandler(StrictHandler):
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
        site: Overview | None = None,
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
        self._view, self._viewed_at, self._asked_at = b"", float("-inf"), float("-inf")
        """The latest whole view, when it was made, and when somebody last asked for it."""
        limits = Limits(pending=PAGE_CONNECTIONS, pending_per_address=PAGE_CONNECTIONS)
        self._pending = PendingConnections(limits, greeting_bytes=PAGE_CONNECTION_BYTES)
        for loopback in LOOPBACKS:
            self._pending.know(loopback)
        self._refusals = Refusals(Counters({}), log, lambda kind, peer, text: None)  # noqa: ARG005 - no peer is known
        self._acceptor: Acceptor
        self._until_closed = AsyncExitStack()

    @property
    def port(self) -> int:
        """Return the bound port."""
        return self._acceptor.port

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._guard.check], client_max_size=PAGE_BODY_BYTES)
        application.router.add_get("/status", self._show_status)
        application.router.add_get("/metrics", self._show_metrics)
        if self._site is not None:
            for path in FILES:
                application.router.add_get(path, self._show_file)
            application.router.add_post(ENTER, self._guard.enter)
            application.router.add_get("/federation", partial(self._show_federation, self._site))
            application.router.add_get("/history", partial(self._show_history, self._site))
        application.on_response_prepare.append(add_headers)
        runner = web.AppRunner(application, shutdown_timeout=0.5)
        await runner.setup()
        http = runner.server
        if http is None:
            raise AssertionError("the runner was not set up")

        def speak(gate: ConnectionGate) -> PageHandler:
            return PageHandler(http, gate, self._refusals, logger=FAULTS, keepalive_timeout=30)

        self._acceptor = Acceptor(self._pending, speak, self._guard.shows_token)
        try:
            await self._acceptor.open(self._address)
        except OSError as error:
            await runner.cleanup()
            raise cannot_listen(self._address, error, KEY) from None
        self._until_closed.callback(self._pending.close)
        self._until_closed.push_async_callback(runner.cleanup)
        self._until_closed.callback(self._acceptor.close)
        self._until_closed.callback(asyncio.create_task(self._refusals.begin_hours()).cancel)
        return self

    async def conclude(self) -> None:
        """Let open pages, which ask about once a second, read how the node ended."""
        if time.monotonic() - self._asked_at < 2 * LINGERS_S:
            await asyncio.sleep(LINGERS_S)

    def others_hosts(self) -> list[str]:
        """Return the hosts by which other machines may reach the page; empty if only this machine can."""
        names, host = sorted(self._guard.names), self._address.host
        if names or is_loopback(host):
            return names
        return [own_address() if host in EVERYWHERE else str(self._address).rpartition(":")[0]]

    async def __aexit__(self, *_: object) -> None:
        await self._until_closed.aclose()

    async def _show_file(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": FILES[request.path][1], "Cache-Control": "no-cache"}
        return web.Response(body=page_files()[request.path], headers=headers)

    async def _show_status(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode(self._status()))

    async def _show_federation(self, site: Overview, _: web.Request) -> web.Response:
        self._asked_at = time.monotonic()
        if self._asked_at >= self._viewed_at + VIEW_S:
            self._view, self._viewed_at = site.whole(), self._asked_at
        response = _json(self._view)
        response.enable_compression()
        return response

    async def _show_history(self, site: Overview, _: web.Request) -> web.Response:
        return _json(site.history())

    async def _show_metrics(self, _: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=exposition(self._status(), self._kinds).encode(), headers=headers)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": "application/json", "Cache-Control": "no-store"})


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
