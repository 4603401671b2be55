"""What the network edge needs of whatever carries its lines. A relay would be one more of them."""

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
    """A line that somebody has dialed, until it is a session."""

    @property
    def address(self) -> str:
        """Where it comes from."""
        ...

    @property
    def ends_at(self) -> float:
        """When it must be a session, by the loop's clock."""
        ...

    def advance(self, stage: ConnectionStage) -> None:
        """It has come so far. Raises PeerFault: there is no place for it there."""
        ...

    def admit(self) -> None:
        """It is a session now, and may stay."""
        ...

    def work(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """`work` at the cost of who visits."""
        ...


Meet = Callable[[Line, Visit], "asyncio.Task[None] | None"]
"""Takes a line that somebody has dialed. None: nobody is met any more."""


class Transport(Protocol):
    """Dials and accepts lines. `port` is 0 before `open`."""

    @property
    def port(self) -> int: ...

    async def open(self, address: Address, meet: Meet) -> None:
        """Accept lines there from now on. Raises UserError: the address cannot be had."""
        ...

    def expect(self, neighbors: int) -> None:
        """So many neighbors may come at once."""
        ...

    def know(self, host: str) -> None:
        """A member is at that address."""
        ...

    async def dial(self, address: Address) -> Line:
        """Raises GoneError: nobody is there; the caller sets the deadline."""
        ...

    def stop_accepting(self) -> None: ...

    async def close(self) -> None:
        """No line is accepted or dialed any more; those that are there are closed by who has them."""
        ...


MakeTransport = Callable[[Limits, Refusals, Logger], Transport]
