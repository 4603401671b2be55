"""The transport of a node that lists relays: what it had before for addresses, and lines through relays beside it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from logging import Logger, getLogger
from time import monotonic

import aiohttp

from p2pfl.config.charter import realm_of
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.features.relay.frames import Challenge, Registration
from p2pfl.features.relay.link import Answer, LinkParts, OnDoubt, RelayLink
from p2pfl.features.relay.tickets import RelayAccess, Ticket, register
from p2pfl.limits import Limits
from p2pfl.net.address import Address, DialPath, Relayed, parse_address
from p2pfl.net.dial_paths import DialError, Outlet, UnreachedError, outlet_of
from p2pfl.net.transport import GoneError, Line, MakeTransport, Meet, Refusals, Transport
from p2pfl.net.websocket import DialThrough, dial_websocket, open_browserless

CLEARLY, CLEARLY_S, LASTING_LOOKS = 0.7, 0.01, 3
"""An edge moves if exchanges through another relay take at most this share of the time, and so much less at least, in
so many looks in a row: else it would move to and fro.
"""
REMEMBERED_S, TRIED_S = 3600.0, 300.0
"""The time for which a measured exchange through a relay counts, and a trial of a relay that has carried none."""
FAR, FAR_S = 3.0, 0.2
"""There is an alarm about a relay through which exchanges took so many times as long, and so much longer."""
ADMIN_TICKET_S = 3600
"""The time for which the ticket holds that an admin signs for itself."""


class ByRelayTransport:
    """Dials addresses directly, and members through the relays at which this node has registered."""

    def __init__(
        self, direct: Transport, relays: Sequence[RelayLink], *, at_end: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.relays = tuple(relays)
        self._direct, self._at_end = direct, at_end
        self._took: dict[tuple[str, bytes], tuple[float, float]] = {}
        """The time of an exchange through a relay, and until when it counts, by the relay's URL and a member's key."""
        self._looks: dict[bytes, int] = {}
        """The number of looks in a row in which another relay was better than the one in use, by the member's key."""
        self._left: dict[bytes, tuple[str, float]] = {}
        """The relay from which an edge moves and what an exchange took there, until another one shows what it takes."""
        self.on_slow: Callable[[str, bytes, str], None] = lambda *_: None
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

    def relay_paths(self, key: bytes, used: tuple[str, float] | None = None) -> Sequence[Relayed]:
        """Return the way through each relay: first those that spoiled no line to that member lately, and of them the
        one that takes the least time; of the relay `used` that is what an exchange takes, and it stays the first until
        another one is lastingly better.

        A relay can make round trips short and hold back what is sealed. So what exchanges took counts as soon as it is
        known; one that only promises more is tried, and left again if exchanges do not show that.
        """
        if used is not None:
            self._compare(key, *used)
        ranked = sorted(self.relays, key=lambda way: (not way.is_registered, way.doubts(key), self._time_s(way, key)))
        if used is not None and not self._leaves(key, *used, ranked[0]):
            ranked.sort(key=lambda relay: relay.url != used[0])
        return [Relayed(relay.url, key) for relay in ranked]

    def _compare(self, key: bytes, url: str, exchange_s: float) -> None:
        """Note what an exchange takes; say so if it took far longer through the relay that the edge has left."""
        self._took[url, key] = exchange_s, monotonic() + REMEMBERED_S
        left, before_s = self._left.pop(key, (url, 0.0))
        if left != url and before_s > FAR * exchange_s and before_s - exchange_s > FAR_S:
            self.on_slow(left, key, f"an exchange took {before_s:.2g} s, through {url} {exchange_s:.2g} s")

    def _leaves(self, key: bytes, url: str, exchange_s: float, best: RelayLink) -> bool:
        """Return True if an edge should be moved from a relay to the best one, which is then tried."""
        is_better = self._time_s(best, key) < min(CLEARLY * exchange_s, exchange_s - CLEARLY_S)
        self._looks[key] = self._looks.get(key, 0) + 1 if is_better else 0
        if self._looks[key] < LASTING_LOOKS:
            return False
        self._looks[key], self._left[key] = 0, (url, exchange_s)
        self._took[best.url, key] = float("inf"), monotonic() + TRIED_S
        return True

    def _time_s(self, relay: RelayLink, key: bytes) -> float:
        """Return what an exchange took when the relay was last in use, or else the least that it may take."""
        exchange_s, until = self._took.get((relay.url, key), (0.0, 0.0))
        return max(2 * relay.round_trip_s, exchange_s if monotonic() < until else 0.0)

    async def dial(self, way: DialPath) -> Line:
        if isinstance(way, Address):
            return await self._direct.dial(way)
        relay = next((link for link in self.relays if link.url == way.relay), None)
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


