"""The relays of one node: it registers with all that its files list, and says which of them it has lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p2pfl.features.relay.alarms import ALARMS
from p2pfl.features.relay.by_relay import ByRelayTransport
from p2pfl.features.relay.credentials import Credentials, through_relays
from p2pfl.features.relay.relay_link import RelayLink
from p2pfl.net.transport import MakeTransport
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
        transport.listen_for_doubts(self._spoiled)

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
        """Raise or settle the alarm about relays that have been away for a while."""
        now = self._node.clock()
        away = [relay for relay in self._relays if not relay.is_registered and relay.away_s() > PATIENCE_S]
        missing = "; ".join(f"{relay.url}: {relay.why}" for relay in away)
        if missing == self._missing or now - self._begun_at < PATIENCE_S:
            return
        if not missing:
            self._node.feed.settle("relay-back", None)
            self._node.feed.tell("relay-back", None, "this node is registered at all its relays again")
        elif not self._missing or not self._node.feed.reword("relay-lost", None, missing):
            none_left = "" if any(relay.is_registered for relay in self._relays) else "no relay is left: "
            self._node.alarm("relay-lost", None, none_left + missing)
        self._missing = missing

    def _spoiled(self, relay: RelayLink, key: bytes, reason: str) -> None:
        self._node.alarm("relay-spoiled", None, f"{relay.url}, on a line to {self._name_of(key)}: {reason}")

    def _name_of(self, key: bytes) -> str:
        members = self._node.setup().federation.members
        return next((member.name for member in members if member.key == key), "a stranger")
