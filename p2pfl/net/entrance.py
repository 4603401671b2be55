"""The entrance accepts connections for a doorway, and immediately closes those for which there is no time.

Where peers can show by their first bytes that they are no strangers, such a connection may first show that. Even that
costs time: while its share is used up, nothing is accepted, and only the operating system answers. Open connections are
not affected.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from p2pfl.net.address import Address
from p2pfl.net.doorway import ConnectionGate, Doorway, group_of
from p2pfl.net.looptime import SHARE_OF_ACCEPTING, Stopwatch, TimeBudget, measure
from p2pfl.net.tls import OwnCertificate
from p2pfl.net.tls_meter import accept_tls

BACKLOG = 100
"""The connections that the operating system queues until they are accepted."""
AT_ONCE = 16
"""The connections accepted in a row before the loop does other work."""
MOST_UNPROVEN = 32
"""The most connections without time of their own that may yet show that they are no strangers'."""
PROOF_BYTES = 2**12
"""The beginning of what they say, which has to show it."""
BURST_S = 0.02
LEAST_REST_S = 0.1
"""The shortest pause: to begin and end one costs as much as to accept a connection."""
RETRY_S = 1.0
"""The pause after the operating system had no room for a connection, in seconds."""
TLS_HANDSHAKE = b"\x16"
"""The first byte of TLS; that of HTTP is a letter."""
RESET = struct.pack("ii", 1, 0)
"""The socket option to close without a word, leaving nothing in the system's tables."""


class Entrance:
    """The accepting sockets. `speak` creates the protocol behind the gate, once data have arrived; `proves` returns
    True for first bytes that no stranger sends.
    """

    def __init__(
        self,
        doorway: Doorway,
        speak: Callable[[ConnectionGate], asyncio.Protocol],
        proves: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._doorway, self._speak, self._proves = doorway, speak, proves
        self._unproven: dict[socket.socket, None] = {}
        self.certificate: OwnCertificate | None = None
        """If there is one, TLS is accepted beside plain connections: they differ in their first byte."""
        self._loop = asyncio.get_running_loop()
        self._accepting = TimeBudget(SHARE_OF_ACCEPTING, BURST_S)
        self._sockets: list[socket.socket] = []
        self._arriving: set[asyncio.Task[None]] = set()
        self._rest: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    async def open(self, address: Address) -> None:
        """Bind and listen. Raises OSError if the address cannot be bound."""
        # The server binds but is never started: this class accepts in its place.
        server = await self._loop.create_server(asyncio.Protocol, address.host, address.port, start_serving=False)
        self._sockets = [each.dup() for each in server.sockets]
        server.close()
        for each in self._sockets:
            each.settimeout(0.0)
            each.listen(BACKLOG)
        self._listen()

    def close(self) -> None:
        """Stop accepting connections."""
        if self._rest is not None:
            self._rest.cancel()
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        self._sockets = []
        for waiting in list(self._unproven):
            self._refuse(waiting)

    def _listen(self) -> None:
        self._rest = None
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def _pause(self, rest_s: float) -> None:
        for each in self._sockets:
            self._loop.remove_reader(each)
        self._rest = self._rest or self._loop.call_later(rest_s, self._listen)

    def _accept(self, listening: socket.socket) -> None:
        with self._watch():
            for _ in range(AT_ONCE):
                try:
                    connection, place = listening.accept()
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    break
                except OSError:
                    self._pause(RETRY_S)
                    break
                self._meet(connection, str(place[0]))
        if (rest_s := self._accepting.wait_s(self._loop.time())) > 0.0:
            self._pause(max(rest_s, LEAST_REST_S))

    def _watch(self) -> Stopwatch:
        return Stopwatch(lambda cost_s: self._accepting.spend(cost_s, self._loop.time()))

    def _meet(self, connection: socket.socket, address: str) -> None:
        connection.settimeout(0.0)
        self._unproven[connection] = None
        if self._doorway.time.may_enter(group_of(address)):
            self._enter(connection, address)
        elif self._proves is None:
            self._refuse(connection)
        else:
            self._loop.add_reader(connection, self._look, connection, address, self._proves)
            if len(self._unproven) > MOST_UNPROVEN:
                self._refuse(next(iter(self._unproven)))

    def _look(self, connection: socket.socket, address: str, proves: Callable[[bytes], bool]) -> None:
        with self._watch():
            try:
                proven = proves(connection.recv(PROOF_BYTES, socket.MSG_PEEK))
            except OSError:
                proven = False
            if not proven:
                self._refuse(connection)
        if proven:
            self._loop.remove_reader(connection)
            self._enter(connection, address).vouch()

    def _refuse(self, connection: socket.socket) -> None:
        del self._unproven[connection]
        self._loop.remove_reader(connection)
        self._doorway.turned_away += 1
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()

    def _enter(self, connection: socket.socket, address: str) -> ConnectionGate:
        del self._unproven[connection]
        gate = ConnectionGate(self._doorway, self._speak, address)
        task = self._loop.create_task(self._let_in(connection, gate))
        if self.certificate is not None:
            gate.knock(task.cancel)
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)
        return gate

    async def _let_in(self, connection: socket.socket, gate: ConnectionGate) -> None:
        try:
            if self.certificate is not None and await self._first_byte(connection) == TLS_HANDSHAKE:
                await accept_tls(connection, gate, self.certificate.current())
            else:
                await measure(self._loop.connect_accepted_socket(lambda: gate, connection), gate.watch())
        except OSError as error:
            error.__traceback__ = None  # its frames refer to TLS, which refers to the error
            gate.connection_lost(None)
            connection.close()
        except asyncio.CancelledError:
            gate.connection_lost(None)
            connection.close()
            raise

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """Wait for the first byte and leave it where it is."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)
