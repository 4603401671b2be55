"""Nodes on one LAN: they announce themselves and find each other, and `p2pfl doctor` says what prevents this."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console import Command, Group

FEATURE = "p2pfl.features.lan.discovery:LanFeature"
NEW = "p2pfl.features.lan.command:LanOptions"
CHECKS = "p2pfl.features.lan.discovery:LanCheck"
COMMANDS: Mapping[str, Command] = {
    "doctor": Command(
        "Find out why nodes do not reach each other, and what to do.",
        "p2pfl.features.lan.command:doctor",
        Group.LOOK,
        of_nodes=True,
    ),
}
