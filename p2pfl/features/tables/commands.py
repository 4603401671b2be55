"""`p2pfl predict` and `p2pfl score`: a federation's model on the rows of a table, without or with the target."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from p2pfl.console.output import Form, cell, format_option, write_facts, write_json, write_rows
from p2pfl.errors import UserError
from p2pfl.learn.load import read_exported
from p2pfl.learn.table.csv_task import table_model
from p2pfl.learn.table.reading import read_table, say_what_is_odd
from p2pfl.learn.table.rows import KEYS, Layout, guess_layout, make_layout
from p2pfl.learn.table.scoring import ScoresTables, read_preprocessing, tested

ALLOWED = "a node whose task is csv, or a safetensors file that `p2pfl export` made of one"


class Read(NamedTuple):
    """A model and the table's layout; `learned_from` is the node's own table, None if unknown."""

    model: ScoresTables
    layout: Layout
    learned_from: Path | None


@click.command(epilog="\b\nExample:\n  p2pfl predict hospitals/site1 new.csv > scores.csv")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("table", metavar="TABLE", type=click.Path(path_type=Path))
@format_option("csv", "json", "table")
def predict(*, model: Path, table: Path, form: Form) -> int:
    """Predict the target of each row of TABLE.

    MODEL is the folder of a node whose task is csv, its state folder, or a file from `p2pfl export`, which needs
    neither a federation nor torch. TABLE needs no target. The result has one row for each of its rows, in the same
    order, with the prediction and the probability of each class. Columns that TABLE lacks, and values that the model
    does not know, count as missing.
    """
    learned, layout, _ = read_model(model, table)
    rows = read_table(table, learned.schema, layout, scoring=True)
    for text in say_what_is_odd(rows, "TABLE"):
        click.echo(f"warning: {text.replace(' of node TABLE', '')}", err=True)
    scores = learned.scores(rows)
    write_rows([dict(zip(scores, values, strict=True)) for values in zip(*scores.values(), strict=True)], form)
    sys.stdout.flush()
    return 0


def read_model(path: Path, table: Path) -> Read:
    """Return the model and the table's layout, which is guessed from its content, with the names and codes from the
    node's own table.
    """
    if reader := {".onnx": "onnxruntime", ".json": "XGBoost"}.get(path.suffix):
        text = f"this file is for other programs, such as {reader}, and is not read here"
        raise UserError(text, key="MODEL", value=str(path), allowed=ALLOWED)
    exported = read_exported(path) if path.is_file() else None
    if exported is not None:
        preprocessing: Mapping[str, Any] = read_preprocessing(exported.preprocessing) or {}
        state, local = exported.state, dict[str, Any]()
    else:
        from p2pfl.node.outcomes import read_learned  # noqa: PLC0415 - as above, and it imports torch

        learned = read_learned(path)
        for warning in learned.warnings:
            click.echo(f"warning: {warning}", err=True)
        preprocessing, state = learned.preprocessing, learned.learner.state_dict(learned.vector)
        local = dict(getattr(getattr(learned.learner, "context", None), "local", {}))
    if not preprocessing:
        raise UserError("this model is not of a csv task", key="MODEL", value=str(path), allowed=ALLOWED)
    try:
        model = table_model(preprocessing, state)
    except UserError as error:
        error.file = error.file or str(path)
        raise
    guessed = guess_layout(table)
    looks = {key: getattr(guessed, key) for key in ("separator", "decimal", "encoding")}
    kept = {key: value for key, value in local.items() if key in KEYS}
    layout = make_layout({"missing": preprocessing["missing"]}, kept | looks)
    return Read(model, layout, Path(local["path"]) if "path" in local else None)


OWN = "the node has learned from rows of this very table: it will do worse on others"


@click.command(epilog="\b\nExamples:\n  p2pfl score hospitals/site1 test.csv\n  p2pfl score model.safetensors test.csv")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("table", metavar="TABLE", type=click.Path(path_type=Path))
@format_option("table", "json", "csv")
def score(*, model: Path, table: Path, form: Form) -> int:
    """Measure how good a model is on TABLE.

    MODEL is the folder of a node whose task is csv, its state folder, or a file from `p2pfl export`. TABLE has the
    target, and rows that no node has trained on; rows without a target are left out. Each metric has a 95% interval,
    which covers the chance in the choice of rows. Nothing is sent to anybody, so this also works for a federation with
    [privacy], whose nodes report no scores; but the figures reveal something about TABLE's rows.
    """
    learned, layout, learned_from = read_model(model, table)
    rows = read_table(table, learned.schema, layout, testing=True)
    for text in say_what_is_odd(rows, "TABLE"):
        click.echo(f"warning: {text.replace(' of node TABLE', '')}", err=True)
    if learned_from is not None and learned_from.resolve() == table.resolve():
        click.echo(f"warning: {OWN}", err=True)
    result = tested(learned, rows)
    figures = list(result.figures())
    if undefined := [metric.label for metric, row in figures if row["value"] is None]:
        click.echo(f"warning: not defined here: {', '.join(undefined)}: {result.why_undefined()}", err=True)
    counts = result.class_counts
    if form == "json":
        metrics = [row for _, row in figures]
        write_json({"rows": len(result), "rows_left_out": rows.without_target, "classes": counts, "metrics": metrics})
    elif form == "csv":
        write_rows([row | {"rows": len(result)} for _, row in figures], "csv")
    else:
        classes = counts and ", ".join(f"{name} {count}" for name, count in counts.items())
        write_facts({"rows": len(result), "classes": classes})
        write_rows([_line(metric.label, row) for metric, row in figures], "table")
    return 0


def _line(label: str, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "metric": label,
        "value": row["value"],
        "95% interval": None if row["low"] is None else cell([row["low"], row["high"]]),
        "better": "higher" if row["higher_is_better"] else "lower",
    }
