"""The display of a node: the rows that members send each other, the page, `watch`, and checks that need the whole node.

It is only for people, so a failure here affects nothing but the display. The exception is `[privacy]`: then a failure
stops the node's training, because the rows also contain what neighbors remember of its spending.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console import Command, Group

FEATURE = "p2pfl.features.status.feature:StatusFeature"
COMMANDS: Mapping[str, Command] = {
    "status": Command("Show what running nodes are doing now.", "p2pfl.features.status.commands:status", Group.LOOK),
    "watch": Command(
        "Watch a whole federation in the terminal.",
        "p2pfl.features.status.commands:watch",
        Group.LOOK,
    ),
}
