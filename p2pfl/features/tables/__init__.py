"""Support for tables: nodes agree on a schema before there is a model; later the model scores other rows.

The task itself is `p2pfl.learn.table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console import Command, Group, NewOptions, NewPlan
from p2pfl.errors import UserError

if TYPE_CHECKING:
    from p2pfl.features.tables.new_tables import LookedAt

CHECKS = "p2pfl.features.tables.feature:TableCheck"
NEW = "p2pfl.features.tables:TablesOptions"
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


class TablesOptions(NewOptions):
    parameters = (
        click.Argument(["tables"], metavar="[TABLE]...", nargs=-1, type=click.Path(path_type=Path)),
        click.Option(["--target"], metavar="COLUMN", help="With --task csv: the column to predict."),
        click.Option(
            ["--positive"],
            metavar="VALUES",
            help="With --task csv: the target's values that count as positive: 1,2.",
        ),
    )
    after = "task"

    def __init__(self) -> None:
        self._looked: LookedAt | None = None

    def plan(self, plan: NewPlan, said: Mapping[str, Any]) -> None:
        """Plan the nodes from the tables; for other tasks, refuse table options."""
        from p2pfl.features.tables.new_tables import look_at_tables  # noqa: PLC0415 - `--help` stays instant

        tables, target, positive = (said[option.name or ""] for option in self.parameters)
        if plan.task == "csv":
            looked = look_at_tables(tables, target, positive, plan.nodes)
            plan.nodes, plan.data, plan.task_keys = looked.names, looked.data, looked.task_keys
            plan.files["schema.toml"] = looked.schema_text
            self._looked = looked
            return
        given = {"TABLE": tables and str(tables[0]), "--target": target, "--positive": positive}
        for key, value in given.items():
            if value:
                raise UserError("this is only for --task csv", key=key, value=value, allowed="--task csv")

    def tell(self, directory: Path) -> None:
        if self._looked is not None:
            self._looked.show(directory)
