"""Support for tables: nodes agree on a schema before there is a model; later the model scores other rows.

The task itself is `p2pfl.learn.table`.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2pfl.console import Command, Group

FEATURE = "p2pfl.features.tables.feature:TablesFeature"
CHECKS = "p2pfl.features.tables.feature:TableCheck"
NEW = "p2pfl.features.tables.new_tables:TablesOptions"
PREPARE = "p2pfl.features.tables.feature:prepare"
COMMANDS: Mapping[str, Command] = {
    "predict": Command(
        "Predict the target of each row of a table.",
        "p2pfl.features.tables.commands:predict",
        Group.USE,
    ),
    "score": Command(
        "Measure how good the model is on a labelled table.",
        "p2pfl.features.tables.commands:score",
        Group.USE,
    ),
}
