"""TLS on an accepted connection, charged to it: a stranger's handshake may come in thousands of small records, and a
ready connection may renew its keys without end, which is work that nothing above TLS sees.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from functools import partial

from p2pfl.net.doorway import SLICE_BYTES, ConnectionGate
from p2pfl.net.limits import IDLE_BYTES
from p2pfl.net.looptime import measure
from p2pfl.net.ways import GOODBYE_S


class MeteredTls(SSLProtocol):
    """TLS between the socket and the gate, which pays. Its buffer is small until the peer is no stranger."""

    max_size = SLICE_BYTES

    def __init__(self, gate: ConnectionGate, context: ssl.SSLContext, ready: asyncio.Future[None]) -> None:
        super().__init__(ready.get_loop(), gate, context, ready, server_side=True, ssl_shutdown_timeout=GOODBYE_S)
        self._gate, self._ready, self._came = gate, ready, 0

    def connection_lost(self, exc: BaseException | None) -> None:
        self._ready.cancel()  # a handshake that has not ended never will
        super().connection_lost(exc)

    def buffer_updated(self, nbytes: int) -> None:
        self._came += nbytes
        if self._gate.pays_below(partial(super().buffer_updated, nbytes), self._came):
            return
        self.max_size = SSLProtocol.max_size  # type: ignore[misc]  # asyncio reads it from the instance
        # The smallest message of an honest end is as long as what TLS adds to it.
        if self._came > 2 * self._gate.came + IDLE_BYTES:
            self._gate.abort()
        else:
            super().buffer_updated(nbytes)


async def accept_tls(connection: socket.socket, gate: ConnectionGate, context: ssl.SSLContext) -> None:
    """Shake hands, and connect the gate; its deadline cancels this. Raises OSError."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    connecting = loop.connect_accepted_socket(lambda: MeteredTls(gate, context, ready), connection)
    below, _ = await measure(connecting, gate.watch())
    try:
        await ready
    except BaseException:
        below.abort()
        raise
