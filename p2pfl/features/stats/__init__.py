"""Statistics over all sites' tables: a member asks, each site answers what its `[stats]` allows, and sums do the rest.

`query_policy` decides at one site, and keeps the log; `statements` are what members sign, and `node` takes part.
`survey` makes the figures, and decides what may be shown. What each learns: docs/how-to/statistics.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console import Command, Group

CHECKS = "p2pfl.features.stats.query_policy:StatsCheck"
COMMANDS: Mapping[str, Command] = {
    "stats": Command(
        "Show counts, means and quantiles of all sites' tables.",
        "p2pfl.features.stats.command:stats",
        Group.USE,
        of_nodes=True,
    ),
}
