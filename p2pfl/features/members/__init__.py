"""Membership changes: the charter of a running node, how it arrives and spreads, and the commands for it.

Only what federations with `admin` keys need belongs here. The charter as a document is in `p2pfl.config.charter`; how a
node follows a changed federation is the node's own task (`amend`).
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console import Command, Group

FEATURE = "p2pfl.features.members.charters:MembersFeature"
ARRIVE = "p2pfl.features.members.arriving:arrive"
NEW = "p2pfl.features.members.command:MembersOptions"
COMMANDS: Mapping[str, Command] = {
    "invite": Command(
        "Print the line with which a new machine asks to join.",
        "p2pfl.features.members.command:invite",
        Group.MEMBERS,
        of_nodes=True,
    ),
    "join": Command(
        "Set up a new machine from that line.",
        "p2pfl.features.members.command:join",
        Group.MEMBERS,
        of_nodes=True,
    ),
    "member": Command(
        "Add, remove or replace members while nodes run.",
        "p2pfl.features.members.command:member",
        Group.MEMBERS,
        of_nodes=True,
    ),
}
