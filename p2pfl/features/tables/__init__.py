"""Own tables: nodes agree on a schema before there is a model. The task itself is `p2pfl.learn.table`."""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console.groups import Command

FEATURE = "p2pfl.features.tables.feature:TablesFeature"
FINDINGS = "p2pfl.features.tables.findings:TableFindings"
PREPARE = "p2pfl.features.tables.feature:prepare"
COMMANDS: Mapping[str, Command] = {
    "schema": Command(
        "Find one schema for tables that nobody may see together.",
        "p2pfl.features.tables.schema_command:schema",
        after="check",
    ),
}
