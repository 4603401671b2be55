"""Reads the tables of a federation's nodes that are on this machine, for `p2pfl check` and `p2pfl new`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from p2pfl.errors import UserError
from p2pfl.learn.table.layout import Layout
from p2pfl.learn.table.mistakes import mistakes_of
from p2pfl.learn.table.reading import Table, read_table, say_what_is_odd
from p2pfl.learn.table.schema import Schema


@dataclass(slots=True)
class Looked:
    """The tables that could be read, by node, and the mistakes."""

    tables: dict[str, Table] = field(default_factory=dict)
    mistakes: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_tables(schema: Schema, paths: Mapping[str, Path], layouts: Mapping[str, Layout]) -> Looked:
    """Read the tables; `paths` and `layouts` are by node. Every mistake of every table is reported."""
    looked = Looked()
    for node, path in paths.items():
        try:
            table = read_table(path, schema, layouts[node])
        except UserError as error:
            for mistake in mistakes_of(error):
                mistake.message += f" (node {node})"
                looked.mistakes.append(mistake)
            continue
        looked.tables[node] = table
        looked.warnings += say_what_is_odd(table, node)
    return looked
