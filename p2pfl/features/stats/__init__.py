"""Statistics over all sites' tables: a member asks, each site answers what its `[stats]` allows, and sums do the rest.

`desk` decides at one site, and keeps the log; `question` is what members sign, `statements` spreads it, and
`stats_node` takes part. The figures are made in `p2pfl.learn.statistics`. What each learns: docs/how-to/statistics.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console.groups import Command, Group

FINDINGS = "p2pfl.features.stats.findings:StatsFindings"
COMMANDS: Mapping[str, Command] = {
    "stats": Command(
        "Show counts, means and quantiles of all sites' tables.",
        "p2pfl.features.stats.stats_command:stats",
        Group.USE,
        after="score",
    ),
}
