"""The privacy budget of a node: how a person permits it, what a round costs, where the spending is written down,
and which figures of a private node are withheld (`budget.withheld`).

Here belongs what only a node with `[privacy]` needs beside its learner. How rounds are made private is in
`p2pfl.learn.privacy`, the table in `p2pfl.config.privacy`; the ledger, a part of the state, is `p2pfl.engine.ledger`.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console.groups import Command, Group

FEATURE = "p2pfl.features.privacy.feature:PrivacyFeature"
FINDINGS = "p2pfl.features.privacy.findings:PrivacyFindings"
COMMANDS: Mapping[str, Command] = {
    "privacy": Command(
        "Permit privacy budgets to start, and show what is spent.",
        "p2pfl.features.privacy.privacy_command:privacy",
        Group.RUN,
        after="key",
    ),
}
