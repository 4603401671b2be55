"""The display of a node: rows that members send each other, the page, `watch`, and checks that need the whole node.

It is only for people: a failure here costs a node nothing but the display. With `[privacy]` it costs the node its
rounds, because the rows of vitals then carry what neighbors remember of its spending (`witness`).
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console.groups import Command, Group

FEATURE = "p2pfl.features.status.feature:StatusFeature"
COMMANDS: Mapping[str, Command] = {
    "status": Command(
        "Show what running nodes are doing now.", "p2pfl.features.status.status_command:status", Group.LOOK
    ),
    "watch": Command(
        "Watch a whole federation in the terminal.",
        "p2pfl.features.status.watch_command:watch",
        Group.LOOK,
        after="status",
    ),
}
