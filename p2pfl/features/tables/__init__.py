"""Own tables: nodes agree on a schema before there is a model, which then scores other rows. The task itself is
`p2pfl.learn.table`.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console.groups import Command

FEATURE = "p2pfl.features.tables.feature:TablesFeature"
FINDINGS = "p2pfl.features.tables.findings:TableFindings"
NEW = "p2pfl.features.tables.founding:TablesFounding"
PREPARE = "p2pfl.features.tables.feature:prepare"
COMMANDS: Mapping[str, Command] = {
    "schema": Command(
        "Agree on one schema for tables that nobody may see together.",
        "p2pfl.features.tables.schema_command:schema",
        after="check",
    ),
    "predict": Command(
        "Score the rows of a table with the model that was learned.",
        "p2pfl.features.tables.predict_command:predict",
        after="export",
    ),
    "score": Command(
        "Measure how good the model is, on a labelled table kept for testing.",
        "p2pfl.features.tables.score_command:score",
        after="predict",
    ),
}
