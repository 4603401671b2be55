"""`p2pfl new --task csv`: tables become the files of a federation, which has no more of them than the schema says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from p2pfl.config.tables import NAME
from p2pfl.config.writing import toml_value
from p2pfl.errors import UserError
from p2pfl.learn.table.column import TableProfile, look_at
from p2pfl.learn.table.merging import Merged, merge, schema_text
from p2pfl.learn.table.proposal import propose
from p2pfl.learn.table.reading import listed, read_tables, survey
from p2pfl.learn.table.rows import Layout, guess_layout, make_layout, mistakes_of, read_header
from p2pfl.learn.table.schema import usual_metrics

FEWEST = 2
ODD_SIGNS = re.compile(r"[^A-Za-z0-9._-]+")
TASK_KEYS = """\
schema = "schema.toml"  # how the tables are read: correct it where the guess is wrong, then `p2pfl check`
holdout = 0.2  # the share of its rows that each node keeps for its own test; or test_path in [data]
# model = "linear"  # or "mlp"; or "trees", which all nodes grow together by secure sums
# hidden = [32]  # widths of the mlp's layers
# class_weights = "balanced"  # or {{ class = weight }}
# metrics = {metrics}
# metric = {metric}  # the main one, for tables and pictures
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """The results of reading the tables. `data` has the `[data]` table of each node file, by node."""

    names: tuple[str, ...]
    data: Mapping[str, Mapping[str, Any]]
    merged: Merged
    schema_text: str
    task_keys: str
    warnings: list[str]

    def show(self, directory: Path) -> None:
        """Print to stderr what was guessed, and what is unusual."""
        for name, note in self.merged.notes.items():
            click.echo(f"{name}: {note}", err=True)
        for warning in (*self.merged.warnings, *self.warnings):
            click.echo(f"odd: {warning}", err=True)
        keys = listed(self.merged.schema.figures())
        click.echo(f"schema.toml, which every node gets, has exact figures of rows ({keys})", err=True)
        click.echo(f"these are guesses: correct them in {directory / 'schema.toml'}", err=True)


def look_at_tables(
    tables: tuple[Path, ...],
    target: str | None,
    positive: str | None,
    nodes: tuple[str, ...] | None,
) -> LookedAt:
    """Read the tables. Rows that cannot be read count nowhere, and are named in the warnings.

    Raises UserError: the target is missing, or names do not fit the tables; ExceptionGroup: all mistakes in the tables.
    """
    if len(tables) < FEWEST:
        allowed = "two or more TABLEs, one for each node"
        raise UserError("--task csv makes a node of each table", key="TABLE", value=len(tables), allowed=allowed)
    names = _names(tables, nodes)
    paths = {name: path.absolute() for name, path in zip(names, tables, strict=True)}
    layouts = {name: guess_layout(path) for name, path in paths.items()}
    if not target:
        header = read_header(paths[names[0]], layouts[names[0]])
        raise UserError("the column to predict is needed", key="--target", allowed=", ".join(header))
    positives = [value.strip() for value in (positive or "").split(",") if value.strip()]
    declared = {"target": target} | ({"positive": positives} if positive else {})
    profiles = _profiles(paths, layouts, target)
    proposals = [propose(profile, node=name, federation="", least_count=1) for name, profile in profiles.items()]
    merged = merge(proposals, declared)
    if gaps := sum(proposal.columns[target].missing for proposal in proposals):
        merged.contents["missing_target"] = "drop"
        merged.warnings.append(f"{target}: {gaps} rows have none, and are left out")
    by_schema = {name: make_layout({}, _layout_keys(layout), merged.contents) for name, layout in layouts.items()}
    looked = read_tables(merged.schema, paths, by_schema)
    _, odd = survey(looked.tables, merged.schema)
    metrics = usual_metrics(merged.schema)
    return LookedAt(
        names=names,
        data={name: {"path": str(path)} | _layout_keys(layouts[name]) for name, path in paths.items()},
        merged=merged,
        schema_text=schema_text(merged, origin="Guessed by `p2pfl new` from the tables of all nodes."),
        task_keys=TASK_KEYS.format(metrics=toml_value(list(metrics)), metric=toml_value(metrics[0])),
        warnings=[*looked.warnings, *map(str, looked.mistakes), *odd],
    )


def _profiles(paths: Mapping[str, Path], layouts: Mapping[str, Layout], target: str) -> dict[str, TableProfile]:
    """Profile each table. Raises ExceptionGroup: there are mistakes in the tables; it has all of them."""
    profiles, mistakes = dict[str, TableProfile](), list[UserError]()
    for name, path in paths.items():
        try:
            profiles[name] = look_at(path, replace(layouts[name], on_bad_row="drop"), target=target)
        except UserError as error:
            mistakes += mistakes_of(error)
            continue
        if target not in profiles[name].columns:
            text, allowed = "the table lacks this column", listed(list(profiles[name].columns))
            mistakes.append(UserError(text, file=path, key="--target", value=target, allowed=allowed))
    if mistakes:
        raise ExceptionGroup("mistakes in tables", mistakes)
    return profiles


def _layout_keys(layout: Layout) -> dict[str, str]:
    """Return the layout keys that differ from their defaults."""
    usual = Layout()
    keys = ("separator", "decimal", "encoding")
    return {key: getattr(layout, key) for key in keys if getattr(layout, key) != getattr(usual, key)}


def _names(tables: tuple[Path, ...], nodes: tuple[str, ...] | None) -> tuple[str, ...]:
    if nodes is not None:
        if len(nodes) != len(tables):
            allowed = f"{len(tables)} names, one for each table, or nothing"
            raise UserError("not the number of tables", key="--nodes", value=len(nodes), allowed=allowed)
        return nodes
    names = tuple(ODD_SIGNS.sub("-", path.stem).strip("-.")[:64] for path in tables)
    for name, path in zip(names, tables, strict=True):
        if not NAME.fullmatch(name) or names.count(name) > 1:
            text = "this file's name cannot be the name of a node" if names.count(name) == 1 else "named twice"
            raise UserError(text, key="TABLE", value=str(path), allowed="--nodes with a name for each")
    return names
