"""Guard a node's page: check the host names in requests, the pages they come from, and the token beyond loopback.

A web page elsewhere may point its own name at this machine (DNS rebinding). So Host must be a literal address,
localhost or a configured name, none of which others can redirect. A request from another page has that page in Origin.
A reader on another machine, or behind a proxy with a name, needs the token: as a bearer token, or as the cookie for
which the page exchanges it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from p2pfl.net.address import Address, is_loopback
from p2pfl.net.doorway import ConnectionGate, ConnectionStage

TOKEN_BYTES = 18
MOST_TOKEN_CHARACTERS = 256
_BEARER, _COOKIE = re.compile(r"(?i)bearer +([!-~]{1,256})"), re.compile(r"p2pfl-\d+=(\w{1,64})")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(:\d{1,5})?")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


PROXIED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via")
"""The headers that proxies add about their clients.

Some proxies replace the requested host name by this machine's.
"""


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


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
        if not self.trusts(host):
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
        """Exchange the token in the body, sent by our own page, for a cookie, because an event stream cannot send
        headers.
        """
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

    def trusts(self, header: str) -> bool:
        return trusted_host(header, self.listen, self.names)

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


def trusted_host(header: str, listen: Address, names: frozenset[str] = frozenset()) -> bool:
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
