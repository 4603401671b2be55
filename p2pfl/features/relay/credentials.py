"""What opens relays to a node, and the transport of a node that lists some."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from logging import Logger, getLogger

import aiohttp

from p2pfl.config.charter import realm_of
from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.relay.by_relay import ByRelayTransport
from p2pfl.features.relay.relay_frames import Challenge, Registration
from p2pfl.features.relay.relay_hurdles import at_relay
from p2pfl.features.relay.relay_link import Answer, LinkParts, RelayLink
from p2pfl.features.relay.ticket_files import TicketShelf, tickets_file
from p2pfl.features.relay.tickets import Ticket, read_token, register
from p2pfl.net.address import parse_address
from p2pfl.net.errands import DialThrough
from p2pfl.net.hurdles import UnreachedError
from p2pfl.net.limits import Limits
from p2pfl.net.line import Line
from p2pfl.net.refusals import Refusals
from p2pfl.net.transport import MakeTransport, Transport
from p2pfl.net.ways import Outlet, outlet_of
from p2pfl.net.websocket import dial_url, open_browserless

ADMIN_TICKET_S = 3600
"""How long the ticket holds that an admin signs for itself."""


def through_relays(
    federation: FederationConfig, node: NodeConfig, identity: Identity, usual: MakeTransport
) -> MakeTransport:
    """Return the node's transport: `usual`, and beside it the relays that its files list, if any."""
    if not node.relays:
        return usual

    def make(limits: Limits, refusals: Refusals, log: Logger) -> Transport:
        dialing, credentials = RelayDialing(outlet_of(node)), Credentials(federation, node, identity)
        parts = LinkParts(
            dial=dialing.dial,
            answer=credentials.answer,
            removals=credentials.shelf.head,
            limits=limits,
            log=log,
            rng=random.Random(),  # jitter for dialing
        )
        links = [RelayLink(url, parts) for url in node.relays]
        return ByRelayTransport(usual(limits, refusals, log), links, at_end=dialing.close)

    return make


@asynccontextmanager
async def relays_of_admin(federation: FederationConfig, admin: Identity) -> AsyncIterator[DialThrough]:
    """Dial members through the federation's relays as an admin."""
    async with dialing_through(answer_of_admin(federation, admin)) as through:
        yield through


def answer_of_admin(federation: FederationConfig, admin: Identity, *, visiting: bool = False) -> Answer:
    """Return what answers a relay's challenge for an admin, who signs a ticket for itself."""

    def answer(relay: str, challenge: Challenge) -> Registration:
        until = challenge.clock_s + ADMIN_TICKET_S
        ticket = Ticket.sign(admin, realm=realm_of(federation), key=admin.public, until=until)
        return register(admin, challenge, relay=relay, ticket=ticket.packed(), visiting=visiting)

    return answer


@asynccontextmanager
async def dialing_through(answer: Answer, outlet: Outlet | None = None) -> AsyncIterator[DialThrough]:
    """Dial members through relays, at each of which this process registers when it is first needed."""
    dialing, links, tasks = RelayDialing(outlet), dict[str, RelayLink](), list[asyncio.Task[None]]()

    async def through(url: str, key: bytes) -> Line:
        if url not in links:
            log = getLogger("p2pfl.net")
            links[url] = RelayLink(url, LinkParts(dial=dialing.dial, answer=answer, limits=Limits(), log=log))
            tasks.append(asyncio.get_running_loop().create_task(links[url].keep(lambda line, visit: None)))  # noqa: ARG005 - nobody dials it
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
            return await dial_url(self._http, url)
        except UnreachedError as error:
            raise at_relay(error, parse_address(url, "relays")) from None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


class Credentials:
    """What opens relays to one node. New tickets need no restart: the newest is used at the next registration."""

    def __init__(self, federation: FederationConfig, node: NodeConfig, identity: Identity) -> None:
        self.federation, self.node, self.identity = federation, node, identity
        self.shelf = TicketShelf(federation, node.state_dir)

    def answer(self, relay: str, challenge: Challenge) -> Registration:
        """Answer the challenge of a relay. Raises UserError: this node has neither token nor ticket."""
        ticket, token = self.require()
        return register(self.identity, challenge, relay=relay, ticket=ticket, token=token)

    def visit(self, relay: str, challenge: Challenge) -> Registration:
        """Answer as `answer`, for a seat beside the one of the node that runs. Raises UserError."""
        ticket, token = self.require()
        return register(self.identity, challenge, relay=relay, ticket=ticket, token=token, visiting=True)

    def require(self) -> tuple[bytes, bytes]:
        """Return ticket and token, one of them empty. Raises UserError: this node has neither."""
        if self.node.relay_token is not None:
            return b"", read_token(self.node.relay_token)
        found = self.shelf.ticket(self.identity.public)
        if found is not None:
            return found.packed(), b""
        if not self.federation.admin:
            text = "this node has nothing that opens a relay, and without admin keys there are no tickets"
            allowed = 'a file made by `p2pfl relay --make-token`, the same on all nodes: relay_token = "relay.token"'
            raise UserError(text, file=self.node.path, key="network.relay_token", allowed=allowed)
        text = f"no ticket for {self.node.name}: relays do not let it in"
        allowed = "`p2pfl member ticket` where the admin key is, and this file beside federation.toml everywhere"
        raise UserError(text, file=tickets_file(self.federation), key="tickets", allowed=allowed)