def through_relays(
    federation: FederationConfig, node: NodeConfig, identity: Identity, usual: MakeTransport
) -> MakeTransport:
    """Return the node's transport: `usual`, and beside it the relays that its files list, if any."""
    if not node.relays:
        return usual

    def make(limits: Limits, refusals: Refusals, log: Logger) -> Transport:
        dialing, access = RelayDialing(outlet_of(node)), RelayAccess(federation, node, identity)
        parts = LinkParts(
            dial=dialing.dial,
            answer=access.answer,
            removals=access.keeper.head,
            limits=limits,
            log=log,
            rng=random.Random(),  # jitter for dialing
        )
        links = [RelayLink(url, parts) for url in node.relays]
        return ByRelayTransport(usual(limits, refusals, log), links, at_end=dialing.close)

    return make


def answer_of_admin(federation: FederationConfig, admin: Identity) -> Answer:
    """Return what answers a relay's challenge for an admin, who signs a ticket for itself."""

    def answer(relay: str, challenge: Challenge) -> Registration:
        until = challenge.clock_s + ADMIN_TICKET_S
        ticket = Ticket.sign(admin, realm=realm_of(federation), key=admin.public, until=until)
        return register(admin, challenge, relay=relay, ticket=ticket.packed())

    return answer


@asynccontextmanager
async def dialing_through(answer: Answer) -> AsyncIterator[DialThrough]:
    """Dial members through relays, at each of which this process registers when it is first needed."""
    dialing, links, tasks = RelayDialing(), dict[str, RelayLink](), list[asyncio.Task[None]]()

    async def through(url: str, key: bytes) -> Line:
        if url not in links:
            log = getLogger("p2pfl.net")
            links[url] = RelayLink(url, LinkParts(dial=dialing.dial, answer=answer, limits=Limits(), log=log))
            tasks.append(asyncio.get_running_loop().create_task(links[url].keep(lambda line, arrival: None)))  # noqa: ARG005 - nobody dials it
        return await links[url].dial(key)

    try:
        yield through
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await dialing.close()


class RelayDialing:
    """Dials relays by URL, with one HTTP session."""

    def __init__(self, outlet: Outlet | None = None) -> None:
        self._outlet = outlet
        self._http: aiohttp.ClientSession | None = None

    async def dial(self, url: str) -> Line:
        self._http = self._http or open_browserless(self._outlet)
        try:
            return await dial_websocket(self._http, parse_address(url, "relays"))
        except UnreachedError as error:
            raise at_relay(error, parse_address(url, "relays")) from None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


def at_relay(error: UnreachedError, address: Address) -> UnreachedError:
    """Return the reason why nothing was reached at the address of a relay."""
    text, remedy = error.text, error.remedy
    if error.kind is DialError.CERTIFICATE and address.pin and "pinned" in text:
        text = text.replace("in its address", "in [network] relays")
        remedy = (
            "compare it with what `p2pfl relay` logs at its start: it was renewed, or something on the way opens TLS"
        )
    elif error.kind is DialError.CERTIFICATE:
        remedy = remedy.replace("at the end of the address", "at the end of its URL")
    elif error.kind is DialError.NAME:
        remedy = "correct [network] relays, or the DNS of this machine"
    elif error.kind is DialError.NOT_A_NODE:
        text = text.replace("does not reach the node behind it", "does not reach the relay behind it")
        remedy = remedy.replace("start the node", "start the relay").replace("address", "URL")
    elif address.tls and ConnectionResetError.__name__ in text:
        text = text.replace(ConnectionResetError.__name__, "the connection was closed in place of TLS")
        remedy = "ws:// in place of wss://, if the relay has no certificate"
    elif not remedy:
        remedy = f"is the relay running, and does its firewall let port {address.port} in?"
    return UnreachedError(error.kind, text, remedy)
