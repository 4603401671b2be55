"""Relays: `p2pfl relay` passes sealed sessions on between members that open no port, and the node's way through one.

What a relay may know belongs here (keys, tickets, sizes), and nothing of models, tasks or gossip.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console import Command, Group

FEATURE = "p2pfl.features.relay.feature:RelayFeature"
NEW = "p2pfl.features.relay.command:RelayOptions"
CHECKS = "p2pfl.features.relay.feature:RelayCheck"
COMMANDS: Mapping[str, Command] = {
    "relay": Command(
        "Pass sealed sessions on between members that open no port.",
        "p2pfl.features.relay.command:relay",
        Group.RUN,
        of_nodes=True,
    ),
}
