"""The privacy budget of a node: how a person begins it, what pays for a round, where what was spent is written down,
and which figures of a private node are told to nobody (`budget.withheld`).

Here belongs what only a node with `[privacy]` needs beside its learner. How rounds are made private is in
`p2pfl.learn.privacy`, the table in `p2pfl.config.privacy`; the ledger, a part of the state, is `p2pfl.engine.ledger`.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console.groups import Command

FEATURE = "p2pfl.features.privacy.feature:PrivacyFeature"
FINDINGS = "p2pfl.features.privacy.findings:PrivacyFindings"
COMMANDS: Mapping[str, Command] = {
    "privacy": Command(
        "Start the privacy budgets of nodes, and show how much of each is spent.",
        "p2pfl.features.privacy.privacy_command:privacy",
        after="score",
    ),
}
