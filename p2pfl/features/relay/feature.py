"""The relays of one node: it registers with all that its files list, and says which of them it has lost."""

from __future__ import annotations

import random
from collections.abc import Mapping
from logging import Logger
from typing import Any

import aiohttp

from p2pfl.config.charter import realm_of
from p2pfl.errors import UserError
from p2pfl.features.relay.alarms import ALARMS, BACK, LOST, SPOILED
from p2pfl.features.relay.by_relay import ByRelayTransport
from p2pfl.features.relay.relay_frames import Challenge, Registration
from p2pfl.features.relay.relay_link import LinkParts, RelayLink
from p2pfl.features.relay.tickets import read_tickets, read_token, register, ticket_of, tickets_file
from p2pfl.net.limits import Limits
from p2pfl.net.line import Line
from p2pfl.net.refusals import Refusals
from p2pfl.net.transport import MakeTransport, Transport
from p2pfl.net.websocket import dial_url, open_browserless
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, NodeView

PATIENCE_S = 15.0
"""How long a relay may be away before there is an alarm."""


class RelayFeature(Feature):
    name = "relay"
    alarms = ALARMS

    def check(self, setup: Setup) -> None:
        """Read token and tickets. Raises UserError if they cannot be read, or if this node has neither."""
        if setup.node.relays:
            Credentials(setup).require()

    def transport(self, setup: Setup, usual: MakeTransport) -> MakeTransport:
        if not setup.node.relays:
            return usual

        def make(limits: Limits, refusals: Refusals, log: Logger) -> Transport:
            dialing = RelayDialing()
            parts = LinkParts(
                dial=dialing.dial,
                answer=Credentials(setup).answer,
                limits=limits,
                log=log,
                rng=random.Random(),  # jitter for dialing
            )
            links = [RelayLink(url, parts) for url in setup.node.relays]
            return ByRelayTransport(usual(limits, refusals, log), links, at_end=dialing.close)

        return make

    def attach(self, node: NodeView) -> Attached | None:
        transport = node.network.transport
        return Relays(node, transport) if isinstance(transport, ByRelayTransport) else None


class RelayDialing:
    """Dials relays by URL, with one HTTP session."""

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    async def dial(self, url: str) -> Line:
        self._http = self._http or open_browserless()
        return await dial_url(self._http, url)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


class Credentials:
    """What opens relays to this node. Tickets are read anew for each registration, so new ones need no restart."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def answer(self, relay: str, challenge: Challenge) -> Registration:
        """Raises UserError: this node has neither token nor ticket."""
        ticket, token = self.require()
        return register(self._setup.identity, challenge, relay=relay, ticket=ticket, token=token)

    def require(self) -> tuple[bytes, bytes]:
        """Return ticket and token, one of them empty. Raises UserError: this node has neither."""
        federation, node = self._setup.federation, self._setup.node
        if node.relay_token is not None:
            return b"", read_token(node.relay_token)
        file = tickets_file(federation)
        found = ticket_of(read_tickets(file), realm=realm_of(federation), key=self._setup.identity.public)
        if found is not None:
            return found.packed(), b""
        if not federation.admin:
            text = "this node has nothing that opens a relay, and without admin keys there are no tickets"
            allowed = 'a file made by `p2pfl relay --make-token`, the same on all nodes: relay_token = "relay.token"'
            raise UserError(text, file=node.path, key="network.relay_token", allowed=allowed)
        text = f"no ticket for {node.name}: relays do not let it in"
        allowed = "`p2pfl member ticket` where the admin key is, and this file beside federation.toml everywhere"
        raise UserError(text, file=file, key="tickets", allowed=allowed)


class Relays(Attached):
    """The relays of one running node."""

    def __init__(self, node: NodeView, transport: ByRelayTransport) -> None:
        self._node, self._relays = node, transport.relays
        self._missing = ""
        self._begun_at = node.clock()
        transport.listen_for_doubts(self._spoiled)

    def status(self) -> Mapping[str, Any]:
        rows = [
            {
                "relay": relay.url,
                "registered": relay.is_registered,
                "round_trip_ms": round(1000 * relay.round_trip_s, 1) if relay.round_trip_s < 60 else None,
                "why": relay.why,
            }
            for relay in self._relays
        ]
        return {"relays": rows}

    def look(self) -> None:
        """Raise or settle the alarm about relays that have been away for a while."""
        now = self._node.clock()
        away = [relay for relay in self._relays if not relay.is_registered and relay.away_s() > PATIENCE_S]
        missing = "; ".join(f"{relay.url}: {relay.why}" for relay in away)
        if missing == self._missing or now - self._begun_at < PATIENCE_S:
            return
        if not missing:
            self._node.feed.settle(BACK, None)
            self._node.feed.tell(BACK, None, "this node is registered at all its relays again")
        elif not self._missing or not self._node.feed.reword(LOST, None, missing):
            none_left = "" if any(relay.is_registered for relay in self._relays) else "no relay is left: "
            self._node.alarm(LOST, None, none_left + missing)
        self._missing = missing

    def _spoiled(self, relay: RelayLink, key: bytes, reason: str) -> None:
        members = self._node.setup().federation.members
        name = next((member.name for member in members if member.key == key), "a stranger")
        self._node.alarm(SPOILED, None, f"{relay.url}, on a line to {name}: {reason}")
