"""The interface of a transport, which carries the lines of the network layer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from logging import Logger
from typing import Any, Protocol, TypeVar

from p2pfl.net.address import Address, Relayed, Way
from p2pfl.net.doorway import ConnectionStage
from p2pfl.net.limits import Limits
from p2pfl.net.line import Line
from p2pfl.net.refusals import Refusals

T = TypeVar("T")


class Visit(Protocol):
    """A line dialed by a peer, until it becomes a session."""

    @property
    def address(self) -> str:
        """The address from which the visit comes."""
        ...

    @property
    def ends_at(self) -> float:
        """When the visit must have become a session, on the loop's clock."""
        ...

    def advance(self, stage: ConnectionStage) -> None:
        """Move the visit to a stage. Raises PeerFault if there is no place for it."""
        ...

    def admit(self) -> None:
        """Let the visit stay: it is a session now."""
        ...

    def work(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Run `work` and charge the visitor for it."""
        ...


Meet = Callable[[Line, Visit], "asyncio.Task[None] | None"]
"""The function that receives a line dialed by a peer. It returns None if the node accepts no more lines."""


class Transport(Protocol):
    """A transport dials and accepts lines. `port` is 0 before `open`."""

    @property
    def port(self) -> int: ...

    async def open(self, address: Address, meet: Meet) -> None:
        """Accept lines there from now on. Raises UserError if the address cannot be bound."""
        ...

    def expect(self, neighbors: int) -> None:
        """Expect this many neighbors at once."""
        ...

    def know(self, host: str) -> None:
        """Record that a member is at that address."""
        ...

    def ways(self, key: bytes, latest: str | None = None) -> Sequence[Relayed]:
        """Return the ways through relays to the member with that public key, best first; most transports have none.
        `latest` is the URL of the relay that carried the latest session with it.
        """
        ...

    async def faster_way(self, key: bytes, relay: str, exchange_s: float | None) -> Relayed | None:
        """Return a way through a relay that is clearly and lastingly better than that through the relay with the URL
        `relay`, to the member with that public key; None if there is none. `exchange_s` is what an exchange in the
        session typically takes, if that is known.
        """
        ...

    async def dial(self, way: Way) -> Line:
        """Dial a member; the caller sets the deadline. Raises GoneError if nobody answers there."""
        ...

    def stop_accepting(self) -> None: ...

    async def close(self) -> None:
        """Accept and dial no more lines; open ones are closed by their users."""
        ...


MakeTransport = Callable[[Limits, Refusals, Logger], Transport]
