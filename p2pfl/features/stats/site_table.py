"""A site's table for statistics: the columns of the schema, read anew for each question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import FederationConfig, NodeConfig
from p2pfl.errors import UserError
from p2pfl.learn.statistics.site import MOST_SIZE
from p2pfl.learn.statistics.survey_figures import categories_of
from p2pfl.learn.table.agreed import with_agreed
from p2pfl.learn.table.files import schema_of
from p2pfl.learn.table.layout import make_layout
from p2pfl.learn.table.reading import read_table
from p2pfl.learn.table.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteTable:
    """The columns (n,) of one site, NaN where missing; categories are indices of the schema's values."""

    schema: Schema
    columns: Mapping[str, NDArray[np.float64]]

    def too_large(self, names: tuple[str, ...]) -> str | None:
        """Return the first of these columns with a number that cannot be summed."""
        return next((name for name in names if bool((np.abs(self.columns[name]) > MOST_SIZE).any())), None)


def schema_at(federation: FederationConfig, node: NodeConfig | None = None) -> Schema:
    """Return the schema of all tables. Raises UserError: there is none, or the task has no tables of its sites."""
    task = federation.task
    if task.name != "csv" or task.given is not None:
        raise UserError("only for the task csv", file=federation.path, key="task.name", value=task.name, allowed="csv")
    if task.options.get("partition") is not None:
        text = "the sites divide one table among them, for a demo: there is nothing that one would not know of another"
        raise UserError(text, file=federation.path, key="task.partition", allowed="a table of each site")
    known = task if node is None else with_agreed(task, node.state_dir)
    return schema_of(known.options, federation.path.parent)[0]


def read_site(federation: FederationConfig, node: NodeConfig) -> SiteTable:
    """Read a node's table. Raises UserError: there is a mistake in it, or it has none."""
    schema = schema_at(federation, node)
    known = with_agreed(federation.task, node.state_dir)
    codes = schema_of(known.options, federation.path.parent)[1]
    table = read_table(_path(node), schema, make_layout(known.options, node.data, codes))
    return SiteTable(schema=schema, columns=table.columns)


def check_question(schema: Schema, columns: tuple[str, ...], by: str | None, file: object) -> None:
    """Raises UserError: the schema has no such columns, or the groups are of no categorical column."""
    names = schema.columns
    for name in columns:
        if name not in names:
            text = "the schema has no such column"
            raise UserError(text, file=file, key="--columns", value=name, allowed=", ".join(names))
        if columns.count(name) > 1:
            raise UserError("this column appears twice", file=file, key="--columns", value=name)
    if by is None:
        return
    allowed = ", ".join(name for name in names if categories_of(schema, name) is not None) or "none here"
    if by not in names or categories_of(schema, by) is None:
        raise UserError("not a categorical column of the schema", file=file, key="--by", value=by, allowed=allowed)
    if by in columns:
        raise UserError("is in --columns too", file=file, key="--by", value=by, allowed="one of the two")


def _path(node: NodeConfig) -> Path:
    given = node.data.get("path")
    if not isinstance(given, str):
        raise UserError("this node has no table of its own", file=node.path, key="data.path", allowed='path = "..."')
    return (node.path.parent / Path(given).expanduser()).absolute()
