"""Support for tables: nodes agree on a schema before they start (`agreeing`); a running node needs nothing from here.
The check reports rows, gaps, classes, differences between sites, and all mistakes in all tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.console.output import write_rows
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.learn.table.proposal import own_proposal, rows_of
from p2pfl.learn.table.reading import Looked, read_tables, survey
from p2pfl.learn.table.rows import Layout, make_layout, mistakes_of
from p2pfl.learn.table.schema import Schema, agreed_file, is_to_agree, with_agreed
from p2pfl.learn.table.task import TableTask, table_task, untested
from p2pfl.node.feature import Check, Inspected
from p2pfl.node.service import watched


def prepare(federation: FederationConfig, node: NodeConfig, *, launched: bool) -> bool:
    """Agree on a schema with the other nodes, once and before anything else, if the task asks for it."""
    if not is_to_agree(federation.task) or agreed_file(node.state_dir).is_file():
        return True
    from p2pfl.features.tables.agreeing import agree  # noqa: PLC0415 - of use to such nodes alone

    agreeing = agree(federation, node, Identity.load(node.key_file), launched=launched)
    return asyncio.run(watched(agreeing, lambda: "agreeing on a schema"))


class TableCheck(Check):
    part = "tables"

    def __init__(self) -> None:
        self.tables: TableReport | None = None

    def of_files(self, inspected: Inspected) -> None:
        with suppress(UserError):  # loading the learners reports why
            self.tables = look_at_tables(inspected.federation, inspected.here)
        if self.tables is not None:
            inspected.mistakes.extend(self.tables.mistakes)
            inspected.warnings.extend(self.tables.warnings)
            inspected.unusable |= self.tables.wrong
            logging.getLogger("p2pfl").addHandler(logging.NullHandler())  # the learners would report the same again

    def before_launch(self, inspected: Inspected) -> None:
        try:
            tables = look_at_tables(inspected.federation, inspected.here) if inspected.here else None
        except UserError as error:
            error.file = error.file or str(inspected.federation.path)
            inspected.mistakes.append(error)
        else:
            inspected.mistakes += tables.mistakes if tables else []

    def of_learners(self, inspected: Inspected) -> None:
        if self.tables is not None and self.tables.task is not None:
            inspected.warnings += warn_of_tests(self.tables.task, inspected)
            inspected.warnings += warn_of_figures(self.tables.task, inspected.federation)

    def told(self) -> list[dict[str, Any]] | None:
        return self.tables.rows if self.tables else None

    def show(self, rows: Any) -> None:
        print_tables(rows)


@dataclass(slots=True)
class TableReport:
    """The result of reading the tables here.

    `rows` has the facts about each node; `wrong` has the indices of members whose tables cannot be used.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    mistakes: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    wrong: set[int] = field(default_factory=set)
    task: TableTask | None = None


def warn_of_tests(task: TableTask, inspected: Inspected) -> list[str]:
    """Return a sentence for each node here that holds out no row of some class for its test."""
    said = []
    for index in inspected.here.keys() & inspected.learners.keys():
        trained, tested = (getattr(inspected.learners[index], name, None) for name in ("train_set", "test_set"))
        if trained is not None:  # trees have no such set
            kept = [] if tested is None else tested.targets
            said += [f"{inspected.here[index].name}: {text}" for text in untested(task, trained.targets, kept)]
    return said


def warn_of_figures(task: TableTask, federation: FederationConfig) -> list[str]:
    """Return a sentence about what the schema reveals about rows, if nodes promise privacy."""
    keys, name = task.schema.figures(), task.options.get("schema")
    if federation.privacy is None or not keys:
        return []
    named = ", ".join(keys) if name else ", ".join(f"task.{key}" for key in keys)
    text = f"privacy: {name or federation.path.name} goes to every node without noise; epsilon does not cover it"
    return [f"{text}: {named} reveal something about the rows from which they were computed"]


