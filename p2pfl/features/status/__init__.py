"""The display of a node: rows that members send each other, the page, `watch`, and checks that need the whole node.

For eyes only: a failure here costs a node nothing but the sight. Under `[privacy]` it costs the node its rounds, for
then the rows of vitals carry what neighbors remember of its spending (`witness`).
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console.groups import Command

FEATURE = "p2pfl.features.status.feature:StatusFeature"
COMMANDS: Mapping[str, Command] = {
    "status": Command(
        "Show what running nodes are doing.", "p2pfl.features.status.status_command:status", after="launch"
    ),
    "watch": Command(
        "Watch a whole federation in the terminal; the page in a browser shows the same.",
        "p2pfl.features.status.watch_command:watch",
        after="status",
    ),
}
