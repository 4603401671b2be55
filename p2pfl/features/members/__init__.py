"""Members that change: the charter of a running node, how it comes and spreads, and what the commands do about it.

Here belongs what only a federation with `admin` keys needs. The charter as a document is in `p2pfl.config.charter`; how
a node goes by a changed federation is the node's own business (`amend`).
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console.groups import Command

FEATURE = "p2pfl.features.members.feature:MembersFeature"
ARRIVE = "p2pfl.features.members.arriving:arrive"
NEW = "p2pfl.features.members.founding:MembersFounding"
COMMANDS: Mapping[str, Command] = {
    "invite": Command(
        "Print an invite: the line with which a new machine asks to join.",
        "p2pfl.features.members.join_commands:invite",
        after="key",
    ),
    "join": Command(
        "Create a new machine's key and folder from an invite.",
        "p2pfl.features.members.join_commands:join",
        after="invite",
    ),
    "member": Command(
        "Add, remove and replace members, even while nodes run.",
        "p2pfl.features.members.member_command:member",
        after="join",
    ),
}