def look_at_tables(federation: FederationConfig, here: Mapping[int, NodeConfig]) -> TableReport | None:
    """Read the tables of the nodes on this machine. Return None if the task is a different one.

    Raises UserError: the task, or its schema, makes no sense.
    """
    if federation.task.name != "csv" or federation.task.given is not None:
        return None
    if is_to_agree(federation.task) and not all(agreed_file(node.state_dir).is_file() for node in here.values()):
        return _before_agreement(federation, here)
    node = next(iter(here.values()), None)
    agreed = federation.task if node is None else with_agreed(federation.task, node.state_dir)
    task = table_task(agreed.options, federation.path.parent)
    read, wrong = _read(here, task.schema, task.layout)
    rows, odd = survey(read.tables, task.schema)
    return TableReport(rows=rows, mistakes=read.mistakes, warnings=[*read.warnings, *odd], wrong=wrong, task=task)


def _before_agreement(federation: FederationConfig, here: Mapping[int, NodeConfig]) -> TableReport:
    """Check the proposals of the nodes on this machine, and the schema that they would agree on without others."""
    from p2pfl.features.tables.agreeing import preview, refuse_to_agree  # noqa: PLC0415 - as above

    tables, proposals = TableReport(wrong=set(here)), []
    try:
        refuse_to_agree(federation, here.values())
    except UserError as error:
        tables.mistakes.append(error)
    for node in here.values():
        try:
            proposals.append(own_proposal(federation, node))
        except UserError as error:
            tables.mistakes += mistakes_of(error)
    tables.rows = [row for proposal in proposals for row in rows_of(proposal)]
    try:
        merged = preview(federation, proposals) if proposals else None
    except UserError as error:
        tables.mistakes.append(error)
    else:
        if merged is not None:
            tables.warnings += merged.warnings
            options = federation.task.options
            read, _ = _read(here, merged.schema, lambda local: make_layout(options, local, merged.contents))
            if len(proposals) == len(federation.present):
                tables.mistakes += read.mistakes
            else:  # with the others' tables the schema may be another one
                tables.warnings += map(str, read.mistakes)
        text = "the nodes have not agreed on a schema yet: they do so when they run; until then the model is unknown"
        tables.warnings.append(text)
    return tables


def _read(
    here: Mapping[int, NodeConfig], schema: Schema, layout_of: Callable[[Mapping[str, Any]], Layout]
) -> tuple[Looked, set[int]]:
    """Read the nodes' tables, and the mistakes in these and in separate tables to test on; return also the indices of
    members whose tables cannot be used.
    """
    looked, wrong = Looked(), set[int]()
    for index, node in here.items():
        try:
            layout = layout_of(node.data)
        except UserError:
            continue  # loading the learners reports why
        for key in ("path", "test_path"):
            if isinstance(node.data.get(key), str):
                path = (node.path.parent / Path(node.data[key]).expanduser()).absolute()
                read = read_tables(schema, {node.name: path}, {node.name: layout})
                looked.mistakes += read.mistakes
                wrong |= {index} if read.mistakes else set()
                looked.tables |= read.tables if key == "path" else {}
                looked.warnings += read.warnings if key == "path" else ()
    return looked, wrong


def print_tables(rows: list[dict[str, Any]]) -> None:
    """Print one line per node; before there is a schema, what each node would give to agree on one."""
    if "column" in rows[0]:
        click.echo("\nto agree on a schema, of these nodes' tables nothing is used but this:")
        write_rows(rows, "table")
        return
    any_dropped = any(row["rows_dropped"] for row in rows)
    shown = [
        {
            "node": row["node"],
            "rows": row["rows"],
            **({"left out": row["rows_dropped"]} if any_dropped else {}),
            "cells missing": f"{row['cells_missing']:.1%}",
            "columns absent": ", ".join(row["columns_absent"]) or None,
            "classes": row["classes"] and ", ".join(f"{name}: {count}" for name, count in row["classes"].items()),
            "columns differ": ", ".join(f"{name} {value:.2f}" for name, value in row["column_distance"].items())
            or None,
        }
        for row in rows
    ]
    click.echo()
    write_rows(shown, "table")
    click.echo("columns differ: the most different ones, by Wasserstein-1 distance in standard deviations")
