"""The options of `p2pfl new` for `--task csv`. `new_tables` implements them, and is imported for this task only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from p2pfl.console.groups import NewOptions, NewPlan
from p2pfl.errors import UserError

if TYPE_CHECKING:
    from p2pfl.features.tables.new_tables import LookedAt

MOST_DIGITS = 5
"""The most digits that may be asked for: one less than are written without rounding."""


class TablesOptions(NewOptions):
    parameters = (
        click.Argument(["tables"], metavar="[TABLE]...", nargs=-1, type=click.Path(path_type=Path)),
        click.Option(["--target"], metavar="COLUMN", help="With --task csv: the column to predict."),
        click.Option(
            ["--positive"],
            metavar="VALUES",
            help="With --task csv: the target's values that count as positive: 1,2.",
        ),
        click.Option(
            ["--on-bad-row"],
            type=click.Choice(["refuse", "drop"]),
            default="refuse",
            show_default=True,
            help="With --task csv: rows that cannot be read; drop leaves them out, and counts them.",
        ),
        click.Option(
            ["--round", "digits"],
            metavar="DIGITS",
            type=click.IntRange(1, MOST_DIGITS),
            help="With --task csv: round the figures in schema.toml to so many significant digits, which guarantees "
            "no privacy.",
        ),
    )
    after = "task"

    def __init__(self) -> None:
        self._looked: LookedAt | None = None

    def plan(self, plan: NewPlan, said: Mapping[str, Any]) -> None:
        """Plan the nodes from the tables; for other tasks, refuse table options."""
        tables, target, positive, on_bad_row, digits = (said[one.name or ""] for one in self.parameters)
        if plan.task == "csv":
            from p2pfl.features.tables.new_tables import look_at_tables  # noqa: PLC0415 - `--help` stays instant

            found = look_at_tables(tables, target, positive, plan.nodes, on_bad_row=on_bad_row, digits=digits)
            plan.nodes, plan.data, plan.task_keys = found.names, found.data, found.task_keys
            plan.files["schema.toml"] = found.schema_text
            self._looked = found
            return
        given = {"TABLE": tables and str(tables[0]), "--target": target, "--positive": positive}
        given |= {"--on-bad-row": on_bad_row if on_bad_row != "refuse" else None, "--round": digits}
        for key, value in given.items():
            if value:
                raise UserError("this is only for --task csv", key=key, value=value, allowed="--task csv")

    def tell(self, directory: Path) -> None:
        if self._looked is not None:
            self._looked.show(directory)
