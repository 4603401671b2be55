"""aiohttp's protocol for one accepted connection, without explanations or tracebacks for data that it cannot parse."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from p2pfl.net.doorway import ConnectionGate
from p2pfl.net.looptime import Stopwatch, measure
from p2pfl.net.refusals import Refusals


def not_found() -> web.Response:
    response = web.Response(status=404, headers={"Server": "", "Content-Type": ""})
    response.force_close()
    return response


class TerseHandler(web.RequestHandler):
    """Charges the gate for answers, and logs failures caused by strangers only a few times an hour."""

    __slots__ = ("_gate", "_refusals")

    def __init__(self, http: web.Server, gate: ConnectionGate, refusals: Refusals, **more: Any) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(http, loop=loop, access_log=None, auto_decompress=False, **more)  # type: ignore[arg-type]
        self._gate, self._refusals = gate, refusals

    async def _handle_request(self, *request: Any) -> tuple[web.StreamResponse, bool]:
        return await measure(super()._handle_request(*request), Stopwatch(self._pay))

    def _pay(self, cost_s: float) -> None:
        if not self._gate.may_ask:
            self._gate.pay(cost_s)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        # Strangers can make aiohttp fail in many ways. Our own code runs in another task, and is not caught here.
        del request, status, message
        self.drop_broken(exc)
        if exc is not None:
            exc.__traceback__ = None  # its frames refer to this connection
        return not_found()

    def log_exception(self, *args: Any, exc_info: BaseException | None = None, **kw: Any) -> None:
        """Drop the connection; aiohttp calls this when it cannot read the rest of a request."""
        del args, kw
        self.drop_broken(exc_info)

    def drop_broken(self, error: BaseException | None) -> None:
        """Mention the failure in the log, and drop the connection."""
        self._refusals.mention(None, "broken request from %s: %s", self._gate.address, type(error).__name__)
        self._gate.abort()
