"""TLS on an accepted connection, charged to it: a stranger's handshake may come in thousands of small records, and a
ready connection may renew its keys without end, which is work that nothing above TLS sees.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from p2pfl.net.doorway import SLICE_BYTES, ConnectionGate
from p2pfl.net.limits import IDLE_BYTES
from p2pfl.net.ways import GOODBYE_S


class TlsMeter(asyncio.BufferedProtocol):
    """Stands between the socket and TLS; above TLS is the gate, which pays."""

    def __init__(self, gate: ConnectionGate) -> None:
        self._gate, self._inner = gate, asyncio.BufferedProtocol()
        self._came = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        transport.pause_reading()

    def put_below(self, transport: asyncio.Transport) -> None:
        """Take the place of the protocol of `transport`, and pass everything on to it."""
        inner = transport.get_protocol()
        assert isinstance(inner, asyncio.BufferedProtocol)  # noqa: S101
        self._inner = inner
        transport.set_protocol(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._inner.get_buffer(sizehint))[: SLICE_BYTES if self._gate.pays else None]

    def buffer_updated(self, nbytes: int) -> None:
        self._came += nbytes
        if self._gate.pays_below(lambda: self._inner.buffer_updated(nbytes), self._came):
            return
        # The smallest message of an honest end is as long as what TLS adds to it.
        if self._came > 2 * self._gate.came + IDLE_BYTES:
            self._gate.abort()
        else:
            self._inner.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


async def accept_tls(connection: socket.socket, gate: ConnectionGate, context: ssl.SSLContext) -> None:
    """Shake hands, and connect the gate; its deadline cancels this. Raises OSError."""
    loop, meter = asyncio.get_running_loop(), TlsMeter(gate)
    below, _ = await loop.connect_accepted_socket(lambda: meter, connection)
    starting = loop.create_task(loop.start_tls(below, gate, context, server_side=True, ssl_shutdown_timeout=GOODBYE_S))
    try:
        await asyncio.sleep(0)  # TLS is the protocol now, and reads nothing yet
        meter.put_below(below)
        transport = await starting
        if transport is None:  # it was lost at once
            gate.connection_lost(None)
        else:
            gate.connection_made(transport)
    except BaseException:
        starting.cancel()
        below.abort()
        raise
