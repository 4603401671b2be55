"""What the node shows of itself to whoever looks after it: `/status` as JSON, `/metrics` for Prometheus.

Read-only and without a login, so it belongs on localhost or in a trusted network. A web page elsewhere that points
a name of its own at this machine (DNS rebinding) is turned away by the Host header.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from p2pfl.net.address import Address, cannot_listen, parse_address
from p2pfl.net.doorway import Doorway, Gate
from p2pfl.net.limits import IDLE_BYTES, Limits

KEY = "status_listen"
CONNECTIONS = 32


class StatusPage:
    """`async with` binds; UserError where that fails. `status` is called for each request, on the event loop."""

    def __init__(self, listen: str, status: Callable[[], Mapping[str, Any]]) -> None:
        self._address = parse_address(listen, KEY)
        self._status = status
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._check_host])
        application.router.add_get("/status", self._show_status)
        application.router.add_get("/metrics", self._show_metrics)
        application.on_response_prepare.append(hide_software)
        runner = web.AppRunner(application, access_log=None, keepalive_timeout=30, shutdown_timeout=0.5)
        await runner.setup()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._doorkeeper(runner), self._address.host, self._address.port
            )
        except OSError as error:
            await runner.cleanup()
            raise cannot_listen(self._address, error, KEY) from None
        self._runner = runner
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @staticmethod
    def _doorkeeper(runner: web.AppRunner) -> Callable[[], asyncio.Protocol]:
        """Few connections at a time, none of them for long: idle ones must not use up the node's descriptors."""
        server = runner.server
        if server is None:
            raise AssertionError("the runner was not set up")
        limits = Limits(pending=CONNECTIONS, pending_per_address=CONNECTIONS)
        doorway = Doorway(limits, greeting_bytes=IDLE_BYTES)
        return lambda: Gate(doorway, server)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _check_host(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not trusted_host(request.headers.get("Host", ""), self._address):
            raise web.HTTPForbidden(text="unknown Host\n")
        return await handler(request)

    async def _show_status(self, request: web.Request) -> web.Response:
        del request
        return web.json_response(body=msgspec.json.encode(self._status()))

    async def _show_metrics(self, request: web.Request) -> web.Response:
        del request
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=exposition(self._status()).encode(), headers=headers)


async def hide_software(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers["Server"] = "p2pfl"
    response.headers["X-Content-Type-Options"] = "nosniff"


def trusted_host(header: str, listen: Address) -> bool:
    """A name can be pointed anywhere by its owner; a literal address, localhost and our own name cannot."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]+)(:\d{1,5})?", header)
    if match is None:
        return False
    host = match[1].strip("[]").rstrip(".").lower()
    if host in ("localhost", listen.host.lower()):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def exposition(status: Mapping[str, Any]) -> str:
    """Prometheus text format 0.0.4: numeric entries of the status and of each neighbor, and alarms by kind."""
    lines = []
    if alarms := status.get("alarms"):
        lines += _metric("alarms_total", {f'{{kind="{kind}"}}': count for kind, count in alarms.items()})
    for key, value in status.items():
        if isinstance(value, int | float):
            lines += _metric(key, {"": value})
    neighbors = status.get("neighbors", ())
    for key in dict.fromkeys(key for one in neighbors for key, value in one.items() if isinstance(value, int | float)):
        values = {f'{{neighbor="{one["name"]}"}}': one[key] for one in neighbors if one.get(key) is not None}
        lines += _metric(f"neighbor_{key}", values)
    return "".join(lines)


def _metric(key: str, values: Mapping[str, float]) -> list[str]:
    """`values` by label. Names of members have no letter that would have to be escaped in one."""
    name = "p2pfl_" + re.sub(r"[^a-zA-Z0-9_]", "_", str(key))
    kind = "counter" if name.endswith("_total") else "gauge"
    return [f"# TYPE {name} {kind}\n", *(f"{name}{label} {number(value)}\n" for label, value in values.items())]


def number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(float(value)) if isinstance(value, float) else str(int(value))
