"""The transport of a node that lists relays: what it had before for addresses, and lines through relays beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from p2pfl.features.relay.relay_link import OnDoubt, RelayLink
from p2pfl.net.address import Address, Relayed, Way
from p2pfl.net.line import GoneError, Line
from p2pfl.net.transport import Meet, Transport


class ByRelayTransport:
    """Dials addresses directly, and members through the relays at which this node has registered."""

    def __init__(
        self, direct: Transport, relays: Sequence[RelayLink], *, at_end: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.relays = tuple(relays)
        self._direct, self._at_end = direct, at_end
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        return self._direct.port

    async def open(self, address: Address, meet: Meet) -> None:
        await self._direct.open(address, meet)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(relay.keep(meet)) for relay in self.relays]
        for task in self._tasks:
            task.add_done_callback(_report)

    def listen_for_doubts(self, on_doubt: OnDoubt) -> None:
        """Call `on_doubt` for each line that a relay has spoiled."""
        for relay in self.relays:
            relay.on_doubt = on_doubt

    def expect(self, neighbors: int) -> None:
        self._direct.expect(neighbors)

    def know(self, host: str) -> None:
        self._direct.know(host)

    def ways(self, key: bytes) -> Sequence[Relayed]:
        """Return the way through each relay: first those that spoiled no line to that member lately, by round trip."""
        ranked = sorted(self.relays, key=lambda relay: (not relay.is_registered, relay.doubts(key), relay.round_trip_s))
        return [Relayed(relay.url, key) for relay in ranked]

    async def dial(self, way: Way) -> Line:
        if isinstance(way, Address):
            return await self._direct.dial(way)
        relay = next((one for one in self.relays if one.url == way.relay), None)
        if relay is None or not self._tasks:
            raise GoneError("the node stops")
        return await relay.dial(way.key)

    def stop_accepting(self) -> None:
        self._direct.stop_accepting()

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._at_end is not None:
                await self._at_end()
        finally:
            await self._direct.close()


def _report(task: asyncio.Task[None]) -> None:
    """Report a bug: the connection to a relay is kept until it is cancelled."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "the connection to a relay has ended by a bug", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
