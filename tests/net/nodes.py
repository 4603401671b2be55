"""Nodes that share an event loop and talk over loopback, and a relay whose cable can be pulled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from ssl import SSLContext
from typing import Any, Self

from p2pfl.core import Message
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding
from p2pfl.net import LINE_BYTES, MEMBER, STRANGERS, Callbacks, Limits, LinesAnHour, Links, Membership, Watcher

DEADLINE_S = 20.0
SIZE = 8
QUICK = Limits(retry_first_s=0.02, retry_ceiling_s=0.2, contest_s=0.3, close_s=0.3, settled_s=0.0)

UPGRADE = (
    b"GET /p2pfl HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def binding(training: int = 1) -> FederationBinding:
    sections = (("training.rounds", bytes([training]) * 32), ("topology", bytes(32)))
    return FederationBinding(federation_id=bytes([training]) * 32, sections=sections)


def bytes_of(lines: LinesAnHour) -> int:
    return (lines.reasons + lines.mentions) * LINE_BYTES


def most_bytes_an_hour(members: int) -> int:
    """The most bytes that `Refusals` may write in an hour, including one line about the hour before."""
    return bytes_of(STRANGERS) + members * bytes_of(MEMBER) + LINE_BYTES


class Node:
    """One `Links` and everything it told its owner, in order."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.events: list[tuple[Any, ...]] = []
        self.open: dict[int, int] = {}
        self.alarms: list[tuple[str, int, str]] = []
        self.links: Links
        self._changed = asyncio.Event()

    def on_open(self, peer: int, session: int) -> None:
        assert peer not in self.open, "two sessions with one peer"
        self.open[peer] = session
        self._note("open", peer, session)

    def on_message(self, peer: int, session: int, message: Message) -> None:
        assert self.open[peer] == session
        self._note("message", peer, session, message)

    def on_close(self, peer: int, session: int, reason: str) -> None:
        assert self.open.pop(peer) == session
        self._note("close", peer, session, reason)

    def _note(self, *event: Any) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                # Not everything that a test waits for is an event of this node.
                await asyncio.wait([asyncio.ensure_future(self._changed.wait())], timeout=0.01)

    def kinds(self) -> list[str]:
        return [event[0] for event in self.events]

    def messages(self) -> list[Message]:
        return [event[3] for event in self.events if event[0] == "message"]

    def reasons(self) -> list[str]:
        return [event[3] for event in self.events if event[0] == "close"]

    def send(self, peer: int, message: Message) -> None:
        self.links.send(peer, self.open[peer], message)

    def sockets(self) -> list[Any]:
        """The transports of its sessions."""
        links = [place.link for place in self.links._table.places.values() if place.link]
        return [link.connection.line._socket._writer.transport for link in links]

    def address(self) -> str:
        return f"127.0.0.1:{self.links.port}"


class Federation:
    def __init__(self) -> None:
        self.identities = [Identity(bytes([index + 1]) * 32) for index in range(SIZE)]
        self.members = {identity.public: index for index, identity in enumerate(self.identities)}
        self.log = logging.getLogger("tests.net")

    def new(self, index: int, dial: dict[int, str | None] | None = None, **changes: Any) -> Node:
        """A node that is not running; all others are its neighbors unless `neighbors` says otherwise."""
        node = Node(index)
        who = {
            "identity": self.identities[index % SIZE],
            "members": self.members,
            "own_index": index,
            "dial": dial or {},
            "neighbors": frozenset(range(SIZE)) - {index},
            "binding": binding(),
        }
        heard = {"on_open": node.on_open, "on_message": node.on_message, "on_close": node.on_close}
        told = {"on_alarm": lambda *alarm: node.alarms.append(alarm), "log": self.log}
        rest = {"listen": "127.0.0.1:0", "max_body_bytes": 8_000_000, "rng": Random(index), "limits": QUICK}
        charters = changes.pop("charters", None)
        for one in (who, heard, told):
            one |= {key: changes.pop(key) for key in list(changes) if key in one}
        told |= {"name_of": changes.pop("name_of")} if "name_of" in changes else {}
        node.links = Links(Membership(**who), Callbacks(**heard), Watcher(**told), **(rest | changes))
        if charters is not None:
            node.links.receive(charters)
        return node

    @asynccontextmanager
    async def node(self, index: int, dial: dict[int, str | None] | None = None, **changes: Any) -> AsyncIterator[Node]:
        node = self.new(index, dial, **changes)
        async with node.links:
            yield node


class Relay:
    """Forwards TCP, or what is inside `tls`, to `target`, `delay_s` late. `pull_cable` leaves both ends connected to
    nothing, for ever silent.
    """

    def __init__(self, target: str, delay_s: float = 0.0, tls: SSLContext | None = None) -> None:
        self.delay_s, self.tls = delay_s, tls
        self.host, _, self.port = target.partition(":")
        self.address = ""
        self.near: list[asyncio.StreamWriter] = []
        self.far: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.pull_cable()
        for writer in self.near + self.far:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, int(self.port))
        except OSError:
            writer.transport.abort()
            return
        self.near.append(writer)
        self.far.append(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.ensure_future(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await asyncio.sleep(self.delay_s)
                sink.write(self.passed(data))
                await sink.drain()
        except OSError:
            pass
        sink.transport.abort()

    def passed(self, data: bytes) -> bytes:
        """Return what is passed on in place of the data."""
        return data

    def pull_cable(self) -> None:
        for pump in list(self._pumps):
            pump.cancel()

    def stop_accepting(self) -> None:
        self._server.close()
