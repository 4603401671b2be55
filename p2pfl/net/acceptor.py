"""The acceptor: accepting sockets, and connections that are not sessions yet, their stages, number, and which to drop.

A `ConnectionGate` is placed before the HTTP protocol of one accepted connection and drops it if it takes too long,
whatever it does. `PendingConnections` counts the gates, by stage and by group of addresses. Each stage has its own
places, so that a connection never makes room for one at an earlier stage: idle connections replace only idle
connections. Within a stage the connection that has waited longest is dropped, not the newcomer, because an honest peer
needs only a round trip or two. All work for a connection before it is a session is charged as CPU time (`limits`).

The `Acceptor` immediately closes connections for which there is no time. Where peers can show by their first bytes that
they are no strangers, such a connection may first show that. Even that costs time: while its share is used up, nothing
is accepted, and only the operating system answers. Open connections are not affected.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import struct
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

from aiohttp import web

from p2pfl.core.limits import TokenBucket
from p2pfl.errors import PeerFault
from p2pfl.limits import (
    ACCEPTED_AT_ONCE,
    ACCEPTING_BURST_S,
    ACCEPTING_SHARE,
    BACKLOG,
    CONTROL_BURST,
    CONTROL_PER_S,
    GREETING_BYTES,
    IDLE_BYTES,
    MOST_CONTROL,
    MOST_GROUPS,
    MOST_UNPROVEN,
    NEIGHBOR_HANDSHAKES,
    PROOF_BYTES,
    SLICE_BYTES,
    UNSENT_BYTES,
    Limits,
)
from p2pfl.net.address import Address
from p2pfl.net.dial_paths import GOODBYE_S, OwnCertificate
from p2pfl.net.limits import CpuQuota, Stopwatch, TimeBudget, latest, measure
from p2pfl.net.transport import ConnectionStage, Refusals, Tap

NETWORK_BITS = 64
"""The length of an IPv6 network prefix: a peer with one address controls its whole network."""


T = TypeVar("T")


class PendingConnections:
    """The places for connections at each stage.

    A connection may send at most `greeting_bytes` before it is ADDRESSED.
    """

    def __init__(self, limits: Limits, *, neighbors: int = 0, greeting_bytes: int = GREETING_BYTES) -> None:
        self.limits = limits
        self.greeting_bytes = greeting_bytes
        self.turned_away = 0
        self._rooms: dict[ConnectionStage, dict[ConnectionGate, None]] = {stage: {} for stage in ConnectionStage}
        self._handshakes: dict[str, TokenBucket] = {}
        self._control: dict[str, TokenBucket] = {}
        self.time = CpuQuota()
        self.expect(neighbors)

    def expect(self, neighbors: int) -> None:
        """Set the number of neighbors."""
        self.time.expect(neighbors)
        self._burst = max(self.limits.handshake_burst, NEIGHBOR_HANDSHAKES * neighbors)

    def know(self, address: str) -> None:
        """Record that a member has, or had, that address."""
        self.time.know(group_of(address))

    @property
    def waiting(self) -> int:
        return sum(map(len, self._rooms.values()))

    def enter(self, gate: ConnectionGate, stage: ConnectionStage = ConnectionStage.CONNECTED) -> None:
        """Give a connection a place.

        If the stage is full, drop the connection that has waited longest in it, from the newcomer's group or, failing
        that, from the most crowded one.
        """
        room = self._rooms[stage]
        most = MOST_CONTROL if stage is ConnectionStage.CONTROL else self.limits.pending
        by_group = Counter(other.group for other in room)
        if by_group[gate.group] >= self.limits.pending_per_address:
            self._turn_away(room, gate.group)
        elif len(room) >= most:
            self._turn_away(room, by_group.most_common(1)[0][0])
        room[gate] = None

    def advance(self, gate: ConnectionGate, stage: ConnectionStage) -> None:
        """Move a connection to a stage. Raises PeerFault if its group exceeds the limit on handshakes or visits."""
        if not any(gate in room for room in self._rooms.values()):
            return
        per_s, burst = self.limits.handshakes_per_s, self._burst
        handshakes = partial(TokenBucket, per_s, tokens=burst, burst=burst)
        if stage is ConnectionStage.ADDRESSED and not self._may(self._handshakes, gate.group, handshakes):
            raise PeerFault("more handshakes from one address than all neighbors together would begin")
        if stage is ConnectionStage.CONTROL and not self._may(self._control, gate.group, control_bucket):
            raise PeerFault("more visits from one address than the charter can have news for")
        self.leave(gate)
        self.enter(gate, stage)

    def leave(self, gate: ConnectionGate) -> None:
        for room in self._rooms.values():
            room.pop(gate, None)

    def close(self) -> None:
        """Close all connections."""
        for gate in [gate for room in self._rooms.values() for gate in room]:
            gate.abort()

    def _turn_away(self, room: dict[ConnectionGate, None], group: str) -> None:
        oldest = next(gate for gate in room if gate.group == group)
        self.turned_away += 1
        self.leave(oldest)
        oldest.abort()

    def _may(self, buckets: dict[str, TokenBucket], group: str, make: Callable[[], TokenBucket]) -> bool:
        return latest(buckets, group, make).take(asyncio.get_running_loop().time()) == 0.0


def control_bucket() -> TokenBucket:
    return TokenBucket(CONTROL_PER_S, tokens=CONTROL_BURST, burst=CONTROL_BURST)


class ConnectionGate(Tap):
    """A gate before the HTTP protocol of one connection; `speak` creates the protocol once data have arrived."""

    def __init__(
        self, pending: PendingConnections, speak: Callable[[ConnectionGate], asyncio.Protocol], address: str = ""
    ) -> None:
        super().__init__(idle_bytes=pending.greeting_bytes)
        self._pending, self._speak = pending, speak
        self._deadline: asyncio.TimerHandle | None = None
        self._drop: Callable[[], object] = _nothing
        self._entered = False
        self.address, self.group = address, group_of(address)
        self.ends_at = 0.0
        """When the connection must have become a session, on the loop's clock."""
        self._paid_s = 0.0
        self.pays = True
        """True if the connection is charged for its work; members are not, nor are visitors with the page's token."""
        self.may_ask = False
        """True if the latest request was allowed, so that answering it is not charged to the connection."""

    def pay(self, cost_s: float) -> None:
        """Charge this connection for CPU time."""
        if self.pays:
            self._paid_s += cost_s
            self._pending.time.spend(self.group, cost_s)

    def watch(self) -> Stopwatch:
        """Return a stopwatch that charges this connection."""
        return Stopwatch(self.pay)

    async def work(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run what `work` makes and charge this connection for it."""
        return await measure(work(), self.watch())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        if not self._entered:  # it has not knocked
            with self.watch():
                self._enter()

    def knock(self, drop: Callable[[], object]) -> None:
        """Enter before there is a transport, while it is not known whether TLS comes first; `drop` gives this up."""
        self._drop = drop
        with self.watch():
            self._enter()

    def abort(self) -> None:
        if self._transport is None:
            self._drop()
        super().abort()

    def _enter(self) -> None:
        self._entered = True
        self._pending.enter(self)
        loop = asyncio.get_running_loop()
        self.ends_at = loop.time() + self._pending.limits.handshake_s
        self._deadline = loop.call_at(self.ends_at, self.abort)

    def pays_below(self, work: Callable[[], object], came: int) -> bool:
        """Do work below this gate, and charge it without what the gate charges for itself; return False if it does not
        pay. `came` is how many bytes have come there; before there is a connection here they are bounded, too.
        """
        if not self.pays:
            return False
        if not self._pending.time.may_go_on(self.group) or (self._transport is None and came > self.idle_bytes):
            self._pending.turned_away += 1
            self.abort()
            return True
        paid_s = self._paid_s
        with Stopwatch(lambda cost_s: self.pay(cost_s - self._paid_s + paid_s)):
            work()
        return True

    def data_received(self, data: bytes) -> None:
        if not self.pays:
            self._listen(data)
            return
        for start in range(0, len(data), SLICE_BYTES):
            if not self._pending.time.may_go_on(self.group):
                self._pending.turned_away += 1
                self.abort()
            if self._transport is not None and self._transport.is_closing():
                return
            with self.watch():
                self._listen(data[start : start + SLICE_BYTES])

    def advance(self, stage: ConnectionStage) -> None:
        """Move to a stage. Raises PeerFault if the peer's address has begun too many handshakes."""
        self._pending.advance(self, stage)
        if stage >= ConnectionStage.ADDRESSED:
            self.idle_bytes = IDLE_BYTES

    def admit(self) -> None:
        """Keep a connection that has become a session; it no longer counts."""
        self._leave()
        self.vouch()

    def vouch(self) -> None:
        """Record that the peer is not a stranger: refund its time, and remember its address."""
        if self.pays:
            self.pays = False
            self._pending.time.spend(self.group, -self._paid_s)
            self._pending.know(self.address)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        with self.watch():
            super().connection_lost(exc)
        # Nothing refers back here: the memory is free at once, however late garbage is collected.
        self._drop, self._inner, self._transport = _nothing, None, None

    def _listen(self, data: bytes) -> None:
        if self._inner is None and self._transport is not None:
            self._inner = self._speak(self)
            self._inner.connection_made(self._transport)
        super().data_received(data)

    def _leave(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._pending.leave(self)


@lru_cache(MOST_GROUPS)
def group_of(address: str) -> str:
    """Return the group of addresses that one peer can choose from: an IPv4 address, including when mapped into IPv6, or
    an IPv6 /64.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), NETWORK_BITS), strict=False))


def _nothing() -> None:
    pass


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


LEAST_REST_S = 0.1
"""The shortest pause: to begin and end one costs as much as to accept a connection."""
RETRY_S = 1.0
"""The pause after the operating system had no room for a connection, in seconds."""
TLS_HANDSHAKE = b"\x16"
"""The first byte of TLS; that of HTTP is a letter."""
RESET = struct.pack("ii", 1, 0)
"""The socket option to close without a word, leaving nothing in the system's tables."""


class Acceptor:
    """The accepting sockets. `speak` creates the protocol behind the gate, once data have arrived; `proves` returns
    True for first bytes that no stranger sends.
    """

    def __init__(
        self,
        pending: PendingConnections,
        speak: Callable[[ConnectionGate], asyncio.Protocol],
        proves: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._pending, self._speak, self._proves = pending, speak, proves
        self._unproven: dict[socket.socket, None] = {}
        self.certificate: OwnCertificate | None = None
        """If there is one, TLS is accepted beside plain connections: they differ in their first byte."""
        self._loop = asyncio.get_running_loop()
        self._accepting = TimeBudget(ACCEPTING_SHARE, ACCEPTING_BURST_S)
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
            for _ in range(ACCEPTED_AT_ONCE):
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
        if self._pending.time.may_enter(group_of(address)):
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
        self._pending.turned_away += 1
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()

    def _enter(self, connection: socket.socket, address: str) -> ConnectionGate:
        del self._unproven[connection]
        gate = ConnectionGate(self._pending, self._speak, address)
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


def not_found() -> web.Response:
    response = web.Response(status=404, headers={"Server": "", "Content-Type": ""})
    response.force_close()
    return response


class StrictHandler(web.RequestHandler):
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
