"""The interface of a transport, which carries the lines of the network edge. A relay would be one more transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from logging import Logger
from typing import Any, Protocol, TypeVar

from p2pfl.net.address import Address
from p2pfl.net.doorway import ConnectionStage
from p2pfl.net.limits import Limits
from p2pfl.net.line import Line
from p2pfl.net.refusals import Refusals

T = TypeVar("T")


class Visit(Protocol):
    """A line that a peer has dialed, until it is a session."""

    @property
    def address(self) -> str:
        """The address that the visit comes from."""
        ...

    @property
    def ends_at(self) -> float:
        """The time at which the visit must be a session, by the loop's clock."""
        ...

    def advance(self, stage: ConnectionStage) -> None:
        """Move the visit to a stage. Raises PeerFault: there is no place for it there."""
        ...

    def admit(self) -> None:
        """Let the visit stay: it is a session now."""
        ...

    def work(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Do `work` at the visitor's cost."""
        ...


Meet = Callable[[Line, Visit], "asyncio.Task[None] | None"]
"""The function that takes a line that a peer has dialed. It returns None if the node takes no more lines."""


class Transport(Protocol):
    """A transport dials and accepts lines. `port` is 0 before `open`."""

    @property
    def port(self) -> int: ...

    async def open(self, address: Address, meet: Meet) -> None:
        """Accept lines there from now on. Raises UserError: the address cannot be bound."""
        ...

    def expect(self, neighbors: int) -> None:
        """Expect so many neighbors at once."""
        ...

    def know(self, host: str) -> None:
        """Note that a member is at that address."""
        ...

    async def dial(self, address: Address) -> Line:
        """Dial an address; the caller sets the deadline. Raises GoneError: nobody answers there."""
        ...

    def stop_accepting(self) -> None: ...

    async def close(self) -> None:
        """Accept and dial no more lines; open ones are closed by their users."""
        ...


MakeTransport = Callable[[Limits, Refusals, Logger], Transport]
