"""The relays of one node: it registers with all that its files list, and says which of them it has lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2pfl.config.members import in_words
from p2pfl.console import seconds_now
from p2pfl.errors import UserError
from p2pfl.features.relay.link import RelayLink
from p2pfl.features.relay.tickets import CredentialsKeeper, RelayAccess, read_token
from p2pfl.features.relay.transport import ByRelayTransport, through_relays
from p2pfl.net.transport import MakeTransport
from p2pfl.node.assembly import Setup
from p2pfl.node.feature import Attached, Check, Feature, Inspected, NodeView
from p2pfl.reporting.alarms import LOST, AlarmText

SOON_S = 30 * 86_400
"""The time before the end of a ticket from which there is an alarm."""
TICKET_LOOK_S = 60.0
NONE_LEFT = "no relay is left: "
PATIENCE_S = 15.0
"""The time for which a relay may be away before there is an alarm."""

ALARMS: Mapping[str, AlarmText] = {
    "relay-lost": AlarmText(
        means="This node is not registered at some relays; the text names them and says why.",
        does="Uses the other relays and direct addresses, and keeps trying. Edges that have no other way wait.",
        advice="Start the relay, or correct what the text says: address, ticket, token, or the relay's list.",
        ended_by="relay-back",
    ),
    "relay-ticket": AlarmText(
        means="The ticket that opens relays to this node expires within 30 days, or has expired; the text says when.",
        does="Registers with it as long as it holds; relays refuse it afterwards.",
        advice="Run `p2pfl member hand` where the admin key is: nodes that run get the new tickets.",
        ended_by="relay-ticket-renewed",
    ),
    "relay-slow": AlarmText(
        means="Exchanges through a relay took at least three times as long as they now take through another one.",
        does="Has moved the edge to the other relay, and tries the slow one again after an hour.",
        advice="Ask who runs that relay: its line may be too narrow, or it holds back what it passes on.",
    ),
    "relay-spoiled": AlarmText(
        means="A line through a relay carried what the other end did not seal, or nothing at all.",
        does="Has ended that session, blames no member, and prefers other ways to that member for five minutes.",
        advice="If this is frequent, find out who runs that relay, or what changes data on the way to it.",
    ),
}


class RelayFeature(Feature):
    name = "relay"
    alarms = ALARMS

    def check(self, setup: Setup) -> None:
        """Read token and tickets. Raises UserError if they cannot be read, or if this node has neither."""
        if setup.node.relays:
            RelayAccess(setup.federation, setup.node, setup.identity).require()

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
        """The relay that spoiled the line to a neighbor that is lost: the time, its URL, and the text of the alarm."""
        transport.listen_for_doubts(self._spoiled)
        transport.on_slow = self._slow

    def status(self) -> Mapping[str, Any]:
        rows = [
            {
                "relay": relay.url,
                "registered": relay.is_registered,
                "round_trip_ms": round(1000 * relay.round_trip_s, 1) if relay.round_trip_s < 60 else None,
                "why": relay.why,
                "lines": sorted(self._member(key)[1] for key in relay.members),
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
        is_news = not self._missing or (missing.startswith(NONE_LEFT) and not self._missing.startswith(NONE_LEFT))
        if not missing:
            self._node.feed.settle("relay-back", None)
            self._node.feed.tell("relay-back", None, "this node is registered at all its relays again")
        elif is_news or not self._node.feed.reword("relay-lost", None, missing):
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

    def _slow(self, url: str, key: bytes, text: str) -> None:
        self._node.alarm("relay-slow", None, f"{url}, on the line to {self._member(key)[1]}: {text}")

    def _look_at_suspects(self, now: float) -> None:
        for peer, (since, url, text) in list(self._suspected.items()):
            session = self._node.network.session(peer)
            if session is not None and session[1].relay != url:
                self._node.alarm("relay-spoiled", None, text)
            if session is not None or now - since > PATIENCE_S:
                del self._suspected[peer]

    def _member(self, key: bytes) -> tuple[int | None, str]:
        members = enumerate(self._node.setup().federation.members)
        return next(((index, member.name) for index, member in members if member.key == key), (None, "a stranger"))


class TicketAge:
    """Says once that this node's ticket is about to expire, and that it has a new one."""

    def __init__(self, node: NodeView) -> None:
        setup = node.setup()
        self._node, self._key = node, setup.identity.public
        by_token = setup.node.relay_token is not None
        self._keeper = None if by_token else CredentialsKeeper(setup.federation, setup.node.state_dir)
        self._looked_at = float("-inf")
        self._said: int | None = None
        """The end of the ticket about which there is an alarm, in seconds since 1970."""

    def look(self) -> None:
        now = self._node.clock()
        if self._keeper is None or now - self._looked_at < TICKET_LOOK_S:
            return
        self._looked_at = now
        try:
            ticket = self._keeper.ticket(self._key)
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


# -- before there are nodes -------------------------------------------------------------------------------------------


class RelayCheck(Check):
    """Checks that the nodes here have tickets or a token for their relays."""

    def of_files(self, inspected: Inspected) -> None:
        federation = inspected.federation
        for index, node in inspected.here.items():
            try:
                if node.relays and node.relay_token is not None:
                    read_token(node.relay_token)
                elif node.relays:
                    ticket = CredentialsKeeper(federation, node.state_dir).ticket(federation.members[index].key)
                    text, now = f"{node.name} has nothing that opens the relays in [network]", seconds_now()
                    if ticket is not None:
                        ends = "expired" if ticket.until < now else "expires"
                        clock = f"by this machine's clock it is {in_words(now)}"
                        text = f"the ticket of {node.name} {ends} at {in_words(ticket.until)}, and {clock}"
                    if ticket is None or ticket.until - now < SOON_S:
                        how = "`p2pfl member hand`" if federation.admin else "relay_token in its node.toml"
                        inspected.warnings.append(f"{text}: {how}")
            except UserError as error:
                inspected.mistakes.append(error)
