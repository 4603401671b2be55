"""The privacy budget of a node: its permission, the cost of a round, and the record of the spending.

It also says which figures of a private node are withheld (`budget.withheld`). Only what a node with `[privacy]` needs
beside its learner belongs here. How rounds are made private is in `p2pfl.learn.privacy`, the table in
`p2pfl.config.privacy`; the ledger, a part of the state, is `p2pfl.engine.ledger`.
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
