"""A relay within the process, without sockets, and nodes that reach each other through it alone."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Self

from memory_kit import MemoryNetwork, MemoryTransport

from p2pfl.crypto.identity import Identity
from p2pfl.features.relay import (
    Admissions,
    ByRelayTransport,
    LinkParts,
    ListedFederation,
    RelayLink,
    RelayServer,
    Switchboard,
    register,
)
from p2pfl.net import Address, Counters, Limits, Line, Refusals

TOKEN = b"t" * 32
QUICK = Limits(retry_first_s=0.02, retry_ceiling_s=0.2, contest_s=0.3, close_s=0.3, settled_s=0.0, direct_again_s=0.05)
log = logging.getLogger("tests.relay")

Wrap = Callable[[Line], Line]


def nothing_listed() -> Refusals:
    return Refusals(Counters.of(()), log, lambda *_: None)


class WrappedLine(Line):
    """A relay's end of a member's connection, for tests that change what goes over it."""

    def __init__(self, inner: Line) -> None:
        super().__init__()
        self.inner = inner

    peer_address = property(lambda self: self.inner.peer_address)
    bytes_came = property(lambda self: self.inner.bytes_came)

    async def _push(self, data: bytes) -> None:
        await self.inner.send(data)

    async def _pull(self) -> bytes:
        return await self.inner.receive()

    async def close(self, within_s: float) -> None:
        await self.inner.close(within_s)


class RelayHere:
    """One relay at `ws://NAME/p2pfl` of a network in memory. `wrap` may change the lines of its members."""

    def __init__(self, network: MemoryNetwork, name: str = "relay:1", **changes: Any) -> None:
        self.network, self.name = network, name
        self.listed = changes.pop("listed", [ListedFederation(name="ward", token=TOKEN)])
        self.board = Switchboard(**{k: changes.pop(k) for k in ("most_members",) if k in changes})
        self.server = RelayServer(Admissions(self.listed), self.board, nothing_listed(), **changes)
        self.transport = MemoryTransport(network, Limits())
        self.lines: list[Line] = []
        self.wrap: Wrap = lambda line: line
        self._run: asyncio.Task[None]

    @property
    def url(self) -> str:
        return f"ws://{self.name}/p2pfl"

    async def __aenter__(self) -> Self:
        host, _, port = self.name.partition(":")

        def meet(line, visit):
            line = self.wrap(line)
            self.lines.append(line)
            return self.server.meet(line, visit)

        await self.transport.open(Address(host, int(port)), meet)
        self._run = asyncio.get_running_loop().create_task(self.server.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        self._run.cancel()
        await self.transport.close()
        for line in self.lines:
            await line.close(0.1)
        await asyncio.gather(self._run, return_exceptions=True)


def dialer(network: MemoryNetwork) -> Callable[[str], Awaitable[Line]]:
    async def dial(url: str) -> Line:
        host, _, port = url.removeprefix("ws://").removesuffix("/p2pfl").partition(":")
        return await MemoryTransport(network, Limits()).dial(Address(host, int(port)))

    return dial


def parts(network: MemoryNetwork, identity: Identity, *, token: bytes = TOKEN, limits: Limits = QUICK) -> LinkParts:
    return LinkParts(
        dial=dialer(network),
        answer=lambda name, challenge: register(identity, challenge, relay=name, token=token),
        limits=limits,
        log=log,
        rng=random.Random(1),
    )


def by_relay(network: MemoryNetwork, identity: Identity, *urls: str, direct: MemoryNetwork | None = None) -> Any:
    """Return what makes the transport of a node with that key; `direct` is where its addresses are."""

    def make(limits, refusals, logger):
        links = [RelayLink(url, parts(network, identity, limits=limits)) for url in urls]
        return ByRelayTransport((direct or MemoryNetwork()).transport(limits, refusals, logger), links)

    return make


def pair(federation: Any, network: MemoryNetwork, *relays: RelayHere, limits: Limits = QUICK, **changes: Any) -> Any:
    """Two nodes that reach each other through these relays alone."""
    urls = [relay.url for relay in relays]
    return [
        federation.new(
            index,
            limits=limits,
            neighbors=frozenset({1 - index}),
            transport=by_relay(network, federation.identities[index], *urls),
            **changes,
        )
        for index in range(2)
    ]


def nobody(*_: object) -> None:
    """Take no line: in place of what meets visits."""


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():  # noqa: ASYNC110 - what a test waits for is seldom an event
            await asyncio.sleep(0.005)
