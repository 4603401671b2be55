"""The privacy budget of a node: its permission, the cost of a round, and the record of its spending.

The package also defines which figures of a private node are withheld (`budget.withheld`). Only what a node with
`[privacy]` needs besides its learner belongs here. `p2pfl.learn.privacy` makes rounds private, `p2pfl.config.sections`
has the settings, and `p2pfl.learn.privacy.accounting` the ledger, which is part of the state.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console import Command, Group

FEATURE = "p2pfl.features.privacy.budget:PrivacyFeature"
CHECKS = "p2pfl.features.privacy.checks:PrivacyCheck"
COMMANDS: Mapping[str, Command] = {
    "privacy": Command(
        "Permit privacy budgets to start, and show what is spent.",
        "p2pfl.features.privacy.checks:privacy",
        Group.RUN,
        of_nodes=True,
    ),
}
