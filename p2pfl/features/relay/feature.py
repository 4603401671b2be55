"""The relays of one node: it registers with all that its files list, and says which of them it has lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2pfl.config.invites import in_words
from p2pfl.console.wall_clock import seconds_now
from p2pfl.errors import UserError
from p2pfl.features.relay.alarms import ALARMS
from p2pfl.features.relay.by_relay import ByRelayTransport
from p2pfl.features.relay.credentials import Credentials, through_relays
from p2pfl.features.relay.findings import SOON_S
from p2pfl.features.relay.relay_link import RelayLink
from p2pfl.features.relay.ticket_files import TicketShelf
from p2pfl.net.transport import MakeTransport
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Feature, NodeView
from p2pfl.reporting.alarms import LOST

NONE_LEFT = "no relay is left: "
PATIENCE_S = 15.0
"""How long a relay may be away before there is an alarm."""


class RelayFeature(Feature):
    name = "relay"
    alarms = ALARMS

    def check(self, setup: Setup) -> None:
        """Read token and tickets. Raises UserError if they cannot be read, or if this node has neither."""
        if setup.node.relays:
            Credentials(setup.federation, setup.node, setup.identity).require()

    def transport(self, setup: Setup, usual: MakeTransport) -> MakeTransport:
        return through_relays(setup.federation, setup.node, setup.identity, usual)

    def attach(self, node: NodeView) -> Attached | None:
        transport = node.network.transport
        return Relays(node, transport) if isinstance(transport, ByRelayTransport) else None


class Relays(Attached):
    """The relays of one running node."""

    def __init__(self, node: NodeView, transport: ByRelayTransport) -> None:
        self._node, self._relays = node, transport.relays
        self._missing = ""
        self._begun_at = node.clock()
        self._ticket = TicketAge(node)
        self._suspected: dict[int, tuple[float, str, str]] = {}
        """Who spoiled the line to a neighbor that is lost: when, the relay's URL, and what is to be said."""
        transport.listen_for_doubts(self._spoiled)
        transport.on_slow = self._slow

    def status(self) -> Mapping[str, Any]:
        rows = [
            {
                "relay": relay.url,
                "registered": relay.is_registered,
                "round_trip_ms": round(1000 * relay.round_trip_s, 1) if relay.round_trip_s < 60 else None,
                "why": relay.why,
                "lines": sorted(map(self._name_of, relay.members)),
            }
            for relay in self._relays
        ]
        return {"relays": rows}

    def look(self) -> None:
        """Raise or settle the alarms about relays that have been away for a while, and about the ticket."""
        self._ticket.look()
        now = self._node.clock()
        self._look_at_suspects(now)
        away = [relay for relay in self._relays if relay.away_s() > PATIENCE_S]
        missing = "; ".join(f"{relay.url}: {relay.why or relay.lost}" for relay in away)
        if len(away) == len(self._relays):
            missing = NONE_LEFT + missing
        if missing == self._missing or now - self._begun_at < PATIENCE_S:
            return
        if not missing:
            self._node.feed.settle("relay-back", None)
            self._node.feed.tell("relay-back", None, "this node is registered at all its relays again")
        elif _is_worse(missing, self._missing) or not self._node.feed.reword("relay-lost", None, missing):
            self._node.alarm("relay-lost", None, missing)
        self._missing = missing

    def _spoiled(self, relay: RelayLink, key: bytes, reason: str) -> None:
        """Raise an alarm. If the neighbor is lost, it or its cable may be the cause: that it is back soon, by another
        way, shows that it was the relay.
        """
        index, name = self._member(key)
        text = f"{relay.url}, on a line to {name}: {reason}"
        if index is not None and self._node.feed.stands(LOST, index):
            self._suspected[index] = self._node.clock(), relay.url, text
        else:
            self._node.alarm("relay-spoiled", None, text)

    def _slow(self, relay: RelayLink, key: bytes, text: str) -> None:
        self._node.alarm("relay-slow", None, f"{relay.url}, on the line to {self._name_of(key)}: {text}")

    def _look_at_suspects(self, now: float) -> None:
        for peer, (since, url, text) in list(self._suspected.items()):
            session = self._node.network.session(peer)
            if session is not None and session[1].relay != url:
                self._node.alarm("relay-spoiled", None, text)
            if session is not None or now - since > PATIENCE_S:
                del self._suspected[peer]

    def _name_of(self, key: bytes) -> str:
        return self._member(key)[1]

    def _member(self, key: bytes) -> tuple[int | None, str]:
        members = enumerate(self._node.setup().federation.members)
        return next(((index, member.name) for index, member in members if member.key == key), (None, "a stranger"))


def _is_worse(missing: str, before: str) -> bool:
    """Return True if the first relay is missing, or now the last one is, too: both belong in the log."""
    return not before or (missing.startswith(NONE_LEFT) and not before.startswith(NONE_LEFT))


class TicketAge:
    """Says once that this node's ticket is about to expire, and that it has a new one."""

    LOOK_S = 60.0

    def __init__(self, node: NodeView) -> None:
        setup = node.setup()
        self._node, self._key = node, setup.identity.public
        by_token = setup.node.relay_token is not None
        self._shelf = None if by_token else TicketShelf(setup.federation, setup.node.state_dir)
        self._looked_at = float("-inf")
        self._said: int | None = None
        """When the ticket expires about which there is an alarm."""

    def look(self) -> None:
        now = self._node.clock()
        if self._shelf is None or now - self._looked_at < self.LOOK_S:
            return
        self._looked_at = now
        try:
            ticket = self._shelf.ticket(self._key)
        except UserError:  # said by whoever registers
            return
        until = None if ticket is None or ticket.until - seconds_now() > SOON_S else ticket.until
        if until is not None and until != self._said:
            text = f"it expires at {in_words(until)}, and by this machine's clock it is {in_words(seconds_now())}"
            self._node.alarm("relay-ticket", None, text)
        elif until is None and self._said is not None:
            self._node.feed.settle("relay-ticket-renewed", None)
            self._node.feed.tell("relay-ticket-renewed", None, "this node has a new ticket for relays")
        self._said = until
